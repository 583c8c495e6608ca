//! What an operation is: plain data, and the addresses it touches.
//!
//! An [`Op`] is what a backend executes; a [`Request`] adds what the proactor has to know to
//! see it through (resume a short transfer, split a large one). Nothing here does I/O.
//! An address is put into one in [`crate::api`] only, beside the buffer that it is of; whoever
//! makes another request of one (a host, the proactor) takes the address from there.
//! Next: [`crate::host`], which hands requests to a proactor.

mod prepare;
mod road;
mod wishes;

use std::os::fd::RawFd;
use std::ptr::NonNull;

use crate::buf::Arena;
use crate::completion::is_of_device;

pub(crate) use prepare::{Plan, Prepare, Prepared, SeenOf, SyncOf};
pub(crate) use road::{Road, Seen};
pub use wishes::Priority;
pub(crate) use wishes::{Wishes, may_refuse_hint};

/// As many bytes as one read or write can move on every kernel: `MAX_RW_COUNT` (read(2), NOTES) is
/// 2 GiB less a page, and pages have up to 64 KiB.
pub(crate) const TRANSFER_MAX_BYTES: u32 = 0x7fff_0000;

/// Most buffers one vectored call takes: `UIO_MAXIOV`, readv(2), NOTES.
pub(crate) const IOVECS_MAX: u32 = 1024;

/// Memory that an operation reads or fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    /// The arena of a registered buffer; it lives as long as the buffer does.
    pub(crate) arena: Option<NonNull<Arena>>,
}

impl Span {
    /// The `len` bytes that begin `from` bytes into this span.
    fn part(self, from: usize, len: usize) -> Self {
        debug_assert!(from + len <= self.len);
        Self {
            start: self.start.wrapping_add(from),
            len,
            arena: self.arena,
        }
    }
}

/// A list of buffers, as readv(2) takes it. Resuming a short transfer shortens the list in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iovecs {
    pub(crate) first: *mut libc::iovec,
    /// Of a transfer that is to be whole there may be more than one call takes: the first call is
    /// short then, and resumed.
    pub(crate) count: u32,
}

impl Iovecs {
    /// As many of the buffers as one call takes.
    #[inline]
    pub(crate) fn count_at_once(self) -> u32 {
        self.count.min(IOVECS_MAX)
    }
}

/// What the `fallocate` operation does with the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocateMode(pub(crate) i32);

/// One operation, as a backend executes it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Nop,
    ReadAt {
        fd: RawFd,
        span: Span,
        offset: u64,
        wishes: Wishes,
    },
    WriteAt {
        fd: RawFd,
        span: Span,
        offset: u64,
        wishes: Wishes,
    },
    ReadVectoredAt {
        fd: RawFd,
        iovecs: Iovecs,
        offset: u64,
        wishes: Wishes,
    },
    WriteVectoredAt {
        fd: RawFd,
        iovecs: Iovecs,
        offset: u64,
        wishes: Wishes,
    },
    Sync {
        fd: RawFd,
        data_only: bool,
    },
    Allocate {
        fd: RawFd,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    },
    Metadata {
        fd: RawFd,
        out: *mut libc::statx,
    },
}

/// The number of kinds in [`Op`], for tables with a place for each.
pub(crate) const KINDS: usize = 8;

impl Op {
    /// A small number for the kind, below [`KINDS`].
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::Nop => 0,
            Self::ReadAt { .. } => 1,
            Self::WriteAt { .. } => 2,
            Self::ReadVectoredAt { .. } => 3,
            Self::WriteVectoredAt { .. } => 4,
            Self::Sync { .. } => 5,
            Self::Allocate { .. } => 6,
            Self::Metadata { .. } => 7,
        }
    }

    /// The name of the kind, for messages.
    pub(crate) fn name(&self) -> &'static str {
        [
            "nop",
            "read",
            "write",
            "readv",
            "writev",
            "fsync",
            "fallocate",
            "statx",
        ][self.kind()]
    }

    /// The descriptor, of an operation that a fixed file can serve.
    #[inline(always)]
    pub(crate) fn fd(&self) -> Option<RawFd> {
        match *self {
            Self::Nop | Self::Metadata { .. } => None,
            Self::ReadAt { fd, .. }
            | Self::WriteAt { fd, .. }
            | Self::ReadVectoredAt { fd, .. }
            | Self::WriteVectoredAt { fd, .. }
            | Self::Sync { fd, .. }
            | Self::Allocate { fd, .. } => Some(fd),
        }
    }

    /// What is asked of a transfer beyond moving its bytes.
    #[inline(always)]
    pub(crate) fn wishes(&self) -> Wishes {
        match *self {
            Self::ReadAt { wishes, .. }
            | Self::WriteAt { wishes, .. }
            | Self::ReadVectoredAt { wishes, .. }
            | Self::WriteVectoredAt { wishes, .. } => wishes,
            Self::Nop | Self::Sync { .. } | Self::Allocate { .. } | Self::Metadata { .. } => {
                Wishes::NONE
            }
        }
    }

    /// The sync that is to follow a complete write, if one is.
    pub(crate) fn sync_after(&self) -> Option<Self> {
        let fd = self.fd()?;
        let data_only = true;
        let is_wanted = self.wishes().has(Wishes::THEN_SYNC);
        is_wanted.then_some(Self::Sync { fd, data_only })
    }

    /// Whether it goes without hints that it came with.
    pub(crate) fn is_unheard(&self) -> bool {
        self.wishes().has(Wishes::UNHEARD)
    }

    /// Leaves the hints out if the errno may be about them. False if there are none to leave out.
    pub(crate) fn leave_hints_out(&mut self, errno: i32) -> bool {
        match self {
            Self::ReadAt { wishes, .. }
            | Self::WriteAt { wishes, .. }
            | Self::ReadVectoredAt { wishes, .. }
            | Self::WriteVectoredAt { wishes, .. }
                if wishes.has_hints() && may_refuse_hint(errno) =>
            {
                *wishes = wishes.without_hints();
                true
            }
            _ => false,
        }
    }

    /// The descriptor that a read goes by.
    #[inline]
    pub(crate) fn reads_by(&self) -> Option<RawFd> {
        match self {
            Self::ReadAt { fd, .. } | Self::ReadVectoredAt { fd, .. } => Some(*fd),
            _ => None,
        }
    }

    /// Whether it has more buffers than one call takes.
    #[inline]
    pub(crate) fn has_long_list(&self) -> bool {
        match self {
            Self::ReadVectoredAt { iovecs, .. } | Self::WriteVectoredAt { iovecs, .. } => {
                iovecs.count > IOVECS_MAX
            }
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::ReadAt { .. } | Self::ReadVectoredAt { .. })
    }

    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        matches!(self, Self::WriteAt { .. } | Self::WriteVectoredAt { .. })
    }

    /// Whether this result is what a device says of a write. The kernel tells it once: the same
    /// write made again, or a sync, may be told that all is well.
    pub(crate) fn is_told_once(&self, result: i32) -> bool {
        self.is_write() && is_of_device(result.wrapping_neg())
    }

    /// The contiguous memory of a read or write.
    pub(crate) fn span(&self) -> Option<Span> {
        match self {
            Self::ReadAt { span, .. } | Self::WriteAt { span, .. } => Some(*span),
            _ => None,
        }
    }

    /// The same operation on `len` bytes, `from` bytes further on; only for one with a span.
    pub(crate) fn part(self, from: usize, part_len: usize) -> Self {
        match self {
            Self::ReadAt {
                fd,
                span,
                offset,
                wishes,
            } => {
                let span = span.part(from, part_len);
                Self::ReadAt {
                    fd,
                    span,
                    offset: offset + from as u64,
                    wishes,
                }
            }
            Self::WriteAt {
                fd,
                span,
                offset,
                wishes,
            } => {
                let span = span.part(from, part_len);
                Self::WriteAt {
                    fd,
                    span,
                    offset: offset + from as u64,
                    wishes,
                }
            }
            other => other,
        }
    }
}

