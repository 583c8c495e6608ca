//! Memory that the kernel reads and fills: who may be a buffer, aligned memory for direct I/O,
//! and a pool whose memory the ring knows in advance.
//!
//! `unsafe` is here because addresses are: an implementation of [`IoBuf`] promises that its
//! address outlives a move. What is deliberately not here: any knowledge of files or rings.

mod aligned;
mod registered;
mod traits;

pub use aligned::AlignedBuf;
pub use registered::{BufPool, PoolBuf};
pub use traits::{IoBuf, IoBufMut};

pub(crate) use registered::{Alive, Arena, arenas_dropped};
pub(crate) use traits::{span_of, span_of_mut};
