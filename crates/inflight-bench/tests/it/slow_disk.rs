//! Disks with bad habits, played by a file system in user space: this one, in a thread of the test.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, Errno, FopenFlags, INodeNo, MountOption};
use inflight_report::histogram;
use inflight_report::record::Record;
use tempfile::TempDir;

use crate::support::fuse::{Served, Server};
use crate::support::{directory, record};

/// What others do on the processor may hide a habit: that it is seen once of so many is enough.
const ATTEMPTS_MAX: usize = 8;

const SIZE_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 4096;

/// What a disk does before it answers.
#[derive(Clone, Copy)]
pub(crate) enum Habit {
    /// It takes as long each time.
    Even,
    /// It keeps what it has read, and takes long for what it has not.
    Keeps,
    /// Every now and then it does nothing at all for a while.
    Stalls,
    /// Each read takes it longer than the one before.
    Tires,
    /// None: it is fast, and has the page cache before it, as disks do.
    None,
}

/// How long the disk takes for what it does not keep.
const SLOW: Duration = Duration::from_micros(500);
const STALL: Duration = Duration::from_millis(60);
const BETWEEN_STALLS: Duration = Duration::from_millis(300);
/// Much longer than a thread waits for its turn on a busy machine, as a rule.
const FRESH: Duration = Duration::from_millis(4);
/// After so many reads a disk that tires takes twice as long, then three times, and so on.
const TIRED_BY: f64 = 12.0;

/// A directory with one file, `data`.
struct Disk {
    habit: Habit,
    kept: Mutex<HashSet<u64>>,
    last_stall: Mutex<Instant>,
    reads: AtomicU32,
    flushes: Arc<AtomicU32>,
}

impl Disk {
    fn take_time(&self, offset: u64, bytes: u64) {
        match self.habit {
            Habit::Even => sleep(SLOW),
            Habit::Keeps => {
                let blocks = offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES);
                let mut kept = self.kept.lock().unwrap();
                if blocks.filter(|block| kept.insert(*block)).count() > 0 {
                    sleep(SLOW);
                }
            }
            Habit::Stalls => {
                let mut last = self.last_stall.lock().unwrap();
                if last.elapsed() > BETWEEN_STALLS {
                    sleep(STALL);
                    *last = Instant::now();
                }
            }
            Habit::Tires => {
                let before = self.reads.fetch_add(1, Ordering::Relaxed);
                sleep(FRESH.mul_f64(1.0 + f64::from(before) / TIRED_BY));
            }
            Habit::None => {}
        }
    }
}

impl Served for Disk {
    fn len(&self) -> u64 {
        SIZE_BYTES
    }

    fn find(&self, name: &OsStr) -> Result<(INodeNo, Duration), Errno> {
        match name == "data" {
            true => Ok((INodeNo(2), Duration::ZERO)),
            false => Err(Errno::ENOENT),
        }
    }

    fn asked_again(&self, _: INodeNo) -> Duration {
        Duration::ZERO
    }

    fn opened(&self) -> FopenFlags {
        match self.habit {
            Habit::None => FopenFlags::empty(),
            // Past the page cache, which is not what is tested.
            _ => FopenFlags::FOPEN_DIRECT_IO,
        }
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
        let (offset, len) = (offset as u64, len as u64);
        let left = SIZE_BYTES.saturating_sub(offset).min(len);
        self.take_time(offset, left);
        Ok(vec![7; usize::try_from(left).unwrap()])
    }

