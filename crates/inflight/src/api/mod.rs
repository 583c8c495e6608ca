//! What users call. Public as the crate's root and as `inflight::fs`.
//!
//! Next: [`crate::op`] for what an operation is, [`crate::host`] for who runs it.

mod again;
pub(crate) mod any;
pub(crate) mod batch;
pub(crate) mod bounce;
mod cached;
pub(crate) mod calls;
pub(crate) mod close;
pub(crate) mod detach;
pub(crate) mod device;
pub(crate) mod direct;
pub(crate) mod durable;
mod end;
pub(crate) mod engine;
pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod handle;
mod kept;
#[cfg(all(test, feature = "tokio", not(loom), not(miri)))]
mod lanes_test;
pub(crate) mod local;
#[cfg(all(test, not(loom)))]
mod local_test;
pub(crate) mod many;
mod mounts;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod operation;
pub(crate) mod pending;
#[cfg(test)]
mod pending_test;
#[cfg(all(test, not(loom), not(miri)))]
mod promises_test;
pub(crate) mod queue;
mod short;
pub(crate) mod timeout;
pub(crate) mod transfer;
mod twin;
pub(crate) mod upkeep;
pub(crate) mod vectored;
pub(crate) mod wishes;
