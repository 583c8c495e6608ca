//! `pread`: one thread, one positioned system call at a time. What everything is compared with.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};

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

    fn about(&self) -> &'static str {
        "one thread that reads or writes, one plain call at a time; what all are compared with"
    }

    fn shapes(&self, _profile: &Profile, _cpus: u32) -> Vec<Shape> {
        vec![ALONE]
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

pub(crate) fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    OneByOne::new(job, Call::of(job)?).lend(job, body)
}

/// Steps by plain system calls, with one block of memory.
pub(super) struct Call {
    fds: Vec<RawFd>,
    block: Arena,
}

impl Call {
    pub(super) fn of(job: &Job<'_>) -> Result<Self> {
        Ok(Self {
            fds: job.fds.to_vec(),
            block: Arena::of(job.work, 1)?,
        })
    }
}

impl Perform for Call {
    const SYSCALLS: u64 = 1;

    #[inline(always)]
    fn perform(&mut self, step: &Step) -> i32 {
        let block = self.block.block(0, step.bytes());
        // SAFETY: the files of a job are open as long as its lanes.
        unsafe { call(self.fds[step.file_index()], step, block) }
    }

    #[inline(always)]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        self.block.block(0, bytes)
    }
}

/// Does one step with one plain system call, made in place: by way of the C library's functions
/// each would return once more, which is dear on some processors (`docs/design/roads.md`). A byte
/// count, or a negated errno.
///
/// # Safety
///
/// The descriptor is open until this returns.
#[inline(always)]
pub(super) unsafe fn call(fd: RawFd, step: &Step, block: &mut [u8]) -> i32 {
    // SAFETY: passed on from the caller.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let result = match step.kind {
        Kind::Read => rustix::io::pread(file, block, step.offset),
        Kind::Write => rustix::io::pwrite(file, block, step.offset),
        Kind::Sync => rustix::fs::fdatasync(file).map(|()| 0),
    };
    match result {
        Ok(bytes) => i32::try_from(bytes).expect("a transfer is at most MAX_RW_COUNT"),
        Err(errno) => -errno.raw_os_error(),
    }
}
