//! `tokio-uring`: completions on a current-thread tokio runtime, a task for each operation.
//!
//! The plain builder of its documentation, and a ring that holds all that is in flight. It waits
//! for its ring through tokio's own polling, and therefore not with deferred task work.

use std::rc::Rc;

use ::tokio_uring::fs::File;
use anyhow::{Context, Result};
use inflight_bench::{Modes, ReadJob, Task, TaskStrategy, modes};

use crate::block::Block;

/// What its ring holds unless it is told otherwise.
const USUAL_ENTRIES: u32 = 256;

pub(crate) const TOKIO_URING: TaskStrategy = TaskStrategy {
    name: "tokio-uring",
    needs_ring: true,
    run,
};

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let entries = job.depth.max(USUAL_ENTRIES).next_power_of_two();
    ::tokio_uring::builder().entries(entries).start(async {
        let file = Rc::new(File::from_std(job.open()?));
        let start = |task: Task| {
            let file = Rc::clone(&file);
            let read = async move |block, offset| file.read_at(block, offset).await;
            ::tokio_uring::spawn(task.run(Block::new(job), read))
        };
        let running: Vec<_> = tasks.into_iter().map(start).collect();
        for task in running {
            task.await.context("a task failed")?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(modes(&[("ring-entries", &entries.to_string())]))
}
