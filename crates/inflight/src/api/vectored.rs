//! Reads into and writes from several buffers at one position.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use super::durable::{Durable, plan_durable};
use super::engine::Engine;
use super::file::File;
use super::handle::Access;
use super::operation::Sealed;
use super::transfer::full;
use super::wishes::settle;
use crate::buf::{IoBuf, IoBufMut, note_all_filled, span_of, span_of_mut};
use crate::completion::Answer;
use crate::op::{IOVECS_MAX, Iovecs, Op, Prepare, Prepared, SeenOf, Span, SyncOf, Wishes};

/// A read into several buffers. Made by [`File::read_vectored_at`] and
/// [`File::read_vectored_exact_at`]; [`File`] tells of errors, [`crate::Pending`] of dropping it in
/// flight.
///
/// It yields `(io::Result<usize>, Vec<B>)`: how many bytes were moved in all, and the buffers, also
/// after an error.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct ReadVectoredAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) bufs: Vec<B>,
    pub(super) list: List,
    pub(super) offset: u64,
    pub(super) exact: bool,
    pub(super) wishes: Wishes,
}

/// A write from several buffers. Made by [`File::write_vectored_at`] and
/// [`File::write_vectored_all_at`]; [`File`] tells of errors, [`crate::Pending`] of dropping it in
/// flight.
///
/// It yields `(io::Result<usize>, Vec<B>)`: how many bytes were moved in all, and the buffers, also
/// after an error.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct WriteVectoredAt<'f, B> {
    pub(super) file: &'f File,
    pub(super) bufs: Vec<B>,
    pub(super) list: List,
    pub(super) offset: u64,
    pub(super) all: bool,
    pub(super) wishes: Wishes,
    pub(super) durable: Option<Box<Durable<'f>>>,
}

/// The addresses of the buffers, as the kernel takes them; filled when the operation is run.
#[derive(Debug, Default)]
pub(super) struct List(Vec<libc::iovec>);

// SAFETY: the addresses are of the buffers beside the list, which go where it goes, and stay where
// they are when it is moved; nobody uses them but the operation while it is run.
unsafe impl Send for List {}
// SAFETY: a shared reference gives no access to the addresses.
unsafe impl Sync for List {}

impl List {
    /// One call takes at most so many buffers; the transfer is short if there are more, but for a
    /// whole one, which goes on with the others.
    fn fill_for(&mut self, whole: bool, spans: impl Iterator<Item = Span>) -> Iovecs {
        let most = usize::try_from(IOVECS_MAX).expect("1024");
        self.fill_with(spans, if whole { usize::MAX } else { most })
    }

    pub(super) fn fill(&mut self, spans: impl Iterator<Item = Span>) -> Iovecs {
        self.fill_with(spans, usize::MAX)
    }

    /// The first of those that hold something: a call with none but empty ones would look like the
    /// end of the file, and kernels look at the addresses of empty ones too where transfers are
    /// direct.
    fn fill_with(&mut self, spans: impl Iterator<Item = Span>, most: usize) -> Iovecs {
        self.0.clear();
        let full = spans.filter(|span| span.len > 0).take(most);
        self.0.extend(full.map(|span| libc::iovec {
            iov_base: span.start.cast(),
            iov_len: span.len,
        }));
        // More than that would take 64 GiB for the list alone.
        let count = u32::try_from(self.0.len()).expect("less than 2^32 buffers");
        Iovecs {
            first: self.0.as_mut_ptr(),
            count,
        }
    }
}

pub(super) fn total<B: IoBuf>(bufs: &[B]) -> usize {
    bufs.iter().map(IoBuf::len).sum()
}

impl<B: IoBufMut> Prepare for ReadVectoredAt<'_, B> {
    type Output = (io::Result<usize>, Vec<B>);

    fn prepare(&mut self) -> Prepared {
        let Self {
            file,
            bufs,
            list,
            offset,
            exact,
            wishes,
        } = self;
        let offset = *offset;
        let iovecs = list.fill_for(*exact, bufs.iter_mut().map(span_of_mut));
        let list = &list.0;
        file.handle()
            .vectored(list, offset, *exact, wishes, |fd, wishes| {
                Op::ReadVectoredAt {
                    fd,
                    iovecs,
                    offset,
                    wishes,
                }
            })
    }

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

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(false, seen);
    }

    fn finish(mut self, mut answer: Answer) -> Self::Output {
        let handle = self.file.handle();
        let spans = self.bufs.iter_mut().map(span_of_mut);
        handle.has_read(self.offset, spans, answer);
        if answer.errno() == Some(libc::EINVAL) {
            let spans = self.bufs.iter_mut().map(span_of_mut);
            answer = handle.read_to_the_end(answer, self.offset, spans);
        }
        // SAFETY: hosts finish an operation with the answer to its own request, once.
        let room = unsafe { note_all_filled(&mut self.bufs, answer) };
        let result = answer.decode(self.file.asked(Access::Read));
        let result = full(result, self.exact, room, io::ErrorKind::UnexpectedEof);
        let result = settle(self.file, self.wishes, answer, result);
        (result, self.bufs)
    }
}

impl<B: IoBuf> Prepare for WriteVectoredAt<'_, B> {
    type Output = (io::Result<usize>, Vec<B>);

    fn prepare(&mut self) -> Prepared {
        let Self {
            file,
            bufs,
            list,
            offset,
            all,
            wishes,
            durable,
        } = self;
        let offset = *offset;
        let iovecs = list.fill_for(*all, bufs.iter().map(span_of));
        let (list, handle) = (&list.0, file.handle());
        let write = |wishes: &mut Wishes| {
            handle.vectored(list, offset, *all, wishes, |fd, wishes| {
                Op::WriteVectoredAt {
                    fd,
                    iovecs,
                    offset,
                    wishes,
                }
            })
        };
        match wishes.has(Wishes::DSYNC) {
            true => plan_durable(durable, file, wishes, write),
            false => write(wishes),
        }
    }

    fn sync(&self) -> Option<SyncOf<'_>> {
        self.durable.as_ref()?.sync()
    }

    fn is_short(&self) -> bool {
        self.file.handle().is_short(true, self.wishes)
    }

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(true, seen);
    }

    fn proceed(&mut self, answer: Answer) -> bool {
        if answer.cause().is_some() {
            self.note_failed(answer);
        }
        let durable = self.durable.as_mut();
        durable.is_some_and(|durable| durable.proceed(answer))
    }

    fn finish(self, mut answer: Answer) -> Self::Output {
        if let Some(durable) = &self.durable {
            answer = durable.outcome(answer);
        }
        let spans = self.bufs.iter().map(span_of);
        let handle = self.file.handle();
        handle.wrote(self.offset, spans, self.wishes, answer);
        let result = answer.decode(self.file.asked(Access::Write));
        let len = total(&self.bufs);
        let result = full(result, self.all, len, io::ErrorKind::WriteZero);
        let result = settle(self.file, self.wishes, answer, result);
        (result, self.bufs)
    }
}

impl<B: IoBufMut> Sealed for ReadVectoredAt<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.file.engine()
    }
}

impl<B: IoBuf> Sealed for WriteVectoredAt<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.file.engine()
    }
}
