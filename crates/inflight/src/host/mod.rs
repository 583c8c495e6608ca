//! Who owns a proactor. A host is small: everything that can be in the proactor is there.
//!
//! Next: [`crate::proactor`].

// What all hosts of one engine have in common, and which backend that is.
pub(crate) mod choice;
pub(crate) mod shared;

// Who blocks: the calling thread owns a proactor for as long as one call lasts, or a queue.
pub(crate) mod alone;
mod batches;
pub(crate) mod caller;
pub(crate) mod queue;

// Where futures come in: answered there, or left to one of those below.
pub(crate) mod at_once;
pub(crate) mod flight;
mod look;

// Who answers futures: threads with a proactor each, a run loop, threads that make plain calls.
pub(crate) mod driver;
pub(crate) mod local;
pub(crate) mod pooled;
#[cfg(all(test, loom))]
mod pooled_loom;

// Who answers them on a runtime of tokio: its threads, by lanes.
#[cfg(feature = "tokio")]
pub(crate) mod crew;
#[cfg(any(feature = "tokio", all(test, loom)))]
pub(crate) mod crowd;
#[cfg(any(feature = "tokio", all(test, loom)))]
mod flow;
#[cfg(feature = "tokio")]
mod idle;
#[cfg(feature = "tokio")]
pub(crate) mod lane;
#[cfg(all(test, loom))]
mod lane_loom;
#[cfg(feature = "tokio")]
pub(crate) mod lanes;
#[cfg(any(feature = "tokio", all(test, loom)))]
pub(crate) mod pass;

// What those who answer futures keep of them, and how they are told.
pub(crate) mod cells;
#[cfg(test)]
mod cells_test;
pub(crate) mod mail;
#[cfg(all(test, loom))]
mod mail_loom;
mod timers;

// Copies that a host shares with another thread.
mod sharing;

// Syncs, which go to `crate::commit`.
pub(crate) mod flush;
#[cfg(all(test, loom))]
mod rounds_loom;
mod syncs;

// What an owner of a proactor learns, and tells the policy.
mod again;
mod busy_poll;
mod hand_over;
mod misses;
mod pace;
mod stopwatch;
