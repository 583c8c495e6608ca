//! Linux's older asynchronous calls (io_submit(2)), for where no ring can be had: direct transfers
//! are in flight without a thread for each.
//!
//! Nothing else is asynchronous there: what goes through the page cache would be done by the call
//! that submits it, so that is for the pool. Next: [`queue`], then [`context`]; [`once`] is for
//! engines with rings.

mod calls;
mod context;
pub(crate) mod once;
pub(crate) mod queue;
