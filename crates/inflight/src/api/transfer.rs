//! Reads and writes at a position.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use super::bounce::Bounced;
use super::durable::{Durable, plan_durable};
use super::engine::Engine;
use super::file::File;
use super::handle::Access;
use super::operation::Sealed;
use super::wishes::settle;
use crate::buf::{IoBuf, IoBufMut, note_filled, span_of, span_of_mut};
use crate::completion::Answer;
use crate::error::Ended;
use crate::op::{Op, Prepare, Prepared, SeenOf, Span, SyncOf, Wishes};
use crate::policy::POLL_MAX_BYTES;

/// A read at a position. Made by [`File::read_at`] and [`File::read_exact_at`]; [`File`] tells of
/// errors, [`crate::Pending`] of dropping it in flight.
///
/// It yields `(io::Result<usize>, B)`: how many bytes were moved, and the buffer, also
/// after an error.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct ReadAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) buf: B,
    pub(super) offset: u64,
    pub(super) exact: bool,
    pub(super) wishes: Wishes,
    pub(super) bounced: Option<Box<Bounced>>,
}

/// A write at a position. Made by [`File::write_at`] and [`File::write_all_at`]; [`File`] tells of
/// errors, [`crate::Pending`] of dropping it in flight.
///
/// It yields `(io::Result<usize>, B)`: how many bytes were moved, and the buffer, also
/// after an error.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct WriteAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) buf: B,
    pub(super) offset: u64,
    pub(super) all: bool,
    pub(super) wishes: Wishes,
    pub(super) bounced: Option<Box<Bounced>>,
    pub(super) durable: Option<Box<Durable<'f>>>,
}

impl<B: IoBufMut> Prepare for ReadAt<'_, B> {
    type Output = (io::Result<usize>, B);

    #[inline(always)]
    fn prepare(&mut self) -> Prepared {
        let offset = self.offset;
        if let Some(answer) = copied(self.file, &mut self.buf, offset) {
            // It may have been prepared before, when this was not resident.
            self.bounced = None;
            self.wishes = self.wishes.without(Wishes::UNALIGNED);
            return Prepared::answered(answer);
        }
        let span = span_of_mut(&mut self.buf);
        let handle = self.file.handle();
        if handle.takes_any_range(false) {
            // As above: what it was prepared for then is not what will be answered.
            self.bounced = None;
            if handle.needs_cover(span, offset, self.wishes) {
                return Prepared::cover();
            }
        }
        handle.transfer(
            span,
            offset,
            self.exact,
            &mut self.wishes,
            |fd, span, wishes| Op::ReadAt {
                fd,
                span,
                offset,
                wishes,
            },
        )
    }

    /// The read of all blocks that cover the range.
    #[cold]
    fn cover(&mut self) -> Prepared {
        let span = span_of_mut(&mut self.buf);
        let handle = self.file.handle();
        let wishes = handle.hints().heard(&mut self.wishes, true);
        let bounced = match aligned(&mut self.bounced, self.file, span, self.offset) {
            Ok(bounced) => bounced,
            Err(answer) => return Prepared::answered(answer),
        };
        let op = bounced.read(handle.raw_fd(), span, wishes);
        handle.read_past_the_cache(op, self.exact)
    }

    #[inline]
    fn twin(&self, of: RawFd) -> Option<RawFd> {
        self.file.handle().twin(of)
    }

    fn is_short(&self) -> bool {
        self.file.handle().is_short(false, self.wishes)
    }

    #[inline]
    fn is_on_device(&self) -> bool {
        self.file.handle().is_on_device()
    }

    #[inline]
    fn note(&self, seen: SeenOf) {
        self.file.handle().note(false, seen);
    }

    #[inline(always)]
    fn finish(self, mut answer: Answer) -> Self::Output {
        let Self {
            file,
            mut buf,
            offset,
            exact,
            wishes,
            bounced,
        } = self;
        // What goes by way of aligned memory fits.
        let placed = bounced.is_none().then_some(&mut buf);
        let spans = placed.into_iter().map(span_of_mut);
        file.handle().has_read(offset, spans, answer);
        if let Some(mut bounced) = bounced {
            let span = span_of_mut(&mut buf);
            // SAFETY: as below; the buffer is ours to be written.
            answer = unsafe { bounced.take_read(span, answer) };
        } else if answer.errno() == Some(libc::EINVAL) {
            let span = span_of_mut(&mut buf);
            answer = file
                .handle()
                .read_to_the_end(answer, offset, [span].into_iter());
        }
        // SAFETY: hosts finish an operation with the answer to its own request, once.
        let room = unsafe { note_filled(&mut buf, answer) };
        let result = answer.decode(file.asked(Access::Read));
        let mut result = full(result, exact, room, io::ErrorKind::UnexpectedEof);
        if !wishes.is_none() {
            result = settle(file, wishes, answer, result);
        }
        (result, buf)
    }
}

