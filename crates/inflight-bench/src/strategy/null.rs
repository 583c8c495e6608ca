//! `null`: no I/O at all. What is left is the cost of the harness itself.

use std::hint::black_box;

use anyhow::Result;

use super::one_by_one::{OneByOne, ReadBlock};
use super::{Body, Job, Shape, Strategy, Way};

pub(crate) struct Null;

impl Strategy for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn shapes(&self, _depths: &[u32], _cpus: u32) -> Vec<Shape> {
        vec![Shape {
            depth: 1,
            threads: 1,
        }]
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let bytes = i32::try_from(job.block_bytes)?;
    body(&mut OneByOne::new(job, Nothing { bytes }))
}

struct Nothing {
    bytes: i32,
}

impl ReadBlock for Nothing {
    const SYSCALLS: u64 = 0;

    #[inline]
    fn read(&mut self, offset: u64) -> i32 {
        black_box(offset);
        self.bytes
    }
}
