//! `libaio`: Linux AIO. Only direct I/O is asynchronous there: buffered, the
//! call that submits does the work.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use anyhow::{Context, Result};

use super::slots::{Passes, Place, Slots, is_passing, slot_of};
use super::{Body, Job, Strategy, Way};
use crate::measure::meter::Meter;
use crate::profile::Profile;
use crate::work::Kind;

pub(crate) struct Libaio;

impl Strategy for Libaio {
    fn name(&self) -> &'static str {
        "libaio"
    }

    fn about(&self) -> &'static str {
        "Linux AIO (io_submit)"
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let direct = profile.direct();
        (!direct).then_some("libaio is asynchronous with direct I/O alone")
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("an open loop was taught to io_uring and threads, not to libaio")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// A request, as the kernel reads it. Source: `struct iocb` of linux/aio_abi.h, where the two
/// halves of the key are swapped on machines with the other byte order; both are zero here.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// A completion, as the kernel writes it. Source: `struct io_event` of linux/aio_abi.h.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Completion {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FDSYNC: u16 = 3;

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let depth = usize::try_from(job.depth)?;
    let mut lane = Aio {
        context: Queue::new(job.depth)?,
        fds: job.fds.to_vec(),
        slots: Slots::new(job)?,
        requests: vec![Request::default(); depth],
        queued: Vec::with_capacity(depth),
        list: Vec::with_capacity(depth),
        completions: vec![Completion::default(); depth],
        in_flight: 0,
    };
    lane.fill(job.clock.now_ns());
    body(&mut lane)
}

/// A context of the kernel's; dropping it waits for what is in flight (io_destroy(2)).
struct Queue {
    id: libc::c_ulong,
}

impl Queue {
    fn new(depth: u32) -> Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the id, which is zero before, into memory of its type.
        let answer = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        if answer != 0 {
            let error = io::Error::last_os_error();
            return Err(error).context("io_setup (limited by /proc/sys/fs/aio-max-nr)");
        }
        Ok(Self { id })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the id is of a context that was made by this value, and is used no more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

struct Aio {
    // Dropped first, which waits for what is in flight: the memory below outlives it.
    context: Queue,
    fds: Vec<RawFd>,
    slots: Slots,
    /// One for each slot.
    requests: Vec<Request>,
    /// Slots whose requests are to be submitted.
    queued: Vec<u32>,
    /// Room for their addresses.
    list: Vec<*mut Request>,
    completions: Vec<Completion>,
    in_flight: u32,
}

/// Queues what a slot does next.
fn push(requests: &mut [Request], queued: &mut Vec<u32>, fds: &[RawFd], slot: u32, place: &Place) {
    let step = &place.step;
    let (opcode, buffer, bytes) = match step.kind {
        Kind::Read => (PREAD, place.buffer.addr(), step.bytes()),
        Kind::Write => (PWRITE, place.buffer.addr(), step.bytes()),
        Kind::Sync => (FDSYNC, 0, 0),
    };
    let number = |value: usize| u64::try_from(value).expect("usize fits into u64");
    requests[index(slot)] = Request {
        data: u64::from(slot),
        opcode,
        fd: fds[step.file_index()].unsigned_abs(),
        buffer: number(buffer),
        bytes: number(bytes),
        offset: i64::try_from(step.offset).expect("offsets of files fit"),
        ..Request::default()
    };
    queued.push(slot);
}

fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("u32 fits into usize")
}

impl Aio {
    fn fill(&mut self, now_ns: u64) {
        let slots = &mut self.slots;
        for slot in 0..slots.depth() {
            let place = slots.begin(slot, now_ns);
            push(
                &mut self.requests,
                &mut self.queued,
                &self.fds,
                slot,
                &place,
            );
        }
    }

    /// Hands over what is queued, all of it unless the kernel is busy.
    fn submit(&mut self, meter: &mut Meter) -> Result<()> {
        while !self.queued.is_empty() {
            meter.syscalls(1);
            self.list.clear();
            for &slot in &self.queued {
                self.list.push(&raw mut self.requests[index(slot)]);
            }
            let (count, list) = (self.list.len(), self.list.as_mut_ptr());
            // SAFETY: the list has so many addresses of requests, whose buffers belong to their
            // slots alone; both stay until the completion: the context is dropped first.
            let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context.id, count, list) };
            match usize::try_from(taken) {
                Ok(taken) => {
                    self.in_flight += u32::try_from(taken)?;
                    drop(self.queued.drain(..taken));
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if !is_passing(&error) || self.in_flight == 0 {
                        return Err(error).context("io_submit");
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits for so many completions; returns how many there are.
    fn wait(&mut self, at_least: u32) -> Result<usize> {
        let (list, room) = (self.completions.as_mut_ptr(), self.completions.len());
        let no_limit = std::ptr::null_mut::<libc::timespec>();
        let (id, least) = (self.context.id, at_least);
        // SAFETY: the list has room for as many completions as told.
        let count =
            unsafe { libc::syscall(libc::SYS_io_getevents, id, least, room, list, no_limit) };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if is_passing(&error) {
                    return Ok(0);
                }
                Err(error).context("io_getevents")
            }
        }
    }
}

impl Passes for Aio {
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn pass(&mut self, meter: &mut Meter) -> Result<()> {
        self.submit(meter)?;
        let at_least = self.slots.wait_for(1).min(self.in_flight);
        meter.syscalls(1);
        let count = self.wait(at_least)?;
        let slots = &mut self.slots;
        if slots.wants_clock() {
            meter.read_clock();
        }
        for completion in &self.completions[..count] {
            self.in_flight -= 1;
            let slot = slot_of(completion.data);
            let result = i32::try_from(completion.result).unwrap_or(i32::MAX);
            slots.complete(slot, result, meter, |slot, place| {
                push(
                    &mut self.requests,
                    &mut self.queued,
                    &self.fds,
                    slot,
                    &place,
                );
            });
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.in_flight > 0 || !self.queued.is_empty()
    }
}
