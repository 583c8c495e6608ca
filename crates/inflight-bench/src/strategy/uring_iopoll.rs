//! `uring-iopoll`: the plain ring, whose completions are found by asking the device instead of
//! waiting for its interrupt.
//!
//! A device without queues for that takes the ring and then refuses each read (EOPNOTSUPP), while
//! writes are silently completed by interrupts: so a read is tried first, and what really takes
//! effect is said for each direction.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use inflight_report::record::Sync;
use io_uring::{IoUring, opcode, types};

use super::arena::Arena;
use super::blocked::open_ring;
use super::slots::is_passing;
use super::uring::{Calls, run};
use super::{Body, Job, Modes, Strategy, Unavailable, Way, modes};
use crate::profile::Profile;

/// Calls in which the first read completes, unless it never does.
const MOST_POLLS: u32 = 100_000;

pub(crate) struct UringIopoll;

impl Strategy for UringIopoll {
    fn name(&self) -> &'static str {
        "uring-iopoll"
    }

    fn about(&self) -> &'static str {
        "the plain ring, which asks the device for completions (IOPOLL)"
    }

    fn by_default(&self) -> bool {
        false
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        modes(&[("ring-flags", "iopoll")])
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        if !profile.direct() {
            return Some("a ring that polls takes direct I/O alone");
        }
        let synced = profile.asked.sync != Sync::None;
        synced.then_some("a ring that polls cannot sync")
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("a ring that polls cannot wait for the clock")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let mut ring = open_ring(|| IoUring::builder().setup_iopoll().build(job.depth))?;
    let answer = first_read(&mut ring, job)?;
    let polled = u32::try_from(answer) == Ok(first_bytes(job));
    if !polled && job.work.access.reads() {
        return Err(Unavailable {
            reason: format!(
                "this disk has no queues to poll: the ring was set up, and a read of it answered \
                 {}",
                std::io::Error::from_raw_os_error(-answer)
            ),
            denied: None,
        }
        .into());
    }
    let writes = match polled {
        true => "polled",
        false => "not polled: silently completed by interrupts",
    };
    let mut effective = modes(&[("ring-flags", "iopoll")]);
    if job.work.access.reads() {
        effective.extend(modes(&[("reads", "polled")]));
    }
    if job.work.access.writes() {
        effective.extend(modes(&[("writes", writes)]));
    }
    run(job, ring, Calls::EachTurn, effective, body)
}

/// What the first read is of: little, as a worker of the kernel makes what the device does not take
/// at once, by calls that poll nothing and succeed.
fn first_bytes(job: &Job<'_>) -> u32 {
    job.work.block_bytes.min(4096)
}

/// Reads the beginning of the first block, and returns the kernel's answer.
fn first_read(ring: &mut IoUring, job: &Job<'_>) -> Result<i32> {
    let block = Arena::of(job.work, 1)?;
    let fd = *job.fds.first().context("a file")?;
    let read = opcode::Read::new(types::Fd(fd), block.slot(0), first_bytes(job)).build();
    // SAFETY: the block outlives the read: what comes next waits for its completion, or, if even
    // that fails, leaves the block to the kernel for ever.
    let pushed = unsafe { ring.submission().push(&read) };
    pushed.context("the ring has room for one")?;
    // While it polls, the kernel may come back early, without an error and without a completion.
    for _ in 0..MOST_POLLS {
        let entered = ring.submit_and_wait(1);
        let mut completions = ring.completion();
        if let Some(completion) = completions.next() {
            return Ok(completion.result());
        }
        drop(completions);
        match entered {
            // A device without such queues may say so here, and the read is never begun.
            Err(error) if !is_passing(&error) => {
                std::mem::forget(block);
                return Ok(-error.raw_os_error().unwrap_or(libc::EIO));
            }
            _ => {}
        }
    }
    std::mem::forget(block);
    anyhow::bail!("the first read was polled {MOST_POLLS} times and did not complete")
}
