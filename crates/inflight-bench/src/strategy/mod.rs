//! How I/O is done: the list of strategies and what each of them provides.
//!
//! A strategy is one file and one entry in [`STRATEGIES`]. It hands a [`Lane`] to the measuring
//! loop, which turns it; or, where it is asynchronous, it is handed [`tasks`], which it runs. It
//! has never heard of rounds, cells or records.
//!
//! Reap policy, the same for all that keep several operations in flight: one turn hands over what
//! is queued, waits, and collects everything that has completed. The clock is read once per turn,
//! after collecting: that reading ends the latency of the collected operations and begins that
//! of those queued in their place.

pub(crate) mod arena;
pub(crate) mod blocked;
pub(crate) mod cut;
pub(crate) mod fio;
mod fio_output;
mod inflight;
mod inflight_batch;
mod inflight_mapped;
mod inflight_queue;
mod inflight_tasks;
mod inflight_threads;
mod libaio;
mod lost_pages;
mod mmap;
mod null;
pub(crate) mod one_by_one;
mod one_flush;
pub(crate) mod pread;
mod preadv2_nowait;
mod road;
pub(crate) mod slots;
pub(crate) mod tasks;
pub(crate) mod threads;
mod tokio;
pub(crate) mod uring;
mod uring_busy;
mod uring_by_clock;
mod uring_iopoll;
mod uring_sqpoll;
mod uring_tuned;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::measure::calls::Asked;
use crate::measure::clock::Clock;
use crate::measure::meter::Meter;
use crate::measure::pace::Pace;
use crate::measure::run::Stretch;
use crate::profile::Profile;
use crate::work::{Share, Work};

pub(crate) use fio::{
    CHECKS as FIO_CHECKS, HUGE_PAGES, access as fio_access, check as check_fio,
    lengths as fio_lengths, memory as fio_memory, path as fio_path, together as fio_together,
};
use tasks::{Runtime, TaskStrategy};

/// Every strategy, in the order of `--help`: from simple to complex, the outside checks last.
pub(crate) const STRATEGIES: &[&dyn Strategy] = &[
    &null::Null,
    &pread::Pread,
    &preadv2_nowait::Preadv2Nowait,
    &threads::Threads,
    &one_flush::OneFlush,
    &tokio::TOKIO,
    &mmap::Mmap,
    &libaio::Libaio,
    &uring::Uring,
    &uring_tuned::UringTuned,
    &uring_busy::UringBusy,
    &uring_sqpoll::UringSqpoll,
    &uring_iopoll::UringIopoll,
    &inflight::Inflight,
    &inflight_threads::InflightThreads,
    &inflight_mapped::InflightMapped,
    &inflight_tasks::LOCAL,
    &inflight_tasks::ASYNC,
    &inflight_tasks::ASYNC_1,
    &fio::URING,
    &fio::PSYNC,
];

