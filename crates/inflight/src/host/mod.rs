//! Who owns a proactor. A host is small: everything that can be in the proactor is there.
//!
//! [`shared`] is what all hosts of one engine have in common. [`caller`] lets the calling thread
//! own a proactor for as long as one call lasts, and [`alone`] is for a single operation;
//! [`driver`] has threads that own one each, with a [`mail`]box in front; [`local`] is a run loop
//! that owns one; [`pooled`] needs none, because its threads make plain calls. [`flight`] is where
//! the futures come in, [`cells`] what their hosts keep of them. Syncs go to [`crate::commit`], for
//! which [`flush`] does the work.
//! Next: [`crate::proactor`].

pub(crate) mod flight;

mod again;
pub(crate) mod alone;
pub(crate) mod at_once;
mod batches;
mod busy_poll;
pub(crate) mod caller;
#[cfg(feature = "tokio")]
pub(crate) mod crew;
#[cfg(any(feature = "tokio", all(test, loom)))]
pub(crate) mod crowd;
pub(crate) mod driver;
#[cfg(any(feature = "tokio", all(test, loom)))]
mod flow;
#[cfg(feature = "tokio")]
pub(crate) mod lane;
#[cfg(all(test, loom))]
mod lane_loom;
#[cfg(feature = "tokio")]
pub(crate) mod lanes;
pub(crate) mod local;

pub(crate) mod flights;
pub(crate) mod flush;
mod hand_over;
mod helper;
#[cfg(feature = "tokio")]
mod idle;
mod look;
mod share;
#[cfg(all(test, loom))]
mod share_loom;
mod shares;
mod shown;
mod sides;
pub(crate) mod spread;
mod stopwatch;
mod syncs;

mod callers;
pub(crate) mod cells;
#[cfg(test)]
mod cells_test;
pub(crate) mod mail;
#[cfg(all(test, loom))]
mod mail_loom;
mod misses;
mod pace;
#[cfg(any(feature = "tokio", all(test, loom)))]
pub(crate) mod pass;
pub(crate) mod pooled;
#[cfg(all(test, loom))]
mod pooled_loom;
#[cfg(all(test, loom))]
mod rounds_loom;
mod timers;

pub(crate) mod choice;
pub(crate) mod shared;
