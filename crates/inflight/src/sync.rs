//! The primitives that the mailbox, group commit and shared work are made of: those of the standard
//! library, or those that `loom` explores (`RUSTFLAGS="--cfg loom"`, `cargo xtask loom`).

#[cfg(not(loom))]
mod used {
    #[cfg(feature = "tokio")]
    pub(crate) use std::sync::atomic::fence;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

#[cfg(loom)]
mod used {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

#[cfg(any(feature = "tokio", all(test, loom)))]
pub(crate) use used::fence;
pub(crate) use used::{
    AtomicBool, AtomicI64, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError,
};
