//! The io_uring backend: everything that knows submission and completion queue entries.
//!
//! Next: [`ring`], then [`encode`], [`fixed`], [`probe`], [`register`].

mod descriptor;
pub(crate) mod encode;
pub(crate) mod fixed;
pub(crate) mod probe;
pub(crate) mod register;
pub(crate) mod ring;
