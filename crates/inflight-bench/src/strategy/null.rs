//! `null`: no I/O at all. What is left is the cost of the harness itself.

use std::hint::black_box;

use anyhow::Result;

use super::one_by_one::{OneByOne, Perform};
use super::{ALONE, Body, Job, Shape, Strategy, Way};
use crate::profile::Profile;
use crate::work::Step;

pub(crate) struct Null;

impl Strategy for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn about(&self) -> &'static str {
        "no I/O at all: what the measuring itself costs"
    }

    fn shapes(&self, _profile: &Profile, _cpus: u32) -> Vec<Shape> {
        vec![ALONE]
    }

    fn works(&self) -> bool {
        false
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let block = vec![0; usize::try_from(job.work.block_bytes)?];
    OneByOne::unverified(job, Nothing { block }).lend(job, body)
}

struct Nothing {
    block: Vec<u8>,
}

impl Perform for Nothing {
    const SYSCALLS: u64 = 0;

    #[inline]
    fn perform(&mut self, step: &Step) -> i32 {
        black_box(step.offset);
        i32::try_from(step.wanted()).unwrap_or(i32::MAX)
    }

    #[inline]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.block[..bytes]
    }
}
