//! The transfers that are shown to whoever shares them, and how one is made: reads of what is in
//! memory, and direct writes to it.
#![allow(unsafe_code)]

use std::ops::AddAssign;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use super::super::mail::Rouser;
use super::share::{Side, Work};
use crate::backend::threads::execute::{execute_now, execute_request, first_address, wanted_bytes};
use crate::completion::Answer;
use crate::op::{Iovecs, Op, Prepare, Request, Road, Span, Wishes};
use crate::policy::weight;

/// Most that are shared at a time.
pub(in crate::host) const PLACES: usize = 256;

/// How a transfer is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A read by a plain call.
    #[default]
    Call,
    /// A write by a plain call.
    WriteCall,
    /// Either by a plain call if it is shared, else by the ring.
    CallOrRing,
    /// A read that does not wait, for owners who must not: see [`Place::missed`]. A thread that
    /// helps may, and a plain call is faster.
    WithoutWaiting,
    /// A read that does not wait, whoever makes it: what waits is best left to the ring.
    Asking,
}

/// How many [kinds](Manner::kind) there are.
pub(in crate::host) const KINDS: usize = 3;

impl Manner {
    /// How a transfer on this road is made, one of those that are taken not to wait.
    #[inline]
    pub(in crate::host) fn of_warm(road: Road, op: &Op) -> Self {
        match road {
            Road::Memory => Self::CallOrRing,
            _ if op.is_write() => Self::WriteCall,
            _ => Self::Call,
        }
    }

    /// The number of its kind: what is found out of one kind says nothing of the others. Writes
    /// that a ring would make too are on memory, where two can be made at the same time, and in a
    /// mix neither they nor the reads win much by themselves.
    #[inline(always)]
    pub(in crate::host) fn kind(self) -> usize {
        match self {
            Self::Call | Self::WithoutWaiting | Self::Asking => 0,
            Self::CallOrRing => 1,
            Self::WriteCall => 2,
        }
    }

    /// Whether a ring makes those of this kind that are not shared.
    pub(in crate::host) fn has_ring(kind: usize) -> bool {
        kind == Self::CallOrRing.kind()
    }
}

/// Transfers that have been made.
#[derive(Clone, Copy, Default)]
pub(in crate::host) struct Made {
    pub(in crate::host) own: u32,
    pub(in crate::host) helped: u32,
}

impl AddAssign for Made {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.helped += other.helped;
    }
}

/// A transfer that is to be shown.
pub(in crate::host) struct Shown {
    pub(in crate::host) block: Block,
    /// As in [`Place`].
    memory: *mut u8,
    len: usize,
    offset: u64,
    buffers: u32,
    fd: RawFd,
    twin: Option<RawFd>,
    whole: bool,
    pub(in crate::host) manner: Manner,
}

impl Shown {
    /// The read of this operation.
    ///
    /// # Safety
    ///
    /// As for [`Shown::of`].
    #[inline]
    pub(in crate::host) unsafe fn new<O: Prepare>(
        operation: &O,
        request: &Request,
        manner: Manner,
    ) -> Self {
        let fd = request.op.reads_by();
        let twin = fd.and_then(|fd| operation.twin(fd));
        // SAFETY: passed on from the caller.
        unsafe { Self::of(request, twin, manner) }
    }

    /// The read of this request; the twin is another descriptor of the same file, if there is one.
    ///
    /// # Safety
    ///
    /// The list of buffers that the request names, if it names one, is valid.
    #[inline]
    pub(in crate::host) unsafe fn of(
        request: &Request,
        twin: Option<RawFd>,
        manner: Manner,
    ) -> Self {
        let op = &request.op;
        let (fd, offset, memory, len, buffers, address) = match *op {
            Op::ReadAt {
                fd, span, offset, ..
            }
            | Op::WriteAt {
                fd, span, offset, ..
            } => (fd, offset, span.start, span.len, NO_LIST, span.start.addr()),
            Op::ReadVectoredAt {
                fd, iovecs, offset, ..
            }
            | Op::WriteVectoredAt {
                fd, iovecs, offset, ..
            } => {
                // SAFETY: passed on from the caller.
                let len = unsafe { wanted_bytes(op) };
                // SAFETY: as above.
                let address = unsafe { first_address(iovecs) };
                (fd, offset, iovecs.first.cast(), len, iovecs.count, address)
            }
            _ => unreachable!("only transfers are shared"),
        };
        Self {
            block: Block::at(address),
            memory,
            len,
            offset,
            buffers: if op.is_write() {
                buffers | WRITE
            } else {
                buffers
            },
            fd,
            twin,
            whole: request.whole,
            manner,
        }
    }
}

