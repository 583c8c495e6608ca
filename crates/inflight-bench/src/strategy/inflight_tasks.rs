//! `inflight-local`, `inflight-async` and `inflight-async-1`: the library's futures, one task for
//! each operation in flight, in the library's own run loop, on tokio with a worker for each
//! processor, and on tokio with one thread.
//!
//! Each task reads into a buffer of a registered pool, as a program would that cares. The
//! engine is made for each stretch and lasts as long, so that its drivers' processor time is part
//! of what is measured and nothing of it is left for the next cell.

use std::rc::Rc;
use std::sync::Arc;

use ::inflight::fs::{File, OpenOptions};
use ::inflight::{BufPool, Direct, Engine, local};
use ::tokio::runtime::{Builder, Runtime};
use anyhow::{Context, Result};

use super::tasks::{ReadJob, Task, TaskStrategy};
use super::tokio::finish;
use super::{Modes, modes};
use crate::measure::host;

pub(crate) const LOCAL: TaskStrategy = TaskStrategy {
    name: "inflight-local",
    needs_ring: false,
    run: in_a_run_loop,
};

pub(crate) const ASYNC: TaskStrategy = TaskStrategy {
    name: "inflight-async",
    needs_ring: false,
    run: on_many_workers,
};

pub(crate) const ASYNC_1: TaskStrategy = TaskStrategy {
    name: "inflight-async-1",
    needs_ring: false,
    run: on_one_thread,
};

/// What all of them read with.
struct Means {
    engine: Engine,
    file: File,
    pool: BufPool,
}

impl Means {
    fn new(job: &ReadJob) -> Result<Self> {
        let engine = Engine::new()?;
        let direct = match job.direct {
            true => Direct::Required,
            false => Direct::Off,
        };
        let mut options = OpenOptions::new().read(true);
        options = options.direct(direct).engine(&engine);
        let file = options
            .open(&job.path)
            .context("the library cannot open the file")?;
        let pool = BufPool::new(job.depth, job.block_bytes)?;
        Ok(Self { engine, file, pool })
    }

    fn modes(&self, workers: u32) -> Modes {
        modes(&[
            ("backend", &self.engine.backend().kind.to_string()),
            ("worker-threads", &workers.to_string()),
        ])
    }
}

fn in_a_run_loop(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let means = Rc::new(Means::new(job)?);
    let reading = |task: Task| {
        let means = Rc::clone(&means);
        let buffer = means.pool.take().expect("one for each");
        let read = async move |buffer, offset| means.file.read_at(buffer, offset).await;
        local::spawn(task.run(buffer, read))
    };
    means.engine.run(async {
        let running: Vec<_> = tasks.into_iter().map(reading).collect();
        for task in running {
            task.await;
        }
    })?;
    Ok(means.modes(1))
}

fn on_many_workers(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let workers = host::cpus();
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(usize::try_from(workers)?).build();
    on_tokio(job, tasks, &runtime?, workers)
}

fn on_one_thread(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    on_tokio(job, tasks, &Builder::new_current_thread().build()?, 1)
}

fn on_tokio(job: &ReadJob, tasks: Vec<Task>, runtime: &Runtime, workers: u32) -> Result<Modes> {
    let means = Arc::new(Means::new(job)?);
    let reading = |task: Task| {
        let means = Arc::clone(&means);
        let buffer = means.pool.take().expect("one for each");
        let read = async move |buffer, offset| means.file.read_at(buffer, offset).await;
        task.run(buffer, read)
    };
    finish(runtime, tasks.into_iter().map(reading))?;
    Ok(means.modes(workers))
}
