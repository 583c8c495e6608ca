//! The kernel's answer, and where an errno becomes an error. What an operation knows more of it
//! (wishes, access, ranges, openings) is told by `api`.
//!
//! An [`Answer`] is one number, so that a batch can keep an answer for each of its operations
//! without an allocation: a byte count, or an errno together with the bytes moved before it.

use std::io;

use crate::error::{
    BadRange, Forked, Misaligned, NoPositions, NoThread, Partial, SetupError, SyncFailed,
    WrongAccess,
};

/// What a backend reports for one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Slot and generation, as they were handed over.
    pub(crate) user_data: u64,
    /// A byte count, or a negated errno.
    pub(crate) result: i32,
    /// How long a plain call took, in nanoseconds; 0 of a ring.
    pub(crate) took_ns: u32,
    /// Whether it was asynchronous, if that has been seen.
    pub(crate) is_asynchronous: Option<bool>,
}

/// The answer for a whole request. Not negative: bytes moved, with [`UNHEARD`], what has ended them
/// (see [`STOPPED`]) and for a plain call by the pool how long it took (see [`TIMED`]). Negative:
/// `-(errno + bytes << 12)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(i64);

/// Set in a count: the bytes were moved without a hint that was given.
const UNHEARD: i64 = 1 << 62;

/// Largest errno that the kernel can return, `MAX_ERRNO` in `include/linux/err.h`.
const ERRNO_MASK: i64 = 0xfff;

/// Set in an answer that says how long the call took: 27 bits of nanoseconds above 32 bits of
/// bytes.
const TIMED: u64 = 1 << 61;
const TIME_MAX: u64 = (1 << 27) - 1;

/// Set in one of those if it has been seen whether the transfer was asynchronous, and if it was.
const SUBMITTED: u64 = 1 << 60;
const ASYNCHRONOUS: u64 = 1 << 59;

/// Set in an answer without a time whose bytes an error has ended that is not the answer: 12 bits
/// of errno above 48 bits of bytes.
const STOPPED: u64 = SUBMITTED;
const STOPPED_BITS: u32 = 48;
const STOPPED_BYTES: u64 = (1 << STOPPED_BITS) - 1;

/// Refusals of this library that need no call to the kernel. They lie above every errno in use
/// (the largest of Linux is 133, `EHWPOISON`, and a few internal ones below 600).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Refusal {
    /// The engine was made before a fork, and this is the child.
    Forked = 4001,
    /// The range ends beyond the largest offset.
    TooFar = 4002,
    /// An earlier sync of this file failed.
    SyncFailed = 4003,
    /// The backend that was demanded could not be set up on this thread.
    Setup = 4004,
    /// Never handed over.
    NotRun = 4005,
    /// It takes a thread, and none could be started.
    NoThread = 4006,
    /// The file has no positions.
    NoPositions = 4007,
}

impl Refusal {
    /// Whether the number is that of a refusal, and not an errno of the kernel.
    pub(crate) fn is_one(number: i32) -> bool {
        number >= Self::Forked as i32
    }
}

/// As a [`Refusal`]: direct I/O was required, and what of the transfer does not fit is in the three
/// lowest bits.
const MISALIGNED: i32 = 4008;
const MISALIGNED_MAX: i32 = MISALIGNED | OFFSET | LEN | ADDRESS;
const OFFSET: i32 = 1;
const LEN: i32 = 2;
const ADDRESS: i32 = 4;

impl Answer {
    /// That of what has not been answered.
    pub(crate) const NOT_RUN: Self = Self(-(Refusal::NotRun as i64));

    /// An answer of `bytes` moved, no error.
    pub(crate) fn moved(bytes: usize) -> Self {
        Self(i64::try_from(bytes).expect("a buffer is at most isize::MAX bytes"))
    }

    /// As [`Answer::moved`], of a transfer that this errno has ended, which is left to the next one
    /// to tell. For whoever has to know that it was told once.
    pub(crate) fn stopped(done: usize, errno: i32) -> Self {
        debug_assert!(errno > 0 && i64::from(errno) <= ERRNO_MASK);
        let Self(moved) = Self::moved(done);
        if moved.cast_unsigned() > STOPPED_BYTES {
            // No memory is larger.
            return Self(moved);
        }
        let errno = u64::from(errno.cast_unsigned());
        let stopped = STOPPED | errno << STOPPED_BITS;
        Self(moved | stopped.cast_signed())
    }

