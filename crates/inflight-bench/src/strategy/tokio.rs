//! `tokio`: what a careful user of tokio does without io_uring, one task for each operation.
//!
//! `tokio::fs::File` cannot read at a position without a seek before it, and copies through a
//! buffer of its own. Inside, it hands each call to the threads for blocking work; so here does
//! each read, directly: `spawn_blocking` around a positioned read of a shared `std::fs::File`, into
//! a buffer that travels there and back. It is what `tokio::fs` is at its best.
//!
//! The runtime is tokio's own choice: a worker for each processor, and at most 512 threads for
//! blocking work, so that no deeper queue than that reaches the disk.

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::tokio::runtime::{Builder, Runtime};
use ::tokio::task::spawn_blocking;
use anyhow::{Context, Result};

use super::arena::Arena;
use super::tasks::{ReadJob, Task, TaskStrategy};
use super::{Modes, modes};
use crate::measure::host;

/// What tokio's documentation names as its default, made explicit, so that the record is true.
const BLOCKING_THREADS: usize = 512;

pub(crate) const TOKIO: TaskStrategy = TaskStrategy {
    name: "tokio",
    needs_ring: false,
    run,
};

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let workers = host::cpus();
    let runtime = Builder::new_multi_thread()
        .worker_threads(usize::try_from(workers)?)
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("the runtime cannot be started")?;
    let file = Arc::new(job.open()?);
    let block_bytes = u32::try_from(job.block_bytes)?;
    let reading = |task: Task| {
        let file = Arc::clone(&file);
        let read = async move |mut buffer: Arena, offset| {
            let file = Arc::clone(&file);
            let reading = spawn_blocking(move || {
                let result = file.read_at(buffer.first(), offset);
                (result, buffer)
            });
            reading.await.expect("reading does not panic")
        };
        task.run(Arena::new(1, block_bytes), read)
    };
    finish(&runtime, tasks.into_iter().map(reading))?;
    Ok(modes(&[
        ("worker-threads", &workers.to_string()),
        ("blocking-threads", &format!("at most {BLOCKING_THREADS}")),
    ]))
}

/// Runs all of these on a runtime, and waits until each has ended.
pub(super) fn finish<F>(runtime: &Runtime, all: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let running: Vec<_> = all.map(|one| runtime.spawn(one)).collect();
    runtime.block_on(async {
        for one in running {
            one.await.context("a task failed")?;
        }
        Ok(())
    })
}
