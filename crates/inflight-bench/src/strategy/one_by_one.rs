//! The lane of every strategy that has one operation in flight: call, wait, repeat.

use anyhow::Result;

use super::{Body, Job, Lane, Modes};
use crate::measure::calls::Asked;
use crate::measure::meter::Meter;
use crate::measure::pace::Pace;
use crate::work::{Kind, Ops, Step, Work, stamp};

/// Does one step and waits for it.
pub(crate) trait Perform {
    /// System calls of one step.
    const SYSCALLS: u64;

    /// System calls of the last step beyond those.
    #[inline]
    fn more_syscalls(&mut self) -> u64 {
        0
    }

    /// All system calls so far, of a performer that counts them itself.
    fn all_syscalls(&self) -> Option<u64> {
        None
    }

    /// As [`Lane::asks_for_all`].
    fn asks_for_all(&self) -> Option<Asked> {
        None
    }

    /// A byte count, or a negative number.
    fn perform(&mut self, step: &Step) -> i32;

    /// The memory that steps of this length read into and write from.
    fn block(&mut self, bytes: usize) -> &mut [u8];

    /// The modes that took effect.
    fn effective(&self) -> Modes {
        Modes::new()
    }
}

/// Turns a way of doing a step into a lane. Two readings of the clock per operation would
/// disturb fast ones, so that only every n-th operation is timed where that matters.
pub(crate) struct OneByOne<P> {
    performer: P,
    ops: Ops,
    sample_every: u32,
}

impl<P: Perform> OneByOne<P> {
    pub(crate) fn new(job: &Job<'_>, performer: P) -> Self {
        Self {
            performer,
            ops: Ops::new(job.work, &job.share, job.seed),
            sample_every: 1,
        }
    }

    /// For performers that deliver nothing that could be checked.
    pub(crate) fn unverified(job: &Job<'_>, performer: P) -> Self {
        let work = Work {
            verify: false,
            ..job.work.clone()
        };
        Self {
            ops: Ops::new(&work, &job.share, job.seed),
            ..Self::new(job, performer)
        }
    }

    /// Hands the lane over: one operation after the other, or by the clock of the job.
    pub(crate) fn lend(mut self, job: &Job<'_>, body: Body<'_>) -> Result<()> {
        match job.pace {
            None => body(&mut self),
            Some(pace) => body(&mut ByTheClock { lane: self, pace }),
        }
    }

    /// Does all steps of the next operation. In place: where a return behind a system call is dear,
    /// one for each operation would be a quarter of a cached read.
    #[inline(always)]
    fn operate(&mut self, meter: &mut Meter) {
        let mut step = self.ops.next();
        loop {
            if step.kind == Kind::Write {
                let block = self.performer.block(step.bytes());
                stamp::stamp(block, step.file, step.offset);
            }
            let result = self.performer.perform(&step);
            meter.syscalls(P::SYSCALLS + self.performer.more_syscalls());
            let (counters, performer) = (&mut meter.counters, &mut self.performer);
            match counters.end_step(&self.ops, &step, result, || performer.block(step.bytes())) {
                Some(next) => step = next,
                None => return,
            }
        }
    }
}

impl<P: Perform> Lane for OneByOne<P> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let begin_ns = meter.read_clock();
        self.operate(meter);
        let end_ns = meter.read_clock();
        meter.latency(end_ns - begin_ns);
        for _ in 1..self.sample_every {
            self.operate(meter);
        }
        Ok(())
    }

    fn settle(&mut self, meter: &mut Meter) {
        if let Some(calls) = self.performer.all_syscalls() {
            meter.counters.syscalls = calls;
        }
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.sample_every = every.max(1);
        self.sample_every
    }

    fn counts_its_own(&self) -> bool {
        self.performer.all_syscalls().is_none()
    }

    fn asks_for_all(&self) -> Option<Asked> {
        self.performer.asks_for_all()
    }

    fn effective(&self) -> Modes {
        self.performer.effective()
    }
}

/// The same lane in an open loop: what is due next is waited for, or is late already.
struct ByTheClock<'p, P> {
    lane: OneByOne<P>,
    pace: &'p Pace,
}

impl<P: Perform> Lane for ByTheClock<'_, P> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let Some(due_ns) = self.pace.take(meter.read_clock()) else {
            return Ok(());
        };
        self.pace.wait(due_ns);
        self.lane.operate(meter);
        let end_ns = meter.read_clock();
        meter.latency(end_ns - due_ns);
        Ok(())
    }

    fn counts_its_own(&self) -> bool {
        self.lane.counts_its_own()
    }

    fn effective(&self) -> Modes {
        self.lane.effective()
    }
}
