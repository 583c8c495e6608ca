//! Transfers of any range on a direct file, by way of aligned memory: what surrounds the range is
//! read with it, and for a write put back with it (`docs/design/any-range.md`). Of a block that the
//! file ends in, a write has only its own bytes go to the file, by way of the page cache.
//!
//! A read is one request. A write is several, one after the other: [`Prepare::proceed`] takes the
//! answer of each. What the kernel uses is on the heap and belongs to the operation.
//!
//! [`Prepare::proceed`]: crate::op::Prepare::proceed
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::kept::Tells;
use super::vectored::List;
use crate::backend::threads::execute::after;
use crate::buf::{Bounce, Bounces};
use crate::completion::Answer;
use crate::error::Misaligned;
use crate::op::{Op, Span, Wishes};

/// Which transfers that are not aligned go by way of aligned memory; see
/// [`OpenOptions::any_range`](crate::fs::OpenOptions::any_range).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnyRange {
    /// None.
    #[default]
    Off,
    /// Reads: the blocks around the range are read with it.
    Reads,
    /// Writes too: the blocks at the ends of the range are read, changed, and written back.
    ReadsAndWrites,
}

/// The blocks that cover a range, in bytes from the start of the file.
#[derive(Clone, Copy, Debug)]
struct Cover {
    start: u64,
    /// Bytes from the first block to the end of the last.
    len: usize,
    /// Bytes before the range.
    skip: usize,
    /// Bytes of the range.
    range: usize,
    block: usize,
    /// From where one block is read by itself in the aligned memory to where the next one is: what
    /// an address has to be a multiple of may be more than a block.
    stride: usize,
    /// Whether whole blocks can go to and from the caller's memory where they lie in it.
    middle_fits: bool,
}

impl Cover {
    /// `None` if it would end beyond the largest offset.
    fn of(span: Span, offset: u64, needed: Misaligned) -> Option<Self> {
        let block = u64::from(needed.offset_bytes);
        let start = offset & !(block - 1);
        let end = offset.checked_add(span.len as u64)?;
        let end = end.checked_next_multiple_of(block)?;
        i64::try_from(end).ok()?;
        let narrow = |bytes: u64| usize::try_from(bytes).ok();
        let mut cover = Self {
            start,
            len: narrow(end - start)?,
            skip: narrow(offset - start)?,
            range: span.len,
            block: narrow(block)?,
            stride: narrow(block.max(u64::from(needed.memory_bytes)))?,
            middle_fits: false,
        };
        let address = span.start.addr().wrapping_add(cover.head()) as u64;
        let is_aligned = address & (u64::from(needed.memory_bytes) - 1) == 0;
        cover.middle_fits = cover.middle() > 0 && is_aligned;
        Some(cover)
    }

    /// Bytes of the range before its first whole block.
    fn head(&self) -> usize {
        match self.skip {
            0 => 0,
            skip => (self.block - skip).min(self.range),
        }
    }

    /// Bytes of the range in its last block, if that is not a whole one, nor also the first.
    fn tail(&self) -> usize {
        (self.range - self.head()) % self.block
    }

    /// Bytes of the range in whole blocks.
    fn middle(&self) -> usize {
        self.range - self.head() - self.tail()
    }

    /// Where in the aligned memory the last block is read by itself, if it is.
    fn tail_at(&self) -> usize {
        if self.tail() == 0 {
            return 0;
        }
        let place = self.len - self.block;
        match self.middle_fits {
            true if self.skip == 0 => 0,
            true => self.stride,
            false if place.is_multiple_of(self.stride) => place,
            // Behind all blocks, from where it is copied to its place.
            false => self.len.next_multiple_of(self.stride),
        }
    }

    /// Bytes of aligned memory: that of all blocks, or of those at the ends only.
    fn memory_len(&self) -> usize {
        let all = if self.middle_fits { 0 } else { self.len };
        all.max(self.tail_at() + self.block)
    }

    /// Bytes of the range in the last block.
    fn in_last(&self) -> usize {
        self.range
            .min(self.skip + self.range - (self.len - self.block))
    }

