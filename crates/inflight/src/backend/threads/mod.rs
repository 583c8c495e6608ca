//! The backend that works everywhere: a bounded pool of threads doing plain system calls.
//!
//! It never makes an io_uring system call. Next: [`pool`], then [`execute`].

pub(crate) mod calls;
pub(crate) mod execute;
pub(crate) mod lane;
pub(crate) mod pool;
pub(super) mod task;
mod transfers;
mod turns;
