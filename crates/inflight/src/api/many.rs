//! Many reads or writes with borrowed buffers.

use std::io;
use std::iter;
use std::os::fd::RawFd;

use super::engine::Engine;
use super::file::File;
use super::handle::Access;
use super::transfer::copied;
use super::wishes::count_unaligned;
use crate::buf::{span_of, span_of_mut};
use crate::completion::Answer;
use crate::host::{alone, caller};
use crate::op::{Op, Prepare, Prepared, SeenOf, Wishes};

/// One read of [`read_many`], into a borrowed buffer.
#[derive(Debug)]
pub struct ReadInto<'a> {
    file: &'a File,
    offset: u64,
    buf: &'a mut [u8],
    answer: Answer,
    /// It goes through the page cache because it does not fit direct I/O.
    is_unaligned: bool,
}

/// One write of [`write_many`], from a borrowed buffer.
#[derive(Debug)]
pub struct WriteFrom<'a> {
    file: &'a File,
    offset: u64,
    buf: &'a [u8],
    answer: Answer,
    /// It goes through the page cache because it does not fit direct I/O.
    is_unaligned: bool,
}

impl<'a> ReadInto<'a> {
    /// A read of up to `buf.len()` bytes at `offset`.
    pub fn new(file: &'a File, offset: u64, buf: &'a mut [u8]) -> Self {
        Self {
            file,
            offset,
            buf,
            answer: Answer::NOT_RUN,
            is_unaligned: false,
        }
    }

    /// Bytes read, or why not.
    ///
    /// # Errors
    ///
    /// As [`File::read_at`]; also before it was run.
    pub fn result(&self) -> io::Result<usize> {
        self.answer.decode(self.file.asked(Access::Read))
    }

    /// The buffer; what was read is at its start.
    pub fn buf(&self) -> &[u8] {
        self.buf
    }
}

impl<'a> WriteFrom<'a> {
    /// A write of up to `buf.len()` bytes at `offset`.
    pub fn new(file: &'a File, offset: u64, buf: &'a [u8]) -> Self {
        Self {
            file,
            offset,
            buf,
            answer: Answer::NOT_RUN,
            is_unaligned: false,
        }
    }

    /// Bytes written, or why not.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`]; also before it was run.
    pub fn result(&self) -> io::Result<usize> {
        self.answer.decode(self.file.asked(Access::Write))
    }
}

/// Runs the reads together and blocks until all have completed; the engine is that of the first
/// file. In a tokio task it belongs in `spawn_blocking`, or a [`crate::Batch`] is awaited instead.
///
/// The buffers are borrowed, which is sound because this neither returns nor unwinds before the
/// kernel is done with them. Short reads are not errors: ask each for its result.
///
/// [`any_range`](crate::fs::OpenOptions::any_range) does nothing here: ranges of a direct file that
/// are not aligned are for a [`crate::Batch`], whose reads may have `&mut [u8]` too.
///
/// # Errors
///
/// The first error in the order of `reads`. The others have been run all the same.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{ReadInto, fs::File, read_many};
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let (mut head, mut page) = ([0; 64], vec![0; 4096]);
/// let mut reads = [
///     ReadInto::new(&file, 0, &mut head),
///     ReadInto::new(&file, 8192, &mut page),
/// ];
/// read_many(&mut reads)?;
/// assert_eq!(reads[0].result()?, 64);
/// # Ok(()) }
/// ```
pub fn read_many(reads: &mut [ReadInto<'_>]) -> io::Result<()> {
    run(reads, Access::Read, |read| {
        (read.file, &mut read.answer, read.is_unaligned)
    })
}

/// Runs the writes together and blocks until all have completed, as [`read_many`] does; the engine
/// is that of the first file. In which order they are done is not defined.
///
/// # Errors
///
/// The first error in the order of `writes`. The others have been run all the same. Short writes
/// are not errors: ask each for its result.
pub fn write_many(writes: &mut [WriteFrom<'_>]) -> io::Result<()> {
    let result = run(writes, Access::Write, |write| {
        (write.file, &mut write.answer, write.is_unaligned)
    });
    for write in writes {
        let span = iter::once_with(|| span_of(&write.buf));
        let handle = write.file.handle();
        handle.wrote(write.offset, span, Wishes::NONE, write.answer);
    }
    result
}

fn run<O: Prepare>(
    operations: &mut [O],
    access: Access,
    parts: impl Fn(&mut O) -> (&File, &mut Answer, bool),
) -> io::Result<()> {
    let Some(first) = operations.first_mut() else {
        return Ok(());
    };
    let engine: Engine = parts(first).0.engine().clone();
    let mut answers = vec![Answer::NOT_RUN; operations.len()];
    if let [operation] = operations {
        answers[0] = alone::run_alone(engine.shared(), operation);
    } else {
        match caller::lease(engine.shared()) {
            Ok(mut lease) => lease.run(operations, &mut answers),
            Err(refusal) => answers.fill(Answer::refused(refusal)),
        }
    }
    let mut first_error = Ok(());
    for (operation, answer) in operations.iter_mut().zip(answers) {
        let (file, place, is_unaligned) = parts(operation);
        *place = answer;
        if is_unaligned {
            count_unaligned(file, answer);
        }
        if first_error.is_ok() {
            first_error = answer.decode(file.asked(access)).map(drop);
        }
    }
    first_error
}

impl WriteFrom<'_> {
    /// Remembers what a failure tells of the file's syncs.
    #[cold]
    fn note_failed(&self, answer: Answer) {
        let handle = self.file.handle();
        handle.note_write(Wishes::NONE, self.buf.len(), answer);
    }
}

impl Prepare for ReadInto<'_> {
    type Output = ();

    fn prepare(&mut self) -> Prepared {
        let (offset, mut wishes) = (self.offset, Wishes::NONE);
        if let Some(answer) = copied(self.file, &mut self.buf, offset) {
            // It may have been run before, when this was not resident.
            self.is_unaligned = false;
            return Prepared::answered(answer);
        }
        let span = span_of_mut(&mut self.buf);
        let prepared =
            self.file
                .handle()
                .transfer(span, offset, false, &mut wishes, |fd, span, wishes| {
                    Op::ReadAt {
                        fd,
                        span,
                        offset,
                        wishes,
                    }
                });
        self.is_unaligned = wishes.has(Wishes::UNALIGNED);
        prepared
    }

    #[inline]
    fn twin(&self, of: RawFd) -> Option<RawFd> {
        self.file.handle().twin(of)
    }

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(false, seen);
    }

    fn finish(self, _answer: Answer) {}
}

impl Prepare for WriteFrom<'_> {
    type Output = ();

    fn prepare(&mut self) -> Prepared {
        let (offset, mut wishes) = (self.offset, Wishes::NONE);
        let span = span_of(&self.buf);
        let prepared =
            self.file
                .handle()
                .transfer(span, offset, false, &mut wishes, |fd, span, wishes| {
                    Op::WriteAt {
                        fd,
                        span,
                        offset,
                        wishes,
                    }
                });
        self.is_unaligned = wishes.has(Wishes::UNALIGNED);
        prepared
    }

    fn note(&self, seen: SeenOf) {
        self.file.handle().note(true, seen);
    }

    #[inline(always)]
    fn proceed(&mut self, answer: Answer) -> bool {
        if answer.cause().is_some() {
            self.note_failed(answer);
        }
        false
    }

    fn finish(self, _answer: Answer) {}
}
