//! An operation as a submission queue entry.

use io_uring::{opcode, squeue, types};

use super::super::threads::execute::METADATA_MASK;
use crate::op::{Op, Span, TRANSFER_MAX_BYTES};

/// Where an operation's memory and file are known to the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Place of the buffer's arena in the ring's table of registered buffers.
    pub(super) buffer: Option<u16>,
    /// Place of the file in the ring's table of fixed files.
    pub(super) file: Option<u32>,
}

/// Calls `$build` with the descriptor in the form that the ring knows it.
macro_rules! with_fd {
    ($known:expr, $fd:expr, |$target:ident| $build:expr) => {
        match $known.file {
            Some(place) => {
                let $target = types::Fixed(place);
                $build
            }
            None => {
                let $target = types::Fd($fd);
                $build
            }
        }
    };
}

/// The entry of a transfer, with what the operation wishes for.
macro_rules! wished {
    ($transfer:expr, $op:expr) => {{
        let wishes = $op.wishes();
        let transfer = $transfer;
        match wishes.is_none() {
            true => transfer.build(),
            false => {
                let transfer = transfer.rw_flags(wishes.rwf());
                transfer.ioprio(wishes.ioprio()).build()
            }
        }
    }};
}

/// The length of a span in one operation. The proactor has split what is longer.
fn len(span: Span) -> u32 {
    u32::try_from(span.len).unwrap_or(TRANSFER_MAX_BYTES)
}

/// Gives the submission queue entry of an operation to `put`.
///
/// Each arm has its own call of `put`, so that an entry is written once, where it belongs: one
/// that is chosen first and copied afterwards costs 7 ns for the stores to settle.
#[inline(always)]
pub(super) fn encode<R>(op: &Op, known: Known, put: impl FnOnce(squeue::Entry) -> R) -> R {
    match *op {
        Op::Nop => put(opcode::Nop::new().build()),
        Op::ReadAt {
            fd, span, offset, ..
        } => with_fd!(known, fd, |fd| match known.buffer {
            Some(place) => {
                let read = opcode::ReadFixed::new(fd, span.start, len(span), place);
                put(wished!(read.offset(offset), op))
            }
            None => {
                let read = opcode::Read::new(fd, span.start, len(span));
                put(wished!(read.offset(offset), op))
            }
        }),
        Op::WriteAt {
            fd, span, offset, ..
        } => with_fd!(known, fd, |fd| match known.buffer {
            Some(place) => {
                let write = opcode::WriteFixed::new(fd, span.start, len(span), place);
                put(wished!(write.offset(offset), op))
            }
            None => {
                let write = opcode::Write::new(fd, span.start, len(span));
                put(wished!(write.offset(offset), op))
            }
        }),
        Op::ReadVectoredAt {
            fd, iovecs, offset, ..
        } => with_fd!(known, fd, |fd| {
            let read = opcode::Readv::new(fd, iovecs.first, iovecs.count);
            put(wished!(read.offset(offset), op))
        }),
        Op::WriteVectoredAt {
            fd, iovecs, offset, ..
        } => with_fd!(known, fd, |fd| {
            let write = opcode::Writev::new(fd, iovecs.first, iovecs.count);
            put(wished!(write.offset(offset), op))
        }),
        Op::Sync { fd, data_only } => with_fd!(known, fd, |fd| {
            let flags = match data_only {
                true => types::FsyncFlags::DATASYNC,
                false => types::FsyncFlags::empty(),
            };
            put(opcode::Fsync::new(fd).flags(flags).build())
        }),
        Op::Allocate {
            fd,
            mode,
            offset,
            len,
        } => with_fd!(known, fd, |fd| {
            put(opcode::Fallocate::new(fd, len)
                .offset(offset)
                .mode(mode.0)
                .build())
        }),
        Op::Truncate { fd, len } => with_fd!(known, fd, |fd| {
            put(opcode::Ftruncate::new(fd, len).build())
        }),
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
    use crate::op::{Iovecs, Priority, Wishes};

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
