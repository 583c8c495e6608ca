//! `inflight-local`, `inflight-async` and `inflight-async-1`: the library's futures, one task for
//! each operation in flight, in the library's own run loop, on tokio with a worker for each
//! processor, and on tokio with one thread. On tokio the runtime is asked to serve the engine
//! itself (`docs/design/lanes.md`); which host the library then takes is in the record.
//!
//! Each task has a buffer of a registered pool, as a program would that cares. The
//! engine is made for each stretch and lasts as long, so that its drivers' processor time is part
//! of what is measured and nothing of it is left for the next cell.

use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use ::inflight::fs::File;
use ::inflight::{BackendKind, Engine, PoolBuf, Stats, local};
use ::tokio::runtime::{Builder, Runtime};
use anyhow::Result;

use super::inflight::{asks_for_calls, open_all, pool_blocks, pool_of};
use super::road::{self, Host};
use super::tasks::{Performs, StepJob, StepStrategy, Task};
use super::tokio::{finish, started};
use super::{Modes, modes};
use crate::measure::calls::Counting;
use crate::measure::host;
use crate::work::{Kind, Step, Work};

pub(crate) const LOCAL: StepStrategy = StepStrategy {
    name: "inflight-local",
    about: "the library, awaited by tasks of its own run loop",
    run: in_a_run_loop,
    awaits_library: true,
};

pub(crate) const ASYNC: StepStrategy = StepStrategy {
    name: "inflight-async",
    about: "the library, awaited by tasks of tokio with a worker for each processor",
    run: on_many_workers,
    awaits_library: true,
};

pub(crate) const ASYNC_1: StepStrategy = StepStrategy {
    name: "inflight-async-1",
    about: "the library, awaited by tasks of tokio with one thread",
    run: on_one_thread,
    awaits_library: true,
};

/// What all of them work with.
struct Means {
    /// Gone before the engine, which is to last no longer than the tasks.
    _counting: Option<Counting>,
    engine: Engine,
    files: Vec<File>,
}

impl Means {
    fn new(job: &StepJob) -> Result<Self> {
        let engine = Engine::new()?;
        let files = open_all(&engine, &job.paths, job.direct, &job.work)?;
        // The threads of the pool do not count theirs.
        let counts = engine.backend().kind == BackendKind::Uring;
        let counting = counts.then(|| job.calls.begin(asks_for_calls(&engine)));
        Ok(Self {
            _counting: counting,
            engine,
            files,
        })
    }

    fn modes(&self, work: &Work, workers: u32) -> Modes {
        let mut effective = modes(&[
            ("backend", &self.engine.backend().kind.to_string()),
            ("worker-threads", &workers.to_string()),
        ]);
        effective.extend(road::mode(&self.files, work, Host::Awaited));
        effective.extend(road::given_up(&self.engine));
        effective
    }
}

/// What a task needs of the means.
struct Part<M>(M);

impl<M: Deref<Target = Means>> Performs<PoolBuf> for Part<M> {
    async fn perform(&mut self, block: PoolBuf, step: Step) -> (io::Result<usize>, PoolBuf) {
        let file = &self.0.files[step.file_index()];
        match step.kind {
            Kind::Read => file.read_at(block, step.offset).await,
            Kind::Write => file.write_at(block, step.offset).await,
            Kind::Sync => (file.sync_data().await.map(|()| 0), block),
        }
    }
}

fn in_a_run_loop(job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
    let means = Rc::new(Means::new(job)?);
    let blocks = pooled(job)?;
    let working = |(task, block): (Task, PoolBuf)| {
        local::spawn(task.run_steps(block, Part(Rc::clone(&means))))
    };
    means.engine.run(async {
        let running: Vec<_> = tasks.into_iter().zip(blocks).map(working).collect();
        for task in running {
            task.await;
        }
    })?;
    Ok(means.modes(&job.work, 1))
}

/// A block for each task, from a registered pool.
fn pooled(job: &StepJob) -> Result<Vec<PoolBuf>> {
    let pool = pool_of(job.depth, job.work.block_bytes)?;
    pool_blocks(&pool, &job.work)
}

fn on_many_workers(job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
    let workers = host::cpus();
    let runtime = started(Builder::new_multi_thread().enable_io(), workers, 0)?;
    on_tokio(job, tasks, &runtime, workers)
}

fn on_one_thread(job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
    let runtime = Builder::new_current_thread().enable_io().build();
    on_tokio(job, tasks, &runtime?, 1)
}

fn on_tokio(job: &StepJob, tasks: Vec<Task>, runtime: &Runtime, workers: u32) -> Result<Modes> {
    let means = Arc::new(Means::new(job)?);
    let entered = runtime.enter();
    // Where there is no ring for it, drivers serve: the engine says so by itself.
    let _ = means.engine.serve_on_tokio();
    drop(entered);
    let working = |(task, block): (Task, PoolBuf)| task.run_steps(block, Part(Arc::clone(&means)));
    finish(runtime, tasks.into_iter().zip(pooled(job)?).map(working))?;
    let mut effective = means.modes(&job.work, workers);
    effective.extend(modes(&[("host", host_of(&means.engine.stats()))]));
    Ok(effective)
}

/// Who has served what was not answered at once. Syncs are for neither, so a quarter is most.
fn host_of(stats: &Stats) -> &'static str {
    let handed_over = stats.operations - stats.plain_calls;
    if handed_over == 0 {
        "none"
    } else if stats.lane_operations * 4 > handed_over {
        "lane"
    } else {
        "drivers"
    }
}
