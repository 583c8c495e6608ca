//! A disk that takes its time: what the kernel still fills when every future is gone.
//!
//! The disk under the test directory is slowed down by a control group of version 1, which this
//! process enters for a moment; where that cannot be done, the reason is said and nothing proved.

use std::fs;
use std::future::{Future, IntoFuture};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{Direct, File};
use inflight::{BackendKind, Engine, Pending};
use tempfile::NamedTempFile;

use crate::files::open;
use crate::round::{HUNG_AFTER, alone, directory, say};
use crate::yard::{Ghost, PAGE, Yard};

/// Reads in flight when the futures are dropped.
const READS: usize = 64;

/// Reads that the disk answers in a second.
const PER_SECOND: u64 = 48;

/// How often it is tried: where the machine stands still, the disk is done before it is looked at.
const TRIES_MAX: usize = 10;

const GROUPS: &str = "/sys/fs/cgroup/blkio";

/// This process, in a control group for which one disk is slow.
struct Slow {
    group: PathBuf,
    home: PathBuf,
}

impl Slow {
    /// # Errors
    ///
    /// Why it cannot be had, in words.
    fn new(folder: &Path) -> Result<Self, String> {
        let disk = disk_of(folder)?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = own.lines().find_map(|line| line.split_once(":blkio:"));
        let (_, own) = own.ok_or("no control group of version 1 for blkio")?;
        let home = Path::new(GROUPS).join(own.trim_start_matches('/'));
        let group = Path::new(GROUPS).join(format!("inflight-torture-{}", process::id()));
        let refused = |error: std::io::Error| format!("{GROUPS} cannot be written: {error}");
        fs::create_dir(&group).map_err(refused)?;
        let slow = Self { group, home };
        let rule = format!("{disk} {PER_SECOND}");
        fs::write(slow.group.join("blkio.throttle.read_iops_device"), rule).map_err(refused)?;
        let this = process::id().to_string();
        fs::write(slow.group.join("cgroup.procs"), this).map_err(refused)?;
        Ok(slow)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // The reads that are queued for this group keep their pace; a group without a process
        // can be removed.
        let this = process::id().to_string();
        if fs::write(self.home.join("cgroup.procs"), this).is_ok() {
            let _ = fs::remove_dir(&self.group);
        }
    }
}

/// The number of the whole disk under a folder, as `major:minor`.
fn disk_of(folder: &Path) -> Result<String, String> {
    let dev = fs::metadata(folder)
        .map_err(|error| error.to_string())?
        .dev();
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let known = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !known.exists() {
        return Err(format!("{} is not on a block device", folder.display()));
    }
    if !known.join("partition").exists() {
        return Ok(format!("{major}:{minor}"));
    }
    let number = fs::read_to_string(known.join("../dev")).map_err(|error| error.to_string())?;
    Ok(number.trim().to_owned())
}

/// A file with blocks on the disk, past the page cache.
fn cold_file(engine: &Engine) -> (NamedTempFile, File) {
    let path = NamedTempFile::new_in(directory()).expect("the test directory can be written");
    // Every other page is read, so that the kernel does not make one request of several.
    fs::write(&path, vec![0x5c; 2 * READS * PAGE]).expect("there is room");
    path.as_file().sync_all().expect("the disk is sound");
    let file = open(engine, path.path(), Direct::Auto);
    (path, file)
}

/// Starts the reads, drops their futures, and says what their memory is.
fn start_and_drop(file: &File, yard: &Arc<Yard>) -> Vec<Ghost> {
    let mut ghosts = Vec::new();
    let mut reads = Vec::new();
    let engine = file.engine();
    let over_before = engine.stats().operations;
    for number in 0..READS {
        let buf = yard.take(PAGE);
        ghosts.push(buf.ghost());
        let offset = (2 * number * PAGE) as u64;
        reads.push(file.read_at(buf, offset).into_future());
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut is_pending = |read: &mut Pending<_>| Pin::new(read).poll(&mut cx).is_pending();
    // The first few may be here at once.
    reads.retain_mut(&mut is_pending);
    // A driver hands over what it is told of; what it has not taken would only be taken back.
    let handed_over = || {
        let stats = engine.stats();
        stats.in_flight + stats.operations - over_before
    };
    let until = Instant::now() + HUNG_AFTER;
    while handed_over() < READS as u64 * 3 / 4 {
        assert!(Instant::now() < until, "{:?}", engine.stats());
        thread::sleep(Duration::from_millis(1));
    }
    reads.retain_mut(is_pending);
    drop(reads);
    ghosts
}

/// What was seen of one engine.
#[derive(Debug)]
struct Seen {
    /// Buffers that the kernel still had when the futures were gone.
    kept: u64,
    /// Written to after the operations had been reported over.
    late: u64,
    /// From the first read to the last one.
    ms: u128,
}

fn leave_reads(engine: &Engine, planted: bool) -> Seen {
    let (_path, file) = cold_file(engine);
    let yard = Yard::new(PAGE, usize::MAX);
    let begun = Instant::now();
    let ghosts = start_and_drop(&file, &yard);
    let kept = yard.live();
    if planted {
        ghosts.into_iter().for_each(|ghost| yard.plant(ghost));
    }
    assert_eq!(engine.drain(HUNG_AFTER), 0);
    let ms = begun.elapsed().as_millis();
    let until = Instant::now() + HUNG_AFTER;
    while yard.live() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        yard.live(),
        0,
        "buffers are gone when their operations are over"
    );
    // Twice, with a read of the same disk between: what comes late would come before that.
    let first = yard.late_writes_so_far();
    let (result, _buf) = inflight::Operation::wait(file.read_at(yard.take(PAGE), PAGE as u64));
    result.expect("the file can be read");
    let late = yard.late_writes();
    assert_eq!(
        first, late,
        "memory was written to after everything was over"
    );
    Seen { kept, late, ms }
}

#[test]
fn a_slow_disk_keeps_what_it_fills() {
    let name = "a_slow_disk_keeps_what_it_fills";
    let _alone = alone();
    let builder = Engine::builder().queue_depth(128);
    let engine = builder.build().expect("nothing is demanded");
    let (_path, probe) = cold_file(&engine);
    if !probe.is_direct() || engine.backend().kind != BackendKind::Uring {
        let kind = engine.backend().kind;
        return say(&format!(
            "skipped: {name}: direct I/O and a ring are needed, not {kind}"
        ));
    }
    let slow = match Slow::new(&directory()) {
        Ok(slow) => slow,
        Err(reason) => return say(&format!("skipped: {name}: {reason}")),
    };
    let tried = |planted, is_enough: fn(&Seen) -> bool| {
        let mut seen = Vec::new();
        for _ in 0..TRIES_MAX {
            let found = leave_reads(&engine, planted);
            assert!(planted || found.late == 0, "{found:?}");
            if is_enough(&found) {
                return Ok(found);
            }
            seen.push(found);
        }
        Err(seen)
    };
    let sound = tried(false, |found| found.kept >= READS as u64 / 2);
    let sound = sound.unwrap_or_else(|seen| panic!("it proved nothing: {seen:?}"));
    let planted = tried(true, |found| found.late > 0);
    let planted = planted.unwrap_or_else(|seen| panic!("the defect was not found: {seen:?}"));
    drop(slow);
    say(&format!(
        "torture: a slow disk: {} buffers kept, {} late writes in {} ms; \
         with the planted defect: {} late writes in {} ms",
        sound.kept, sound.late, sound.ms, planted.late, planted.ms
    ));
}
