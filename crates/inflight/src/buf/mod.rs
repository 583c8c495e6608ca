//! Memory that the kernel reads and fills: who may be a buffer, aligned memory for direct I/O,
//! capacity that is not initialised yet, a pool whose memory the ring knows in advance, and mapped
//! files.
//!
//! `unsafe` is here because addresses are: an implementation of [`IoBuf`] promises that its
//! address outlives a move. What is deliberately not here: any knowledge of files or rings.

mod aligned;
mod bounce;
#[cfg(feature = "bytes")]
mod bytes;
mod mapping;
mod memory;
mod registered;
mod sheets;
mod slice;
mod spare;
mod takers;
#[cfg(all(test, not(loom)))]
mod takers_test;
mod traits;

pub use aligned::AlignedBuf;
pub use registered::{BufPool, PoolBuf, TakeWhenFree};
pub use slice::Slice;
pub use spare::Spare;
pub use traits::{InPlace, IoBuf, IoBufMut};

pub(crate) use bounce::{Bounce, Bounces};
pub(crate) use mapping::{Mapping, NotMapped};
pub(crate) use registered::{Alive, Arena, arenas_dropped};
pub(crate) use traits::{note_all_filled, note_filled, span_of, span_of_mut};
