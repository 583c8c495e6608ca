//! The primitives that the mailbox, group commit and shared work are made of: those of the standard
//! library, or those that `loom` explores (`RUSTFLAGS="--cfg loom"`, `cargo xtask loom`).

#[cfg(not(loom))]
mod used {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

#[cfg(loom)]
mod used {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

pub(crate) use used::{
    AtomicBool, AtomicI64, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError,
};