/// An operation and how far it has to be seen through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// Resume after a short transfer, until all is moved, the file ends, or an error comes.
    pub(crate) whole: bool,
    /// Largest transfer handed over at once; a longer one is split.
    pub(crate) limit_bytes: u32,
    /// A thread of the pool does it, where the backend would leave it to a worker of the kernel.
    pub(crate) aside: bool,
    /// It is made by a call that submits it, without asking whether that would wait: it is known
    /// not to, or a thread of the pool is to show whether the transfer is asynchronous.
    pub(crate) submitted: bool,
    /// It reads what the page cache is likely to have, so that the enter that hands it over answers
    /// it: that costs more than those lose that wait to be handed over with it.
    pub(crate) among_hits: bool,
}

/// What one thread of the pool does at a time of a request with a limit: to hand it over takes a
/// small part of the time that so much takes.
pub(crate) const ASIDE_BYTES: u32 = 512 << 10;

impl Request {
    /// A request that may be cut short, and is handed over without any wish for how.
    #[inline(always)]
    pub(crate) fn simple(op: Op) -> Self {
        Self {
            op,
            whole: false,
            limit_bytes: TRANSFER_MAX_BYTES,
            aside: false,
            submitted: false,
            among_hits: false,
        }
    }

    /// Whether it reads through the page cache, into one buffer: direct transfers have a nearer
    /// limit. Of vectored ones it is not known.
    #[inline]
    pub(crate) fn reads_through_the_cache(&self) -> bool {
        matches!(self.op, Op::ReadAt { .. }) && self.limit_bytes == TRANSFER_MAX_BYTES
    }

    /// Whether it is more than one call moves at once, from or into one buffer: it is made in parts
    /// that are in flight together.
    #[inline(always)]
    pub(crate) fn is_split(&self) -> bool {
        let len = self.op.span().map_or(0, |span| span.len);
        len as u64 > u64::from(self.limit_bytes)
    }

    /// Whether it is past the page cache, from or into one buffer: those have a nearer limit. Not
    /// if it is for the pool.
    pub(crate) fn is_direct_transfer(&self) -> bool {
        !self.aside && self.op.span().is_some() && self.limit_bytes != TRANSFER_MAX_BYTES
    }

    /// The same request, of many like it that the page cache has.
    #[inline(always)]
    pub(crate) fn among_hits(self) -> Self {
        Self {
            among_hits: true,
            ..self
        }
    }

    /// The same request, for the backend wherever it came from.
    #[cfg(feature = "tokio")]
    pub(crate) fn by_the_backend(self) -> Self {
        Self {
            aside: false,
            submitted: false,
            ..self
        }
    }

    /// As [`Request::aside`], for one that shows whether the transfer is asynchronous, if it can.
    pub(crate) fn submitted(self) -> Self {
        Self {
            submitted: true,
            ..self.aside()
        }
    }

    /// The same request as [`Request::aside`] has it, if it is for a worker of the kernel that only
    /// submits it; from which nothing but its time is to be learned.
    #[inline]
    pub(crate) fn by_a_call(&self) -> Option<Self> {
        (self.submitted && !self.aside).then(|| Self {
            submitted: false,
            ..self.aside()
        })
    }

    /// The same request, for a thread of the pool, or for several: the kernel splits it for the
    /// device.
    pub(crate) fn aside(self) -> Self {
        Self {
            aside: true,
            limit_bytes: self.limit_bytes.max(ASIDE_BYTES),
            ..self
        }
    }
}
