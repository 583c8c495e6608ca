//! The geometry of transfers of any range, on a file in memory that takes what a direct one takes.
#![allow(unsafe_code)]

use std::slice;

use super::super::file::Alignment;
use super::*;
use crate::buf::{AlignedBuf, IoBufMut};

fn needed(memory_bytes: u32, offset_bytes: u32) -> Misaligned {
    let known = Alignment::Known {
        memory_bytes,
        offset_bytes,
    };
    known.or_assumed()
}

#[test]
fn blocks_cover_every_range() {
    let needed = needed(512, 4096);
    let span = |address: usize, len| Span {
        start: std::ptr::without_provenance_mut(address),
        len,
        arena: None,
    };
    // Address, offset and length; cover, head, middle, tail, memory.
    let cases = [
        ((512, 0, 1), (4096, 0, 0, 1, 4096)),
        ((512, 1, 4095), (4096, 4095, 0, 0, 4096)),
        ((512, 5, 10), (4096, 10, 0, 0, 4096)),
        ((512, 4095, 2), (8192, 1, 0, 1, 8192)),
        ((511, 4095, 4097), (8192, 1, 4096, 0, 4096)),
        ((512, 4095, 4097), (8192, 1, 4096, 0, 8192)),
        ((1024, 8192, 10_000), (12_288, 0, 8192, 1808, 4096)),
        ((1025, 8192, 8192), (8192, 0, 8192, 0, 8192)),
    ];
    for ((address, offset, len), expected) in cases {
        let cover = Cover::of(span(address, len), offset, needed).unwrap();
        let found = (
            cover.len,
            cover.head(),
            cover.middle(),
            cover.tail(),
            cover.memory_len(),
        );
        assert_eq!(found, expected, "{len} bytes at {offset}");
        assert_eq!(cover.of_range(cover.len), len);
        assert_eq!(cover.of_range(cover.skip), 0);
    }
    let end = u64::try_from(i64::MAX).unwrap();
    assert!(Cover::of(span(512, 1), end - 1, needed).is_none());
    assert!(Cover::of(span(512, 2), u64::MAX, needed).is_none());
}

const DIRECT: RawFd = 1;
const BUFFERED: RawFd = 2;

/// A file in memory. What goes by [`DIRECT`] has to be aligned.
struct Disk {
    bytes: Vec<u8>,
    needed: Misaligned,
}

impl Disk {
    /// # Safety
    ///
    /// What the operation names is there, and nobody else uses it.
    unsafe fn run(&mut self, op: Op) -> Answer {
        let (fd, list, offset) = match op {
            Op::ReadAt {
                fd, span, offset, ..
            }
            | Op::WriteAt {
                fd, span, offset, ..
            } => (fd, vec![(span.start, span.len)], offset),
            Op::ReadVectoredAt {
                fd, iovecs, offset, ..
            }
            | Op::WriteVectoredAt {
                fd, iovecs, offset, ..
            } => {
                let count = usize::try_from(iovecs.count).expect("a few");
                // SAFETY: passed on from the caller.
                let list = unsafe { slice::from_raw_parts(iovecs.first, count) };
                let list = list.iter().map(|it| (it.iov_base.cast(), it.iov_len));
                (fd, list.collect(), offset)
            }
            _ => unreachable!("{op:?} is no transfer"),
        };
        let mut at = usize::try_from(offset).expect("it is in memory");
        for (start, len) in list {
            self.check(fd, start.addr(), len, at);
            let part = if op.is_read() {
                let part = found(&self.bytes, at, len);
                // SAFETY: passed on from the caller.
                unsafe { start.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                part.len()
            } else {
                let end = self.bytes.len().max(at + len);
                self.bytes.resize(end, 0);
                let part = &mut self.bytes[at..at + len];
                // SAFETY: as above.
                unsafe { start.copy_to_nonoverlapping(part.as_mut_ptr(), len) };
                len
            };
            at += part;
            if part < len {
                break;
            }
        }
        Answer::moved(at - usize::try_from(offset).expect("as before"))
    }

    fn check(&self, fd: RawFd, address: usize, len: usize, at: usize) {
        let fits = |number: usize, bytes: u32| (number as u64).is_multiple_of(u64::from(bytes));
        let Misaligned {
            memory_bytes,
            offset_bytes,
            ..
        } = self.needed;
        let is_aligned =
            fits(address, memory_bytes) && fits(len, offset_bytes) && fits(at, offset_bytes);
        assert!(is_aligned || fd == BUFFERED, "{len} bytes at {at}");
    }
}

/// What a read of so many bytes finds there.
fn found(bytes: &[u8], at: usize, len: usize) -> &[u8] {
    let at = at.min(bytes.len());
    &bytes[at..bytes.len().min(at + len)]
}

/// A range, where it is in the file and in memory.
struct Case {
    at: usize,
    len: usize,
    span: Span,
}

impl Case {
    fn bounced(&self, disk: &Disk, bounces: &Arc<Bounces>) -> Box<Bounced> {
        let made = Bounced::new(bounces, self.span, self.at as u64, disk.needed);
        made.expect("there is memory")
    }

