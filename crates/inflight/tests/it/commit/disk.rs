//! A disk that forgets what was not flushed: a file system in memory (FUSE) that keeps what was
//! written apart from what an fsync has made durable, as LazyFS does.
//!
//! All its files are the same few bytes. The kernel holds a file's lock during an fsync of FUSE, so
//! writes that come while a flush runs go by way of another file than the one that is synced.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use fuser::{Errno, INodeNo, OpenFlags};

use crate::support::FuseMount;
use crate::support::fuse::{FOREVER, Served};

/// What a disk writes as a whole.
pub(crate) const SECTOR: usize = 512;

/// Sectors of the disk.
pub(crate) const SECTORS: usize = 256;

/// See the module.
#[derive(Clone)]
pub(crate) struct Disk(Arc<(Mutex<State>, Condvar)>);

struct State {
    /// What a reader would see.
    written: Vec<u8>,
    /// What is there after a power cut.
    durable: Vec<u8>,
    /// Sectors that have been written since they were last durable.
    dirty: Vec<bool>,
    /// Writes and flushes that are over.
    operations: u64,
    /// Flushes that have begun, and that are over.
    begun: u64,
    ended: u64,
    /// The thread that has asked for the last one.
    flusher: u32,
    /// The same of writes.
    writer: u32,
    /// Flushes of data only.
    of_data: u64,
    /// From this one on, flushes do not end.
    held_from: Option<u64>,
    /// From this place on, in bytes, reads do not end.
    reads_held_from: Option<usize>,
    /// The errno of flushes.
    fails: Option<i32>,
    /// The errno of reads.
    fails_reads: Option<i32>,
    /// The errno of writes.
    fails_writes: Option<i32>,
    /// The errno of writes that are to be durable by themselves.
    fails_through: Option<i32>,
    /// How long those take to fail.
    fails_after: Duration,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("the disk does not panic")
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.lock());
        self.0.1.notify_all();
        result
    }

    /// Waits for a state of the disk. `None` if it does not come.
    fn wait_for(&self, mut done: impl FnMut(&State) -> bool) -> Option<MutexGuard<'_, State>> {
        let limit = Duration::from_secs(60);
        let waited = self
            .0
            .1
            .wait_timeout_while(self.lock(), limit, |state| !done(state));
        let (state, timeout) = waited.expect("the disk does not panic");
        (!timeout.timed_out()).then_some(state)
    }

    fn wait_until(&self, done: impl FnMut(&State) -> bool) {
        // The lock is given back first: whoever lets go while this unwinds takes it.
        let has_come = self.wait_for(done).is_some();
        assert!(has_come, "it does not come to pass");
    }

    /// Flushes that are made from now on do not end until they are let go.
    pub(crate) fn hold(&self) {
        self.change(|state| state.held_from = Some(state.begun + 1));
    }

    /// Reads from this sector on do not end until they are let go. More than three at a time would
    /// hold up everything.
    pub(crate) fn hold_reads_from(&self, sector: usize) {
        self.change(|state| state.reads_held_from = Some(sector * SECTOR));
    }

    /// Lets everything end.
    pub(crate) fn let_go(&self) {
        self.change(|state| (state.held_from, state.reads_held_from) = (None, None));
    }

    /// Lets the first one that is held end, and none behind it.
    pub(crate) fn let_one_go(&self) {
        self.change(|state| state.held_from = state.held_from.map(|first| first + 1));
    }

    /// Flushes that end from now on fail.
    pub(crate) fn fail(&self, errno: Option<i32>) {
        self.change(|state| state.fails = errno);
    }

    /// Reads that come from now on fail.
    pub(super) fn fail_reads(&self, errno: Option<i32>) {
        self.change(|state| state.fails_reads = errno);
    }

    /// Writes that come from now on fail.
    pub(crate) fn fail_writes(&self, errno: Option<i32>) {
        self.change(|state| state.fails_writes = errno);
    }

    /// Writes that come from now on fail if they are to be durable by themselves.
    pub(crate) fn fail_through(&self, errno: Option<i32>) {
        self.change(|state| state.fails_through = errno);
    }

    /// The same, and take so long to fail.
    pub(crate) fn fail_through_after(&self, errno: i32, after: Duration) {
        self.change(|state| (state.fails_through, state.fails_after) = (Some(errno), after));
    }

    /// Flushes that have begun.
    pub(crate) fn flushes(&self) -> u64 {
        self.lock().begun
    }

    /// Flushes that are over.
    pub(crate) fn flushes_over(&self) -> u64 {
        self.lock().ended
    }

    /// The thread that has asked for the last one.
    pub(crate) fn flusher(&self) -> u32 {
        self.lock().flusher
    }

    /// The thread that has asked for the last write.
    pub(crate) fn writer(&self) -> u32 {
        self.lock().writer
    }

    /// Flushes of data only that have begun.
    pub(crate) fn flushes_of_data(&self) -> u64 {
        self.lock().of_data
    }

    /// Waits until so many flushes have begun.
    pub(crate) fn wait_for_flushes(&self, count: u64) {
        self.wait_until(|state| state.begun >= count);
    }

    /// Waits until so many more operations are over.
    pub(crate) fn wait_for_operations(&self, count: u64) {
        let until = self.lock().operations + count;
        self.wait_until(|state| state.operations >= until);
    }

    /// What a power cut leaves now: all that is durable, and of the rest whole sectors as chance
    /// will have it.
    pub(crate) fn cut(&self, mut chance: impl FnMut() -> bool) -> Vec<u8> {
        let state = self.lock();
        let mut left = state.durable.clone();
        for (at, _) in (0..SECTORS).zip(&state.dirty).filter(|(_, dirty)| **dirty) {
            let sector = at * SECTOR..(at + 1) * SECTOR;
            if chance() {
                left[sector.clone()].copy_from_slice(&state.written[sector]);
            }
        }
        left
    }

    /// Makes these sectors durable, and no others.
    fn write_through(&self, sectors: Range<usize>) {
        // The device takes its time.
        (0..20).for_each(|_| std::thread::yield_now());
        self.change(|state| {
            let bytes = sectors.start * SECTOR..sectors.end * SECTOR;
            state.durable[bytes.clone()].copy_from_slice(&state.written[bytes]);
            state.dirty[sectors].fill(false);
        });
    }
}

