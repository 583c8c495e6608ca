//! `uring-sqpoll`: the plain ring with a thread of the kernel that looks for entries, so that
//! handing them over takes no system call. The thread wants a processor of its own.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use io_uring::IoUring;

use super::blocked::open_ring;
use super::uring::{Calls, run};
use super::{Body, Job, Modes, Strategy, Unavailable, Way, modes};

/// How long the kernel's thread looks on without finding anything before it sleeps.
const IDLE_MS: u32 = 100;

pub(crate) struct UringSqpoll;

impl Strategy for UringSqpoll {
    fn name(&self) -> &'static str {
        "uring-sqpoll"
    }

    fn about(&self) -> &'static str {
        "the plain ring, whose entries a thread of the kernel takes (SQPOLL)"
    }

    fn by_default(&self) -> bool {
        false
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        modes(&[("ring-flags", "sqpoll")])
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("an open loop was taught to the plain ring only: see uring")
    }

    fn rests(&self) -> bool {
        false
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let ring = open(job.depth)?;
    let flags = match gets_poller() {
        true => "sqpoll",
        false => "none: no thread of the kernel looks on",
    };
    run(
        job,
        ring,
        Calls::OnlyToWait,
        modes(&[("ring-flags", flags)]),
        body,
    )
}

/// A ring with two entries for each slot. The kernel's thread gives entries back only when it has
/// begun all that it found, and the first of them may be complete long before. So there may be one
/// of each slot among those and, where that one has been collected, the next one behind them.
///
/// # Source
///
/// `io_submit_sqes` in `io_uring/io_uring.c` of Linux, called by `io_uring/sqpoll.c`: it asks once
/// how many entries there are, and `io_commit_sqring` is what it does last.
fn open(depth: u32) -> Result<IoUring, Unavailable> {
    open_ring(|| IoUring::builder().setup_sqpoll(IDLE_MS).build(depth * 2))
}

/// Whether the kernel's thread comes: it takes its name when it first runs, on a busy machine some
/// time after the ring was set up.
fn gets_poller() -> bool {
    const TRIES: u32 = 1_000;
    for _ in 1..TRIES {
        if has_poller() {
            return true;
        }
        sleep(Duration::from_millis(1));
    }
    has_poller()
}

/// Whether the kernel's thread is there, among those of this process.
fn has_poller() -> bool {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let mut names = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.starts_with("iou-sqp-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_kernel_is_seen_only_where_there_is_one() {
        // Nothing else in these tests asks for one.
        let plain = open_ring(|| IoUring::new(1));
        assert!(!has_poller());
        let watched = open(1);
        match (plain, watched) {
            (Ok(_), Ok(mut ring)) => {
                assert!(gets_poller());
                assert_eq!(ring.submission().capacity(), 2, "two entries for the slot");
            }
            (plain, watched) => {
                println!("skipped: {:?} {:?}", plain.err(), watched.err());
            }
        }
    }
}
