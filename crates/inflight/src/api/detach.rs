//! Which operations can be awaited, and what of each outlives its future.
#![allow(unsafe_code)]

use std::future::IntoFuture;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use super::any::AnyOp;
use super::handle::Handle;
use super::kept::{Foreseen, InUse, KeptFor, Tells};
use super::operation::{Nop, Sealed};
use super::pending::Pending;
use super::transfer::{ReadAt, WriteAt};
use super::upkeep::{Allocate, ReadMetadata, SyncFile};
use super::vectored::{ReadVectoredAt, WriteVectoredAt};
use crate::buf::{IoBuf, IoBufMut};
use crate::op::Prepare;

/// An operation that can be awaited: what it owns can outlive its future.
///
/// # Safety
///
/// What [`Detach::into_kept`] returns keeps all memory that the request names, where it is, without
/// a value of the buffer's type; moving the operation about does not move that memory.
/// [`Detach::handle`] is the file whose descriptors the request names.
pub unsafe trait Detach: Sealed {
    /// The file, which stays open while the operation is in flight.
    #[doc(hidden)]
    fn handle(&self) -> Option<&Arc<Handle>>;

    /// What its answer tells of the file's syncs. Buffers are asked, but it does not panic.
    #[doc(hidden)]
    fn foresee(&self) -> Foreseen;

    /// What the kernel may still use when the future is gone. Runs no code of the buffer: the
    /// memory is in use, and whoever keeps it holds a lock.
    ///
    /// # Safety
    ///
    /// The operation is initialised; its type does not say so, because a box or a reference that is
    /// moved as such says that nobody else uses what it points to. What is returned is not dropped
    /// before the request is over.
    #[doc(hidden)]
    unsafe fn into_kept(
        operation: MaybeUninit<Self>,
        handle: Option<Arc<Handle>>,
        foreseen: Foreseen,
    ) -> KeptFor;
}

/// Lets an operation be awaited. `$memory` takes out what the request names, and drops what else is
/// to be dropped.
macro_rules! awaited {
    ([$($generics:tt)*] $operation:ty, |$this:ident| $memory:expr, $handle:expr, $tells:expr) => {
        // SAFETY: the memory that the request names belongs to what is kept here, and does not move
        // with it: the buffer, which is `InUse`, and what is on the heap. `handle` is the file
        // whose descriptors it names.
        unsafe impl<$($generics)*> Detach for $operation {
            #[inline]
            fn handle(&self) -> Option<&Arc<Handle>> {
                let $this = self;
                $handle
            }

            fn foresee(&self) -> Foreseen {
                Foreseen($tells(self))
            }

            #[allow(unused_unsafe, reason = "some requests name no memory")]
            unsafe fn into_kept(
                mut operation: MaybeUninit<Self>,
                handle: Option<Arc<Handle>>,
                foreseen: Foreseen,
            ) -> KeptFor {
                // SAFETY: the caller has initialised it.
                let $this = unsafe { operation.assume_init_mut() };
                // SAFETY: nobody uses or drops the operation after this; the caller waits for the
                // kernel.
                let memory = unsafe { $memory };
                KeptFor::new(memory, handle, foreseen)
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
    |op| (InUse::take(&mut op.buf), op.bounced.take()),
    Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBuf + Send + 'static] WriteAt<'f, B>,
    |op| {
        op.durable = None;
        (InUse::take(&mut op.buf), op.bounced.take())
    },
    Some(op.file.handle()), Self::tells);
awaited!(['f, B: IoBufMut + Send + 'static] ReadVectoredAt<'f, B>,
    |op| (InUse::take(&mut op.bufs), mem::take(&mut op.list)),
    Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBuf + Send + 'static] WriteVectoredAt<'f, B>,
    |op| {
        op.durable = None;
        (InUse::take(&mut op.bufs), mem::take(&mut op.list))
    },
    Some(op.file.handle()), Self::tells);
awaited!(['f] SyncFile<'f>, |_op| (), Some(_op.file.handle()), |_| Tells::Nothing);
awaited!(['f] Allocate<'f>, |_op| (), Some(_op.file.handle()), |_| Tells::Nothing);
awaited!(['f] ReadMetadata<'f>,
    |op| InUse::take(&mut op.out),
    Some(op.file.handle()), |_| Tells::Nothing);
awaited!(['f, B: IoBufMut + Send + 'static] AnyOp<'f, B>,
    |op| op.leave().map(|(buf, bounced)| (InUse::take(buf), bounced.take())),
    Some(op.file().handle()), Self::tells);