    /// As [`Answer::moved`], of one call that took so long; at most an eighth of a second is told.
    pub(crate) fn timed(bytes: usize, took_ns: u32) -> Self {
        let bytes = u32::try_from(bytes).expect("one call moves less than 4 GiB");
        let number = TIMED | u64::from(took_ns).min(TIME_MAX) << 32 | u64::from(bytes);
        Self(number.cast_signed())
    }

    /// The same timed answer, which also tells whether the transfer was asynchronous.
    pub(crate) fn submitted(self, is_asynchronous: bool) -> Self {
        let more = match is_asynchronous {
            true => (SUBMITTED | ASYNCHRONOUS).cast_signed(),
            false => SUBMITTED.cast_signed(),
        };
        Self(self.0 | more)
    }

    /// Whether the transfer of an answer that was timed was asynchronous, if that has been seen.
    #[inline]
    pub(crate) fn was_asynchronous(self) -> Option<bool> {
        let number = self.number()?;
        let is_told = number & TIMED != 0 && number & SUBMITTED != 0;
        is_told.then_some(number & ASYNCHRONOUS != 0)
    }

    /// The bytes and nanoseconds of an answer that was timed.
    #[inline]
    pub(crate) fn took(self) -> Option<(usize, u64)> {
        let number = self.number()?;
        (number & TIMED != 0).then(|| (self.bytes(), number >> 32 & TIME_MAX))
    }

    /// What is not negative.
    #[inline]
    fn number(self) -> Option<u64> {
        u64::try_from(self.0).ok()
    }

    /// An error, after `done` bytes had been moved.
    pub(crate) fn failed(errno: i32, done: usize) -> Self {
        debug_assert!(errno > 0 && i64::from(errno) <= ERRNO_MASK);
        let done = i64::try_from(done).expect("a buffer is at most isize::MAX bytes");
        Self(-((done << 12) | i64::from(errno)))
    }