/// What is shown. The owner writes here what is to be done before it shows a place, and
/// again when it has taken its answer; that is what orders the accesses.
pub(in crate::host) struct Places(Box<[Place; PLACES]>);

/// See [`Places`]. Both threads fetch it from each other, so it is kept small.
#[derive(Default)]
pub(in crate::host) struct Place {
    /// The memory of a transfer with one buffer; the list of one with several, which stays where
    /// the operation has it.
    memory: AtomicPtr<u8>,
    /// How many bytes are wanted.
    len: AtomicUsize,
    offset: AtomicU64,
    /// How many buffers are on the list, or [`NO_LIST`]; also whether it is a [`WRITE`].
    buffers: AtomicU32,
    fd: AtomicI32,
    /// The descriptor for who is not the owner.
    twin: AtomicI32,
    whole: AtomicBool,
    owner_may_wait: AtomicBool,
    helper_may_wait: AtomicBool,
}

/// More buffers than a list has.
const NO_LIST: u32 = u32::MAX >> 1;
/// A bit beside the number of buffers.
const WRITE: u32 = 1 << 31;

impl Places {
    pub(in crate::host) fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| Place::default())))
    }

    /// The place with this number.
    #[inline]
    pub(in crate::host) fn place(&self, at: usize) -> &Place {
        &self.0[at]
    }

    /// Writes a transfer to the place with this number. Returns what it [weighs](weight).
    #[inline]
    pub(in crate::host) fn write(&self, at: usize, read: &Shown) -> u64 {
        let place = &self.0[at];
        place.memory.store(read.memory, Relaxed);
        place.len.store(read.len, Relaxed);
        place.offset.store(read.offset, Relaxed);
        place.buffers.store(read.buffers, Relaxed);
        place.fd.store(read.fd, Relaxed);
        place.twin.store(read.twin.unwrap_or(read.fd), Relaxed);
        place.whole.store(read.whole, Relaxed);
        let (owner, helper) = match read.manner {
            Manner::Call | Manner::WriteCall | Manner::CallOrRing => (true, true),
            Manner::WithoutWaiting => (false, true),
            Manner::Asking => (false, false),
        };
        place.owner_may_wait.store(owner, Relaxed);
        place.helper_may_wait.store(helper, Relaxed);
        weight(read.len as u64)
    }
}

/// Some memory of a transfer. Addresses share them.
#[derive(Clone, Copy, Default)]
pub(in crate::host) struct Block(u16);

impl Block {
    /// That with this address.
    #[inline]
    fn at(address: usize) -> Self {
        // By pages, and those of one place in several arenas of a power of two differ.
        let number = (address >> 12 ^ address >> 21) % MAKERS;
        Self(u16::try_from(number).expect("there are fewer"))
    }
}

/// Who has made the last transfer of each block: a guess, as they are shared.
pub(in crate::host) struct Makers(Box<[Side; MAKERS]>);

/// More blocks than transfers that are shared at a time.
const MAKERS: usize = 2 * PLACES;

impl Makers {
    /// Nobody has read yet.
    pub(in crate::host) fn new() -> Self {
        Self(Box::new([Side::default(); MAKERS]))
    }

    /// Who is to read into it.
    #[inline]
    pub(super) fn of(&mut self, block: Block) -> &mut Side {
        &mut self.0[usize::from(block.0) % MAKERS]
    }
}

impl Place {
    /// What the read here weighs.
    #[inline]
    pub(in crate::host) fn weight(&self) -> u64 {
        weight(self.len.load(Relaxed) as u64)
    }

    /// Its owner must not wait for it from now on. As long as nobody has claimed it, nobody else is
    /// concerned.
    pub(in crate::host) fn forbid_waiting(&self) {
        self.owner_may_wait.store(false, Relaxed);
    }

    #[inline(always)]
    fn fd(&self, by: Side) -> RawFd {
        match by {
            Side::Near => self.fd.load(Relaxed),
            Side::Far => self.twin.load(Relaxed),
        }
    }

    /// The read into one buffer that was written here; one that the ring knows is named by its
    /// address alone.
    #[inline(always)]
    fn of_one(&self, by: Side) -> Request {
        let span = Span {
            start: self.memory.load(Relaxed),
            len: self.len.load(Relaxed),
            arena: None,
        };
        self.request(Op::ReadAt {
            fd: self.fd(by),
            span,
            offset: self.offset.load(Relaxed),
            wishes: Wishes::NONE,
        })
    }

