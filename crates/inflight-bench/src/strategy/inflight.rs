//! `inflight`: the library, through its public API only, and left to its own choices.
//!
//! One operation at a time is `.wait()`, as a program would write it; several in flight are a
//! queue. Of the queue's operations every eighth at most is timed where there are enough in
//! flight: its results come one by one, so that reading the clock for each would cost what the
//! other ring strategies do not pay.

use std::sync::OnceLock;

use ::inflight::fs::{File, OpenOptions, ReadAt};
use ::inflight::{BackendKind, BufPool, Direct, Engine, Operation, PoolBuf, Queue, SetupError};
use anyhow::{Context, Result};

use super::offsets::Offsets;
use super::one_by_one::{OneByOne, ReadBlock};
use super::{Body, Job, Lane, Modes, Strategy, Unavailable, Way, as_answer, least_every, modes};
use crate::measure::meter::Meter;

/// What the library has in flight on a thread unless it is told otherwise.
const USUAL_DEPTH: u32 = 128;

pub(crate) struct Inflight;

impl Strategy for Inflight {
    fn name(&self) -> &'static str {
        "inflight"
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// The engine of this process, as a program would have it; a deeper one where it is asked for.
fn engine(depth: u32) -> Result<Engine, SetupError> {
    static USUAL: OnceLock<Engine> = OnceLock::new();
    if depth > USUAL_DEPTH {
        return Engine::builder().queue_depth(depth).build();
    }
    if let Some(engine) = USUAL.get() {
        return Ok(engine.clone());
    }
    let engine = Engine::new()?;
    Ok(USUAL.get_or_init(|| engine).clone())
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let engine = engine(job.depth).map_err(|error| Unavailable {
        reason: error.to_string(),
        io_uring_blocked: true,
    })?;
    let direct = if job.direct {
        Direct::Required
    } else {
        Direct::Off
    };
    let file = OpenOptions::new()
        .read(true)
        .direct(direct)
        .engine(&engine)
        .open(job.path)
        .context("the library cannot open the file")?;
    let pool = BufPool::new(job.depth, usize::try_from(job.block_bytes)?)?;
    if job.depth == 1 {
        let buffer = Some(pool.take().context("a pool of one has one")?);
        return body(&mut OneByOne::new(
            job,
            Alone {
                file: &file,
                buffer,
            },
        ));
    }
    engine.queue(job.depth, |queue| {
        let mut lane = Several::new(job, queue, &file, &engine);
        lane.fill(&pool)?;
        body(&mut lane)
    })?
}

/// System calls of the engine so far.
fn calls(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.enters + stats.plain_calls
}

fn effective(engine: &Engine) -> Modes {
    let backend = engine.backend();
    let fallbacks = engine.stats().fallbacks;
    let mut effective = modes(&[("backend", &format!("{}: {}", backend.kind, backend.reason))]);
    if !fallbacks.is_empty() {
        let told: Vec<&str> = fallbacks.iter().map(|given_up| &*given_up.reason).collect();
        effective.extend(modes(&[("fallbacks", &told.join("; "))]));
    }
    effective
}

/// One operation at a time.
struct Alone<'f> {
    file: &'f File,
    buffer: Option<PoolBuf>, // absent only during a call
}

impl ReadBlock for Alone<'_> {
    /// An operation alone takes the plain system call.
    const SYSCALLS: u64 = 1;

    #[inline]
    fn read(&mut self, offset: u64) -> i32 {
        let buffer = self.buffer.take().expect("it came back from the last call");
        let (result, buffer) = self.file.read_at(buffer, offset).wait();
        self.buffer = Some(buffer);
        as_answer(&result)
    }

    fn effective(&self) -> Modes {
        effective(self.file.engine())
    }
}

/// Several operations in flight.
struct Several<'a, 'q, 's, 'f> {
    queue: &'a mut Queue<'q, 's, ReadAt<'f, PoolBuf>>,
    file: &'f File,
    engine: &'a Engine,
    offsets: Offsets,
    block_bytes: u32,
    /// When the operation of a slot began, if it is timed.
    began_ns: Vec<Option<u64>>,
    calls_before: u64,
    sample_every: u32,
    until_timed: u32,
    least_every: u32,
}

impl<'a, 'q, 's, 'f> Several<'a, 'q, 's, 'f> {
    fn new(
        job: &Job<'_>,
        queue: &'a mut Queue<'q, 's, ReadAt<'f, PoolBuf>>,
        file: &'f File,
        engine: &'a Engine,
    ) -> Self {
        Self {
            queue,
            file,
            engine,
            offsets: Offsets::new(job.seed, job.size_bytes, job.block_bytes),
            block_bytes: job.block_bytes,
            began_ns: (0..job.depth).map(|_| None).collect(),
            calls_before: calls(engine),
            sample_every: 1,
            until_timed: 0,
            least_every: least_every(job.depth),
        }
    }

    fn fill(&mut self, pool: &BufPool) -> Result<()> {
        for slot in 0..u64::try_from(self.began_ns.len())? {
            let buffer = pool.take().context("the pool has one for each")?;
            self.push(slot, buffer, None)?;
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, slot: u64, buffer: PoolBuf, began_ns: Option<u64>) -> Result<()> {
        let index = usize::try_from(slot).expect("below the depth");
        self.began_ns[index] = began_ns;
        let read = self.file.read_at(buffer, self.offsets.next());
        self.queue
            .push(slot, read)
            .ok()
            .context("the queue takes as many as were asked for")
    }

    /// When the next operation begins, if it is to be timed.
    #[inline]
    fn timing(&mut self, meter: &mut Meter) -> Option<u64> {
        if self.until_timed > 0 {
            self.until_timed -= 1;
            return None;
        }
        self.until_timed = self.sample_every - 1;
        Some(meter.read_clock())
    }
}

impl Lane for Several<'_, '_, '_, '_> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        for _ in 0..self.sample_every {
            let (slot, (result, buffer)) = self.queue.next().context("nothing is in flight")?;
            let index = usize::try_from(slot).expect("below the depth");
            if let Some(began_ns) = self.began_ns[index] {
                let now_ns = meter.read_clock();
                meter.latency(now_ns - began_ns);
            }
            meter.complete(as_answer(&result), self.block_bytes);
            let began_ns = self.timing(meter);
            self.push(slot, buffer, began_ns)?;
        }
        Ok(())
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.sample_every = every.max(self.least_every);
        self.until_timed = 0;
        self.sample_every
    }

    fn settle(&mut self, meter: &mut Meter) {
        let so_far = calls(self.engine) - self.calls_before;
        meter.syscalls(so_far - meter.counters.syscalls);
    }

    fn knows_syscalls(&self) -> bool {
        // The threads of the pool do not count theirs.
        self.engine.backend().kind == BackendKind::Uring
    }

    fn effective(&self) -> Modes {
        effective(self.engine)
    }
}
