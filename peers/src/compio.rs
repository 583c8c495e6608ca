//! `compio`: completions on one thread, a task for each operation.
//!
//! Its documentation calls `coop_taskrun` an optimisation for most cases of a runtime of one
//! thread, to be used with `taskrun_flag`: both are on. Nothing is registered: the operations of
//! its `File` do not use registered buffers or files.

use std::rc::Rc;

use ::compio::BufResult;
use ::compio::driver::ProactorBuilder;
use ::compio::fs::{File, OpenOptions};
use ::compio::io::AsyncReadAt;
use ::compio::runtime::{Runtime, RuntimeBuilder};
use anyhow::{Context, Result, anyhow};
use inflight_bench::{Modes, ReadJob, Task, TaskStrategy, modes};

use crate::block::Block;

/// What its ring holds unless it is told otherwise.
const USUAL_ENTRIES: u32 = 1024;

pub(crate) const COMPIO: TaskStrategy = TaskStrategy {
    name: "compio",
    needs_ring: true,
    run,
};

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let runtime = runtime(job.depth)?;
    runtime.block_on(async {
        let file = Rc::new(open(job).await?);
        let start = |task: Task| {
            let file = Rc::clone(&file);
            let read = async move |block, offset| {
                let BufResult(result, block) = file.read_at(block, offset).await;
                (result, block)
            };
            ::compio::runtime::spawn(task.run(Block::new(job), read))
        };
        let running: Vec<_> = tasks.into_iter().map(start).collect();
        for task in running {
            task.await.map_err(|_| anyhow!("a task panicked"))?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let driver = format!("{:?}", runtime.driver_type());
    Ok(modes(&[
        ("driver", &driver),
        ("ring-flags", "coop-taskrun taskrun-flag"),
    ]))
}

fn runtime(depth: u32) -> Result<Runtime> {
    let mut proactor = ProactorBuilder::new();
    proactor
        .capacity(depth.max(USUAL_ENTRIES))
        .coop_taskrun(true)
        .taskrun_flag(true);
    let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
    runtime.context("the runtime cannot be started")
}

async fn open(job: &ReadJob) -> Result<File> {
    let flags = if job.direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    Ok(options.open(&job.path).await?)
}
