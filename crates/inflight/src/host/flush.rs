//! How an open file is flushed: by a plain fsync(2) or fdatasync(2), wherever its leader is.
//!
//! A ring would hand both to one of the kernel's workers, which is a thread just as well
//! (`docs/design/group-commit.md`). On the test backend, flushes of the pool take its faults.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
#[cfg(feature = "faulty")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

use super::shared::Shared;
use crate::backend::threads::execute::execute_request;
use crate::backend::threads::pool::{Pool, Run};
use crate::commit::{Commit, Flush, Gather};
use crate::completion::Answer;
use crate::foreign::contain;
use crate::op::{Op, Request};
use crate::policy::{Device, NOTHING_MAX, can_sleep, gather_for, is_little, is_short_flush};
use crate::stats::SyncTally;

/// An open file. Whoever flushes it keeps its descriptor open.
pub(crate) struct Disk {
    fd: RawFd,
    pool: Arc<Pool>,
    tally: Arc<SyncTally>,
    device: Option<Arc<Device>>,
    is_served: bool,
    #[cfg(feature = "faulty")]
    faulty: Option<Faulty>,
}

/// What the test backend needs.
#[cfg(feature = "faulty")]
struct Faulty {
    faults: crate::backend::faulty::Faults,
    flushes: AtomicU64,
}

impl Disk {
    pub(crate) fn new(
        shared: &Shared,
        fd: RawFd,
        device: Option<Arc<Device>>,
        is_served: bool,
    ) -> Self {
        Self {
            fd,
            is_served,
            pool: Arc::clone(shared.pool()),
            tally: Arc::clone(shared.counters.syncs()),
            device,
            #[cfg(feature = "faulty")]
            faulty: shared.config.faults.clone().map(|faults| Faulty {
                faults,
                flushes: AtomicU64::new(0),
            }),
        }
    }

    fn request(&self, data_only: bool) -> Request {
        let fd = self.fd;
        Request::simple(Op::Sync { fd, data_only })
    }
}

impl Flush for Disk {
    fn alone(&self, data_only: bool) -> Answer {
        // SAFETY: whoever flushes it keeps its descriptor open; no memory is involved.
        unsafe { execute_request(&self.request(data_only)) }
    }

    fn flush(&self, data_only: bool) -> Answer {
        self.tally.during(|| {
            #[cfg(feature = "faulty")]
            if let Some(faulty) = &self.faulty {
                return faulty.flush(self.request(data_only));
            }
            self.alone(data_only)
        })
    }

    fn delegate(&self, commit: &Arc<Commit>) -> bool {
        let leader: Arc<dyn Run> = Arc::clone(commit) as _;
        match self.is_served {
            true => self.pool.give(leader).is_ok(),
            false => self.pool.give_flush(leader).is_ok(),
        }
    }

    fn is_wanted(&self) -> bool {
        self.pool.is_wanted()
    }

    fn gathers_for(&self, took: Duration) -> Option<Gather> {
        gather_for(took).map(|at_most| Gather {
            at_most,
            sleeps: can_sleep(at_most),
        })
    }

    fn looks_for(&self) -> Duration {
        NOTHING_MAX
    }

    fn is_served(&self) -> bool {
        self.is_served
    }

    fn is_short(&self, took: Duration, syncs: usize) -> bool {
        is_short_flush(took, syncs)
    }

    fn is_little(&self, bytes: u64) -> bool {
        is_little(bytes)
    }

    fn usual(&self) -> Option<Duration> {
        let took = self.device.as_ref()?.first_flush()?;
        // SAFETY: whoever asks for a flush keeps the descriptor open.
        unsafe { is_small_file(self.fd) }.then_some(took)
    }

    fn was_first(&self, took: Duration) {
        if let Some(device) = &self.device {
            device.was_flushed_first(took);
        }
    }

    fn count(&self, served: usize) {
        self.tally.add(served);
    }

    fn wake(&self, waker: Waker) {
        contain(|| waker.wake());
    }
}

/// Whether it is a file that has no more to be written back than is soon done.
///
/// # Safety
///
/// The descriptor is open.
unsafe fn is_small_file(fd: RawFd) -> bool {
    // SAFETY: the caller vouches for it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // Whoever serves the file is not asked.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(statx) = statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::SIZE) else {
        return false;
    };
    let is_file = FileType::from_raw_mode(statx.stx_mode.into()).is_file();
    is_file && is_little(statx.stx_size)
}

impl Run for Commit {
    fn run(self: Arc<Self>) {
        self.lead();
    }

    /// It ends when another program or machine wants it to.
    fn may_wait_for_ever(&self) -> bool {
        self.is_served()
    }
}

#[cfg(feature = "faulty")]
impl Faulty {
    /// Every flush has a test backend of its own, and its own place in the sequence of faults.
    fn flush(&self, request: Request) -> Answer {
        use crate::backend::Backend;
        use crate::backend::faulty::Faulty as TestBackend;
        use crate::op::KINDS;
        use crate::proactor::Proactor;

        let number = self.flushes.fetch_add(1, Ordering::Relaxed);
        let backend = TestBackend::new(self.faults.clone().later(number));
        let backend = Backend::Faulty(Box::new(backend));
        let mut proactor = Proactor::new(backend, 1, [true; KINDS]);
        let mut result = None;
        // SAFETY: no memory is involved.
        unsafe { proactor.push(0, &request) };
        while result.is_none() {
            proactor.turn(1, |_, answer| result = Some(answer));
        }
        result.expect("the loop has ended")
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_file_is_small_whatever_is_written_back_of_it() {
        let file = tempfile::tempfile().expect("there is room");
        // SAFETY: it is open.
        let is_small = |file: &File| unsafe { is_small_file(file.as_raw_fd()) };
        for (len, expected) in [(0, true), (1 << 20, true), (2 << 20, false)] {
            file.set_len(len).expect("there is room");
            assert_eq!(is_small(&file), expected, "{len} bytes");
        }
        let null = File::open("/dev/null").expect("it is there");
        assert!(!is_small(&null), "what is no file has no length");
    }
}