impl<B: IoBuf> Prepare for WriteAt<'_, B> {
    type Output = (io::Result<usize>, B);

    #[inline(always)]
    fn prepare(&mut self) -> Prepared {
        let offset = self.offset;
        let span: Span = span_of(&self.buf);
        let handle = self.file.handle();
        if handle.takes_any_range(true) && handle.needs_cover(span, offset, self.wishes) {
            return Prepared::cover();
        }
        if self.wishes.has(Wishes::DSYNC) {
            return self.prepare_durable(span);
        }
        handle.transfer(
            span,
            offset,
            self.all,
            &mut self.wishes,
            |fd, span, wishes| Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            },
        )
    }

    fn sync(&self) -> Option<SyncOf<'_>> {
        self.durable.as_ref()?.sync()
    }

    /// The next request of a write that is not aligned.
    #[cold]
    fn cover(&mut self) -> Prepared {
        let span = span_of(&self.buf);
        let handle = self.file.handle();
        let wishes = handle.hints().heard(&mut self.wishes, true);
        let bounced = match aligned(&mut self.bounced, self.file, span, self.offset) {
            Ok(bounced) => bounced,
            Err(answer) => return Prepared::answered(answer),
        };
        if bounced.reads() && wishes.has(Wishes::NO_WAIT) {
            // As of a file that does not know it: what is read may wait, and the end as well.
            return Prepared::answered(Answer::failed(libc::EOPNOTSUPP, 0));
        }
        // SAFETY: the span is that of our buffer.
        let (op, whole) = unsafe { bounced.write(handle.fds(), span, self.all, wishes) };
        match bounced.writes_end() {
            true => handle.write_through_the_cache(op, whole),
            false => handle.write_past_the_cache(op, whole),
        }
    }

    fn is_short(&self) -> bool {
        self.file.handle().is_short(true, self.wishes)
    }

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(true, seen);
    }

    #[inline(always)]
    fn proceed(&mut self, answer: Answer) -> bool {
        if answer.cause().is_some() {
            self.note_failed(answer);
        }
        match (&mut self.bounced, &mut self.durable) {
            (None, None) => false,
            (Some(bounced), _) => bounced.proceed(answer, self.all, self.wishes),
            (None, Some(durable)) => durable.proceed(answer),
        }
    }

    #[inline(always)]
    fn finish(self, mut answer: Answer) -> Self::Output {
        if let Some(outcome) = self.bounced.as_ref().and_then(|bounced| bounced.outcome()) {
            answer = outcome;
        }
        if let Some(durable) = &self.durable {
            answer = durable.outcome(answer);
        }
        let placed = self.bounced.is_none().then_some(&self.buf);
        let spans = placed.into_iter().map(span_of);
        let handle = self.file.handle();
        handle.wrote(self.offset, spans, self.wishes, answer);
        let len = self.buf.len();
        let result = answer.decode(self.file.asked(Access::Write));
        let mut result = full(result, self.all, len, io::ErrorKind::WriteZero);
        if !self.wishes.is_none() {
            result = settle(self.file, self.wishes, answer, result);
        }
        (result, self.buf)
    }
}

impl<B: IoBuf> WriteAt<'_, B> {
    /// The request of a write with a wish to be durable.
    #[cold]
    fn prepare_durable(&mut self, span: Span) -> Prepared {
        let (offset, all) = (self.offset, self.all);
        let handle = self.file.handle();
        let durable = &mut self.durable;
        plan_durable(durable, self.file, &mut self.wishes, |wishes| {
            handle.transfer(span, offset, all, wishes, |fd, span, wishes| Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            })
        })
    }
}

/// The answer of a read whose bytes have been copied from the file's mapping.
#[inline(always)]
pub(super) fn copied<B: IoBufMut>(file: &File, buf: &mut B, offset: u64) -> Option<Answer> {
    let mapping = file.handle().mapping()?;
    let span = span_of_mut(buf);
    if span.len > POLL_MAX_BYTES {
        // It may be polled.
        return None;
    }
    // SAFETY: the span is that of a buffer, which nobody else has while it is borrowed here.
    if !unsafe { mapping.copy(offset, span.start, span.len) } {
        return None;
    }
    file.engine().shared().counters.copied();
    Some(Answer::moved(span.len))
}

/// The aligned memory for a transfer.
fn aligned<'b>(
    bounced: &'b mut Option<Box<Bounced>>,
    file: &File,
    span: Span,
    offset: u64,
) -> Result<&'b mut Bounced, Answer> {
    if bounced.is_none() {
        let bounces = &file.engine().shared().bounces;
        let needed = file.alignment().or_assumed();
        *bounced = Some(Bounced::new(bounces, span, offset, needed)?);
    }
    Ok(bounced.as_mut().expect("it has just been made"))
}

/// A whole transfer that stopped early, without an error, is one of this kind.
#[inline]
pub(super) fn full(
    result: io::Result<usize>,
    whole: bool,
    len: usize,
    kind: io::ErrorKind,
) -> io::Result<usize> {
    match result {
        Ok(done_bytes) if whole && done_bytes < len => {
            let asked_bytes = len;
            let ended = Ended {
                done_bytes,
                asked_bytes,
                is_write: kind == io::ErrorKind::WriteZero,
            };
            Err(io::Error::new(kind, ended))
        }
        result => result,
    }
}

impl<B: IoBufMut> Sealed for ReadAt<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.file.engine()
    }
}

impl<B: IoBuf> Sealed for WriteAt<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.file.engine()
    }
}