impl Served for Disk {
    fn len(&self) -> u64 {
        (SECTORS * SECTOR) as u64
    }

    /// A file is named by its number.
    fn find(&self, name: &OsStr) -> Result<(INodeNo, Duration), Errno> {
        let number = name.to_str().and_then(|name| name.parse().ok());
        let number = number.ok_or(Errno::ENOENT)?;
        Ok((INodeNo(number), FOREVER))
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
        let is_let_go = |state: &State| state.reads_held_from.is_none_or(|first| offset < first);
        let state = self.wait_for(is_let_go).ok_or(Errno::ETIMEDOUT)?;
        if let Some(errno) = state.fails_reads {
            return Err(Errno::from_i32(errno));
        }
        let bytes = state.written.get(offset..).unwrap_or_default();
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }

    fn write(
        &self,
        thread: u32,
        offset: usize,
        data: &[u8],
        flags: OpenFlags,
    ) -> Result<usize, Errno> {
        // So the kernel passes on `O_DSYNC`, and the flag of a single write.
        let is_through = flags.0 & libc::O_DSYNC != 0;
        let mut state = self.lock();
        state.writer = thread;
        let of_those = state.fails_through.filter(|_| is_through);
        let failed = state.fails_writes.or(of_those);
        let after = state.fails_after;
        drop(state);
        if let Some(errno) = failed {
            std::thread::sleep(after);
            return Err(Errno::from_i32(errno));
        }
        let range = offset..offset + data.len();
        let sectors = offset / SECTOR..range.end.div_ceil(SECTOR);
        self.change(|state| {
            state.written[range].copy_from_slice(data);
            state.dirty[sectors.clone()].fill(true);
            state.operations += 1;
        });
        if is_through {
            self.write_through(sectors);
        }
        Ok(data.len())
    }

    fn fsync(&self, thread: u32, data_only: bool) -> Result<(), Errno> {
        // A flush is of what was there when it began, and nothing that comes later.
        let (number, flushed, sectors) = self.change(|state| {
            state.flusher = thread;
            state.of_data += u64::from(data_only);
            state.begun += 1;
            (state.begun, state.written.clone(), state.dirty.clone())
        });
        // The device takes its time: others come to write meanwhile.
        (0..20).for_each(|_| std::thread::yield_now());
        let is_let_go = |state: &State| state.held_from.is_none_or(|first| number < first);
        let mut state = self.wait_for(is_let_go).ok_or(Errno::ETIMEDOUT)?;
        state.operations += 1;
        state.ended += 1;
        let failed = state.fails;
        if failed.is_none() {
            for at in (0..SECTORS).filter(|at| sectors[*at]) {
                let sector = at * SECTOR..(at + 1) * SECTOR;
                state.durable[sector.clone()].copy_from_slice(&flushed[sector.clone()]);
                state.dirty[at] = state.written[sector.clone()] != state.durable[sector];
            }
        }
        drop(state);
        self.0.1.notify_all();
        failed.map_or(Ok(()), |errno| Err(Errno::from_i32(errno)))
    }

    // No `flush`: the kernel asks once, and then closes without asking. Else a process that ends
    // with a file open would wait for its own answer.
}

/// A disk that is mounted.
pub(crate) struct Mounted {
    pub(crate) disk: Disk,
    mount: FuseMount,
}

impl Mounted {
    /// The file with this number.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.mount.path(&number.to_string())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.disk.let_go();
    }
}

/// Mounts a disk, or says why that cannot be done here.
pub(crate) fn mounted_or_skip(name: &str) -> Option<Mounted> {
    let state = State {
        written: vec![0; SECTORS * SECTOR],
        durable: vec![0; SECTORS * SECTOR],
        dirty: vec![false; SECTORS],
        operations: 0,
        flusher: 0,
        writer: 0,
        of_data: 0,
        begun: 0,
        ended: 0,
        held_from: None,
        reads_held_from: None,
        fails: None,
        fails_reads: None,
        fails_writes: None,
        fails_through: None,
        fails_after: Duration::ZERO,
    };
    let disk = Disk(Arc::new((Mutex::new(state), Condvar::new())));
    let mount = FuseMount::or_skip(name, disk.clone())?;
    Some(Mounted { disk, mount })
}
