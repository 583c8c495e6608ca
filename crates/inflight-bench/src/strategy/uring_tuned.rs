//! `uring-tuned`: the best bare ring we can write. What the library is measured by.
//!
//! One owner, completions deferred to it, everything registered (file, buffers, the ring itself),
//! one entry into the kernel per turn, and waiting for several completions at once where there are
//! many in flight.
#![allow(unsafe_code)]

use std::io;

use anyhow::{Context, Result};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, opcode, squeue, types};

use super::blocked::open_ring;
use super::slots::{Slots, flags_mode, is_passing, slot_of};
use super::{Body, Job, Lane, Modes, Strategy, Way, modes};
use crate::measure::meter::Meter;

pub(crate) struct UringTuned;

impl Strategy for UringTuned {
    fn name(&self) -> &'static str {
        "uring-tuned"
    }

    fn requested(&self, job: &Job<'_>) -> Modes {
        let mut requested = flags_mode(&names(FLAGS));
        requested.extend(modes(&[
            ("registered-buffers", "yes"),
            ("registered-file", "yes"),
            ("registered-ring", "yes"),
            ("wait-for", &wait_for(job.depth).to_string()),
        ]));
        requested
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// How many completions one turn waits for. Waiting for one at a time enters the kernel
/// for each; waiting for all drains the device's queue; more than 8 save no more.
fn wait_for(depth: u32) -> u32 {
    if depth < 16 { 1 } else { (depth / 4).min(8) }
}

/// A set-up flag: its name and how it is set.
type Flag = (&'static str, fn(&mut io_uring::Builder));

/// The flags, in the order in which they are given up when the kernel refuses them (EINVAL):
/// the youngest first.
const FLAGS: &[Flag] = &[
    ("no-sqarray", |builder| _ = builder.setup_no_sqarray()),
    ("defer-taskrun", |builder| _ = builder.setup_defer_taskrun()),
    ("single-issuer", |builder| _ = builder.setup_single_issuer()),
    ("submit-all", |builder| _ = builder.setup_submit_all()),
];

fn names(flags: &[Flag]) -> String {
    flags
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Sets a ring up with as many of the flags as the kernel takes.
fn set_up(entries: u32) -> io::Result<(IoUring, &'static [Flag])> {
    let mut flags = FLAGS;
    loop {
        let mut builder = IoUring::builder();
        flags.iter().for_each(|(_, set)| set(&mut builder));
        match builder.build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !flags.is_empty() => {
                flags = &flags[1..];
            }
            result => return result.map(|ring| (ring, flags)),
        }
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let (mut ring, flags) = open_ring(|| set_up(job.depth))?;
    let slots = Slots::new(job);
    let (mut submitter, submission, completion) = ring.split();
    let yes_or = |result: io::Result<()>| match result {
        Ok(()) => "yes".to_owned(),
        Err(error) => format!("no: {error}"),
    };
    let file = submitter.register_files(&[job.fd]);
    // SAFETY: the lane below owns the buffers and keeps them until nothing is in flight.
    let buffers = unsafe { submitter.register_buffers(&[slots.iovec()]) };
    let registered_file = file.is_ok();
    let registered_buffers = buffers.is_ok();
    let mut effective = flags_mode(&names(flags));
    effective.extend(modes(&[
        ("registered-file", &yes_or(file)),
        ("registered-buffers", &yes_or(buffers)),
        ("registered-ring", &yes_or(submitter.register_ring_fd())),
        ("wait-for", &wait_for(job.depth).to_string()),
    ]));
    let mut lane = Tuned {
        submitter,
        submission,
        completion,
        fd: types::Fd(job.fd),
        registered_file,
        registered_buffers,
        wait_for: usize::try_from(wait_for(job.depth))?,
        in_flight: 0,
        slots: Some(slots),
        effective,
    };
    let now_ns = job.clock.now_ns();
    for slot in 0..job.depth {
        lane.push(slot, now_ns);
    }
    body(&mut lane)
}

struct Tuned<'ring> {
    submitter: Submitter<'ring>,
    submission: SubmissionQueue<'ring>,
    completion: CompletionQueue<'ring>,
    fd: types::Fd,
    registered_file: bool,
    registered_buffers: bool,
    wait_for: usize,
    in_flight: u32,
    slots: Option<Slots>, // taken only on drop
    effective: Modes,
}

impl Tuned<'_> {
    #[inline]
    fn push(&mut self, slot: u32, now_ns: u64) {
        let place = self
            .slots
            .as_mut()
            .expect("present until dropped")
            .begin(slot, now_ns);
        let read = |file: bool| -> squeue::Entry {
            let (buffer, length, offset) = (place.buffer, place.length, place.offset);
            match (self.registered_buffers, file) {
                (true, true) => opcode::ReadFixed::new(types::Fixed(0), buffer, length, 0)
                    .offset(offset)
                    .build(),
                (true, false) => opcode::ReadFixed::new(self.fd, buffer, length, 0)
                    .offset(offset)
                    .build(),
                (false, true) => opcode::Read::new(types::Fixed(0), buffer, length)
                    .offset(offset)
                    .build(),
                (false, false) => opcode::Read::new(self.fd, buffer, length)
                    .offset(offset)
                    .build(),
            }
        };
        let entry = read(self.registered_file).user_data(u64::from(slot));
        // SAFETY: the buffer belongs to this slot alone and stays until the completion is
        // collected: dropping the lane waits for everything in flight.
        let pushed = unsafe { self.submission.push(&entry) };
        pushed.expect("the queue has an entry for every slot");
        self.in_flight += 1;
    }

    /// Hands over what is queued and waits; completions are visible afterwards.
    fn enter(&mut self, wait_for: usize) -> io::Result<()> {
        self.submission.sync();
        // What was collected must be given back first: the kernel counts it as completed, and would
        // not wait for anything new.
        self.completion.sync();
        let entered = self.submitter.submit_and_wait(wait_for);
        self.submission.sync();
        self.completion.sync();
        match entered {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.in_flight > 0 {
            self.enter(usize::try_from(self.in_flight).expect("u32 fits into usize"))?;
            for _ in &mut self.completion {
                self.in_flight -= 1;
            }
        }
        Ok(())
    }
}

impl Lane for Tuned<'_> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        meter.syscalls(1);
        self.enter(self.wait_for).context("io_uring_enter")?;
        let now_ns = meter.read_clock();
        while let Some(completion) = self.completion.next() {
            let slot = slot_of(completion.user_data());
            let slots = self.slots.as_mut().expect("present until dropped");
            slots.complete(slot, completion.result(), meter);
            self.in_flight -= 1;
            self.push(slot, now_ns);
        }
        Ok(())
    }

    fn effective(&self) -> Modes {
        self.effective.clone()
    }
}

impl Drop for Tuned<'_> {
    fn drop(&mut self) {
        // As in the plain ring: nothing may be in flight when the buffers go.
        if self.drain().is_err() {
            std::mem::forget(self.slots.take());
        }
        // A thread has room for 16 registered rings, and each is kept alive by its registration
        // (io_uring_register(2), IORING_REGISTER_RING_FDS). Not registered: nothing to undo.
        _ = self.submitter.unregister_ring_fd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_never_asks_for_more_than_is_in_flight() {
        for depth in 1..=4096 {
            assert!((1..=depth).contains(&wait_for(depth)), "depth {depth}");
        }
    }

    #[test]
    fn the_youngest_flag_is_given_up_first_and_deferral_before_its_condition() {
        assert_eq!(
            names(FLAGS),
            "no-sqarray, defer-taskrun, single-issuer, submit-all"
        );
        assert_eq!(names(&FLAGS[2..]), "single-issuer, submit-all");
    }
}
