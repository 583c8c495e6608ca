//! `uring-tuned`: the best bare ring we can write. What the library is measured by.
//!
//! One owner, completions deferred to it, everything registered (file, buffers, the ring itself),
//! one entry into the kernel per turn, and waiting for several completions at once where there are
//! many in flight. Transfers are handed over a few at a time.
#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

use anyhow::{Context, Result};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, opcode, squeue, types};

use super::blocked::open_ring;
use super::slots::{Passes, Place, Slots, flags_mode, is_passing, slot_of};
use super::{Body, Job, Modes, Strategy, Way, modes};
use crate::measure::meter::Meter;
use crate::work::Kind;

pub(crate) struct UringTuned;

impl Strategy for UringTuned {
    fn name(&self) -> &'static str {
        "uring-tuned"
    }

    fn about(&self) -> &'static str {
        "io_uring as well as we can write it by hand: everything registered, one owner"
    }

    fn requested(&self, job: &Job<'_>) -> Modes {
        requested(job, Waits::Asleep)
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("waiting for several results at once is nothing for an open loop: see uring")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// How the owner waits for completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    Asleep,
    /// It looks for them all the time.
    Looking,
}

/// What a lane asks for.
pub(super) fn requested(job: &Job<'_>, waits: Waits) -> Modes {
    let mut requested = flags_mode(&names(waits.flags()));
    requested.extend(modes(&[
        ("registered-buffers", "yes"),
        ("registered-file", "yes"),
        ("registered-ring", "yes"),
        ("wait-for", &wait_for(job.depth).to_string()),
        ("hand-over", &hand_over(job)),
    ]));
    requested
}

/// How many completions one turn waits for. Waiting for one at a time enters the kernel
/// for each; waiting for all drains the device's queue; more than 8 save no more.
fn wait_for(depth: u32) -> u32 {
    if depth < 16 { 1 } else { (depth / 4).min(8) }
}

/// So many transfers are handed over at a time: the device is told of all together that one entry
/// brings, and those complete together. With very many in flight it has enough to do.
const AT_ONCE: usize = 4;
const DIRECT_DEPTHS: Range<u32> = 8..96;

fn hands_over_few(job: &Job<'_>) -> bool {
    match job.direct {
        true => DIRECT_DEPTHS.contains(&job.depth),
        false => !job.work.access.writes(),
    }
}

fn hand_over(job: &Job<'_>) -> String {
    match hands_over_few(job) {
        true => AT_ONCE.to_string(),
        false => "all".to_owned(),
    }
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

/// The same of a ring whose owner looks for completions: the kernel says by a flag in the ring's
/// memory that an enter would bring some. It is given up before the next
/// one, which it needs, and without which completions show by themselves.
const LOOKING_FLAGS: &[Flag] = &[
    FLAGS[0],
    ("taskrun-flag", |builder| _ = builder.setup_taskrun_flag()),
    FLAGS[1],
    FLAGS[2],
    FLAGS[3],
];

impl Waits {
    fn flags(self) -> &'static [Flag] {
        match self {
            Self::Asleep => FLAGS,
            Self::Looking => LOOKING_FLAGS,
        }
    }
}

fn names(flags: &[Flag]) -> String {
    flags
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Sets a ring up with as many of the flags as the kernel takes.
fn set_up(entries: u32, waits: Waits) -> io::Result<(IoUring, &'static [Flag])> {
    let mut flags = waits.flags();
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
    with_ring(job, Waits::Asleep, body)
}

/// Lends a lane whose owner waits like this.
pub(super) fn with_ring(job: &Job<'_>, waits: Waits, body: Body<'_>) -> Result<()> {
    let (mut ring, flags) = open_ring(|| set_up(job.depth, waits))?;
    let slots = Slots::new(job)?;
    let (mut submitter, submission, completion) = ring.split();
    let yes_or = |result: io::Result<()>| match result {
        Ok(()) => "yes".to_owned(),
        Err(error) => format!("no: {error}"),
    };
    let file = submitter.register_files(job.fds);
    // SAFETY: the lane below owns the buffers and keeps them until nothing is in flight.
    let buffers = unsafe { submitter.register_buffers(&[slots.iovec()]) };
    let means = Means {
        fds: job.fds.to_vec(),
        registered_file: file.is_ok(),
        registered_buffers: buffers.is_ok(),
    };
    let mut effective = flags_mode(&names(flags));
    effective.extend(modes(&[
        ("registered-file", &yes_or(file)),
        ("registered-buffers", &yes_or(buffers)),
        ("registered-ring", &yes_or(submitter.register_ring_fd())),
        ("wait-for", &wait_for(job.depth).to_string()),
        ("hand-over", &hand_over(job)),
    ]));
    let mut lane = Tuned {
        submitter,
        submission,
        completion,
        means,
        wait_for: wait_for(job.depth),
        hands_over_few: hands_over_few(job),
        waits,
        in_flight: 0,
        slots: Some(slots),
        effective,
    };
    lane.fill(job.clock.now_ns());
    body(&mut lane)
}

struct Tuned<'ring> {
    submitter: Submitter<'ring>,
    submission: SubmissionQueue<'ring>,
    completion: CompletionQueue<'ring>,
    means: Means,
    wait_for: u32,
    hands_over_few: bool,
    waits: Waits,
    in_flight: u32,
    slots: Option<Slots>, // taken only on drop
    effective: Modes,
}