    /// Bytes of the range among the first `moved` ones of the cover.
    fn of_range(&self, moved: usize) -> usize {
        moved.saturating_sub(self.skip).min(self.range)
    }
}

/// What a write does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ReadHead,
    ReadTail,
    /// Whole blocks.
    Write,
    /// What is in the last block, where the file ends before that does: a block that is written as
    /// a whole would have to be cut off, and with it whatever has been written beyond meanwhile.
    WriteEnd,
    Sync,
}

/// A transfer by way of aligned memory.
#[derive(Debug)]
pub(super) struct Bounced {
    memory: Bounce,
    list: List,
    cover: Cover,
    /// What a write does next.
    step: Step,
    /// Whether the file ends in the last block of a write, or before it.
    is_at_end: bool,
    /// What has become of a write.
    outcome: Option<Answer>,
}

impl Bounced {
    /// For a transfer between `span` and the range at `offset`.
    ///
    /// # Errors
    ///
    /// The answer, if there cannot be such a transfer.
    pub(super) fn new(
        bounces: &Arc<Bounces>,
        span: Span,
        offset: u64,
        needed: Misaligned,
    ) -> Result<Box<Self>, Answer> {
        let failed = |errno| Answer::failed(errno, 0);
        let cover = Cover::of(span, offset, needed).ok_or(failed(libc::EINVAL))?;
        let align = usize::try_from(needed.memory_bytes).expect("usize has 32 bits or more");
        let memory = bounces.take(cover.memory_len(), align);
        let memory = memory.map_err(|_: io::Error| failed(libc::ENOMEM))?;
        let has_tail = cover.tail() > 0;
        let step = match cover.skip {
            0 if has_tail => Step::ReadTail,
            0 => Step::Write,
            _ => Step::ReadHead,
        };
        Ok(Box::new(Self {
            memory,
            list: List::default(),
            cover,
            step,
            is_at_end: false,
            outcome: None,
        }))
    }

    /// `len` bytes of the aligned memory.
    fn part(&mut self, from: usize, len: usize) -> Span {
        debug_assert!(from + len <= self.cover.memory_len());
        Span {
            start: self.memory.start().wrapping_add(from),
            len,
            arena: None,
        }
    }

    /// The memory of the blocks at the ends, where the middle does not need any: its first block
    /// and its last, and the middle.
    fn ends(&mut self, span: Span) -> impl Iterator<Item = Span> + use<> {
        let Cover { skip, block, .. } = self.cover;
        let (head, middle) = (self.cover.head(), self.cover.middle());
        let head_block = if skip > 0 { block } else { 0 };
        let has_tail_block = self.cover.tail() > 0 && !self.is_at_end;
        let (tail_at, tail_block) = match has_tail_block {
            true => (self.cover.tail_at(), block),
            false => (0, 0),
        };
        let spans = [
            self.part(0, head_block),
            Span {
                start: span.start.wrapping_add(head),
                len: middle,
                arena: None,
            },
            self.part(tail_at, tail_block),
        ];
        spans.into_iter().filter(|span| span.len > 0)
    }

    /// The read of all blocks that cover the range.
    pub(super) fn read(&mut self, fd: RawFd, span: Span, wishes: Wishes) -> Op {
        let offset = self.cover.start;
        if self.cover.middle_fits {
            let ends = self.ends(span);
            let iovecs = self.list.fill(ends);
            Op::ReadVectoredAt {
                fd,
                iovecs,
                offset,
                wishes,
            }
        } else {
            let span = self.part(0, self.cover.len);
            Op::ReadAt {
                fd,
                span,
                offset,
                wishes,
            }
        }
    }

