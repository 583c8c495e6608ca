//! What stays of an operation whose future is gone, and what its answer tells then.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::close::close_aside;
use super::handle::Handle;
use crate::completion::Answer;
use crate::foreign::contain;
use crate::host::cells::Kept;
use crate::op::Wishes;

/// What is known of the answer of an operation. Opaque, because it is named in a public trait.
#[derive(Clone, Copy)]
pub struct Foreseen(pub(super) Tells);

/// What an operation leaves behind. Opaque, because it is named in a public trait.
pub struct KeptFor(pub(super) Box<dyn Kept>);

impl KeptFor {
    /// A buffer (or nothing) and the file.
    pub(super) fn new(
        memory: impl Send + 'static,
        handle: Option<Arc<Handle>>,
        Foreseen(tells): Foreseen,
    ) -> Self {
        Self(Box::new(Rest {
            _memory: memory,
            handle,
            tells,
        }))
    }
}

/// See [`KeptFor::new`].
struct Rest<M> {
    _memory: M,
    handle: Option<Arc<Handle>>,
    tells: Tells,
}

/// A buffer whose memory the kernel uses. It is not moved as what it is: a box or a reference that
/// is moved says that nobody else uses what it points to. It is dropped when that is so again.
pub(super) struct InUse<B>(MaybeUninit<B>);

impl<B> InUse<B> {
    /// # Safety
    ///
    /// What is in this place is not used or dropped there any more, and the kernel lets go of its
    /// memory before this is dropped.
    pub(super) unsafe fn take(place: &mut B) -> Self {
        let place = ptr::from_mut(place).cast::<MaybeUninit<B>>();
        // SAFETY: a value of the one type is one of the other, and it is not used there any more.
        Self(unsafe { place.read() })
    }
}

impl<B> Drop for InUse<B> {
    fn drop(&mut self) {
        // SAFETY: it was initialised when it was taken, and the kernel has let go of it.
        unsafe { self.0.assume_init_drop() };
    }
}

/// What the answer of an operation tells of the file's syncs.
#[derive(Clone, Copy)]
pub(super) enum Tells {
    Nothing,
    /// It is a write of so many bytes.
    Write(Wishes, usize),
    /// It is a sync behind one.
    Sync,
}

impl Tells {
    /// Of a write whose buffers are asked for their length, which is foreign code. If they do not
    /// tell it, a failure is taken for one of a sync.
    pub(super) fn of_write(wishes: Wishes, len: impl FnOnce() -> usize) -> Self {
        let mut tells = Self::Sync;
        contain(|| tells = Self::Write(wishes, len()));
        tells
    }

    /// Remembers what the answer tells of a failed sync.
    pub(super) fn note(self, handle: &Handle, answer: Answer) {
        match self {
            Self::Nothing => {}
            Self::Write(wishes, len) => handle.note_write(wishes, len, answer),
            Self::Sync => handle.commit().note(answer),
        }
    }
}

impl<M: Send> Kept for Rest<M> {
    fn over(self: Box<Self>, answer: Answer) {
        // A failed sync has to be remembered, also if nobody waits for it.
        let Some(handle) = &self.handle else {
            return;
        };
        self.tells.note(handle, answer);
        if let Tells::Write(wishes, _) = self.tells {
            handle.leaves_to_flush(wishes, answer);
        }
    }
}

impl<M> Drop for Rest<M> {
    fn drop(&mut self) {
        // This may be a driver, or a run loop between its tasks.
        if let Some(handle) = self.handle.take().and_then(Arc::into_inner) {
            close_aside(handle);
        }
    }
}

impl fmt::Debug for Foreseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Foreseen")
    }
}

impl fmt::Debug for KeptFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptFor")
    }
}
