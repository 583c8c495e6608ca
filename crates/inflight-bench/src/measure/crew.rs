//! Several lanes, each on a thread of its own, started before and stopped after the measured time.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, RwLock, RwLockWriteGuard};
use std::thread::{scope, sleep, yield_now};

use anyhow::{Context, Result};

use crate::measure::calls::{Calls, Counting};
use crate::measure::clock::Clock;
use crate::measure::ground::Ground;
use crate::measure::heat::Timed;
use crate::measure::meter::{Counters, Meter};
use crate::measure::published::{self, Published};
use crate::measure::run::{Stretch, drive};
use crate::measure::snapshot::Snapshot;
use crate::measure::threads::NO_THREAD;
use crate::measure::turns;
use crate::measure::usage::DeviceMeter;
use crate::measure::workers::Workers;
use crate::strategy::{Body, Job, Lane, Modes};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;
const REST: u8 = 3;

/// What the threads of a crew share.
struct Crew {
    phase: AtomicU8,
    /// Held by the measuring thread until all are ready. A lock for readers lets all of them in
    /// at once; with a barrier, the first would work while the others still queue for it, and
    /// 128 busy threads on a few processors then need seconds to get started.
    gate: RwLock<()>,
    published: Vec<Published>,
    /// Whether there is a lane whose system calls nobody knows.
    hides_syscalls: AtomicBool,
    /// Those of lanes that are counted together.
    calls: Arc<Calls>,
}

impl Crew {
    fn new(phase: u8, threads: u32) -> Self {
        Self {
            phase: AtomicU8::new(phase),
            gate: RwLock::new(()),
            published: (0..threads).map(|_| Published::default()).collect(),
            hides_syscalls: AtomicBool::new(false),
            calls: Arc::default(),
        }
    }

    fn counters(&self) -> Counters {
        let published = published::sum(&self.published);
        Counters {
            syscalls: self.calls.now().unwrap_or(published.syscalls),
            ..published
        }
    }

    /// A lane has joined, and stays while what is returned lives.
    fn hear_of(&self, lane: &dyn Lane) -> Option<Counting> {
        let counting = lane.asks_for_all().map(|asked| self.calls.begin(asked));
        if counting.is_none() && !lane.counts_its_own() {
            self.hides_syscalls.store(true, Relaxed);
        }
        counting
    }

    /// What has been done, without the system calls where they are not all known.
    fn told(&self, stretch: Stretch) -> Stretch {
        let hides = self.hides_syscalls.load(Relaxed);
        Stretch {
            syscalls: stretch.syscalls.filter(|_| !hides),
            ..stretch
        }
    }
}

/// Runs `threads` lanes and measures them together.
pub(crate) fn measure(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    threads: u32,
    sample_every: u32,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    let crew = Crew::new(WARM_UP, threads);
    scope(|scope| {
        let mut closed = crew.gate.write().ok();
        let (ready, all_ready) = channel();
        let start = |(index, published)| {
            let job = Job {
                share: job.share.of(index, threads),
                ..job.clone()
            };
            let (crew, ready) = (&crew, ready.clone());
            std::thread::Builder::new().spawn_scoped(scope, move || {
                work(with_lane, &job, crew, published, ready, sample_every)
            })
        };
        let workers: Vec<_> = (0u32..).zip(&crew.published).map(start).collect();
        drop(ready);
        // Nothing is ever sent: it ends when every thread has dropped its end.
        while let Ok(()) = all_ready.recv() {}
        if workers.iter().any(Result::is_err) {
            crew.phase.store(STOP, Relaxed);
        }
        if job.work.synced_at_end() {
            // No warm-up: what it wrote would be synced at the expense of what is measured.
            ground.sync()?;
            enter_measure(&crew);
        } else {
            drop(closed.take());
            sleep(job.warmup);
        }
        let mut known = Workers::find();
        let before = Snapshot::begin(device, job.clock, &known, || crew.counters());
        enter_measure(&crew);
        drop(closed);
        sleep(job.measured);
        let running_end = Snapshot::end(device, job.clock, &mut known, || crew.counters());
        crew.phase.store(STOP, Relaxed);
        let (mut timed, mut effective) = (Timed::new(), Modes::new());
        for worker in workers {
            let worker = worker.context(NO_THREAD)?;
            let done = worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            timed.merge(&done.0);
            effective = done.1;
        }
        let after = match job.work.synced_at_end() {
            false => running_end,
            true => {
                ground.sync()?;
                Snapshot::end(device, job.clock, &mut known, || crew.counters())
            }
        };
        let stretch = Stretch::between(&before, &after, timed, effective, sample_every);
        Ok(crew.told(stretch))
    })
}

