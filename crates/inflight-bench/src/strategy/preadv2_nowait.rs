//! `preadv2-nowait`: asks for what is in the page cache without waiting, and where it is not there
//! asks again and waits. What a program does that must know whether a read will block.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use anyhow::Result;

use super::arena::Arena;
use super::one_by_one::{OneByOne, Perform};
use super::pread::call;
use super::{ALONE, Body, Job, Modes, Shape, Strategy, Way, modes};
use crate::profile::Profile;
use crate::work::{Kind, Step};

pub(crate) struct Preadv2Nowait;

impl Strategy for Preadv2Nowait {
    fn name(&self) -> &'static str {
        "preadv2-nowait"
    }

    fn about(&self) -> &'static str {
        "asks for cached data first (RWF_NOWAIT), and again, waiting, where there is none"
    }

    fn shapes(&self, _profile: &Profile, _cpus: u32) -> Vec<Shape> {
        vec![ALONE]
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        modes(&[("nowait", "yes")])
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        if profile.direct() {
            return Some("without the page cache there is nothing that could be had at once");
        }
        let reads = profile.asked.access.reads();
        (!reads).then_some("it is about reads alone: writes are those of pread")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let attempt = Attempt {
        fds: job.fds.to_vec(),
        block: Arena::of(job.work, 1)?,
        waited: 0,
        refused: false,
    };
    OneByOne::new(job, attempt).lend(job, body)
}

struct Attempt {
    fds: Vec<RawFd>,
    block: Arena,
    /// Second calls that were not counted yet.
    waited: u64,
    /// Whether the file system does not know such reads.
    refused: bool,
}

impl Perform for Attempt {
    const SYSCALLS: u64 = 1;

    #[inline]
    fn perform(&mut self, step: &Step) -> i32 {
        let fd = self.fds[step.file_index()];
        let block = self.block.block(0, step.bytes());
        if step.kind != Kind::Read {
            // SAFETY: the files of a job are open as long as its lanes.
            return unsafe { call(fd, step, block) };
        }
        let Ok(offset) = libc::off_t::try_from(step.offset) else {
            return -libc::EOVERFLOW;
        };
        let part = libc::iovec {
            iov_base: block.as_mut_ptr().cast(),
            iov_len: block.len(),
        };
        // SAFETY: the one part is writable for its length and borrowed until the call returns.
        let read = unsafe { libc::preadv2(fd, &raw const part, 1, offset, libc::RWF_NOWAIT) };
        match i32::try_from(read) {
            Ok(bytes) if bytes >= 0 && u32::try_from(bytes) == Ok(step.length) => bytes,
            // Only a part of it was there, or nothing.
            Ok(0..) => self.wait(step),
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN) => self.wait(step),
                Some(libc::EOPNOTSUPP) => {
                    self.refused = true;
                    self.wait(step)
                }
                error => -error.unwrap_or(libc::EIO),
            },
        }
    }

    #[inline]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        self.block.block(0, bytes)
    }

    #[inline]
    fn more_syscalls(&mut self) -> u64 {
        std::mem::take(&mut self.waited)
    }

    fn effective(&self) -> Modes {
        let nowait = if self.refused { "no: refused" } else { "yes" };
        modes(&[("nowait", nowait)])
    }
}

impl Attempt {
    #[cold]
    fn wait(&mut self, step: &Step) -> i32 {
        self.waited += 1;
        let fd = self.fds[step.file_index()];
        // SAFETY: the files of a job are open as long as its lanes.
        unsafe { call(fd, step, self.block.block(0, step.bytes())) }
    }
}