    /// A refusal without a call to the kernel.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self::failed(refusal as i32, 0)
    }

    /// As [`Answer::refused`], of a transfer whose offset, length or address does not fit.
    pub(crate) fn misaligned(offset: bool, len: bool, address: bool) -> Self {
        let bit = |does_not_fit, bit| if does_not_fit { bit } else { 0 };
        let bits = bit(offset, OFFSET) | bit(len, LEN) | bit(address, ADDRESS);
        Self::failed(MISALIGNED | bits, 0)
    }

    /// The answer as a number that [`Answer::from_number`] takes back.
    #[inline]
    pub(crate) fn to_number(self) -> i64 {
        self.0
    }

    /// See [`Answer::to_number`].
    #[inline]
    pub(crate) const fn from_number(number: i64) -> Self {
        Self(number)
    }

    /// The kernel's own number.
    #[inline]
    pub(crate) fn from_result(result: i32) -> Self {
        Self(i64::from(result))
    }

    /// As [`Answer::from_result`], of a call that took so long, if that is known.
    #[inline(always)]
    pub(crate) fn of(result: i32, took_ns: u32) -> Self {
        match usize::try_from(result) {
            Ok(bytes) if took_ns > 0 => Self::timed(bytes, took_ns),
            _ => Self::from_result(result),
        }
    }

    /// The same answer for a request of which `done` bytes had been moved before.
    pub(crate) fn plus(self, done: usize) -> Self {
        match self.errno() {
            Some(errno) => Self::failed(errno, self.done() + done),
            None => match self.stopped_by() {
                Some(errno) => Self::stopped(self.bytes() + done, errno),
                None => Self::moved(self.bytes() + done),
            }
            .marked(self.is_unheard()),
        }
    }

    /// The same answer, which also tells whether a hint was left out.
    #[inline]
    pub(crate) fn marked(self, unheard: bool) -> Self {
        match self.0 {
            count @ 0.. if unheard => Self(count | UNHEARD),
            _ => self,
        }
    }

    /// Whether the bytes were moved without a hint that was given.
    pub(crate) fn is_unheard(self) -> bool {
        self.0 >= UNHEARD
    }

    /// Bytes that were moved, from the first on, also if an error came after them.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        match self.0 {
            0.. => self.count(),
            _ => self.done(),
        }
    }

    /// Bytes moved, where there is no error.
    #[inline]
    fn count(self) -> usize {
        let number = self.number().expect("not an error");
        let bytes = match number & (TIMED | STOPPED) {
            0 => number & !UNHEARD.cast_unsigned(),
            STOPPED => number & STOPPED_BYTES,
            _ => number & u64::from(u32::MAX),
        };
        usize::try_from(bytes).expect("a count of bytes in a buffer")
    }

    /// Bytes moved before the error.
    fn done(self) -> usize {
        usize::try_from(-self.0 >> 12).expect("a shifted positive number")
    }

    /// The errno, if this is an error.
    pub(crate) fn errno(self) -> Option<i32> {
        let errno = i32::try_from(-self.0 & ERRNO_MASK).expect("masked to 12 bits");
        (self.0 < 0).then_some(errno)
    }

    /// The errno that has ended a transfer whose bytes are the answer.
    #[inline]
    pub(crate) fn stopped_by(self) -> Option<i32> {
        let number = self.number()?;
        let is_stopped = number & (TIMED | STOPPED) == STOPPED;
        let errno = (number >> STOPPED_BITS).cast_signed() & ERRNO_MASK;
        is_stopped.then(|| i32::try_from(errno).expect("masked to 12 bits"))
    }

    /// The errno of what was asked of the kernel last, whether it is the answer or not.
    #[inline]
    pub(crate) fn cause(self) -> Option<i32> {
        self.errno().or_else(|| self.stopped_by())
    }

    /// The byte count, or the error that the caller sees; `explain` knows the file.
    #[inline]
    pub(crate) fn decode(self, explain: impl Explain) -> io::Result<usize> {
        match self.0 {
            0.. => Ok(self.count()),
            _ => Err(self.error(explain)),
        }
    }

    #[cold]
    fn error(self, explain: impl Explain) -> io::Error {
        let errno = self.errno().expect("only called for errors");
        let done = self.done();
        const FORKED: i32 = Refusal::Forked as i32;
        const TOO_FAR: i32 = Refusal::TooFar as i32;
        const SYNC_FAILED: i32 = Refusal::SyncFailed as i32;
        const SETUP: i32 = Refusal::Setup as i32;
        const NOT_RUN: i32 = Refusal::NotRun as i32;
        const NO_THREAD: i32 = Refusal::NoThread as i32;
        const NO_POSITIONS: i32 = Refusal::NoPositions as i32;
        match errno {
            FORKED => io::Error::other(Forked),
            MISALIGNED..=MISALIGNED_MAX => {
                let misaligned = Misaligned {
                    offset: errno & OFFSET != 0,
                    len: errno & LEN != 0,
                    address: errno & ADDRESS != 0,
                    ..explain.misaligned()
                };
                io::Error::new(io::ErrorKind::InvalidInput, misaligned)
            }
            TOO_FAR => BadRange::TooFar.into(),
            SYNC_FAILED => explain.sync_failed().into(),
            SETUP => io::Error::other(explain.setup()),
            NO_THREAD => explain.no_thread().into(),
            NO_POSITIONS => io::Error::new(io::ErrorKind::NotSeekable, NoPositions),
            NOT_RUN => io::Error::other("the operation has not been run yet"),
            errno if done > 0 => {
                let cause = io::Error::from_raw_os_error(errno);
                io::Error::new(
                    cause.kind(),
                    Partial {
                        done_bytes: done,
                        errno,
                    },
                )
            }
            // read(2), write(2), fallocate(2): it is open, but not for that.
            libc::EBADF => match explain.wrong_access(errno) {
                Some(wrong) => wrong.into(),
                None => io::Error::from_raw_os_error(errno),
            },
            errno => io::Error::from_raw_os_error(errno),
        }
    }
}

