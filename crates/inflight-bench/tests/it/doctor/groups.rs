//! Limits of control groups, made for a moment with an examination inside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inflight_report::doctor::{Examination, Status};

use super::{doctor, examine, is_root, line};
use crate::support::directory;

/// A group of its own, removed when this goes.
pub(crate) struct Group(PathBuf);

impl Group {
    /// A group of a controller of version 1; nothing where there is none.
    pub(crate) fn new(test: &str, controller: &str) -> Option<Self> {
        let parent = Path::new("/sys/fs/cgroup").join(controller);
        let path = parent.join(format!("inflight-test-{}-{test}", std::process::id()));
        let made = is_root()
            .then(|| parent.join("cgroup.procs").metadata().ok())
            .flatten()
            .and_then(|_| fs::create_dir(&path).ok());
        if made.is_none() {
            println!("skipped: {test}: no group of {controller} (version 1) can be made");
        }
        made.map(|()| Self(path))
    }

    pub(crate) fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap();
    }

    /// A command inside of it.
    pub(crate) fn enter(&self, inner: &Command) -> Command {
        let mut command = Command::new("sh");
        let procs = self.0.join("cgroup.procs");
        command
            .arg("-ec")
            .arg(format!(
                "echo $$ > '{}'; exec \"$0\" \"$@\"",
                procs.display()
            ))
            .arg(inner.get_program())
            .args(inner.get_args())
            .stdin(Stdio::null());
        command
    }

    fn examine(&self, target: &Path) -> Examination {
        examine(&mut self.enter(&doctor(target))).1
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What was inside has ended; the kernel may take a moment to see that.
        let gone = (0..1000).any(|_| {
            std::thread::yield_now();
            fs::remove_dir(&self.0).is_ok()
        });
        assert!(
            gone || std::thread::panicking(),
            "{} stays",
            self.0.display()
        );
    }
}

#[test]
fn a_quota_of_processor_time_is_told() {
    let Some(group) = Group::new("quota", "cpu") else {
        return;
    };
    let directory = directory();
    let before = group.examine(directory.path());
    assert_eq!(line(&before, "cgroup-cpu").status, Status::Ok);
    group.set("cpu.cfs_period_us", "100000");
    group.set("cpu.cfs_quota_us", "50000");
    let after = group.examine(directory.path());
    let found = line(&after, "cgroup-cpu");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("0.50 of"), "{found:?}");
    assert!(found.fix.ends_with("cpu.cfs_quota_us"), "{found:?}");
}

#[test]
fn the_fix_of_a_quota_is_one() {
    let Some(group) = Group::new("fix", "cpu") else {
        return;
    };
    let directory = directory();
    group.set("cpu.cfs_quota_us", "50000");
    let limited = group.examine(directory.path());
    assert_eq!(line(&limited, "cgroup-cpu").status, Status::Warning);
    let fix = line(&limited, "cgroup-cpu").fix.replace("sudo ", "");
    let fixed = Command::new("sh").args(["-c", &fix]).output().unwrap();
    assert!(fixed.status.success(), "{fix}");
    let after = group.examine(directory.path());
    assert_eq!(line(&after, "cgroup-cpu").status, Status::Ok);
}

#[test]
fn throttled_reads_are_told_and_the_fix_lifts_them() {
    let Some(group) = Group::new("throttle", "blkio") else {
        return;
    };
    let directory = directory();
    let before = group.examine(directory.path());
    let Some(disk) = before.target.stack.first() else {
        println!("skipped: the build directory is on no block device");
        return;
    };
    assert_eq!(line(&before, "cgroup-io").status, Status::Ok);
    let node = fs::read_to_string(format!("/sys/block/{}/dev", disk.name)).unwrap();
    let node = node.trim();
    group.set("blkio.throttle.read_iops_device", &format!("{node} 100000"));
    group.set(
        "blkio.throttle.write_bps_device",
        &format!("{node} 1073741824"),
    );
    let limited = group.examine(directory.path());
    let found = line(&limited, "cgroup-io");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("100000 reads/s"), "{found:?}");
    assert!(found.finding.contains("1 GiB/s of writes"), "{found:?}");
    let fix = found.fix.replace("sudo ", "");
    assert!(
        Command::new("sh")
            .args(["-c", &fix])
            .output()
            .unwrap()
            .status
            .success()
    );
    let after = group.examine(directory.path());
    assert_eq!(line(&after, "cgroup-io").status, Status::Ok);
}

#[test]
fn few_threads_and_little_memory_are_told() {
    let (Some(threads), Some(memory)) =
        (Group::new("pids", "pids"), Group::new("memory", "memory"))
    else {
        return;
    };
    let directory = directory();
    threads.set("pids.max", "40");
    let examined = threads.examine(directory.path());
    let found = line(&examined, "cgroup-pids");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("more threads"), "{found:?}");
    memory.set("memory.limit_in_bytes", "268435456");
    let examined = memory.examine(directory.path());
    let found = line(&examined, "cgroup-memory");
    assert_eq!(found.status, Status::Note);
    assert!(found.finding.contains("256 MiB"), "{found:?}");
}