    fn fsync(&self, _: u32, _: bool) -> Result<(), Errno> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A disk, and where it is mounted; the directory goes last.
pub(crate) struct Mounted {
    session: BackgroundSession,
    pub(crate) directory: TempDir,
    flushes: Arc<AtomicU32>,
}

impl Mounted {
    pub(crate) fn new(test: &str, habit: Habit) -> Option<Self> {
        let directory = directory();
        let flushes = Arc::default();
        let disk = Disk {
            flushes: Arc::clone(&flushes),
            habit,
            kept: Mutex::default(),
            last_stall: Mutex::new(Instant::now()),
            reads: AtomicU32::new(0),
        };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("habit".to_owned())];
        match fuser::spawn_mount(Server(disk), directory.path(), &config) {
            Ok(session) => Some(Self {
                session,
                directory,
                flushes,
            }),
            Err(error) => {
                println!("skipped: {test}: FUSE cannot be mounted here: {error}");
                None
            }
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Measures the file with one thread, in two rounds.
    fn measure(&self, args: &[&str]) -> Record {
        self.measure_in(2, args)
    }

    fn measure_in(&self, rounds: u32, args: &[&str]) -> Record {
        let rounds = rounds.to_string();
        let usual = ["--strategy", "pread", "--depth", "1", "--rounds", &rounds];
        record(&self.file(), &[&usual[..], args].concat()).1
    }

    pub(crate) fn end(self) {
        self.session.umount_and_join().unwrap();
    }
}

#[test]
fn a_cache_below_is_told_of_the_rows_it_answered_and_an_even_disk_has_none() {
    let test = "a_cache_below_is_told_of_the_rows_it_answered_and_an_even_disk_has_none";
    let short = [
        "--cell-time",
        "20",
        "--profile",
        "direct-random-read,cached-random-read",
    ];
    let finding = |record: &Record| {
        let mut found = record.findings.iter();
        found.find(|finding| finding.id == "cache-below").cloned()
    };
    let Some(disk) = Mounted::new(test, Habit::Keeps) else {
        return;
    };
    let cached = disk.measure(&short);
    disk.end();
    let found = cached.reread.as_ref().unwrap();
    assert!(
        found.cached && found.ns_second < found.ns_first,
        "{found:?}"
    );
    assert_eq!(found.profile, "direct-random-read");
    let told = finding(&cached).unwrap();
    assert_eq!(told.affects, ["direct-random-read/pread/1"], "{told:?}");

    let Some(disk) = Mounted::new(test, Habit::Even) else {
        return;
    };
    let even = disk.measure(&short);
    disk.end();
    let found = even.reread.as_ref().unwrap();
    assert!(!found.cached, "{found:?}");
    assert!(finding(&even).is_none());
}

#[test]
fn stalls_of_a_disk_are_in_the_tail_of_an_open_loop_and_not_of_a_closed_one() {
    let test = "stalls_of_a_disk_are_in_the_tail_of_an_open_loop_and_not_of_a_closed_one";
    let Some(disk) = Mounted::new(test, Habit::Stalls) else {
        return;
    };
    let time = ["--cell-time", "1200", "--profile", "direct-random-read"];
    let late = |record: &Record| {
        let latency = record.cells[0].latency.as_ref().unwrap();
        let latencies = histogram::decode(&latency.hist_v2_b64).unwrap();
        let half_ns = u64::try_from(STALL.as_nanos()).unwrap() / 2;
        latencies.count_between(half_ns, u64::MAX)
    };
    // A closed loop has one operation in flight that sees a stall, whatever else would have come;
    // of an open one half of what was due meanwhile, 15 here, is later than half of it. Counted and
    // not by percentile: how many there are besides depends on how busy the machine is. If it is
    // busier in the closed loops than in the open ones, they are measured again.
    let mut seen = Vec::new();
    let are_told = (0..ATTEMPTS_MAX).any(|_| {
        let closed = late(&disk.measure(&time));
        let open = late(&disk.measure(&[&time[..], &["--rate", "500"]].concat()));
        seen.push((closed, open));
        open >= 4 * closed.max(1)
    });
    disk.end();
    assert!(are_told, "late in closed loops, and in open ones: {seen:?}");
}

#[test]
fn a_disk_that_gets_slower_and_slower_is_found_to_drift() {
    let test = "a_disk_that_gets_slower_and_slower_is_found_to_drift";
    let args = ["--cell-time", "400", "--profile", "direct-random-read"];
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let Some(disk) = Mounted::new(test, Habit::Tires) else {
            return;
        };
        let record = disk.measure_in(8, &args);
        disk.end();
        let rounds = record.cells[0].rounds.iter();
        seen.push(rounds.map(|round| round.ops).collect::<Vec<_>>());
        let mut findings = record.findings.iter();
        let Some(found) = findings.find(|found| found.id == "drifted") else {
            // The machine may have stood still in one of the first rounds.
            continue;
        };
        assert!(found.what.contains("slower"), "{found:?}, {seen:?}");
        assert_eq!(found.affects, ["direct-random-read/pread/1"]);
        return;
    }
    panic!("it is not found: {seen:?}");
}

#[test]
fn a_file_that_nobody_writes_to_is_not_flushed_before_each_cold_stretch() {
    let test = "a_file_that_nobody_writes_to_is_not_flushed_before_each_cold_stretch";
    let Some(disk) = Mounted::new(test, Habit::None) else {
        return;
    };
    let record = disk.measure(&["--cell-time", "20", "--profile", "cold-random-read"]);
    let flushes = disk.flushes.load(Ordering::Relaxed);
    disk.end();
    // When it is opened and before the first stretch, of three: one finds out how long it takes.
    assert_eq!(record.cells[0].rounds.len(), 2, "{:?}", record.cells[0]);
    assert!((1..=2).contains(&flushes), "{flushes}");
}
