//! File systems and devices of many kinds, mounted where nobody else sees them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use inflight_report::doctor::{Examination, Status};

use super::{after, can, can_mount, doctor, examine, line, names};
use crate::support::{Zram, directory};

#[test]
fn memory_is_a_problem_whatever_its_name() {
    if !can_mount("memory_is_a_problem_whatever_its_name") {
        return;
    }
    let directory = directory();
    let path = directory.path();
    let script = format!("mount -t tmpfs tmpfs '{}'", path.display());
    let (code, examination) = examine(&mut after(&script, path));
    assert_eq!(code, 3);
    assert_eq!(examination.target.fs, "tmpfs");
    let found = line(&examination, "tmpfs-target");
    assert_eq!(found.status, Status::Problem);
    assert!(found.fix.contains("disk"), "{found:?}");
    // Linux 6.18 takes direct I/O there, older kernels refuse it: neither is a disk.
    assert_ne!(line(&examination, "direct-io").status, Status::Ok);
    let (_, same) = examine(&mut doctor(path));
    assert_ne!(same.target.fs, "tmpfs", "the mount was seen by others");
}

#[test]
fn an_overlay_is_followed_to_the_disk_of_its_upper_directory() {
    let test = "an_overlay_is_followed_to_the_disk_of_its_upper_directory";
    if !can_mount(test) {
        return;
    }
    let directory = directory();
    let path = directory.path();
    for part in ["lower", "upper", "work", "merged"] {
        fs::create_dir(path.join(part)).unwrap();
    }
    let root = path.display();
    let options = format!("lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work");
    let script = format!("mount -t overlay overlay -o '{options}' '{root}/merged'");
    let merged = path.join("merged");
    let (_, examination) = examine(&mut after(&script, &merged));
    if examination.target.fs != "overlay" {
        println!("skipped: {test}: no overlay on this file system");
        return;
    }
    assert_eq!(line(&examination, "file-system").status, Status::Warning);
    let (_, below) = examine(&mut doctor(path));
    assert_eq!(names(&examination), names(&below));
}

/// Whether file systems can be mounted on loop devices.
pub(crate) fn can_loop(test: &str) -> bool {
    can_mount(test) && can(test, "losetup", &["--version"])
}

/// A script that makes a file system on loop devices over files here, each named by its variable,
/// mounted at `POINT`, and where that is; it ends with 77 where this cannot be. What is mounted
/// keeps the devices until the process, and with it the mount, is gone.
pub(crate) fn loops(path: &Path, disks: &[&str], make: &str) -> (String, PathBuf) {
    let mut script = String::from("trap 'exit 77' EXIT\n");
    for disk in disks {
        let file = path.join(disk);
        fs::File::create(&file).unwrap().set_len(256 << 20).unwrap();
        script += &format!("{disk}=$(losetup --find --show '{}')\n", file.display());
    }
    let mount_point = path.join("mounted");
    fs::create_dir(&mount_point).unwrap();
    script += &make.replace("POINT", &format!("'{}'", mount_point.display()));
    script += "\ntrap - EXIT\n";
    script += &disks
        .iter()
        .map(|disk| format!("losetup --detach ${disk}\n"))
        .collect::<String>();
    (script, mount_point)
}

/// What is found on such a file system.
fn on_loops(path: &Path, disks: &[&str], make: &str) -> Option<Examination> {
    let (script, mount_point) = loops(path, disks, make);
    let output = after(&script, &mount_point).output().unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(super::read(&output))
}

#[test]
fn a_loop_device_is_no_disk_and_the_disk_below_is_found() {
    let test = "a_loop_device_is_no_disk_and_the_disk_below_is_found";
    if !can_loop(test) {
        return;
    }
    let directory = directory();
    let make = "mkfs.ext4 -q $one >&2\nmount $one POINT";
    let Some(examination) = on_loops(directory.path(), &["one"], make) else {
        return;
    };
    let found = line(&examination, "pseudo-device");
    assert_eq!(found.status, Status::Warning);
    let names = names(&examination);
    assert!(names[0].starts_with("loop"), "{names:?}");
    assert!(found.finding.contains(names[0]), "{found:?}");
    let (_, below) = examine(&mut doctor(directory.path()));
    assert_eq!(names[1..], super::names(&below));
    assert_eq!(line(&examination, "direct-io").status, Status::Ok);
}

#[test]
fn a_btrfs_of_two_devices_has_both() {
    let test = "a_btrfs_of_two_devices_has_both";
    if !can_mount(test) || !can(test, "mkfs.btrfs", &["--version"]) {
        return;
    }
    let directory = directory();
    let make = "mkfs.btrfs -q -f $one $two >&2\nmount -t btrfs $one POINT";
    let Some(examination) = on_loops(directory.path(), &["one", "two"], make) else {
        return;
    };
    assert_eq!(examination.target.fs, "btrfs");
    assert_eq!(line(&examination, "file-system").status, Status::Note);
    let names = names(&examination);
    let loops = names.iter().filter(|name| name.starts_with("loop"));
    assert_eq!(loops.count(), 2, "{names:?}");
}

#[test]
fn data_that_is_journalled_is_told() {
    let test = "data_that_is_journalled_is_told";
    if !can_loop(test) {
        return;
    }
    let directory = directory();
    let make = "mkfs.ext4 -q $one >&2\nmount -o data=journal $one POINT";
    let Some(examination) = on_loops(directory.path(), &["one"], make) else {
        return;
    };
    let found = line(&examination, "file-system");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("data=journal"), "{found:?}");
}

#[test]
fn compressed_memory_is_no_disk() {
    let test = "compressed_memory_is_no_disk";
    if !can_mount(test) {
        return;
    }
    let Some(zram) = Zram::add(test, "256M") else {
        return;
    };
    let directory = directory();
    let name = zram.name();
    let made = Command::new("mkfs.ext4")
        .args(["-q", &format!("/dev/{name}")])
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        println!("skipped: {test}: no file system could be made on /dev/{name}");
        return;
    }
    let script = format!("mount /dev/{name} '{}'", directory.path().display());
    let (_, examination) = examine(&mut after(&script, directory.path()));
    let found = line(&examination, "pseudo-device");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("compressed memory"), "{found:?}");
    assert_eq!(names(&examination), [name]);
}
