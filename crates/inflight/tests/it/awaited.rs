//! Operations that are awaited: on drivers from any runtime, and in a run loop.

mod aborted;
#[cfg(feature = "faulty")]
mod bounds;
#[cfg(feature = "tokio")]
mod crowds;
#[cfg(feature = "faulty")]
mod dropped;
pub(crate) mod everywhere;
mod free;
pub(crate) mod hands;
mod hostile;
#[cfg(feature = "tokio")]
mod idle;
#[cfg(feature = "tokio")]
pub(crate) mod lanes;
mod late;
#[cfg(feature = "faulty")]
mod left;
mod loops;
mod made;
mod memory;
mod moved;
mod nested;
mod pooled;
mod refused;
mod shared;
#[cfg(feature = "tokio")]
mod shared_lanes;
mod shared_lists;
mod steady;
mod takers;
mod threadless;
#[cfg(feature = "faulty")]
mod timers;
#[cfg(feature = "tokio")]
mod told_lanes;
mod turns;
mod wakers;
