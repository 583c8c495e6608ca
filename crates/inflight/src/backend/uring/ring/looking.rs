//! How completions are looked for without sleeping.

use std::mem;
use std::time::Duration;

use super::{EnterFailed, Uring};
use crate::backend::threads::execute::to_usize;
use crate::backend::yields::Yields;

impl Uring {
    /// Hands what is queued to the kernel, and waits for nothing. With nothing queued it is entered
    /// only if none can be reaped and it says that this brings some; a kernel that does not say so
    /// brings them by itself (io_uring_setup(2), `IORING_SETUP_TASKRUN_FLAG`).
    ///
    /// # Errors
    ///
    /// As [`Uring::enter`].
    pub(crate) fn enter_if_due(&mut self) -> Result<(), EnterFailed> {
        let queue = self.ring.submission();
        let (is_queued, is_told) = (!queue.is_empty(), queue.taskrun());
        drop(queue);
        match is_queued || (is_told && self.ring.completion().is_empty()) {
            true => self.enter(0),
            false => Ok(()),
        }
    }

    /// Hands what is queued to the kernel, and looks until `at_least` completions are there or the
    /// time is over. True if they are.
    ///
    /// The kernel says by a flag that an enter would bring some (io_uring_setup(2),
    /// `IORING_SETUP_TASKRUN_FLAG`), so none is needed to find out; see [`Yields`] for those that
    /// there are.
    ///
    /// # Errors
    ///
    /// As [`Uring::enter`].
    pub(crate) fn look(&mut self, at_least: u32, at_most: Duration) -> Result<bool, EnterFailed> {
        if !self.listens {
            self.listen();
        }
        if !self.ring.submission().is_empty() {
            self.enter(0)?;
        }
        let mut has_entered = false;
        let mut yields = mem::replace(&mut self.yields, Yields::NEW);
        let looked = yields.look(at_most, || {
            if self.ring.submission().taskrun() && !(self.is_shared && has_entered) {
                // Another thread's is not made by an enter of this one.
                has_entered = true;
                self.enter_now(0, Some(0), None)?;
            }
            Ok(self.ring.completion().len() >= to_usize(at_least))
        });
        self.yields = yields;
        looked
    }
}