/// Whether a transfer fails so where a device or a server did: what the kernel makes of the states
/// that a block device ends with (`blk_errors`, block/blk-core.c), and what NFS says. The others
/// are refusals of the transfer.
pub(crate) fn is_of_device(errno: i32) -> bool {
    matches!(
        errno,
        libc::EIO
            | libc::ETIMEDOUT
            | libc::ENOLINK
            | libc::EREMOTEIO
            | libc::EBADE
            | libc::ENODATA
            | libc::EILSEQ
            | libc::ENODEV
            | libc::ESTALE
    )
}

/// Who can explain a refusal: the file (or engine) that the operation was for.
pub(crate) trait Explain {
    /// What direct I/O needs; what does not fit is in the answer.
    fn misaligned(&self) -> Misaligned;
    fn sync_failed(&self) -> SyncFailed;
    fn setup(&self) -> SetupError;
    fn no_thread(&self) -> NoThread;
    /// What the file is not open for, if that is what this errno of the kernel may mean.
    fn wrong_access(&self, errno: i32) -> Option<WrongAccess>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_errno_and_progress_apart() {
        let answer = Answer::failed(libc::EIO, 123_456);
        assert_eq!(answer.errno(), Some(libc::EIO));
        assert_eq!(-answer.0 >> 12, 123_456);
        assert_eq!(
            Answer::from_result(-libc::EIO),
            Answer::failed(libc::EIO, 0)
        );
        assert_eq!(Answer::moved(7).errno(), None);
        assert_eq!(Answer::from_result(7), Answer::moved(7));
        assert_eq!((answer.bytes(), Answer::moved(7).bytes()), (123_456, 7));
        assert_eq!(Answer::refused(Refusal::Forked).bytes(), 0);
    }

    #[test]
    fn a_hint_left_out_is_told_beside_the_count() {
        let marked = Answer::moved(7).marked(true);
        assert_eq!((marked.is_unheard(), marked.bytes()), (true, 7));
        assert_eq!(marked.errno(), None);
        assert!(marked.plus(3).is_unheard() && !Answer::moved(7).marked(false).is_unheard());
        let failed = Answer::failed(libc::EIO, 3).marked(true);
        assert_eq!((failed.errno(), failed.bytes()), (Some(libc::EIO), 3));
    }

    #[test]
    fn an_error_that_is_not_the_answer_is_told_beside_the_count() {
        let stopped = Answer::stopped(1 << 40, libc::EIO);
        assert_eq!((stopped.bytes(), stopped.errno()), (1 << 40, None));
        assert_eq!(stopped.stopped_by(), Some(libc::EIO));
        assert_eq!((stopped.took(), stopped.was_asynchronous()), (None, None));
        assert!(!stopped.is_unheard());
        let more = stopped.marked(true).plus(1);
        assert_eq!(more.cause(), Some(libc::EIO));
        assert_eq!((more.bytes(), more.is_unheard()), ((1 << 40) + 1, true));
        assert_eq!(Answer::failed(libc::EIO, 3).cause(), Some(libc::EIO));
        let timed = Answer::timed(4096, u32::MAX).submitted(true);
        for answer in [Answer::moved(7), Answer::moved(7).marked(true), timed] {
            assert_eq!(answer.cause(), None);
        }
    }

    #[test]
    fn a_timed_answer_is_one_of_bytes_all_the_same() {
        let answer = Answer::timed(4096, 700);
        assert_eq!((answer.bytes(), answer.errno()), (4096, None));
        assert!(!answer.is_unheard());
        assert_eq!(answer.took(), Some((4096, 700)));
        assert_eq!(answer.plus(4), Answer::moved(4100));
        assert_eq!(Answer::timed(1, u32::MAX).took(), Some((1, TIME_MAX)));
        assert_eq!(answer.was_asynchronous(), None);
        for is_asynchronous in [true, false] {
            let submitted = Answer::timed(4096, u32::MAX).submitted(is_asynchronous);
            assert_eq!(submitted.was_asynchronous(), Some(is_asynchronous));
            assert_eq!(submitted.took(), Some((4096, TIME_MAX)));
            assert_eq!(submitted.bytes(), 4096);
            assert!(!submitted.is_unheard());
        }
        assert_eq!(
            (Answer::moved(1).took(), Answer::failed(5, 1).took()),
            (None, None)
        );
    }
}