/// A crew that works when it is told to.
pub(crate) struct Shifts<'c> {
    crew: &'c Crew,
    clock: Clock,
    /// Nobody works while the gate is held.
    closed: Option<RwLockWriteGuard<'c, ()>>,
}

impl<'c> Shifts<'c> {
    fn new(crew: &'c Crew, clock: Clock) -> Self {
        let closed = crew.gate.write().ok();
        Self {
            crew,
            clock,
            closed,
        }
    }

    /// Lets all of them work for a turn, and waits until all of them rest.
    pub(crate) fn turn(&mut self, pace: turns::Pace, device: &DeviceMeter) -> Result<Stretch> {
        let crew = self.crew;
        crew.phase.store(MEASURE, Relaxed);
        drop(self.closed.take());
        sleep(pace.warmup);
        let mut known = Workers::find();
        let before = Snapshot::begin(device, self.clock, &known, || crew.counters());
        sleep(pace.turn);
        let after = Snapshot::end(device, self.clock, &mut known, || crew.counters());
        crew.phase.store(REST, Relaxed);
        self.closed = crew.gate.write().ok();
        let stretch = Stretch::between(&before, &after, None, Modes::new(), 1);
        Ok(crew.told(stretch))
    }
}

impl Drop for Shifts<'_> {
    fn drop(&mut self) {
        // The gate opens after this.
        self.crew.phase.store(STOP, Relaxed);
    }
}

/// Opens `threads` lanes that work in the turns that `body` gives them.
pub(crate) fn in_turns(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    threads: u32,
    sample_every: u32,
    body: &mut dyn FnMut(&mut Shifts<'_>) -> Result<()>,
) -> Result<()> {
    let crew = Crew::new(REST, threads);
    scope(|scope| {
        let mut shifts = Shifts::new(&crew, job.clock);
        let mut workers = Vec::new();
        for (index, published) in (0u32..).zip(&crew.published) {
            let job = Job {
                share: job.share.of(index, threads),
                ..job.clone()
            };
            let crew = &crew;
            let work = move || work_in_turns(with_lane, &job, crew, published, sample_every);
            let worker = std::thread::Builder::new().spawn_scoped(scope, work);
            workers.push(worker.context(NO_THREAD)?);
        }
        let done = body(&mut shifts);
        drop(shifts);
        for worker in workers {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        done
    })
}

fn work_in_turns(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    crew: &Crew,
    published: &Published,
    sample_every: u32,
) -> Result<()> {
    let mut meter = Meter::new(job.clock);
    with_lane(job, &mut |lane| {
        let _counting = crew.hear_of(lane);
        lane.sample_every(sample_every);
        loop {
            // Held until this lane rests, which the measuring thread waits for.
            let _working = crew.gate.read();
            match crew.phase.load(Relaxed) {
                STOP => return Ok(()),
                REST => yield_now(),
                _ => drive(lane, &mut meter, |meter| {
                    published.store(&meter.counters);
                    crew.phase.load(Relaxed) != MEASURE
                })?,
            }
        }
    })
}

fn enter_measure(crew: &Crew) {
    // Unless it was told to stop before it began.
    let phase = &crew.phase;
    _ = phase.compare_exchange(WARM_UP, MEASURE, Relaxed, Relaxed);
}

fn work(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    crew: &Crew,
    published: &Published,
    ready: Sender<()>,
    sample_every: u32,
) -> Result<(Timed, Modes)> {
    let (mut ready, mut effective) = (Some(ready), Modes::new());
    let mut meter = Meter::new(job.clock);
    with_lane(job, &mut |lane| {
        let _counting = crew.hear_of(lane);
        lane.sample_every(sample_every);
        drop(ready.take());
        drop(crew.gate.read());
        let is_over = |meter: &Meter, phase| {
            published.store(&meter.counters);
            crew.phase.load(Relaxed) != phase
        };
        if crew.phase.load(Relaxed) == WARM_UP {
            drive(lane, &mut meter, |meter| is_over(meter, WARM_UP))?;
        }
        meter.record(job.measured);
        drive(lane, &mut meter, |meter| is_over(meter, MEASURE))?;
        lane.finish(&mut meter)?;
        published.store(&meter.counters);
        effective = lane.effective();
        Ok(())
    })?;
    Ok((meter.timed, effective))
}
