//! Several lanes, each on a thread of its own, started before and stopped after the measured time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};

use anyhow::{Context, Result};

use crate::measure::histogram::Latencies;
use crate::measure::meter::{Counters, Meter};
use crate::measure::run::{Stretch, drive};
use crate::measure::snapshot::Snapshot;
use crate::measure::usage::DeviceBytes;
use crate::strategy::{Body, Job, Modes, mix};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// The counters of one thread, where the measuring thread can read them at any moment. Aligned, so
/// that two threads never write to the same pair of cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Published {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    short: AtomicU64,
    syscalls: AtomicU64,
}

impl Published {
    fn store(&self, counters: &Counters) {
        self.ops.store(counters.ops, Relaxed);
        self.bytes.store(counters.bytes, Relaxed);
        self.errors.store(counters.errors, Relaxed);
        self.short.store(counters.short, Relaxed);
        self.syscalls.store(counters.syscalls, Relaxed);
    }

    fn load(&self) -> Counters {
        Counters {
            ops: self.ops.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            short: self.short.load(Relaxed),
            syscalls: self.syscalls.load(Relaxed),
        }
    }
}

/// What the threads of a crew share.
struct Crew {
    phase: AtomicU8,
    ready: Barrier,
    published: Vec<Published>,
}

/// Runs `threads` lanes and measures them together.
pub(crate) fn measure(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    threads: u32,
    sample_every: u32,
    device: &DeviceBytes,
) -> Result<Stretch> {
    let threads = usize::try_from(threads)?;
    let crew = Crew {
        phase: AtomicU8::new(WARM_UP),
        ready: Barrier::new(threads + 1),
        published: (0..threads).map(|_| Published::default()).collect(),
    };
    scope(|scope| {
        let start = |(index, published)| {
            let seed = mix(job.seed.wrapping_add(index));
            let job = Job {
                seed,
                ..job.clone()
            };
            let crew = &crew;
            std::thread::Builder::new().spawn_scoped(scope, move || {
                work(with_lane, &job, crew, published, sample_every)
            })
        };
        let workers: Vec<_> = (0u64..).zip(&crew.published).map(start).collect();
        let missing = workers.iter().filter(|worker| worker.is_err()).count();
        if missing > 0 {
            // The barrier counts all: those that exist are let through and told to stop.
            crew.phase.store(STOP, Relaxed);
            for _ in 0..missing {
                scope.spawn(|| crew.ready.wait());
            }
        }
        crew.ready.wait();
        sleep(job.warmup);
        let total = || crew.published.iter().map(Published::load).fold_sum();
        let before = Snapshot::begin(device, job.clock, total);
        _ = crew
            .phase
            .compare_exchange(WARM_UP, MEASURE, Relaxed, Relaxed);
        sleep(job.measured);
        let after = Snapshot::end(device, job.clock, total);
        crew.phase.store(STOP, Relaxed);
        let (mut latencies, mut effective) = (Latencies::new(), Modes::new());
        for worker in workers {
            let worker = worker.context("a thread cannot be started")?;
            let done = worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            latencies.merge(&done.0);
            effective = done.1;
        }
        Ok(Stretch::between(
            &before,
            &after,
            latencies,
            effective,
            sample_every,
        ))
    })
}

/// Sums counters.
trait FoldSum {
    fn fold_sum(self) -> Counters;
}

impl<I: Iterator<Item = Counters>> FoldSum for I {
    fn fold_sum(self) -> Counters {
        self.fold(Counters::default(), |sum, counters| sum.plus(&counters))
    }
}

fn work(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    crew: &Crew,
    published: &Published,
    sample_every: u32,
) -> Result<(Latencies, Modes)> {
    let mut meter = Meter::new(job.clock);
    let mut effective = Modes::new();
    let mut waited = false;
    let result = with_lane(job, &mut |lane| {
        lane.sample_every(sample_every);
        waited = true;
        crew.ready.wait();
        let goes_on = |meter: &Meter, phase| {
            published.store(&meter.counters);
            crew.phase.load(Relaxed) == phase
        };
        drive(lane, &mut meter, |meter| !goes_on(meter, WARM_UP))?;
        meter.recording = true;
        drive(lane, &mut meter, |meter| !goes_on(meter, MEASURE))?;
        effective = lane.effective();
        Ok(())
    });
    if !waited {
        crew.ready.wait();
    }
    result.map(|()| (meter.latencies, effective))
}