    /// The answer for the range, given that for the cover; what was read goes where it belongs.
    ///
    /// # Safety
    ///
    /// The answer is that of [`Bounced::read`], and `span` the same, whose memory may be written.
    pub(super) unsafe fn take_read(&mut self, span: Span, answer: Answer) -> Answer {
        let cover = self.cover;
        let moved = answer.bytes().min(cover.len);
        let bytes = cover.of_range(moved);
        // In the aligned memory and in the range: from where to where, and how many.
        let head = cover.head();
        let places = match cover.middle_fits {
            false => [(cover.skip, 0, cover.range), (0, 0, 0)],
            true => {
                let tail_to = head + cover.middle();
                [
                    (cover.skip, 0, head),
                    (cover.tail_at(), tail_to, cover.tail()),
                ]
            }
        };
        for (from, to, len) in places {
            let len = len.min(bytes.saturating_sub(to));
            let source = &self.memory.bytes()[from..from + len];
            // SAFETY: the range lies in the span, whose memory the caller lets us write, and no
            // part of the aligned memory is.
            unsafe {
                span.start
                    .wrapping_add(to)
                    .copy_from_nonoverlapping(source.as_ptr(), len);
            }
        }
        match answer.errno() {
            // Going on behind the last byte of a file is not aligned, and some file systems look at
            // that first, or the file has grown meanwhile.
            Some(libc::EINVAL) if !moved.is_multiple_of(cover.block) => Answer::moved(bytes),
            Some(errno) => Answer::failed(errno, bytes),
            None => Answer::moved(bytes).marked(answer.is_unheard()),
        }
    }

