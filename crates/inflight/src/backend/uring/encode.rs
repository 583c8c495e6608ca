//! An operation as a submission queue entry.

use io_uring::{opcode, squeue, types};

use super::super::threads::execute::METADATA_MASK;
use crate::op::{Op, Span, TRANSFER_MAX_BYTES};

/// Where an operation's memory and file are known to the ring.
#[derive(Clone, Copy, Debug, Default)]
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

/// The length of a span in one operation. The proactor has split what is longer.
fn len(span: Span) -> u32 {
    u32::try_from(span.len).unwrap_or(TRANSFER_MAX_BYTES)
}

/// The submission queue entry of an operation.
#[inline(always)]
pub(super) fn encode(op: &Op, known: Known) -> squeue::Entry {
    match *op {
        Op::Nop => opcode::Nop::new().build(),
        Op::ReadAt { fd, span, offset } => with_fd!(known, fd, |fd| match known.buffer {
            Some(place) => opcode::ReadFixed::new(fd, span.start, len(span), place)
                .offset(offset)
                .build(),
            None => opcode::Read::new(fd, span.start, len(span))
                .offset(offset)
                .build(),
        }),
        Op::WriteAt { fd, span, offset } => with_fd!(known, fd, |fd| match known.buffer {
            Some(place) => opcode::WriteFixed::new(fd, span.start, len(span), place)
                .offset(offset)
                .build(),
            None => opcode::Write::new(fd, span.start, len(span))
                .offset(offset)
                .build(),
        }),
        Op::ReadVectoredAt { fd, iovecs, offset } => with_fd!(known, fd, |fd| {
            opcode::Readv::new(fd, iovecs.first, iovecs.count)
                .offset(offset)
                .build()
        }),
        Op::WriteVectoredAt { fd, iovecs, offset } => with_fd!(known, fd, |fd| {
            opcode::Writev::new(fd, iovecs.first, iovecs.count)
                .offset(offset)
                .build()
        }),
        Op::Sync { fd, data_only } => with_fd!(known, fd, |fd| {
            let flags = match data_only {
                true => types::FsyncFlags::DATASYNC,
                false => types::FsyncFlags::empty(),
            };
            opcode::Fsync::new(fd).flags(flags).build()
        }),
        Op::Allocate {
            fd,
            mode,
            offset,
            len,
        } => with_fd!(known, fd, |fd| {
            opcode::Fallocate::new(fd, len)
                .offset(offset)
                .mode(mode.0)
                .build()
        }),
        // statx takes a directory descriptor, which cannot be a fixed file.
        Op::Metadata { fd, out } => opcode::Statx::new(types::Fd(fd), c"".as_ptr(), out.cast())
            .flags(libc::AT_EMPTY_PATH)
            .mask(METADATA_MASK)
            .build(),
    }
}
