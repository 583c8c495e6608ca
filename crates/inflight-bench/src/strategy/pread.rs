//! `pread`: one thread, one positioned system call at a time. What everything is compared with.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use anyhow::Result;

use super::arena::Arena;
use super::one_by_one::{OneByOne, Perform};
use super::{ALONE, Body, Job, Shape, Strategy, Way};
use crate::profile::Profile;
use crate::work::{Kind, Step};

pub(crate) struct Pread;

impl Strategy for Pread {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn shapes(&self, _profile: &Profile, _cpus: u32) -> Vec<Shape> {
        vec![ALONE]
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

pub(crate) fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let call = Call {
        fds: job.fds.to_vec(),
        block: Arena::of(job.work, 1),
    };
    OneByOne::new(job, call).lend(job, body)
}

struct Call {
    fds: Vec<RawFd>,
    block: Arena,
}

impl Perform for Call {
    const SYSCALLS: u64 = 1;

    #[inline]
    fn perform(&mut self, step: &Step) -> i32 {
        let block = self.block.block(0, step.bytes());
        call(self.fds[step.file_index()], step, block)
    }

    #[inline]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        self.block.block(0, bytes)
    }
}

/// Does one step with one plain system call. A byte count, or a negated errno.
#[inline]
pub(super) fn call(fd: RawFd, step: &Step, block: &mut [u8]) -> i32 {
    let Ok(offset) = libc::off_t::try_from(step.offset) else {
        return -libc::EOVERFLOW;
    };
    let (start, length) = (block.as_mut_ptr().cast(), block.len());
    let result = match step.kind {
        // SAFETY: `block` is writable for its length and borrowed until the call returns.
        Kind::Read => unsafe { libc::pread(fd, start, length, offset) },
        // SAFETY: `block` is initialised for its length and borrowed until the call returns.
        Kind::Write => unsafe { libc::pwrite(fd, start, length, offset) },
        // SAFETY: a call on an open descriptor; no memory is involved.
        Kind::Sync => match unsafe { libc::fdatasync(fd) } {
            0 => 0,
            _ => -1,
        },
    };
    match i32::try_from(result) {
        Ok(bytes) if bytes >= 0 => bytes,
        _ => -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    }
}
