//! An operation that waits in a lane, and its execution.
#![allow(unsafe_code)]

use super::execute::{Clocked, execute};
use crate::backend::aio::once::execute_submitted;
use crate::completion::Completion;
use crate::op::Op;

/// An operation that is one call.
pub(crate) struct Task {
    pub(crate) user_data: u64,
    pub(crate) op: Op,
    /// Whether it is to show whether the transfer is asynchronous.
    pub(crate) submitted: bool,
}

// SAFETY: the addresses in `op` stay valid until its completion has been reaped, whichever thread
// executes it: that is what [`Lane::push`](super::lane::Lane::push) asks of its caller.
unsafe impl Send for Task {}

/// Executes it, on whatever thread this is.
pub(crate) fn run(task: &Task) -> Completion {
    let clocked = Clocked::begin(&task.op);
    let (result, is_asynchronous) = match task.submitted {
        // SAFETY: whoever submitted the task keeps its memory until the completion is reaped.
        true => unsafe { execute_submitted(&task.op) },
        // SAFETY: as above.
        false => (unsafe { execute(&task.op) }, None),
    };
    Completion {
        user_data: task.user_data,
        result,
        took_ns: clocked.took_ns(),
        is_asynchronous,
    }
}
