//! Torture: random operations against a model, a fifth of them left at a random moment.
//!
//! Tasks read, write, sync, cut, lengthen, rename, open and close files, on every backend, from
//! tokio and from run loops. More than a fifth of their futures are dropped before the first poll
//! or after it, on this or another thread, given up by a timeout, or forgotten. In the end there
//! must be no mismatch, no operation, buffer or descriptor left over, and nothing written to memory
//! that had been given back. The same check finds a planted defect.
//!
//! `INFLIGHT_TEST_SEED` replays the choices of a run (not what the threads make of them),
//! `INFLIGHT_TEST_SHARE` says how many there are, in hundredths of [`OPERATIONS`].
//! Start with [`round`]; [`slow`] is the same question asked of a disk that takes its time.

mod actor;
mod fate;
mod files;
mod model;
mod private;
mod random;
mod round;
mod slow;
mod task;
mod yard;

use std::env;

use inflight::{BackendKind, Engine};

use actor::Rules;
use round::{Host, Round, say, seed};

/// Operations of all rounds together.
const OPERATIONS: u64 = 2_000_000;

/// How many there are to be of those, in hundredths.
fn hundredths() -> u64 {
    let hundredths = env::var("INFLIGHT_TEST_SHARE").ok();
    hundredths.map_or(100, |hundredths| {
        hundredths.parse().expect("INFLIGHT_TEST_SHARE is a number")
    })
}

/// The share of a round, in hundredths of all operations.
fn operations(share: u64) -> u64 {
    OPERATIONS * hundredths() / 100 * share / 100
}

fn round(name: &'static str, host: Host, share: u64) -> Round {
    Round {
        name,
        kind: BackendKind::Uring,
        builder: Engine::builder().queue_depth(64).drivers(2),
        host,
        operations: operations(share),
        seed: seed(),
        rules: Rules::default(),
    }
}

fn on_threads(name: &'static str, host: Host, share: u64) -> Round {
    let round = round(name, host, share);
    Round {
        kind: BackendKind::Threads,
        builder: round.builder.backend(BackendKind::Threads).threads(8),
        ..round
    }
}

/// On Linux AIO.
fn on_aio(name: &'static str, host: Host, share: u64) -> Round {
    let round = round(name, host, share);
    Round {
        kind: BackendKind::Aio,
        builder: round.builder.backend(BackendKind::Aio).threads(8),
        ..round
    }
}

/// Late, short, failing, doubled and reordered completions.
#[cfg(feature = "faulty")]
fn faulty(name: &'static str, host: Host, share: u64) -> Round {
    let round = round(name, host, share);
    let faults = inflight::Faults::new(round.seed)
        .short_transfers(50)
        .strays(5)
        .errors(libc::EINTR, 5)
        .errors(libc::EAGAIN, 5)
        .errors(libc::ECANCELED, 5)
        .errors(libc::EIO, 5);
    Round {
        kind: BackendKind::Faulty,
        builder: round.builder.faults(faults),
        rules: Rules {
            shorts: true,
            errors: true,
            planted: false,
        },
        ..round
    }
}

#[test]
fn nothing_is_lost_on_a_ring_from_tokio() {
    round("uring, tokio", Host::Tokio, 20).expect_nothing_wrong();
}

#[cfg(feature = "tokio")]
#[test]
fn nothing_is_lost_where_the_workers_of_tokio_serve() {
    round("uring, lane of workers", Host::Lane, 10).expect_nothing_wrong();
}

#[cfg(feature = "tokio")]
#[test]
fn nothing_is_lost_where_the_one_thread_of_tokio_serves() {
    round("uring, lane of one thread", Host::LaneOfOne, 10).expect_nothing_wrong();
}

#[test]
fn nothing_is_lost_on_a_ring_in_run_loops() {
    round("uring, run loops", Host::Local, 20).expect_nothing_wrong();
}

#[test]
fn nothing_is_lost_on_threads_from_tokio() {
    on_threads("threads, tokio", Host::Tokio, 10).expect_nothing_wrong();
}

#[test]
fn nothing_is_lost_on_threads_in_run_loops() {
    on_threads("threads, run loops", Host::Local, 10).expect_nothing_wrong();
}

#[test]
fn nothing_is_lost_on_older_calls_from_tokio() {
    on_aio("aio, tokio", Host::Tokio, 10).expect_nothing_wrong();
}

#[cfg(feature = "tokio")]
#[test]
fn nothing_is_lost_on_older_calls_where_the_workers_of_tokio_serve() {
    on_aio("aio, lane of workers", Host::Lane, 5).expect_nothing_wrong();
}

#[test]
fn nothing_is_lost_on_older_calls_in_run_loops() {
    on_aio("aio, run loops", Host::Local, 10).expect_nothing_wrong();
}

#[cfg(feature = "faulty")]
#[test]
fn nothing_is_lost_with_faults_from_tokio() {
    faulty("faulty, tokio", Host::Tokio, 10).expect_nothing_wrong();
}

#[cfg(feature = "faulty")]
#[test]
fn nothing_is_lost_with_faults_in_run_loops() {
    faulty("faulty, run loops", Host::Local, 10).expect_nothing_wrong();
}

/// How often the planted defect is looked for: a round in which nobody writes to memory that has
/// been freed is rare.
const PLANTED_ROUNDS: usize = 5;

#[test]
fn memory_that_is_freed_when_a_future_is_dropped_is_found() {
    for _ in 0..PLANTED_ROUNDS {
        let planted = Round {
            rules: Rules {
                planted: true,
                ..Rules::default()
            },
            operations: 20_000,
            ..round("the planted defect", Host::Tokio, 0)
        };
        let Some(found) = planted.run() else {
            return;
        };
        say(&format!(
            "torture: the planted defect: {} late writes; {}",
            found.late_writes,
            found.mismatch.as_deref().unwrap_or("no mismatch")
        ));
        if found.mismatch.is_some() || found.late_writes > 0 {
            return;
        }
    }
    panic!("the planted defect was not found");
}