    fn read(&self, disk: &mut Disk, bounces: &Arc<Bounces>) {
        let mut bounced = self.bounced(disk, bounces);
        // SAFETY: the memory is that of the test, and of the transfer.
        let answer = unsafe { disk.run(bounced.read(DIRECT, self.span, Wishes::NONE)) };
        // SAFETY: as above.
        let answer = unsafe { bounced.take_read(self.span, answer) };
        let expected = found(&disk.bytes, self.at, self.len);
        assert_eq!(answer, Answer::moved(expected.len()));
        // SAFETY: so many bytes of it have been filled.
        let read = unsafe { slice::from_raw_parts(self.span.start, expected.len()) };
        assert_eq!(read, expected);
    }

    fn write(&self, disk: &mut Disk, bounces: &Arc<Bounces>) {
        // SAFETY: the memory is that of the test.
        let bytes = unsafe { slice::from_raw_parts_mut(self.span.start, self.len) };
        bytes.fill(0xff);
        let mut expected = disk.bytes.clone();
        expected.resize(expected.len().max(self.at + self.len), 0);
        expected[self.at..self.at + self.len].fill(0xff);
        let mut bounced = self.bounced(disk, bounces);
        for _ in 0..4 {
            let (fds, wishes) = ([DIRECT, BUFFERED], Wishes::NONE);
            // SAFETY: as above.
            let (op, _) = unsafe { bounced.write(fds, self.span, true, wishes) };
            // SAFETY: as above, and of the transfer.
            let answer = unsafe { disk.run(op) };
            if !bounced.proceed(answer, true, wishes) {
                break;
            }
        }
        assert_eq!(bounced.outcome(), Some(Answer::moved(self.len)));
        assert!(disk.bytes == expected);
    }
}

#[test]
fn every_range_goes_by_way_of_memory_that_is_aligned() {
    let (every, bounces) = (if cfg!(miri) { 7 } else { 1 }, Arc::new(Bounces::default()));
    let mut memory = AlignedBuf::new(4096, 4096).expect("there is memory");
    let start = memory.as_mut_ptr();
    for (memory_bytes, offset_bytes) in [(4, 16), (8, 8), (16, 8), (64, 8)] {
        let [most, block] =
            [memory_bytes, offset_bytes].map(|bytes| usize::try_from(bytes).unwrap());
        // Far behind the range, in it, and before it.
        for file_len in [100_u8, 21, 3] {
            for at in (0..24_usize).step_by(every) {
                // Such that whole blocks fit where they are, or their addresses less well.
                let fits = most - (at.next_multiple_of(block) - at) % most;
                for shift in [fits, fits + 1, fits + block] {
                    for len in (1..60).step_by(every) {
                        let span = Span {
                            start: start.wrapping_add(shift),
                            len,
                            arena: None,
                        };
                        let mut disk = Disk {
                            bytes: (0..file_len).collect(),
                            needed: needed(memory_bytes, offset_bytes),
                        };
                        let case = Case { at, len, span };
                        case.read(&mut disk, &bounces);
                        case.write(&mut disk, &bounces);
                    }
                }
            }
        }
    }
}
