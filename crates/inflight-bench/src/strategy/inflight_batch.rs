//! The library with batches: operations that are run together, and all waited for.

use ::inflight::{Batch, IoBufMut};
use anyhow::{Context, Result};

use super::inflight::{Ask, Means};
use super::tasks::Block;
use super::{Body, Job, Lane, Modes, as_answer};
use crate::measure::meter::Meter;
use crate::work::{Kind, Ops, Step, stamp};

pub(super) fn with_lane<'f, O: Ask<'f, B>, B: Block + IoBufMut>(
    job: &Job<'_>,
    means: &'f Means,
    blocks: Vec<B>,
    body: Body<'_>,
) -> Result<()> {
    body(&mut Together::<O, B> {
        batch: Batch::on(&means.engine),
        means,
        ops: Ops::new(job.work, &job.share, job.seed),
        asked: Vec::with_capacity(blocks.len()),
        ready: Vec::with_capacity(blocks.len()),
        blocks,
    })
}

struct Together<'f, O: Ask<'f, B>, B> {
    batch: Batch<O>,
    means: &'f Means,
    ops: Ops,
    /// Free blocks.
    blocks: Vec<B>,
    /// The steps of the batch, in its order, with the blocks of those that have no use for them.
    asked: Vec<(Step, Option<B>)>,
    /// Steps that come next.
    ready: Vec<(Step, B)>,
}

impl<'f, O: Ask<'f, B>, B: Block + IoBufMut> Together<'f, O, B> {
    /// Runs the steps that come next, all together, and counts the operations that are over.
    fn run(&mut self, began_ns: u64, meter: &mut Meter) -> Result<()> {
        for (step, mut block) in self.ready.drain(..) {
            block.cut(step.bytes());
            if step.kind == Kind::Write {
                stamp::stamp(block.bytes(), step.file, step.offset);
            }
            let file = &self.means.files[step.file_index()];
            let (operation, aside) = O::ask(file, &step, block);
            self.batch.push(operation);
            self.asked.push((step, aside));
        }
        let results = self.batch.wait();
        let now_ns = meter.read_clock();
        for (output, (step, aside)) in results.zip(self.asked.drain(..)) {
            let (result, block) = O::told(output);
            let mut block = block.or(aside).context("the block came back")?;
            let result = as_answer(&result);
            let counters = &mut meter.counters;
            match counters.end_step(&self.ops, &step, result, || block.bytes()) {
                Some(next) => self.ready.push((next, block)),
                None => {
                    // All results of a batch come at once.
                    meter.latency(now_ns - began_ns);
                    self.blocks.push(block);
                }
            }
        }
        Ok(())
    }
}

impl<'f, O: Ask<'f, B>, B: Block + IoBufMut> Lane for Together<'f, O, B> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let began_ns = meter.read_clock();
        for block in self.blocks.drain(..) {
            self.ready.push((self.ops.next(), block));
        }
        while !self.ready.is_empty() {
            self.run(began_ns, meter)?;
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
