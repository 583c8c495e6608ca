//! Panics as errors: what breaks in one strategy costs its own cell and not the run.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

/// Runs it; a panic becomes an error that tells its message.
///
/// What a strategy works with is made for it and dropped by the unwinding, which waits for what
/// is in flight; what it shares with others is only read, or counts.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    told(catch_unwind(AssertUnwindSafe(work)))
}

/// The outcome of what ran on another thread, or was caught.
pub(super) fn told<T>(outcome: std::thread::Result<Result<T>>) -> Result<T> {
    outcome.unwrap_or_else(|panic| Err(anyhow!("it panicked: {}", message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
