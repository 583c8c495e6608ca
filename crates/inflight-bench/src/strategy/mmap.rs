//! `mmap`: the file is mapped, and a block is copied out of the mapping.
//!
//! The mapping is made and populated before the measurement, as a program would that keeps it. The
//! block is copied into a buffer, because the other strategies deliver bytes too. A mapping
//! reports no I/O errors: a block that cannot be read ends the program with SIGBUS.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use anyhow::{Context, Result};

use super::arena::Arena;
use super::one_by_one::{OneByOne, ReadBlock};
use super::{Body, Job, Modes, Shape, Strategy, Way, modes};

pub(crate) struct Mmap;

impl Strategy for Mmap {
    fn name(&self) -> &'static str {
        "mmap"
    }

    fn shapes(&self, _depths: &[u32], _cpus: u32) -> Vec<Shape> {
        vec![Shape {
            depth: 1,
            threads: 1,
        }]
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        modes(&[
            ("mapping", "populated, kept"),
            ("reports-errors", "no: SIGBUS"),
        ])
    }

    fn unfit(&self, direct: bool) -> Option<&'static str> {
        direct.then_some("mmap always goes through the page cache: it has no direct I/O")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let mapping = Mapping::new(job).context("the file cannot be mapped")?;
    let buffer = Arena::new(1, job.block_bytes);
    body(&mut OneByOne::new(job, Copy { mapping, buffer }))
}

struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(job: &Job<'_>) -> Result<Self> {
        let length = usize::try_from(job.size_bytes)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh, read-only mapping at an address of the kernel's choice touches no
        // memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                flags,
                job.fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let start: NonNull<u8> = NonNull::new(start.cast()).context("mapped at address zero")?;
        // Random access: reading ahead would only cost. Advice may be ignored.
        // SAFETY: the range was mapped just now; advice does not change its contents.
        unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_RANDOM) };
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

struct Copy {
    mapping: Mapping,
    buffer: Arena,
}

impl ReadBlock for Copy {
    const SYSCALLS: u64 = 0;

    #[inline]
    fn read(&mut self, offset: u64) -> i32 {
        let buffer = self.buffer.first();
        let Ok(offset) = usize::try_from(offset) else {
            return -libc::EOVERFLOW;
        };
        if offset.saturating_add(buffer.len()) > self.mapping.length {
            return -libc::EINVAL;
        }
        let from = self.mapping.start.as_ptr().wrapping_add(offset);
        // SAFETY: the range was checked against the mapping; the buffer is memory of our own, so
        // the two do not overlap. Another process may change the file: bytes are only copied.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
        std::hint::black_box(buffer.as_ptr());
        i32::try_from(buffer.len()).unwrap_or(-1)
    }

    fn effective(&self) -> Modes {
        Modes::new()
    }
}