    /// The next request of a write, and whether it has to be seen through. One behind the whole
    /// blocks goes by way of the page cache, by the other descriptor.
    ///
    /// # Safety
    ///
    /// `span` is that of [`Bounced::new`], and can be read.
    pub(super) unsafe fn write(
        &mut self,
        [direct, buffered]: [RawFd; 2],
        span: Span,
        all: bool,
        wishes: Wishes,
    ) -> (Op, bool) {
        let cover = self.cover;
        let block = cover.block;
        let last_at = cover.start + (cover.len - block) as u64;
        let read = |span, offset| Op::ReadAt {
            fd: direct,
            span,
            offset,
            wishes: Wishes::NONE,
        };
        match self.step {
            Step::ReadHead => (read(self.part(0, block), cover.start), true),
            Step::ReadTail => (read(self.part(cover.tail_at(), block), last_at), true),
            Step::Write => {
                let wishes = wishes.without(Wishes::THEN_SYNC);
                // SAFETY: passed on from the caller.
                (unsafe { self.write_cover(direct, span, wishes) }, all)
            }
            Step::WriteEnd => {
                let before = cover.range - cover.in_last();
                let op = Op::WriteAt {
                    fd: buffered,
                    span: Span {
                        start: span.start.wrapping_add(before),
                        len: cover.in_last(),
                        arena: None,
                    },
                    offset: cover.start + (cover.skip + before) as u64,
                    // The others are of direct transfers, or of not waiting.
                    wishes: wishes.only(Wishes::DSYNC),
                };
                (op, all)
            }
            Step::Sync => {
                let (fd, data_only) = (direct, true);
                (Op::Sync { fd, data_only }, false)
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Bounced::write`].
    unsafe fn write_cover(&mut self, fd: RawFd, span: Span, wishes: Wishes) -> Op {
        let cover = self.cover;
        let offset = cover.start;
        let head = cover.head();
        let places = match cover.middle_fits {
            false => [(0, cover.skip, cover.range), (0, 0, 0)],
            true => {
                let tail_from = head + cover.middle();
                [
                    (0, cover.skip, head),
                    (tail_from, cover.tail_at(), cover.tail()),
                ]
            }
        };
        for (from, to, len) in places {
            let target = &mut self.memory.bytes()[to..to + len];
            let source = span.start.cast_const().wrapping_add(from);
            // SAFETY: the range lies in the span, which the caller lets us read, and no part of the
            // aligned memory does.
            unsafe { source.copy_to_nonoverlapping(target.as_mut_ptr(), len) };
        }
        if cover.middle_fits {
            let ends = self.ends(span);
            let iovecs = self.list.fill(ends);
            Op::WriteVectoredAt {
                fd,
                iovecs,
                offset,
                wishes,
            }
        } else {
            let span = self.part(0, self.whole_len());
            Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            }
        }
    }

    /// Bytes that are written as whole blocks.
    fn whole_len(&self) -> usize {
        let cover = self.cover;
        cover.len - if self.is_at_end { cover.block } else { 0 }
    }

    /// Takes the answer for the last request of a write, of which `all` is to be written. True if
    /// there is another one to be made.
    pub(super) fn proceed(&mut self, answer: Answer, all: bool, wishes: Wishes) -> bool {
        let cover = self.cover;
        let done = match self.step {
            Step::ReadHead | Step::ReadTail => 0,
            Step::Write => cover.of_range(answer.bytes()),
            Step::WriteEnd => cover.range - cover.in_last() + answer.bytes(),
            Step::Sync => cover.range,
        };
        let is_read = self.reads();
        match answer.errno() {
            None => {}
            // As in `take_read`.
            Some(libc::EINVAL) if is_read && !answer.bytes().is_multiple_of(cover.block) => {}
            Some(errno) => {
                self.outcome = Some(after(done, all, errno));
                return false;
            }
        }
        let first_write = |this: &Self| match this.whole_len() {
            0 => Step::WriteEnd,
            _ => Step::Write,
        };
        self.step = match self.step {
            Step::ReadHead => {
                self.take_block(0, answer.bytes(), cover.start);
                match cover.tail() {
                    0 => first_write(self),
                    _ => Step::ReadTail,
                }
            }
            Step::ReadTail => {
                let last = cover.start + (cover.len - cover.block) as u64;
                let at = cover.tail_at();
                self.take_block(at, answer.bytes(), last);
                let place = cover.len - cover.block;
                if !cover.middle_fits && at != place {
                    let block = at..at + cover.block;
                    self.memory.bytes().copy_within(block, place);
                }
                first_write(self)
            }
            Step::Write | Step::WriteEnd => {
                let was_unheard = self.outcome.is_some_and(Answer::is_unheard);
                let outcome = Answer::moved(done).marked(was_unheard || answer.is_unheard());
                self.outcome = Some(outcome);
                let is_whole = done == cover.range;
                let is_all_but_the_end = done == cover.range - cover.in_last();
                match self.step {
                    Step::Write if self.is_at_end && is_all_but_the_end => Step::WriteEnd,
                    _ if is_whole && wishes.has(Wishes::THEN_SYNC) => Step::Sync,
                    _ => return false,
                }
            }
            Step::Sync => return false,
        };
        true
    }

    /// A block at an end of the range has been read, as far as the file goes.
    fn take_block(&mut self, from: usize, read: usize, block_at: u64) {
        let cover = self.cover;
        let block = &mut self.memory.bytes()[from..from + cover.block];
        let read = read.min(cover.block);
        block[read..].fill(0);
        let range_ends_at = cover.start + (cover.skip + cover.range) as u64;
        // It is the last block, and the range does not fill it up.
        let is_in_doubt = block_at < range_ends_at && range_ends_at < block_at + block.len() as u64;
        self.is_at_end |= is_in_doubt && read < block.len();
    }

    /// What the answer that a write waits for tells of the file's syncs.
    pub(super) fn tells(&self, wishes: Wishes) -> Tells {
        match self.step {
            Step::Write | Step::WriteEnd => {
                Tells::Write(wishes.without(Wishes::THEN_SYNC), self.cover.len)
            }
            Step::Sync => Tells::Sync,
            Step::ReadHead | Step::ReadTail => Tells::Nothing,
        }
    }

    /// Whether the next request of a write reads a block of which a part is to be written.
    pub(super) fn reads(&self) -> bool {
        matches!(self.step, Step::ReadHead | Step::ReadTail)
    }

    /// Whether the next request of a write is that for the end of the file.
    pub(super) fn writes_end(&self) -> bool {
        self.step == Step::WriteEnd
    }

    /// What has become of a write, if it has come so far.
    pub(super) fn outcome(&self) -> Option<Answer> {
        self.outcome
    }
}

#[cfg(test)]
#[path = "bounce_test.rs"]
mod tests;
