//! Turns that tasks of a tokio runtime need not give to others, because a worker has nothing to do.
//!
//! A task that lets the others have their turn costs a runtime with an idle worker a wake-up of
//! that one: it finds nothing, and sleeps again. Who could have the turn does not need it: what a
//! worker has to do beside the task that it runs is taken by the idle one, which also waits for
//! sockets and timers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::local::nested;

/// A turn is put off no longer than this, tokio's finest timer: other futures of the same task wait
/// for it all the same, and so may a task that the worker alone can run, the last one it has woken.
const PUT_OFF_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When a task of this thread last gave its turn to others.
    static GIVEN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether the turn that a task is to give to others now is put off. If not, it is given.
#[cold]
pub(super) fn puts_off_turn() -> bool {
    if !is_anybody_idle() {
        return false;
    }
    let now = Instant::now();
    let puts_off = GIVEN
        .get()
        .is_some_and(|given| now.duration_since(given) < PUT_OFF_MAX);
    if !puts_off {
        GIVEN.set(Some(now));
    }
    puts_off
}

/// Whether this thread runs a task of a runtime that has a worker asleep.
fn is_anybody_idle() -> bool {
    // What else has a loop of its own within a task is not asked for: it waits a millisecond.
    if tokio::task::try_id().is_none() || nested::is_in_any() {
        return false;
    }
    Handle::try_current().is_ok_and(|runtime| is_a_worker_parked(&runtime))
}

/// A runtime of one thread has none: it runs the task. Where all are, this thread is none of them,
/// as that of a `LocalSet`, whose tasks nobody else takes. That some are awake does not show that
/// this one is: then such tasks wait a millisecond for each other.
#[cfg(target_has_atomic = "64")]
fn is_a_worker_parked(runtime: &Handle) -> bool {
    let metrics = runtime.metrics();
    let workers = 0..metrics.num_workers();
    let parked = workers.filter(|worker| metrics.worker_park_unpark_count(*worker) % 2 == 1);
    (1..metrics.num_workers()).contains(&parked.count())
}

/// tokio has such counts only where processors can count as far.
#[cfg(not(target_has_atomic = "64"))]
fn is_a_worker_parked(_runtime: &Handle) -> bool {
    false
}
