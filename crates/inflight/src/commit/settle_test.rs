//! What becomes of the answer of a flush.

use super::*;

/// A file that is not flushed.
struct Unflushed;

impl Flush for Unflushed {
    fn alone(&self, _data_only: bool) -> Answer {
        unreachable!("nobody flushes")
    }

    fn flush(&self, _data_only: bool) -> Answer {
        unreachable!("nobody flushes")
    }

    fn delegate(&self, _commit: &Arc<Commit>) -> bool {
        false
    }

    fn is_wanted(&self) -> bool {
        false
    }

    fn gathers_for(&self, _took: Duration) -> Option<Gather> {
        None
    }

    fn looks_for(&self) -> Duration {
        Duration::ZERO
    }

    fn is_served(&self) -> bool {
        false
    }

    fn is_little(&self, _bytes: u64) -> bool {
        true
    }

    fn is_short(&self, _took: Duration, _syncs: usize) -> bool {
        false
    }

    fn usual(&self) -> Option<Duration> {
        None
    }

    fn was_first(&self, _took: Duration) {}

    fn count(&self, _served: usize) {}

    fn wake(&self, _waker: Waker) {}
}

#[test]
fn a_flush_is_no_success_if_a_write_was_told_of_its_error() {
    let commit = Commit::new(Unflushed, true);
    let success = Answer::moved(0);
    assert_eq!(commit.settle(success), success);
    // What was refused without a call says nothing of the data.
    let refused = Answer::NOT_RUN;
    assert_eq!(commit.settle(refused), refused);
    assert_eq!(commit.settle(success), success);
    // A write that syncs by itself, while the flush runs.
    commit.note(Answer::failed(libc::EIO, 512));
    assert_eq!(commit.settle(success), Answer::refused(Refusal::SyncFailed));
    let told = Answer::failed(libc::ENOSPC, 0);
    assert_eq!(
        (commit.settle(told), commit.failure()),
        (told, Some(libc::EIO))
    );
}

#[test]
fn what_is_no_storage_forgets_that_it_has_no_sync_and_nothing_else() {
    let commit = Commit::new(Unflushed, false);
    let refused = Answer::failed(libc::EINVAL, 0);
    assert_eq!(commit.settle(refused), refused);
    assert_eq!(commit.failure(), None);
    // A directory.
    let failed = Answer::failed(libc::EIO, 0);
    assert_eq!(commit.settle(failed), failed);
    assert_eq!(commit.failure(), Some(libc::EIO));
}
