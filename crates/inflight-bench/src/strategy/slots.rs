//! The operations of a ring strategy: one buffer, one start time and one next step for each.

use anyhow::Result;

use super::arena::Arena;
use super::{Job, Lane, Modes};
use crate::measure::meter::Meter;
use crate::work::{Kind, Ops, Step, stamp};

/// A lane whose operations have slots.
pub(crate) trait Passes {
    fn slots(&mut self) -> &mut Slots;

    /// Hands over, waits, and takes note of what is completed.
    fn pass(&mut self, meter: &mut Meter) -> Result<()>;

    /// Whether there are operations that have begun and are not completed.
    fn has_begun(&self) -> bool;

    /// As [`Lane::knows_syscalls`].
    fn knows_syscalls(&self) -> bool {
        true
    }

    /// The modes that took effect.
    fn effective(&self) -> Modes {
        Modes::new()
    }
}

impl<P: Passes> Lane for P {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        loop {
            self.pass(meter)?;
            if self.slots().ends_turn() {
                return Ok(());
            }
        }
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.slots().sample_every(every)
    }

    fn finish(&mut self, meter: &mut Meter) -> Result<()> {
        self.slots().stop();
        while self.has_begun() {
            self.turn(meter)?;
        }
        Ok(())
    }

    fn knows_syscalls(&self) -> bool {
        Passes::knows_syscalls(self)
    }

    fn effective(&self) -> Modes {
        Passes::effective(self)
    }
}

/// What is to be handed to the kernel, and its memory.
pub(crate) struct Place {
    pub(crate) step: Step,
    pub(crate) buffer: *mut u8,
}

/// When an operation began that nobody times.
const UNTIMED: u64 = u64::MAX;

/// As many slots as operations may be in flight.
pub(crate) struct Slots {
    arena: Arena,
    began_ns: Vec<u64>,
    steps: Vec<Step>,
    ops: Ops,
    depth: u32,
    /// Of a batch, those that are not completed yet.
    left: u32,
    stopped: bool,
    /// Of so many operations one is timed.
    sample_every: u32,
    /// So many begin before the next that is.
    until_timed: u32,
    /// Those in flight that are.
    timed: u32,
    /// Whether one has begun since somebody asked.
    began_timed: bool,
}

impl Slots {
    pub(crate) fn new(job: &Job<'_>) -> Result<Self> {
        let ops = Ops::new(job.work, &job.share, job.seed);
        let unused = Step {
            kind: Kind::Sync,
            file: 0,
            offset: 0,
            length: 0,
        };
        Ok(Self {
            arena: Arena::of(job.work, job.depth)?,
            began_ns: (0..job.depth).map(|_| 0).collect(),
            steps: (0..job.depth).map(|_| unused).collect(),
            ops,
            depth: job.depth,
            left: job.depth,
            stopped: false,
            sample_every: 1,
            until_timed: 0,
            timed: 0,
            began_timed: false,
        })
    }

    /// Times one operation in so many from now on.
    pub(crate) fn sample_every(&mut self, every: u32) -> u32 {
        self.sample_every = every.max(1);
        // A turn from here on is as long as any other.
        self.until_timed = self.sample_every - 1;
        self.sample_every
    }

    /// Whether the clock is to be read before completions are taken note of: one of them may be
    /// timed, or what begins in its place.
    #[inline]
    pub(crate) fn wants_clock(&self) -> bool {
        self.stopped || self.timed > 0 || self.until_timed < self.depth
    }

