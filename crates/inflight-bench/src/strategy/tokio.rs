//! `tokio`: what a careful user of tokio does without io_uring, one task for each operation.
//!
//! `tokio::fs::File` cannot read or write at a position without a seek before it, and copies
//! through a buffer of its own. Inside, it hands each call to the threads for blocking work; so
//! here does each step, directly: `spawn_blocking` around a positioned call on a shared
//! `std::fs::File`, with a buffer that travels there and back. It is what `tokio::fs` is at its
//! best.
//!
//! The runtime is tokio's own choice: a worker for each processor, and at most 512 threads for
//! blocking work, so that no deeper queue than that reaches the disk.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::tokio::runtime::{Builder, Runtime};
use ::tokio::task::spawn_blocking;
use anyhow::{Context, Result};

use super::cut::Cut;
use super::tasks::{Block, Performs, StepJob, StepStrategy, Task};
use super::{Modes, modes};
use crate::measure::host;
use crate::measure::threads::try_to_start;
use crate::work::{Kind, Step};

/// What tokio's documentation names as its default, made explicit, so that the record is true.
const BLOCKING_THREADS: usize = 512;

pub(crate) const TOKIO: StepStrategy = StepStrategy {
    name: "tokio",
    about: "spawn_blocking: plain calls on tokio's pool of threads, awaited",
    run,
    awaits_library: false,
};

fn run(job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
    let blocks: Vec<_> = tasks
        .iter()
        .map(|_| Cut::of(&job.work))
        .collect::<Result<_>>()?;
    let workers = host::cpus();
    let mut runtime = Builder::new_multi_thread();
    runtime.max_blocking_threads(BLOCKING_THREADS);
    // It will ask for a thread for each task.
    let runtime = started(&mut runtime, workers, tasks.len().min(BLOCKING_THREADS))?;
    let files = Arc::new(job.open()?);
    let working = |(task, block): (Task, Cut)| {
        let files = Arc::clone(&files);
        task.run_steps(block, OnThreads(files))
    };
    finish(&runtime, tasks.into_iter().zip(blocks).map(working))?;
    Ok(modes(&[
        ("worker-threads", &workers.to_string()),
        ("blocking-threads", &format!("at most {BLOCKING_THREADS}")),
    ]))
}

/// Starts a runtime of so many workers, which will ask for so many threads beside.
///
/// # Errors
/// If it cannot have them, or anything else that it needs.
pub(super) fn started(runtime: &mut Builder, workers: u32, beside: usize) -> Result<Runtime> {
    let workers = usize::try_from(workers)?;
    try_to_start(workers + beside)?;
    let runtime = runtime.worker_threads(workers).build();
    runtime.context("the runtime cannot be started")
}

/// Each step is a call on a thread for blocking work.
struct OnThreads(Arc<Vec<File>>);

impl Performs<Cut> for OnThreads {
    async fn perform(&mut self, mut block: Cut, step: Step) -> (io::Result<usize>, Cut) {
        let files = Arc::clone(&self.0);
        let working = spawn_blocking(move || {
            let result = call(&files[step.file_index()], &step, block.bytes());
            (result, block)
        });
        working.await.expect("it does not panic")
    }
}

fn call(file: &File, step: &Step, block: &mut [u8]) -> io::Result<usize> {
    match step.kind {
        Kind::Read => file.read_at(block, step.offset),
        Kind::Write => file.write_at(block, step.offset),
        Kind::Sync => file.sync_data().map(|()| 0),
    }
}

/// Runs all of these on a runtime, and waits until each has ended.
pub(super) fn finish<F>(runtime: &Runtime, all: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async {
        // From within, so that they stand in one queue: a runtime of one thread looks only now and
        // then for what is spawned from outside, and those that are never done with what is cached
        // would keep the others from beginning.
        let running: Vec<_> = all.map(|one| runtime.spawn(one)).collect();
        for one in running {
            one.await.context("a task failed")?;
        }
        Ok(())
    })
}
