//! The lane of every strategy that has one operation in flight: call, wait, repeat.

use anyhow::Result;

use super::offsets::Offsets;
use super::{Job, Lane, Modes};
use crate::measure::meter::Meter;

/// Reads one block and waits for it.
pub(crate) trait ReadBlock {
    /// System calls of one operation.
    const SYSCALLS: u64;

    /// The number of bytes read, or a negative number.
    fn read(&mut self, offset: u64) -> i32;

    /// The modes that took effect.
    fn effective(&self) -> Modes {
        Modes::new()
    }
}

/// Turns a way of reading a block into a lane. Two readings of the clock per operation would
/// disturb fast ones, so that only every n-th operation is timed where that matters.
pub(crate) struct OneByOne<R> {
    reader: R,
    offsets: Offsets,
    block_bytes: u32,
    sample_every: u32,
}

impl<R: ReadBlock> OneByOne<R> {
    pub(crate) fn new(job: &Job<'_>, reader: R) -> Self {
        Self {
            reader,
            offsets: Offsets::new(job.seed, job.size_bytes, job.block_bytes),
            block_bytes: job.block_bytes,
            sample_every: 1,
        }
    }
}

impl<R: ReadBlock> Lane for OneByOne<R> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let begin_ns = meter.read_clock();
        let result = self.reader.read(self.offsets.next());
        let end_ns = meter.read_clock();
        meter.latency(end_ns - begin_ns);
        meter.complete(result, self.block_bytes);
        for _ in 1..self.sample_every {
            let result = self.reader.read(self.offsets.next());
            meter.complete(result, self.block_bytes);
        }
        meter.syscalls(R::SYSCALLS * u64::from(self.sample_every));
        Ok(())
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.sample_every = every.max(1);
        self.sample_every
    }

    fn effective(&self) -> Modes {
        self.reader.effective()
    }
}
