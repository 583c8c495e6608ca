//! An operation that waits in a lane, and its execution.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::execute::execute;
use crate::completion::Completion;
use crate::op::Op;

/// An operation of a lane.
pub(super) struct Task {
    pub(super) user_data: u64,
    pub(super) op: Op,
    /// Whether the owner wants to know how long it takes.
    pub(super) timed: bool,
}

// SAFETY: the addresses in `op` stay valid until its completion has been reaped, whichever thread
// executes it: that is what [`Lane::push`](super::lane::Lane::push) asks of its caller.
unsafe impl Send for Task {}

/// Executes it, on whatever thread this is.
pub(super) fn run(task: &Task) -> Completion {
    let begun = task.timed.then(Instant::now);
    // SAFETY: whoever submitted the task keeps its memory until the completion is reaped.
    let result = unsafe { execute(&task.op) };
    let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    Completion {
        user_data: task.user_data,
        result,
        took_ns: u32::try_from(took.as_nanos()).unwrap_or(u32::MAX),
    }
}
