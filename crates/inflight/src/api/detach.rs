//! Which operations can be awaited, and what of each outlives its future.
#![allow(unsafe_code)]

use std::future::IntoFuture;
use std::sync::Arc;

use super::any::AnyOp;
use super::handle::Handle;
use super::kept::{Foreseen, KeptFor, Rest, Tells};
use super::operation::{Nop, Sealed};
use super::pending::Pending;
use super::transfer::{ReadAt, WriteAt};
use super::upkeep::{Allocate, ReadMetadata, Sync};
use super::vectored::{ReadVectoredAt, WriteVectoredAt};
use crate::buf::{IoBuf, IoBufMut};
use crate::op::Prepare;

/// An operation that can be awaited: what it owns can outlive its future.
///
/// # Safety
///
/// What [`Detach::into_kept`] returns keeps all memory that the request names, where it is; moving
/// the operation about does not move that memory. [`Detach::handle`] is the file whose descriptors
/// the request names.
pub unsafe trait Detach: Sealed {
    /// The file, which stays open while the operation is in flight.
    #[doc(hidden)]
    fn handle(&self) -> Option<&Arc<Handle>>;

    /// What its answer tells of the file's syncs. Buffers are asked, but it does not panic.
    #[doc(hidden)]
    fn foresee(&self) -> Foreseen;

    /// What the kernel may still use when the future is gone. Runs no code of the buffer: the
    /// memory is in use, and whoever keeps it holds a lock.
    #[doc(hidden)]
    fn into_kept(self, handle: Option<Arc<Handle>>, foreseen: Foreseen) -> KeptFor;
}

/// Lets an operation be awaited. `$memory` is what the request names.
macro_rules! awaited {
    ([$($generics:tt)*] $operation:ty, |$this:ident| $memory:expr, $handle:expr, $tells:expr) => {
        // SAFETY: the memory that the request names is on the heap, belongs to what is kept here,
        // and does not move with it; `handle` is the file whose descriptors it names.
        unsafe impl<$($generics)*> Detach for $operation {
            #[inline]
            fn handle(&self) -> Option<&Arc<Handle>> {
                let $this = self;
                $handle
            }

            fn foresee(&self) -> Foreseen {
                Foreseen($tells(self))
            }

            fn into_kept(self, handle: Option<Arc<Handle>>, foreseen: Foreseen) -> KeptFor {
                let $this = self;
                KeptFor(Box::new(Rest {
                    _memory: $memory,
                    handle,
                    tells: foreseen.0,
                }))
            }
        }

        impl<$($generics)*> IntoFuture for $operation {
            type Output = <Self as Prepare>::Output;
            type IntoFuture = Pending<Self>;

            #[inline]
            fn into_future(self) -> Pending<Self> {
                Pending::new(self)
            }
        }
    };
}

awaited!(['e] Nop<'e>, |_op| (), None, |_| Tells::Nothing);
awaited!(['f, B: IoBufMut + Send + 'static] ReadAt<'f, B>,
    |op| (op.buf, op.bounced), Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBuf + Send + 'static] WriteAt<'f, B>,
    |op| (op.buf, op.bounced), Some(op.file.handle()), Self::tells);
awaited!(['f, B: IoBufMut + Send + 'static] ReadVectoredAt<'f, B>,
    |op| (op.bufs, op.list), Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBuf + Send + 'static] WriteVectoredAt<'f, B>,
    |op| (op.bufs, op.list), Some(op.file.handle()), Self::tells);
awaited!(['f] Sync<'f>, |_op| (), Some(_op.file.handle()), |_| Tells::Nothing);
awaited!(['f] Allocate<'f>, |_op| (), Some(_op.file.handle()), |_| Tells::Nothing);
awaited!(['f] ReadMetadata<'f>, |op| op.out, Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBufMut + Send + 'static] AnyOp<'f, B>,
    |op| op.into_memory(), Some(op.file().handle()), Self::tells);
