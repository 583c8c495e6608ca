//! Whether threads can be had.

use std::fs;
use std::sync::mpsc::channel;
use std::thread::{Builder, scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result};

/// What is said where one cannot be had, before the reason.
pub(crate) const NO_THREAD: &str =
    "a thread cannot be started (`ulimit -u`, pids.max of a control group and memory limit them)";

/// How often is tried, and looked, with twice the time in between each time: half a second.
const TRIES: u32 = 9;

/// Starts so many at a time and lets them end again. A runtime that does not get all its threads
/// panics, and then waits for ever for those that it has.
///
/// A thread that has been joined counts against limits a little longer, so it is waited for those
/// started here, and tried again for the sake of others.
///
/// # Errors
/// If not all of them can be had.
pub(crate) fn try_to_start(count: usize) -> Result<()> {
    let before = living();
    let mut outcome = Ok(());
    for tries in 0..TRIES {
        outcome = start(count);
        let are_gone = (0..TRIES).any(|looks| {
            let is_gone = living() <= before;
            if !is_gone {
                sleep(Duration::from_millis(1 << looks));
            }
            is_gone
        });
        if outcome.is_ok() || !are_gone {
            break;
        }
        sleep(Duration::from_millis(1 << tries));
    }
    outcome
}

fn start(count: usize) -> Result<()> {
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

/// Threads of this process, with those that count no longer than until they are gone; nothing where
/// there is no /proc.
fn living() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}
