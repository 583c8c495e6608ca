//! The primitives that the mailbox, group commit and shared work are made of: those of the standard
//! library, or those that `loom` explores (`RUSTFLAGS="--cfg loom"`, `cargo xtask loom`). How all
//! locks are taken.

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

/// The data of a lock: whole after every statement, so that a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], of what `loom` explores.
pub(crate) fn lock_explored<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