/// The entry for a step; the two kinds of files have no type in common that can be named.
macro_rules! entry {
    ($means:expr, $file:expr, $place:expr) => {{
        let (file, buffer, step) = ($file, $place.buffer, &$place.step);
        let (length, offset) = (step.length, step.offset);
        match (step.kind, $means.registered_buffers) {
            (Kind::Read, true) => opcode::ReadFixed::new(file, buffer, length, 0)
                .offset(offset)
                .build(),
            (Kind::Read, false) => opcode::Read::new(file, buffer, length)
                .offset(offset)
                .build(),
            (Kind::Write, true) => opcode::WriteFixed::new(file, buffer, length, 0)
                .offset(offset)
                .build(),
            (Kind::Write, false) => opcode::Write::new(file, buffer, length)
                .offset(offset)
                .build(),
            (Kind::Sync, _) => opcode::Fsync::new(file)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        }
    }};
}

/// How a step is asked for.
struct Means {
    fds: Vec<RawFd>,
    registered_file: bool,
    registered_buffers: bool,
}

impl Means {
    #[inline]
    fn entry(&self, place: &Place) -> squeue::Entry {
        match self.registered_file {
            true => entry!(self, types::Fixed(place.step.file), place),
            false => entry!(self, types::Fd(self.fds[place.step.file_index()]), place),
        }
    }
}

#[inline]
fn push(queue: &mut SubmissionQueue<'_>, means: &Means, slot: u32, place: &Place) {
    let entry = means.entry(place).user_data(u64::from(slot));
    // SAFETY: the buffer belongs to this slot alone and stays until the completion is
    // collected: dropping the lane waits for everything in flight.
    let pushed = unsafe { queue.push(&entry) };
    pushed.expect("the queue has an entry for every slot");
}

impl Tuned<'_> {
    fn fill(&mut self, now_ns: u64) {
        let slots = self.slots.as_mut().expect("present until dropped");
        for slot in 0..slots.depth() {
            let place = slots.begin(slot, now_ns);
            push(&mut self.submission, &self.means, slot, &place);
            self.in_flight += 1;
        }
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

    /// As [`Tuned::enter`], without sleeping. Returns how many calls that took.
    fn look(&mut self, wait_for: usize) -> io::Result<u64> {
        let mut calls = 1;
        self.enter(0)?;
        loop {
            self.completion.sync();
            if self.completion.len() >= wait_for {
                return Ok(calls);
            }
            if self.submission.taskrun() {
                calls += 1;
                self.enter(0)?;
            }
            spin_loop();
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

impl Passes for Tuned<'_> {
    fn slots(&mut self) -> &mut Slots {
        self.slots.as_mut().expect("present until dropped")
    }

    fn pass(&mut self, meter: &mut Meter) -> Result<()> {
        let usual = self.wait_for.min(self.in_flight);
        let slots = self.slots.as_ref().expect("present until dropped");
        let wait_for = usize::try_from(slots.wait_for(usual))?;
        let calls = match self.waits {
            Waits::Asleep => self.enter(wait_for).map(|()| 1),
            Waits::Looking => self.look(wait_for),
        };
        meter.syscalls(calls.context("io_uring_enter")?);
        let slots = self.slots.as_mut().expect("present until dropped");
        if slots.wants_clock() {
            meter.read_clock();
        }
        while let Some(completion) = self.completion.next() {
            self.in_flight -= 1;
            let slot = slot_of(completion.user_data());
            slots.complete(slot, completion.result(), meter, |slot, place| {
                push(&mut self.submission, &self.means, slot, &place);
                self.in_flight += 1;
            });
            if self.hands_over_few && self.submission.len() >= AT_ONCE {
                self.submission.sync();
                if let Err(error) = self.submitter.submit()
                    && !is_passing(&error)
                {
                    return Err(error).context("io_uring_enter");
                }
                self.submission.sync();
                meter.syscalls(1);
            }
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.in_flight > 0
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
