//! Strategies made of asynchronous tasks: one task for each operation in flight, on any runtime.
//!
//! A strategy starts its runtime, opens the file, and lets [`Task::run`] read through a closure of
//! its own; the loop, the offsets and the counting are here and the same for all. Nothing in here
//! knows a runtime: what the measurement does with the tasks is in `measure/tasks.rs`.
//!
//! The loop allocates nothing, takes no lock but once for many timed operations, and reads the
//! clock only for the operations that are timed. It does not yield of its own accord: where
//! reads complete at once, whether the others get their turn is up to the runtime, as it would be
//! in a program.

use std::fs::{File, OpenOptions};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Poll;

use anyhow::Result;

use super::offsets::Offsets;
use super::{Modes, Strategy, Way, as_answer};
use crate::measure::meter::Counters;
use crate::measure::tasks::{Crowd, Phase};

/// A strategy in which tasks of an asynchronous runtime read, each one block at a time.
#[derive(Clone, Copy, Debug)]
pub struct TaskStrategy {
    /// Its name in flags and records.
    pub name: &'static str,
    /// Whether it is nothing without io_uring: it is then not tried where that is blocked.
    pub needs_ring: bool,
    /// Starts a runtime, runs every task on it to its end, and leaves nothing behind: no thread
    /// and nothing in flight. Returns the modes that took effect.
    ///
    /// It is called anew for each measured stretch, on a thread made for it. The tasks end when
    /// they are told to by the measurement. An error, or a panic, is the reason for which the
    /// strategy is reported as skipped.
    pub run: fn(&ReadJob, Vec<Task>) -> Result<Modes>,
}

impl Strategy for TaskStrategy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn way(&self) -> Way {
        Way::Tasks(*self)
    }
}

/// What the tasks are to read.
#[derive(Clone, Debug)]
pub struct ReadJob {
    /// The file.
    pub path: PathBuf,
    /// Whether to read past the page cache, with `O_DIRECT`.
    pub direct: bool,
    /// Bytes of one read; offsets are multiples of it.
    pub block_bytes: usize,
    /// Operations in flight, which is the number of tasks.
    pub depth: u32,
}

impl ReadJob {
    /// Opens the file for reading, with `O_DIRECT` if that is asked for.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open(&self) -> io::Result<File> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)
    }
}

/// One task: keeps one operation in flight until the measurement is over.
pub struct Task {
    index: usize,
    crowd: Arc<Crowd>,
    offsets: Offsets,
    block_bytes: u32,
    /// Dropped at the first turn: how the measuring thread learns that all have started.
    ready: Option<Sender<()>>,
    timing: Timing,
}

impl Task {
    pub(crate) fn new(
        index: usize,
        crowd: &Arc<Crowd>,
        offsets: Offsets,
        block_bytes: u32,
        ready: Sender<()>,
    ) -> Self {
        Self {
            index,
            crowd: Arc::clone(crowd),
            offsets,
            block_bytes,
            ready: Some(ready),
            timing: Timing::new(),
        }
    }

    /// Reads one block after the other until the measurement is over. `read` is handed a buffer
    /// and an offset, and hands back the number of bytes, or the error, with the buffer.
    ///
    /// A failed read is counted as such and the next one begins: it is for the report to say what
    /// the figures of a strategy are worth that failed.
    pub async fn run<B>(
        mut self,
        buffer: B,
        mut read: impl AsyncFnMut(B, u64) -> (io::Result<usize>, B),
    ) {
        drop(self.ready.take());
        // Every other task has its first turn before the reads begin, also where those never wait.
        yield_once().await;
        let (mut buffer, mut counters) = (buffer, Counters::default());
        while self.crowd.phase() != Phase::Stop {
            self.timing.begin(&self.crowd);
            let (result, returned) = read(buffer, self.offsets.next()).await;
            buffer = returned;
            self.timing.end(&self.crowd, self.index);
            counters.complete(as_answer(&result), self.block_bytes);
            self.crowd.publish(self.index, &counters);
        }
        self.timing.hand_over(&self.crowd, self.index);
    }
}

/// Lets the other tasks of the runtime have their turn.
fn yield_once() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// How long the timed operations of one task took.
struct Timing {
    /// When the operation in flight began, if it is timed.
    began_ns: Option<u64>,
    /// When the last one ended, if that is just now: it saves a reading of the clock.
    ended_ns: Option<u64>,
    until_timed: u32,
    /// When each ended and how long it took; handed over when full, so that a task needs no
    /// histogram of its own: those are large, and there may be thousands of tasks.
    samples_ns: Vec<(u64, u64)>,
}

impl Timing {
    const SAMPLES: usize = 64;

    fn new() -> Self {
        Self {
            began_ns: None,
            ended_ns: None,
            until_timed: 0,
            samples_ns: Vec::with_capacity(Self::SAMPLES),
        }
    }

    #[inline]
    fn begin(&mut self, crowd: &Crowd) {
        let just_ended_ns = self.ended_ns.take();
        if self.until_timed > 0 {
            self.until_timed -= 1;
            return;
        }
        self.until_timed = crowd.sample_every() - 1;
        self.began_ns = Some(just_ended_ns.unwrap_or_else(|| crowd.now_ns()));
    }

    #[inline]
    fn end(&mut self, crowd: &Crowd, index: usize) {
        let Some(began_ns) = self.began_ns.take() else {
            return;
        };
        let now_ns = crowd.now_ns();
        self.ended_ns = (self.until_timed == 0).then_some(now_ns);
        if crowd.phase() == Phase::Measure {
            self.samples_ns.push((now_ns, now_ns - began_ns));
            if self.samples_ns.len() == Self::SAMPLES {
                self.hand_over(crowd, index);
            }
        }
    }

    fn hand_over(&mut self, crowd: &Crowd, index: usize) {
        crowd.record(index, &self.samples_ns);
        self.samples_ns.clear();
    }
}
