//! `one-flush`: writes as many blocks as there are clients and flushes once, on one thread with
//! nobody to tell. What the device and the file system allow of a log with so many clients: a
//! limit, and no way of serving them.

use anyhow::Result;

use super::one_by_one::Perform;
use super::pread::Call;
use super::{Body, Job, Lane, Shape, Strategy, Way};
use crate::measure::meter::Meter;
use crate::profile::Profile;
use crate::work::{Kind, Ops, Step, stamp};

pub(crate) struct OneFlush;

impl Strategy for OneFlush {
    fn name(&self) -> &'static str {
        "one-flush"
    }

    fn about(&self) -> &'static str {
        "writes for all clients with one flush and nobody told: a limit, no way to serve them"
    }

    fn shapes(&self, profile: &Profile, _cpus: u32) -> Vec<Shape> {
        let depths = profile.asked.queue_depths.iter();
        let several = depths.filter(|depth| profile.shares_flushes() && **depth > 1);
        several.map(|&depth| Shape { depth, threads: 1 }).collect()
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let may = profile.shares_flushes();
        (!may).then_some("it is about writes to one file that are each synced, and nothing else")
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("it waits for nobody: how many come together is its own choice")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let mut lane = OneFlushLane {
        call: Call::of(job)?,
        ops: Ops::new(job.work, &job.share, job.seed),
        depth: job.depth,
    };
    body(&mut lane)
}

struct OneFlushLane {
    call: Call,
    ops: Ops,
    depth: u32,
}

impl OneFlushLane {
    fn perform(&mut self, step: &Step, meter: &mut Meter) -> i32 {
        meter.syscalls(Call::SYSCALLS);
        self.call.perform(step)
    }
}

impl Lane for OneFlushLane {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let begin_ns = meter.read_clock();
        let mut last = None;
        let mut written = 0;
        for _ in 0..self.depth {
            let step = self.ops.next();
            stamp::stamp(self.call.block(step.bytes()), step.file, step.offset);
            let result = self.perform(&step, meter);
            match u32::try_from(result) == Ok(step.wanted()) {
                true => written += 1,
                false => meter.complete(result, step.wanted()),
            }
            last = Some(step);
        }
        let last = last.expect("a depth is at least 1");
        let sync = Step {
            kind: Kind::Sync,
            ..last
        };
        let result = self.perform(&sync, meter);
        let end_ns = meter.read_clock();
        for _ in 0..written {
            match result {
                0 => meter.complete_all(last.length),
                _ => meter.complete(result, last.length),
            }
            meter.latency(end_ns - begin_ns);
        }
        Ok(())
    }
}