    /// Another transfer that was written here: into or from so many buffers, or a [`WRITE`].
    fn of_other(&self, buffers: u32, by: Side) -> Request {
        let (fd, offset, wishes) = (self.fd(by), self.offset.load(Relaxed), Wishes::NONE);
        let start = self.memory.load(Relaxed);
        let count = buffers & !WRITE;
        let (first, len) = (start.cast(), self.len.load(Relaxed));
        let (iovecs, arena) = (Iovecs { first, count }, None);
        let span = Span { start, len, arena };
        self.request(match (buffers & WRITE != 0, count) {
            (false, _) => Op::ReadVectoredAt {
                fd,
                iovecs,
                offset,
                wishes,
            },
            (true, NO_LIST) => Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            },
            (true, _) => Op::WriteVectoredAt {
                fd,
                iovecs,
                offset,
                wishes,
            },
        })
    }

    #[inline(always)]
    fn request(&self, op: Op) -> Request {
        Request {
            whole: self.whole.load(Relaxed),
            ..Request::simple(op)
        }
    }

    /// The read, if its owner was not to wait for it and this answer says that it would have to.
    /// The whole of it has to be done once more.
    #[inline]
    pub(in crate::host) fn missed(&self, answer: Answer) -> Option<Request> {
        if self.owner_may_wait.load(Relaxed) {
            return None;
        }
        // Neither has taken anything off a list: what has moved some before it failed answers with
        // what it moved, or with an errno and that.
        let again = || match self.buffers.load(Relaxed) {
            NO_LIST => self.of_one(Side::Near),
            buffers => self.of_other(buffers, Side::Near),
        };
        match answer {
            MISSED => Some(again()),
            // A ring would hand it to a worker of the kernel.
            REFUSED => Some(again().aside()),
            _ => None,
        }
    }

    /// Makes the transfer that was written here.
    ///
    /// # Safety
    ///
    /// As for [`Work::work`].
    #[inline(always)]
    unsafe fn make(&self, request: &Request, by: Side) -> Answer {
        let may_wait = match by {
            Side::Near => &self.owner_may_wait,
            Side::Far => &self.helper_may_wait,
        };
        match may_wait.load(Relaxed) {
            // SAFETY: passed on from the caller.
            true => unsafe { execute_request(request) },
            // SAFETY: as above.
            false => unsafe { without_waiting(request) },
        }
    }

    /// As [`Place::make`], of [other](Place::of_other) transfers: apart, so that a read into a
    /// single buffer is asked once what it is.
    ///
    /// # Safety
    ///
    /// As for [`Work::work`].
    #[inline(never)]
    unsafe fn make_other(&self, buffers: u32, by: Side) -> Answer {
        // SAFETY: passed on from the caller.
        unsafe { self.make(&self.of_other(buffers, by), by) }
    }
}

/// What is answered when the page cache does not have all of a read that must not wait.
const MISSED: Answer = Answer::from_number(-(libc::EAGAIN as i64));

/// What is answered when the file cannot be asked not to wait.
const REFUSED: Answer = Answer::from_number(-(libc::EOPNOTSUPP as i64));

impl Work for Places {
    type Alarm = Rouser;

    #[inline]
    unsafe fn work(&self, place: usize, by: Side) -> i64 {
        let place = &self.0[place];
        let answer = match place.buffers.load(Relaxed) {
            // SAFETY: passed on from the caller.
            NO_LIST => unsafe { place.make(&place.of_one(by), by) },
            // SAFETY: as above.
            buffers => unsafe { place.make_other(buffers, by) },
        };
        answer.to_number()
    }
}

/// A transfer that does not wait: a read of what the page cache has, or a write to memory.
///
/// # Safety
///
/// As for [`execute_now`].
unsafe fn without_waiting(request: &Request) -> Answer {
    // SAFETY: passed on from the caller.
    let result = unsafe { execute_now(&request.op) };
    // SAFETY: as above.
    let wanted = unsafe { wanted_bytes(&request.op) };
    said_without_waiting(&request.op, result, wanted)
}

fn said_without_waiting(op: &Op, result: i32, wanted: usize) -> Answer {
    match usize::try_from(result) {
        // Nothing is the end of the file, which waiting does not change.
        Ok(moved) if moved == wanted || (moved == 0 && op.is_read()) => Answer::moved(moved),
        Err(_) if result == -libc::EOPNOTSUPP => REFUSED,
        Err(_) if op.is_told_once(result) => Answer::from_result(result),
        // Errors are left to the call that may wait, as everywhere.
        _ => MISSED,
    }
}

// Miri does not know these calls.
#[cfg(all(test, not(loom), not(miri)))]
#[path = "shown_test.rs"]
mod tests;