    /// Whether a turn of the lane is over: as many operations were done as one is timed of, or
    /// none begins any more.
    #[inline]
    pub(crate) fn ends_turn(&mut self) -> bool {
        std::mem::take(&mut self.began_timed) || self.stopped
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// How many completions are worth waiting for: all of a batch, else as many as `usual`.
    #[inline]
    pub(crate) fn wait_for(&self, usual: u32) -> u32 {
        if self.stopped || !self.ops.work().batched {
            return usual;
        }
        self.left
    }

    /// From now on no operation begins.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Gives a free slot its next operation, which begins at the clock's last reading.
    #[inline]
    pub(crate) fn begin(&mut self, slot: u32, now_ns: u64) -> Place {
        let is_timed = self.until_timed == 0;
        self.began_ns[index(slot)] = if is_timed { now_ns } else { UNTIMED };
        self.until_timed = match is_timed {
            true => self.sample_every - 1,
            false => self.until_timed - 1,
        };
        self.timed += u32::from(is_timed);
        self.began_timed |= is_timed;
        let step = self.ops.next();
        self.place(slot, step)
    }

    #[inline]
    fn place(&mut self, slot: u32, step: Step) -> Place {
        self.steps[index(slot)] = step;
        if step.kind == Kind::Write {
            let block = self.arena.block(slot, step.bytes());
            stamp::stamp(block, step.file, step.offset);
        }
        Place {
            step,
            buffer: self.arena.slot(slot),
        }
    }

    /// Takes note of a completed step, and hands to `push` what comes next: the operation's next
    /// step, the slot's next operation, or the next batch.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        slot: u32,
        result: i32,
        meter: &mut Meter,
        mut push: impl FnMut(u32, Place),
    ) {
        if let Some(next) = self.end_step(slot, result, meter) {
            return push(slot, self.place(slot, next));
        }
        if self.stopped {
            return;
        }
        let now_ns = meter.last_reading_ns();
        if !self.ops.work().batched {
            return push(slot, self.begin(slot, now_ns));
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.depth;
            for slot in 0..self.depth {
                push(slot, self.begin(slot, now_ns));
            }
        }
    }

    /// The next step of the same operation; if there is none, the operation is counted.
    #[inline]
    fn end_step(&mut self, slot: u32, result: i32, meter: &mut Meter) -> Option<Step> {
        let step = self.steps[index(slot)];
        let (counters, arena) = (&mut meter.counters, &mut self.arena);
        let next = counters.end_step(&self.ops, &step, result, || arena.block(slot, step.bytes()));
        if next.is_none() {
            let began_ns = self.began_ns[index(slot)];
            if began_ns != UNTIMED {
                self.timed -= 1;
                meter.latency(meter.last_reading_ns() - began_ns);
            }
        }
        next
    }

    pub(crate) fn iovec(&self) -> libc::iovec {
        self.arena.iovec()
    }
}

/// The slot that a completion belongs to.
#[inline]
pub(crate) fn slot_of(user_data: u64) -> u32 {
    u32::try_from(user_data).expect("the slot number that went in")
}

#[inline]
fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("u32 fits into usize")
}

/// Whether entering the kernel failed in a way that goes away by collecting completions.
/// Source: io_uring_enter(2), EINTR, EAGAIN and EBUSY.
pub(crate) fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

/// One line for the record about the flags of a ring.
pub(crate) fn flags_mode(flags: &str) -> Modes {
    super::modes(&[("ring-flags", if flags.is_empty() { "none" } else { flags })])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::load;

    /// How often the clock was read and how many were timed of so many operations.
    fn timed_of(operations: u32, every: u32, depth: u32) -> (u32, u64) {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let job = Job {
            depth,
            ..Job::of(&work)
        };
        let mut meter = Meter::new(job.clock);
        meter.record(Duration::from_secs(1));
        let mut slots = Slots::new(&job).unwrap();
        assert_eq!(slots.sample_every(every), every);
        let mut due: Vec<u32> = (0..depth).collect();
        for slot in 0..depth {
            slots.begin(slot, meter.read_clock());
        }
        let mut readings = 0;
        for _ in 0..operations / depth {
            if slots.wants_clock() {
                meter.read_clock();
                readings += 1;
            }
            for slot in std::mem::take(&mut due) {
                slots.complete(slot, 4096, &mut meter, |slot, _| due.push(slot));
            }
        }
        assert_eq!(meter.counters.ops, u64::from(operations));
        (readings, meter.timed.latencies.count())
    }

    #[test]
    fn one_alone_reads_the_clock_around_those_that_are_timed_and_many_once_a_turn() {
        assert_eq!(timed_of(64, 1, 1), (64, 64));
        assert_eq!(timed_of(64, 8, 1), (16, 8));
        assert_eq!(timed_of(64, 8, 16), (4, 8));
        assert_eq!(timed_of(64, 1, 16), (4, 64));
    }
}
