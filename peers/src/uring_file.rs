//! `uring-file`: a ring between two threads of its own, awaited from plain tokio.
//!
//! One ring for the whole process, in its documented default size, as the library itself keeps
//! one: the threads of a ring never end, so that a ring for each stretch would leave them behind.
//! The file is not registered: that cannot be undone, and would keep the test file on the disk
//! after its removal.
#![allow(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};

use ::uring_file::uring::{Uring, UringCfg};
use anyhow::{Context, Result};
use inflight_bench::{Modes, ReadJob, Task, TaskStrategy, modes};
use tokio::runtime::Builder;

use crate::block::Block;

pub(crate) const URING_FILE: TaskStrategy = TaskStrategy {
    name: "uring-file",
    needs_ring: true,
    run,
};

/// The ring of this process.
fn ring() -> io::Result<&'static Uring> {
    static RING: OnceLock<Uring> = OnceLock::new();
    if let Some(ring) = RING.get() {
        return Ok(ring);
    }
    let ring = Uring::new(UringCfg::default())?;
    Ok(RING.get_or_init(|| ring))
}

/// A future that is `Send` although the compiler cannot prove it: it does not see through closures
/// that lend what they have captured ("not general enough").
struct Movable<F>(Pin<Box<F>>);

/// Has the compiler prove it of a part.
fn sendable<T: Send>(part: T) -> T {
    part
}

impl<F> Movable<F> {
    /// # Safety
    ///
    /// Everything in the future is `Send`.
    unsafe fn new(future: F) -> Self {
        Self(Box::pin(future))
    }
}

// SAFETY: by the contract of `new`.
unsafe impl<F> Send for Movable<F> {}

impl<F: Future> Future for Movable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<F::Output> {
        self.0.as_mut().poll(context)
    }
}

fn run(job: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
    let ring = ring().context("its ring of 16384 entries cannot be set up")?;
    let runtime = Builder::new_multi_thread()
        .build()
        .context("the runtime cannot be started")?;
    let file = Arc::new(job.open()?);
    let start = |task: Task| {
        let (file, job) = (Arc::clone(&file), job.clone());
        let block = Block::new(&job);
        let read = async move |block: Block, offset: u64| {
            match sendable(ring.read_into_at(&*file, offset, block)).await {
                Ok(read) => match usize::try_from(read.bytes_read) {
                    Ok(bytes) => (Ok(bytes), read.buf),
                    Err(error) => (Err(io::Error::other(error)), read.buf),
                },
                // The buffer of a failed read does not come back.
                Err(error) => (Err(error), Block::new(&job)),
            }
        };
        // SAFETY: it holds a task, a block, the closure and one reading at a time, each of which
        // `sendable` has been shown.
        runtime.spawn(unsafe { Movable::new(sendable(task).run(sendable(block), sendable(read))) })
    };
    let running: Vec<_> = tasks.into_iter().map(start).collect();
    runtime.block_on(async {
        for task in running {
            task.await.context("a task failed")?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let workers = runtime.metrics().num_workers().to_string();
    Ok(modes(&[("worker-threads", &workers)]))
}
