//! The reads that are shown to whoever shares them, and how one is made.
#![allow(unsafe_code)]

use std::ops::AddAssign;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize};

use super::mail::Rouser;
use super::share::{Side, Work};
use crate::backend::threads::execute::{execute_now, execute_request};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Request, Span, TRANSFER_MAX_BYTES, Wishes};
use crate::policy::weight;

/// Most reads that are shared at a time.
pub(super) const PLACES: usize = 256;

/// How a read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// By a plain call.
    Call,
    /// By a plain call if it is shared, else by the ring.
    CallOrRing,
    /// By one that does not wait, for owners who must not: see [`Place::missed`]. A thread that
    /// helps may, and a plain call is faster.
    WithoutWaiting,
    /// By one that does not wait, whoever makes it: what waits is best left to the ring.
    Asking,
}

/// Reads that have been made.
#[derive(Clone, Copy, Default)]
pub(super) struct Made {
    pub(super) own: u32,
    pub(super) helped: u32,
}

impl AddAssign for Made {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.helped += other.helped;
    }
}

/// A read that is to be shown.
pub(super) struct Shown<'r> {
    pub(super) request: &'r Request,
    /// Another descriptor of the same file, if there is one.
    pub(super) twin: Option<RawFd>,
    pub(super) manner: Manner,
}

impl<'r> Shown<'r> {
    /// The read of this operation.
    #[inline]
    pub(super) fn new<O: Prepare>(operation: &O, request: &'r Request, manner: Manner) -> Self {
        let fd = request.op.reads_by();
        Self {
            request,
            twin: fd.and_then(|fd| operation.twin(fd)),
            manner,
        }
    }

    /// The address of the memory that is read into.
    #[inline]
    pub(super) fn address(&self) -> usize {
        let span = self.request.op.span();
        span.map_or(0, |span| span.start.addr())
    }
}

/// The reads that are shown. The owner writes here what is to be done before it shows a place, and
/// again when it has taken its answer; that is what orders the accesses.
pub(super) struct Reads(Box<[Place; PLACES]>);

/// See [`Reads`].
#[derive(Default)]
pub(super) struct Place {
    start: AtomicPtr<u8>,
    len: AtomicUsize,
    offset: AtomicU64,
    fd: AtomicI32,
    /// The descriptor for who is not the owner.
    twin: AtomicI32,
    whole: AtomicBool,
    owner_may_wait: AtomicBool,
    helper_may_wait: AtomicBool,
}

impl Reads {
    pub(super) fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| Place::default())))
    }

    /// The place with this number.
    #[inline]
    pub(super) fn place(&self, at: usize) -> &Place {
        &self.0[at]
    }

    /// Writes a read to the place with this number. Returns what it [weighs](weight).
    #[inline]
    pub(super) fn write(&self, at: usize, read: &Shown<'_>) -> u64 {
        let Op::ReadAt {
            fd, span, offset, ..
        } = read.request.op
        else {
            unreachable!("only reads are shared");
        };
        let place = &self.0[at];
        place.start.store(span.start, Relaxed);
        place.len.store(span.len, Relaxed);
        place.offset.store(offset, Relaxed);
        place.fd.store(fd, Relaxed);
        place.twin.store(read.twin.unwrap_or(fd), Relaxed);
        place.whole.store(read.request.whole, Relaxed);
        let (owner, helper) = match read.manner {
            Manner::Call | Manner::CallOrRing => (true, true),
            Manner::WithoutWaiting => (false, true),
            Manner::Asking => (false, false),
        };
        place.owner_may_wait.store(owner, Relaxed);
        place.helper_may_wait.store(helper, Relaxed);
        weight(span.len as u64)
    }
}

/// Who has made the last read into some memory. Addresses share entries, so it is a guess.
pub(super) struct Makers(Box<[Side; MAKERS]>);

/// Entries for more blocks than are shared at a time.
const MAKERS: usize = 2 * PLACES;

impl Makers {
    /// Nobody has read yet.
    pub(super) fn new() -> Self {
        Self(Box::new([Side::default(); MAKERS]))
    }

    /// Who is to read into memory with this address.
    #[inline]
    pub(super) fn of(&mut self, address: usize) -> &mut Side {
        // By pages, and those of one place in several arenas of a power of two differ.
        &mut self.0[(address >> 12 ^ address >> 21) % MAKERS]
    }
}

impl Place {
    /// The address of the memory that is read into.
    #[inline]
    pub(super) fn address(&self) -> usize {
        self.start.load(Relaxed).addr()
    }

    /// What the read here weighs.
    #[inline]
    pub(super) fn weight(&self) -> u64 {
        weight(self.len.load(Relaxed) as u64)
    }

    /// The read that was written here, by one of its descriptors; a buffer that the ring knows is
    /// named by its address alone.
    #[inline]
    fn request(&self, by: Side) -> Request {
        let span = Span {
            start: self.start.load(Relaxed),
            len: self.len.load(Relaxed),
            arena: None,
        };
        let op = Op::ReadAt {
            fd: match by {
                Side::Near => self.fd.load(Relaxed),
                Side::Far => self.twin.load(Relaxed),
            },
            span,
            offset: self.offset.load(Relaxed),
            wishes: Wishes::NONE,
        };
        Request {
            op,
            whole: self.whole.load(Relaxed),
            limit_bytes: TRANSFER_MAX_BYTES,
            aside: false,
            submitted: false,
        }
    }

    /// The read, if its owner was not to wait for it and this answer says that it would have to.
    /// The whole of it has to be done once more.
    #[inline]
    pub(super) fn missed(&self, answer: Answer) -> Option<Request> {
        if self.owner_may_wait.load(Relaxed) {
            return None;
        }
        match answer {
            MISSED => Some(self.request(Side::Near)),
            // A ring would hand it to a worker of the kernel.
            REFUSED => Some(self.request(Side::Near).aside()),
            _ => None,
        }
    }
}

/// What is answered when the page cache does not have all of a read that must not wait.
const MISSED: Answer = Answer::from_number(-(libc::EAGAIN as i64));

/// What is answered when the file cannot be asked not to wait.
const REFUSED: Answer = Answer::from_number(-(libc::EOPNOTSUPP as i64));

impl Work for Reads {
    type Alarm = Rouser;

    #[inline]
    unsafe fn work(&self, place: usize, by: Side) -> i64 {
        let place = &self.0[place];
        let request = place.request(by);
        let may_wait = match by {
            Side::Near => &place.owner_may_wait,
            Side::Far => &place.helper_may_wait,
        };
        let answer = match may_wait.load(Relaxed) {
            // SAFETY: passed on from the caller.
            true => unsafe { execute_request(&request) },
            // SAFETY: as above.
            false => unsafe { without_waiting(&request) },
        };
        answer.to_number()
    }
}

/// A read of what the page cache has.
///
/// # Safety
///
/// As for [`execute_now`].
unsafe fn without_waiting(request: &Request) -> Answer {
    // SAFETY: passed on from the caller.
    let result = unsafe { execute_now(&request.op) };
    let wanted = request.op.span().map_or(0, |span| span.len);
    match usize::try_from(result) {
        // Nothing is the end of the file, which waiting does not change.
        Ok(moved) if moved == wanted || moved == 0 => Answer::moved(moved),
        Err(_) if result == -libc::EOPNOTSUPP => REFUSED,
        // Errors are left to the call that may wait, as everywhere.
        _ => MISSED,
    }
}
