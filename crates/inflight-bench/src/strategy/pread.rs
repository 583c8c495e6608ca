//! `pread`: one thread, one positioned system call at a time. What everything is compared with.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use anyhow::Result;

use super::arena::Arena;
use super::one_by_one::{OneByOne, ReadBlock};
use super::{Body, Job, Shape, Strategy, Way};

pub(crate) struct Pread;

impl Strategy for Pread {
    fn name(&self) -> &'static str {
        "pread"
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

pub(crate) fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let call = Call {
        fd: job.fd,
        buffer: Arena::new(1, job.block_bytes),
    };
    body(&mut OneByOne::new(job, call))
}

struct Call {
    fd: RawFd,
    buffer: Arena,
}

impl ReadBlock for Call {
    const SYSCALLS: u64 = 1;

    #[inline]
    fn read(&mut self, offset: u64) -> i32 {
        let Ok(offset) = libc::off_t::try_from(offset) else {
            return -libc::EOVERFLOW;
        };
        let buffer = self.buffer.first();
        let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: `buffer` is writable for its length and borrowed until the call returns.
        let read = unsafe { libc::pread(self.fd, start, length, offset) };
        i32::try_from(read).unwrap_or(-1)
    }
}
