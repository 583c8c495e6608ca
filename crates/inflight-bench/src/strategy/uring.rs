//! `uring`: the plain ring, as most people write it first. No set-up flags, nothing registered,
//! wait for one completion, or for all of a batch, and refill what has completed.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use io_uring::{IoUring, SubmissionQueue, opcode, squeue, types};

use super::blocked::open_ring;
use super::slots::{Passes, Place, Slots, flags_mode, is_passing, slot_of};
use super::uring_by_clock::ByTheClock;
use super::{Body, Job, Modes, Strategy, Way};
use crate::measure::meter::Meter;
use crate::work::Kind;

pub(crate) struct Uring;

impl Strategy for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn about(&self) -> &'static str {
        "io_uring as most people write it first: no flags, nothing registered"
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        flags_mode("")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let ring = open_ring(|| IoUring::new(job.depth))?;
    run(job, ring, Calls::EachTurn, flags_mode(""), body)
}

/// Lends a lane on a ring that was set up for it.
pub(crate) fn run(
    job: &Job<'_>,
    ring: IoUring,
    calls: Calls,
    effective: Modes,
    body: Body<'_>,
) -> Result<()> {
    let mut lane = Plain {
        ring,
        files: job.fds.iter().copied().map(types::Fd).collect(),
        slots: Some(Slots::new(job)?),
        in_flight: 0,
        calls,
        effective,
    };
    if let Some(pace) = job.pace {
        return body(&mut ByTheClock::new(lane, pace));
    }
    lane.fill(job.clock.now_ns());
    body(&mut lane)
}

/// When a lane calls the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Once a turn, to hand over and to wait.
    EachTurn,
    /// When it has nothing to do but to wait: the kernel looks for entries by itself.
    OnlyToWait,
}

pub(super) struct Plain {
    pub(super) ring: IoUring,
    pub(super) files: Vec<types::Fd>,
    pub(super) slots: Option<Slots>, // taken only on drop
    pub(super) in_flight: u32,
    calls: Calls,
    effective: Modes,
}

/// The entry for what a slot does next.
fn entry(files: &[types::Fd], place: &Place) -> squeue::Entry {
    let (buffer, step) = (place.buffer, &place.step);
    let file = files[step.file_index()];
    match step.kind {
        Kind::Read => opcode::Read::new(file, buffer, step.length)
            .offset(step.offset)
            .build(),
        Kind::Write => opcode::Write::new(file, buffer, step.length)
            .offset(step.offset)
            .build(),
        Kind::Sync => opcode::Fsync::new(file)
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
    }
}

/// Queues what a slot does next.
pub(super) fn push(queue: &mut SubmissionQueue<'_>, files: &[types::Fd], slot: u32, place: &Place) {
    let entry = entry(files, place).user_data(u64::from(slot));
    if queue.is_full() {
        // Going by how far the kernel was when the queue was borrowed; a thread of the kernel has
        // taken entries meanwhile.
        queue.sync();
    }
    // SAFETY: the buffer belongs to this slot alone and stays until the completion is
    // collected: dropping the lane waits for everything in flight.
    let pushed = unsafe { queue.push(&entry) };
    pushed.expect("the queue has an entry for every slot");
}

impl Plain {
    fn fill(&mut self, now_ns: u64) {
        let slots = self.slots.as_mut().expect("present until dropped");
        let mut queue = self.ring.submission();
        for slot in 0..slots.depth() {
            push(&mut queue, &self.files, slot, &slots.begin(slot, now_ns));
            self.in_flight += 1;
        }
    }

    fn drain(&mut self) -> Result<()> {
        while self.in_flight > 0 {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !is_passing(&error)
            {
                return Err(error.into());
            }
            self.in_flight -= u32::try_from(self.ring.completion().count())?;
        }
        Ok(())
    }
}

impl Passes for Plain {
    fn slots(&mut self) -> &mut Slots {
        self.slots.as_mut().expect("present until dropped")
    }

    fn pass(&mut self, meter: &mut Meter) -> Result<()> {
        let slots = self.slots.as_mut().expect("present until dropped");
        let wait_for = usize::try_from(slots.wait_for(1).min(self.in_flight))?;
        let can_go_on = self.calls == Calls::OnlyToWait && !self.ring.completion().is_empty();
        let entered = match can_go_on {
            // Only wakes the kernel's thread, if it has gone to sleep.
            true => self.ring.submit(),
            false => {
                meter.syscalls(1);
                self.ring.submit_and_wait(wait_for)
            }
        };
        match entered {
            Err(error) if !is_passing(&error) => return Err(error).context("io_uring_enter"),
            _ => {}
        }
        if slots.wants_clock() {
            meter.read_clock();
        }
        let (_, mut queue, completions) = self.ring.split();
        for completion in completions {
            self.in_flight -= 1;
            let slot = slot_of(completion.user_data());
            slots.complete(slot, completion.result(), meter, |slot, place| {
                push(&mut queue, &self.files, slot, &place);
                self.in_flight += 1;
            });
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.in_flight > 0
    }

    fn knows_syscalls(&self) -> bool {
        // Waking the kernel's thread is not told apart from finding it awake.
        self.calls == Calls::EachTurn
    }

    fn effective(&self) -> Modes {
        self.effective.clone()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // Closing a ring does not wait for what is in flight: the kernel would go on using
        // buffers that are gone. If draining fails, they are left to it for ever.
        if self.drain().is_err() {
            std::mem::forget(self.slots.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::profile::load;

    #[test]
    fn a_queue_counts_as_full_only_if_it_still_is() {
        let mut ring = match open_ring(|| IoUring::new(2)) {
            Ok(ring) => ring,
            Err(why) => return println!("skipped: {why}"),
        };
        let null = File::open("/dev/null").expect("it is there");
        let files = [types::Fd(null.as_raw_fd())];
        let profile = load(&["cached-random-read".to_owned()])
            .expect("it is there")
            .remove(0);
        let work = profile.work(1 << 20);
        let job = Job {
            depth: 3,
            ..Job::of(&work)
        };
        let mut slots = Slots::new(&job).unwrap();
        let (submitter, mut queue, mut completions) = ring.split();
        push(&mut queue, &files, 0, &slots.begin(0, 0));
        push(&mut queue, &files, 1, &slots.begin(1, 0));
        queue.sync();
        submitter.submit().expect("two reads are handed over");
        push(&mut queue, &files, 2, &slots.begin(2, 0));
        queue.sync();
        submitter.submit_and_wait(3).expect("all are handed over");
        completions.sync();
        assert_eq!(completions.count(), 3);
    }
}
