//! `monoio`: completions on one thread, a task for each operation.
//!
//! The plain builder of its documentation, with the io_uring driver named so that it cannot fall
//! back to another one, and a ring that holds all that is in flight.

use std::rc::Rc;

use ::monoio::fs::File;
use ::monoio::{IoUringDriver, RuntimeBuilder};
use anyhow::{Context, Result};
use inflight_bench::{Modes, ReadJob, Task, TaskStrategy, modes};

use crate::block::Block;

/// What its ring holds unless it is told otherwise.
const USUAL_ENTRIES: u32 = 1024;

pub(crate) const MONOIO: TaskStrategy = TaskStrategy {
    name: "monoio",
    needs_ring: true,
    run,
};

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let entries = job.depth.max(USUAL_ENTRIES);
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
        .with_entries(entries)
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(async {
        let file = Rc::new(File::from_std(job.open()?)?);
        let start = |task: Task| {
            let file = Rc::clone(&file);
            let read = async move |block, offset| file.read_at(block, offset).await;
            ::monoio::spawn(task.run(Block::new(job), read))
        };
        let running: Vec<_> = tasks.into_iter().map(start).collect();
        for task in running {
            task.await;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(modes(&[("ring-entries", &entries.to_string())]))
}
