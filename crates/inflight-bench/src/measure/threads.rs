//! Whether threads can be had.

use std::sync::mpsc::channel;
use std::thread::{Builder, scope};

use anyhow::{Context, Result};

/// What is said where one cannot be had, before the reason.
pub(crate) const NO_THREAD: &str =
    "a thread cannot be started (`ulimit -u`, pids.max of a control group and memory limit them)";

/// Starts so many at a time and lets them end again. A runtime that does not get all its threads
/// panics, and then waits for ever for those that it has.
///
/// # Errors
/// If not all of them can be had.
pub(crate) fn try_to_start(count: usize) -> Result<()> {
    scope(|scope| {
        // Closed at the end of this, whether by an error or not: then the threads end.
        let mut open = Vec::new();
        for _ in 0..count {
            let (ours, theirs) = channel::<()>();
            open.push(ours);
            // Nothing is ever sent.
            let wait = move || _ = theirs.recv();
            Builder::new()
                .spawn_scoped(scope, wait)
                .context(NO_THREAD)?;
        }
        Ok(())
    })
}
