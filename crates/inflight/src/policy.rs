//! Which road an operation takes; the only place where that is decided.
//!
//! So far the rules are few: an operation alone, and one that a ring would only hand to a kernel
//! worker without a gain, is a plain system call on the calling thread; everything else in a
//! batch goes through the backend.

use crate::op::Op;

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Opened past the page cache.
    pub(crate) direct: bool,
    /// Opened so that each write waits for the device (`O_DSYNC`, `O_SYNC`).
    pub(crate) durable_writes: bool,
    /// Largest transfer that the device takes at once, in bytes.
    pub(crate) limit_bytes: u32,
}

impl Facts {
    /// The same file by way of the page cache.
    pub(crate) fn buffered(self) -> Self {
        Self {
            direct: false,
            limit_bytes: limit_bytes(false, None),
            ..self
        }
    }
}

/// The way one operation of a batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// A plain system call on the calling thread.
    Plain,
    /// Through the proactor.
    Backend,
}

/// The road of one operation in a batch.
#[inline]
pub(crate) fn road(op: &Op, facts: Facts) -> Road {
    match op {
        // A write into the page cache is a copy. A ring hands it to a kernel worker on ext4,
        // one after the other for each file, at 24 times the cost (`docs/design/roads.md`).
        Op::WriteAt { .. } | Op::WriteVectoredAt { .. }
            if !facts.direct && !facts.durable_writes =>
        {
            Road::Plain
        }
        // What the kernel has in memory; a ring always hands it to a worker.
        Op::Metadata { .. } => Road::Plain,
        Op::Nop
        | Op::ReadAt { .. }
        | Op::WriteAt { .. }
        | Op::ReadVectoredAt { .. }
        | Op::WriteVectoredAt { .. }
        | Op::Sync { .. }
        | Op::Allocate { .. } => Road::Backend,
    }
}

/// How many completions a host waits for in one enter, with so many operations in flight.
///
/// With few in flight each one counts: the device must not run dry. With many, waking for
/// several at a time halves the CPU per operation and costs the device nothing
/// (`docs/measurements`).
#[inline]
pub(crate) fn wait_for(in_flight: u32) -> u32 {
    if in_flight < 16 { 1 } else { in_flight / 4 }
}

/// Largest direct transfer handed over at once. A bio has 256 places, one for each page that does
/// not follow the one before (`BIO_MAX_VECS`, `include/linux/bio.h`); what takes more than one bio
/// is refused inline and goes to a kernel worker.
pub(crate) const DIRECT_LIMIT_BYTES: u32 = 1 << 20;

/// The largest transfer for a file, given what its device takes at once, if that is known.
pub(crate) fn limit_bytes(direct: bool, device_bytes: Option<u32>) -> u32 {
    if direct {
        device_bytes
            .unwrap_or(DIRECT_LIMIT_BYTES)
            .clamp(4096, DIRECT_LIMIT_BYTES)
    } else {
        crate::op::TRANSFER_MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Span;

    #[test]
    fn buffered_writes_and_metadata_stay_on_the_caller() {
        let buffered = Facts {
            direct: false,
            durable_writes: false,
            limit_bytes: 1,
        };
        let direct = Facts {
            direct: true,
            ..buffered
        };
        let durable = Facts {
            durable_writes: true,
            ..buffered
        };
        let span = Span {
            start: std::ptr::null_mut(),
            len: 0,
            arena: None,
        };
        let write = Op::WriteAt {
            fd: 0,
            span,
            offset: 0,
        };
        let read = Op::ReadAt {
            fd: 0,
            span,
            offset: 0,
        };
        let metadata = Op::Metadata {
            fd: 0,
            out: std::ptr::null_mut(),
        };
        assert_eq!(road(&write, buffered), Road::Plain);
        assert_eq!(road(&write, direct), Road::Backend);
        assert_eq!(road(&write, durable), Road::Backend);
        assert_eq!(road(&read, buffered), Road::Backend);
        assert_eq!(road(&metadata, direct), Road::Plain);
    }

    #[test]
    fn few_in_flight_are_waited_for_one_at_a_time() {
        assert_eq!([0, 1, 15].map(wait_for), [1, 1, 1]);
        assert!(wait_for(128) > 1 && wait_for(128) < 128);
    }

    #[test]
    fn direct_transfers_are_split_at_what_the_device_takes() {
        assert_eq!(limit_bytes(true, Some(131_072)), 131_072);
        assert_eq!(limit_bytes(true, Some(1 << 30)), DIRECT_LIMIT_BYTES);
        assert_eq!(limit_bytes(true, None), DIRECT_LIMIT_BYTES);
        assert!(limit_bytes(false, Some(4096)) > 1 << 30);
    }
}
