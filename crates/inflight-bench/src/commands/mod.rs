//! The subcommands that measure nothing: one file each.
//!
//! They read records, or print what is known without a disk. `inflight bench` is in
//! `crate::bench`.

pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod show;

mod code;
mod load;
