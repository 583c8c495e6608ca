//! How I/O is done: the list of strategies and what each of them provides.
//!
//! A strategy is one file and one entry in [`STRATEGIES`]. It hands a [`Lane`] to the measuring
//! loop, which turns it; it has never heard of rounds, cells or records.
//!
//! Reap policy, the same for all that keep several operations in flight: one turn hands over what
//! is queued, waits, and collects everything that has completed. The clock is read once per turn,
//! after collecting: that reading ends the latency of the collected operations and begins that
//! of those queued in their place.

pub(crate) mod arena;
mod blocked;
mod fio;
mod fio_output;
mod inflight;
mod mmap;
mod null;
mod offsets;
mod one_by_one;
mod pread;
mod slots;
mod threads;
mod uring;
mod uring_tuned;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::measure::clock::Clock;
use crate::measure::meter::Meter;
use crate::measure::run::Stretch;

pub(crate) use fio::check as check_fio;
pub(crate) use offsets::mix;

/// Every strategy, in the order of `--help`: from simple to complex, the outside check last.
pub(crate) const STRATEGIES: &[&dyn Strategy] = &[
    &null::Null,
    &pread::Pread,
    &threads::Threads,
    &mmap::Mmap,
    &uring::Uring,
    &uring_tuned::UringTuned,
    &inflight::Inflight,
    &fio::Fio,
];

/// The strategy of this name.
pub(crate) fn find(name: &str) -> Option<&'static dyn Strategy> {
    STRATEGIES
        .iter()
        .copied()
        .find(|strategy| strategy.name() == name)
}

/// Names of modes and their values, as they are stored.
pub(crate) type Modes = BTreeMap<String, String>;

/// Modes from a list of names and values.
pub(crate) fn modes(list: &[(&str, &str)]) -> Modes {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// How many operations are in flight, on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) depth: u32,
    pub(crate) threads: u32,
}

/// What a lane needs to know.
#[derive(Clone)]
pub(crate) struct Job<'a> {
    /// The file, open for reading, with or without `O_DIRECT`.
    pub(crate) fd: RawFd,
    pub(crate) path: &'a Path,
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) direct: bool,
    /// Operations in flight in one lane.
    pub(crate) depth: u32,
    /// Seed of the lane's offsets.
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    pub(crate) fio: &'a Path,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

/// One way of doing I/O.
pub(crate) trait Strategy: Sync {
    /// Its name in flags and records.
    fn name(&self) -> &'static str;

    /// The cells it has for the depths that were asked for.
    fn shapes(&self, depths: &[u32], cpus: u32) -> Vec<Shape> {
        let _ = cpus;
        depths
            .iter()
            .map(|&depth| Shape { depth, threads: 1 })
            .collect()
    }

    /// The modes it means to use.
    fn requested(&self, _job: &Job<'_>) -> Modes {
        Modes::new()
    }

    /// Why it has no place in a profile, if so.
    fn unfit(&self, _direct: bool) -> Option<&'static str> {
        None
    }

    /// How it works.
    fn way(&self) -> Way;
}

/// What is done with a lane while it exists.
pub(crate) type Body<'b> = &'b mut dyn FnMut(&mut dyn Lane) -> Result<()>;

/// How a strategy works.
pub(crate) enum Way {
    /// In this process: opens a lane on the calling thread, hands it over, and leaves
    /// nothing in flight behind.
    Lanes(fn(&Job<'_>, Body<'_>) -> Result<()>),
    /// In a program of its own, which measures itself.
    Program(fn(&Job<'_>) -> Result<Stretch>),
}

/// One thread that does I/O and keeps its queue at its depth.
pub(crate) trait Lane {
    /// Completes at least one operation, queues as many again, and reports to the meter, which it
    /// makes read the clock at least once.
    fn turn(&mut self, meter: &mut Meter) -> Result<()>;

    /// Times only every n-th operation from now on, or fewer; returns what it does. A lane that
    /// times all at no extra cost returns 1.
    fn sample_every(&mut self, _every: u32) -> u32 {
        1
    }

    /// Brings counters up to date that cannot be kept at every turn.
    fn settle(&mut self, _meter: &mut Meter) {}

    /// Whether it can count its system calls.
    fn knows_syscalls(&self) -> bool {
        true
    }

    /// The modes that took effect.
    fn effective(&self) -> Modes {
        Modes::new()
    }
}

/// A strategy cannot run on this machine; the reason is one sentence with a remedy.
#[derive(Debug)]
pub(crate) struct Unavailable {
    pub(crate) reason: String,
    /// Whether io_uring as such is not to be had.
    pub(crate) io_uring_blocked: bool,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}
