//! Reads and writes at a position.
#![allow(unsafe_code)]

use std::io;

use super::engine::Engine;
use super::file::File;
use super::operation::Sealed;
use super::wishes::settle;
use crate::buf::{IoBuf, IoBufMut, note_filled, span_of, span_of_mut};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Prepared, SeenOf, Span, Wishes};

/// A read at a position. Made by [`File::read_at`] and [`File::read_exact_at`].
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct ReadAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) buf: B,
    pub(super) offset: u64,
    pub(super) exact: bool,
    pub(super) wishes: Wishes,
}

/// A write at a position. Made by [`File::write_at`] and [`File::write_all_at`].
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct WriteAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) buf: B,
    pub(super) offset: u64,
    pub(super) all: bool,
    pub(super) wishes: Wishes,
}

impl<B: IoBufMut> Prepare for ReadAt<'_, B> {
    type Output = (io::Result<usize>, B);

    #[inline(always)]
    fn prepare(&mut self) -> Prepared {
        let offset = self.offset;
        let span = span_of_mut(&mut self.buf);
        if let Some(answer) = copied(self.file, span, offset) {
            return Prepared::answered(answer);
        }
        self.file.handle().transfer(
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

    #[inline]
    fn note(&self, seen: SeenOf) {
        self.file.handle().note(false, seen.0);
    }

    #[inline(always)]
    fn finish(mut self, answer: Answer) -> Self::Output {
        self.file.handle().has_read(answer);
        // SAFETY: hosts finish an operation with the answer to its own request, once.
        let room = unsafe { note_filled(&mut self.buf, answer) };
        let result = answer.decode(self.file);
        let mut result = full(result, self.exact, room, io::ErrorKind::UnexpectedEof);
        if !self.wishes.is_none() {
            result = settle(self.file, self.wishes, room, answer, result);
        }
        (result, self.buf)
    }
}

impl<B: IoBuf> Prepare for WriteAt<'_, B> {
    type Output = (io::Result<usize>, B);

    #[inline(always)]
    fn prepare(&mut self) -> Prepared {
        let offset = self.offset;
        let span: Span = span_of(&self.buf);
        self.file.handle().transfer(
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

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(true, seen.0);
    }

    #[inline(always)]
    fn finish(self, answer: Answer) -> Self::Output {
        self.file.handle().wrote(self.offset, answer);
        let len = self.buf.len();
        let result = answer.decode(self.file);
        let mut result = full(result, self.all, len, io::ErrorKind::WriteZero);
        if !self.wishes.is_none() {
            result = settle(self.file, self.wishes, len, answer, result);
        }
        (result, self.buf)
    }
}

/// The answer of a read whose bytes have been copied from the file's mapping.
#[inline(always)]
pub(super) fn copied(file: &File, span: Span, offset: u64) -> Option<Answer> {
    let mapping = file.handle().mapping()?;
    // SAFETY: the span is that of a buffer that belongs to the operation that is asked.
    if !unsafe { mapping.copy(offset, span.start, span.len) } {
        return None;
    }
    file.engine().shared().counters.copied();
    Some(Answer::moved(span.len))
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
        Ok(moved) if whole && moved < len => Err(io::Error::new(
            kind,
            format!("{moved} of {len} bytes were moved"),
        )),
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
