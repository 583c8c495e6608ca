//! Measuring: plan in, rounds out. Nothing in here prints.

pub(crate) mod alarm;
pub(crate) mod alone;
pub(crate) mod by_clock;
pub(crate) mod calls;
pub(crate) mod caught;
pub(crate) mod clock;
pub(crate) mod crew;
pub(crate) mod ground;
pub(crate) mod groups;
pub(crate) mod heat;
pub(crate) mod histogram;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod meter;
pub(crate) mod pace;
pub(crate) mod published;
pub(crate) mod run;
mod runner;
pub(crate) mod sampling;
pub(crate) mod snapshot;
pub(crate) mod stack;
pub(crate) mod storage;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod turns;
pub(crate) mod usage;
pub(crate) mod workers;