/// Every strategy of this command, and `extra` ones from outside.
pub(crate) fn known(extra: &'static [TaskStrategy]) -> Vec<&'static dyn Strategy> {
    let extra = extra.iter().map(|strategy| strategy as &dyn Strategy);
    STRATEGIES.iter().copied().chain(extra).collect()
}

/// The strategy of this name.
pub(crate) fn find(known: &[&'static dyn Strategy], name: &str) -> Option<&'static dyn Strategy> {
    known
        .iter()
        .copied()
        .find(|strategy| strategy.name() == name)
}

/// The names of these strategies, as a sentence has them.
pub(crate) fn names(known: &[&'static dyn Strategy]) -> String {
    let names: Vec<&str> = known.iter().map(|strategy| strategy.name()).collect();
    names.join(", ")
}

/// Names of modes and their values, as they are stored.
pub type Modes = BTreeMap<String, String>;

/// Modes from a list of names and values.
#[must_use]
pub fn modes(list: &[(&str, &str)]) -> Modes {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Operations of which one is timed, where there are enough in flight.
const TIMED_ONE_IN: u32 = 8;

/// How many operations are in flight, on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) depth: u32,
    pub(crate) threads: u32,
}

/// What a lane needs to know.
#[derive(Clone)]
pub(crate) struct Job<'a> {
    /// The files, open for what the work needs, with or without `O_DIRECT`.
    pub(crate) fds: &'a [RawFd],
    pub(crate) paths: &'a [PathBuf],
    pub(crate) work: &'a Work,
    /// When operations are due, in an open loop; each is timed from then.
    pub(crate) pace: Option<&'a Pace>,
    pub(crate) share: Share,
    pub(crate) direct: bool,
    /// Operations in flight in one lane.
    pub(crate) depth: u32,
    /// Seed of the operations, the same for all lanes of a stretch.
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    pub(crate) fio: &'a Path,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

#[cfg(test)]
impl<'a> Job<'a> {
    /// Of no file, one operation at a time, for no time.
    pub(crate) fn of(work: &'a Work) -> Self {
        Self {
            fds: &[],
            paths: &[],
            work,
            pace: None,
            share: Share::whole(),
            direct: false,
            depth: 1,
            seed: 1,
            clock: Clock::start(),
            fio: Path::new("fio"),
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
        }
    }
}

/// What the library is asked about.
pub(crate) struct Road<'a> {
    pub(crate) paths: &'a [PathBuf],
    pub(crate) work: &'a Work,
    pub(crate) direct: bool,
    /// Operations in flight on one thread.
    pub(crate) depth: u32,
}

/// One operation at a time, on one thread.
pub(crate) const ALONE: Shape = Shape {
    depth: 1,
    threads: 1,
};

/// One way of doing I/O.
pub(crate) trait Strategy: Sync {
    /// Its name in flags and records.
    fn name(&self) -> &'static str;

    /// What it is, for the help: a clause.
    fn about(&self) -> &'static str;

    /// Whether it takes part unless others are named: not where it needs what few machines have.
    fn by_default(&self) -> bool {
        true
    }

    /// The cells it has for the depths of a profile.
    fn shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        let _ = cpus;
        let depths = profile.asked.queue_depths.iter();
        depths.map(|&depth| Shape { depth, threads: 1 }).collect()
    }

    /// The cells it has in an open loop, if other ones.
    fn open_shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        self.shapes(profile, cpus)
    }

    /// Most threads that it has, where its depth is their number and there is a limit.
    fn most_threads(&self) -> Option<u32> {
        None
    }

    /// Why it has no open loop, if so.
    fn closed_only(&self) -> Option<&'static str> {
        None
    }

    /// The modes it means to use.
    fn requested(&self, _job: &Job<'_>) -> Modes {
        Modes::new()
    }

    /// Why it has no place in a profile, if so.
    fn unfit(&self, _profile: &Profile) -> Option<&'static str> {
        None
    }

    /// Whether it does anything: what does not says only how fast the loop is.
    fn works(&self) -> bool {
        true
    }

    /// Whether its lane leaves the processors alone between two turns, but for what is in flight.
    fn rests(&self) -> bool {
        true
    }

    /// The way that the library takes at first on files of which it knows nothing; nothing for
    /// strategies that are not the library's.
    fn road(&self, _on: &Road<'_>) -> Option<Result<String>> {
        None
    }

    /// How it works.
    fn way(&self) -> Way;
}

/// What is done with a lane while it exists.
pub(crate) type Body<'b> = &'b mut dyn FnMut(&mut dyn Lane) -> Result<()>;

/// How a strategy works.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// In this process: opens a lane on the calling thread, hands it over, and leaves
    /// nothing in flight behind.
    Lanes(fn(&Job<'_>, Body<'_>) -> Result<()>),
    /// In tasks of an asynchronous runtime, which is started and ended for it.
    Tasks(Runtime),
    /// In a program of its own, which measures itself.
    Program(fn(&Job<'_>) -> Result<Stretch>),
}

/// Strategies whose results come one by one time one operation in so many, or fewer: reading the
/// clock for each would cost what the ring strategies do not pay.
pub(crate) fn least_every(depth: u32) -> u32 {
    (depth / 4).clamp(1, TIMED_ONE_IN)
}

/// As the kernel would say it: a byte count, or a negated errno.
#[inline]
pub(crate) fn as_answer(result: &io::Result<usize>) -> i32 {
    match result {
        Ok(bytes) => i32::try_from(*bytes).unwrap_or(i32::MAX),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
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

    /// Completes what is in flight and queues nothing more; the lane is over.
    fn finish(&mut self, _meter: &mut Meter) -> Result<()> {
        Ok(())
    }

    /// Brings counters up to date that cannot be kept at every turn.
    fn settle(&mut self, _meter: &mut Meter) {}

    /// Whether it can count its system calls.
    fn knows_syscalls(&self) -> bool {
        true
    }

    /// Whether it counts them as it goes, and only its own: else those of several lanes cannot be
    /// added up.
    fn counts_its_own(&self) -> bool {
        self.knows_syscalls()
    }

    /// Asks for the system calls of all lanes together, where they share what counts them.
    fn asks_for_all(&self) -> Option<Asked> {
        None
    }

    /// The modes that took effect.
    fn effective(&self) -> Modes {
        Modes::new()
    }
}

/// A strategy cannot run on this machine; the reason is one sentence.
#[derive(Debug)]
pub(crate) struct Unavailable {
    pub(crate) reason: String,
    /// Where io_uring as such is not to be had: what to do about it; can be empty.
    pub(crate) denied: Option<&'static str>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}
