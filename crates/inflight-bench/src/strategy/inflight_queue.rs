//! The library with several operations in flight: a queue that is kept full.
//!
//! Every eighth operation at most is timed where there are enough in flight: results come one by
//! one, so that reading the clock for each would cost what the other ring strategies do not pay.

use ::inflight::{IoBufMut, Queue};
use anyhow::{Context, Result};

use super::inflight::{Ask, Means};
use super::tasks::Block;
use super::{Body, Job, Lane, Modes, as_answer, least_every};
use crate::measure::meter::Meter;
use crate::work::{Kind, Ops, Step, stamp};

pub(super) fn with_lane<'f, O: Ask<'f, B>, B: Block + IoBufMut>(
    job: &Job<'_>,
    means: &'f Means,
    blocks: Vec<B>,
    body: Body<'_>,
) -> Result<()> {
    means.engine.queue(job.depth, |queue| {
        let mut lane = Several::<O, B> {
            queue,
            means,
            ops: Ops::new(job.work, &job.share, job.seed),
            slots: Vec::with_capacity(blocks.len()),
            sample_every: 1,
            until_timed: 0,
            least_every: least_every(job.depth),
            stopped: false,
        };
        lane.fill(blocks)?;
        body(&mut lane)
    })?
}

/// One operation in flight.
struct Slot<B> {
    step: Step,
    /// When the operation began, if it is timed.
    began_ns: Option<u64>,
    /// The block, during a step that has no use for it.
    aside: Option<B>,
}

struct Several<'a, 'q, 's, 'f, O: Ask<'f, B>, B> {
    queue: &'a mut Queue<'q, 's, O>,
    means: &'f Means,
    ops: Ops,
    slots: Vec<Slot<B>>,
    sample_every: u32,
    until_timed: u32,
    least_every: u32,
    stopped: bool,
}

impl<'f, O: Ask<'f, B>, B: Block + IoBufMut> Several<'_, '_, '_, 'f, O, B> {
    fn fill(&mut self, blocks: Vec<B>) -> Result<()> {
        for (tag, block) in (0u64..).zip(blocks) {
            let step = self.ops.next();
            self.slots.push(Slot {
                step,
                began_ns: None,
                aside: None,
            });
            self.push(tag, block)?;
        }
        Ok(())
    }

    /// Queues the step of a slot.
    #[inline]
    fn push(&mut self, tag: u64, mut block: B) -> Result<()> {
        let slot = &mut self.slots[index(tag)];
        let step = slot.step;
        block.cut(step.bytes());
        if step.kind == Kind::Write {
            stamp::stamp(block.bytes(), step.file, step.offset);
        }
        let file = &self.means.files[step.file_index()];
        let (operation, aside) = O::ask(file, &step, block);
        if aside.is_some() {
            slot.aside = aside;
        }
        let pushed = self.queue.push(tag, operation);
        pushed
            .ok()
            .context("the queue takes as many as were asked for")
    }

    /// When the next operation begins, if it is to be timed.
    #[inline]
    fn timing(&mut self, meter: &mut Meter) -> Option<u64> {
        if self.until_timed > 0 {
            self.until_timed -= 1;
            return None;
        }
        self.until_timed = self.sample_every - 1;
        Some(meter.read_clock())
    }

    /// Takes one result, and goes on with its slot.
    #[inline]
    fn take(&mut self, tag: u64, output: O::Output, meter: &mut Meter) -> Result<()> {
        let (result, block) = O::told(output);
        let slot = &mut self.slots[index(tag)];
        let block = block.or_else(|| slot.aside.take());
        let mut block = block.context("the block came back")?;
        let (step, result) = (slot.step, as_answer(&result));
        let counters = &mut meter.counters;
        if let Some(next) = counters.end_step(&self.ops, &step, result, || block.bytes()) {
            slot.step = next;
            return self.push(tag, block);
        }
        if let Some(began_ns) = slot.began_ns.take() {
            let now_ns = meter.read_clock();
            meter.latency(now_ns - began_ns);
        }
        if self.stopped {
            return Ok(());
        }
        let began_ns = self.timing(meter);
        let step = self.ops.next();
        let slot = &mut self.slots[index(tag)];
        (slot.began_ns, slot.step) = (began_ns, step);
        self.push(tag, block)
    }
}

fn index(tag: u64) -> usize {
    usize::try_from(tag).expect("below the depth")
}

impl<'f, O: Ask<'f, B>, B: Block + IoBufMut> Lane for Several<'_, '_, '_, 'f, O, B> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        if self.ops.work().has_steps() {
            // The results of a turn may all be of steps of operations that are not timed.
            meter.read_clock();
        }
        for _ in 0..self.sample_every {
            let (tag, output) = self.queue.next().context("the queue is never empty")?;
            self.take(tag, output, meter)?;
        }
        Ok(())
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.sample_every = every.max(self.least_every);
        self.until_timed = 0;
        self.sample_every
    }

    fn finish(&mut self, meter: &mut Meter) -> Result<()> {
        self.stopped = true;
        while let Some((tag, output)) = self.queue.next() {
            self.take(tag, output, meter)?;
        }
        Ok(())
    }

    fn settle(&mut self, meter: &mut Meter) {
        meter.counters.syscalls = self.means.calls();
    }

    fn knows_syscalls(&self) -> bool {
        self.means.knows_syscalls()
    }

    /// They are those of the engine.
    fn counts_its_own(&self) -> bool {
        false
    }

    fn effective(&self) -> Modes {
        self.means.effective()
    }
}
