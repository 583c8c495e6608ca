//! An operation as a submission queue entry.

use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};

use super::super::threads::execute::METADATA_MASK;
use crate::op::{Op, Span, TRANSFER_MAX_BYTES, Wishes};

/// Where an operation's memory and file are known to the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Place of the buffer's arena in the ring's table of registered buffers.
    pub(super) buffer: Option<u16>,
    /// Place of the file in the ring's table of fixed files.
    pub(super) file: Option<RawFd>,
}

/// What is asked of a transfer, as its entry has it: flags and priority.
#[inline(always)]
fn wished(wishes: Wishes) -> (i32, u16) {
    match wishes.is_none() {
        true => (0, 0),
        false => (wishes.rwf(), wishes.ioprio()),
    }
}

/// The length of a span in one operation. The proactor has split what is longer.
fn len(span: Span) -> u32 {
    u32::try_from(span.len).unwrap_or(TRANSFER_MAX_BYTES)
}

fn sync_flags(data_only: bool) -> types::FsyncFlags {
    match data_only {
        true => types::FsyncFlags::DATASYNC,
        false => types::FsyncFlags::empty(),
    }
}

/// Gives the submission queue entry of an operation to `put`.
///
/// Each arm has its own call of `put`, so that an entry is written once, where it belongs: one
/// that is chosen first and copied afterwards costs 7 ns for the stores to settle.
#[inline(always)]
pub(super) fn encode<R>(op: &Op, known: Known, put: impl FnOnce(squeue::Entry) -> R) -> R {
    // A place goes where the descriptor would, and a flag says which it is.
    let in_table = match known.file {
        Some(_) => squeue::Flags::FIXED_FILE,
        None => squeue::Flags::empty(),
    };
    let target = |fd| types::Fd(known.file.unwrap_or(fd));
    let put = |entry: squeue::Entry| put(entry.flags(in_table));
    let (flags, ioprio) = wished(op.wishes());
    match *op {
        Op::Nop => put(opcode::Nop::new().build()),
        Op::ReadAt {
            fd, span, offset, ..
        } => match known.buffer {
            Some(place) => {
                let read = opcode::ReadFixed::new(target(fd), span.start, len(span), place);
                put(read.offset(offset).rw_flags(flags).ioprio(ioprio).build())
            }
            None => {
                let read = opcode::Read::new(target(fd), span.start, len(span));
                put(read.offset(offset).rw_flags(flags).ioprio(ioprio).build())
            }
        },
        Op::WriteAt {
            fd, span, offset, ..
        } => match known.buffer {
            Some(place) => {
                let write = opcode::WriteFixed::new(target(fd), span.start, len(span), place);
                put(write.offset(offset).rw_flags(flags).ioprio(ioprio).build())
            }
            None => {
                let write = opcode::Write::new(target(fd), span.start, len(span));
                put(write.offset(offset).rw_flags(flags).ioprio(ioprio).build())
            }
        },
        Op::ReadVectoredAt {
            fd, iovecs, offset, ..
        } => {
            let read = opcode::Readv::new(target(fd), iovecs.first, iovecs.count_at_once());
            put(read.offset(offset).rw_flags(flags).ioprio(ioprio).build())
        }
        Op::WriteVectoredAt {
            fd, iovecs, offset, ..
        } => {
            let write = opcode::Writev::new(target(fd), iovecs.first, iovecs.count_at_once());
            put(write.offset(offset).rw_flags(flags).ioprio(ioprio).build())
        }
        Op::Sync { fd, data_only } => {
            let sync = opcode::Fsync::new(target(fd));
            put(sync.flags(sync_flags(data_only)).build())
        }
        Op::Allocate {
            fd,
            mode,
            offset,
            len,
        } => {
            let allocate = opcode::Fallocate::new(target(fd), len);
            put(allocate.offset(offset).mode(mode.0).build())
        }
        // statx takes a directory descriptor, which cannot be a fixed file.
        Op::Metadata { fd, out } => {
            let statx = opcode::Statx::new(types::Fd(fd), c"".as_ptr(), out.cast());
            put(statx.flags(libc::AT_EMPTY_PATH).mask(METADATA_MASK).build())
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::op::{Iovecs, Priority};

    /// `ioprio` and `rw_flags` of an entry: `struct io_uring_sqe`, `include/uapi/linux/io_uring.h`.
    fn fields(op: &Op, known: Known) -> (u16, u32) {
        encode(op, known, |entry| {
            // SAFETY: an entry is 64 bytes, all of which have been set.
            let bytes = unsafe { (&raw const entry).cast::<[u8; 64]>().read() };
            let flags = bytes[28..32].try_into().unwrap();
            let ioprio = u16::from_ne_bytes([bytes[2], bytes[3]]);
            (ioprio, u32::from_ne_bytes(flags))
        })
    }

    #[test]
    fn every_transfer_carries_its_wishes() {
        let span = Span {
            start: std::ptr::null_mut(),
            len: 1,
            arena: None,
        };
        let iovecs = Iovecs {
            first: std::ptr::null_mut(),
            count: 0,
        };
        let asked = Wishes::DSYNC.with(Wishes::NO_WAIT).with(Wishes::THEN_SYNC);
        let asked = asked.with_priority(Priority::Throughput);
        for (wishes, expected) in [(Wishes::NONE, (0, 0)), (asked, (0x4007, 0x0a))] {
            let (fd, offset) = (0, 0);
            #[rustfmt::skip]
            let ops = [
                Op::ReadAt { fd, span, offset, wishes },
                Op::WriteAt { fd, span, offset, wishes },
                Op::ReadVectoredAt { fd, iovecs, offset, wishes },
                Op::WriteVectoredAt { fd, iovecs, offset, wishes },
            ];
            for (op, buffer) in ops.iter().flat_map(|op| [(op, None), (op, Some(3))]) {
                let known = Known { buffer, file: None };
                assert_eq!(fields(op, known), expected, "{op:?}");
            }
        }
    }
}
