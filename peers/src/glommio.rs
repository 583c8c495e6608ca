//! `glommio`: completions on one thread, a task for each operation.
//!
//! `DmaFile` past the page cache, `BufferedFile` through it. Both hand out buffers of their own, so
//! that tasks bring none; those of `DmaFile` come from memory that is registered with the ring,
//! enough of it for all that is in flight.

use std::io;
use std::rc::Rc;

use ::glommio::io::{BufferedFile, DmaFile};
use ::glommio::{LocalExecutor, LocalExecutorBuilder, Placement, spawn_local};
use anyhow::{Context, Result};
use inflight_bench::{Modes, ReadJob, Task, TaskStrategy, modes};

/// What it has unless it is told otherwise, both.
const USUAL_DEPTH: usize = 128;
const USUAL_MEMORY_BYTES: usize = 10 << 20;

pub(crate) const GLOMMIO: TaskStrategy = TaskStrategy {
    name: "glommio",
    needs_ring: true,
    run,
};

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let executor = executor(job)?;
    if job.direct {
        executor.run(direct(job, tasks))?;
    } else {
        executor.run(buffered(job, tasks))?;
    }
    let file = if job.direct {
        "DmaFile"
    } else {
        "BufferedFile"
    };
    Ok(modes(&[("file", file)]))
}

fn executor(job: &ReadJob) -> Result<LocalExecutor> {
    let depth = usize::try_from(job.depth)?;
    // Twice what is in flight: when it runs out, buffers come from memory that is not registered.
    let memory_bytes = (2 * depth * job.block_bytes).max(USUAL_MEMORY_BYTES);
    LocalExecutorBuilder::new(Placement::Unbound)
        .ring_depth(depth.max(USUAL_DEPTH).next_power_of_two())
        .io_memory(memory_bytes)
        .make()
        .map_err(io::Error::from)
        .context("the executor cannot be started")
}

async fn direct(job: &ReadJob, tasks: Vec<Task>) -> Result<()> {
    let file = DmaFile::open(&job.path).await.map_err(io::Error::from)?;
    let (file, bytes) = (Rc::new(file), job.block_bytes);
    let start = |task: Task| {
        let file = Rc::clone(&file);
        let read = async move |(), offset| match file.read_at_aligned(offset, bytes).await {
            Ok(block) => (Ok(block.len()), ()),
            Err(error) => (Err(error.into()), ()),
        };
        spawn_local(task.run((), read))
    };
    let running: Vec<_> = tasks.into_iter().map(start).collect();
    for task in running {
        task.await;
    }
    file.close_rc().await.map_err(io::Error::from)?;
    Ok(())
}

async fn buffered(job: &ReadJob, tasks: Vec<Task>) -> Result<()> {
    let file = BufferedFile::open(&job.path).await;
    let file = Rc::new(file.map_err(io::Error::from)?);
    let bytes = job.block_bytes;
    let start = |task: Task| {
        let file = Rc::clone(&file);
        let read = async move |(), offset| match file.read_at(offset, bytes).await {
            Ok(block) => (Ok(block.len()), ()),
            Err(error) => (Err(error.into()), ()),
        };
        spawn_local(task.run((), read))
    };
    let running: Vec<_> = tasks.into_iter().map(start).collect();
    for task in running {
        task.await;
    }
    let file = Rc::try_unwrap(file).ok().context("the tasks have ended")?;
    file.close().await.map_err(io::Error::from)?;
    Ok(())
}
