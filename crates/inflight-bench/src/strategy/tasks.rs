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

use anyhow::{Context, Result};

use super::road::{self, Host};
use super::{Modes, Road, Strategy, Way, as_answer};
use crate::measure::calls::Calls;
use crate::measure::meter::Counters;
use crate::measure::tasks::{Crowd, Phase};
use crate::profile::Profile;
use crate::work::{Kind, Ops, Step, Work, stamp};

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

    fn about(&self) -> &'static str {
        "tasks of another runtime, each of which reads a block at a time"
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let only_reads = !profile.writes() && !profile.varies();
        if !only_reads || profile.asked.verify || profile.asked.files > 1 {
            return Some("it was only taught to read blocks of one length from one file");
        }
        no_batches(profile)
    }

    fn way(&self) -> Way {
        Way::Tasks(Runtime::Reads(*self))
    }
}

/// A strategy in which tasks of an asynchronous runtime do whatever is asked.
#[derive(Clone, Copy)]
pub(crate) struct StepStrategy {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// As that of a [`TaskStrategy`].
    pub(crate) run: fn(&StepJob, Vec<Task>) -> Result<Modes>,
    /// Whether its futures are those of the library.
    pub(crate) awaits_library: bool,
}

impl Strategy for StepStrategy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        no_batches(profile)
    }

    fn road(&self, on: &Road<'_>) -> Option<Result<String>> {
        let told = || road::at_first(on.paths, on.direct, on.work, Host::Awaited);
        self.awaits_library.then(told)
    }

    fn way(&self) -> Way {
        Way::Tasks(Runtime::Steps(*self))
    }
}

fn no_batches(profile: &Profile) -> Option<&'static str> {
    let batched = profile.asked.batched;
    batched.then_some("each task goes on by itself: none waits for the batch of all")
}

/// What the tasks are to do.
pub(crate) struct StepJob {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) direct: bool,
    pub(crate) work: Work,
    pub(crate) depth: u32,
    /// For a strategy that counts the system calls of all tasks together.
    pub(crate) calls: Arc<Calls>,
}

impl StepJob {
    /// Opens the files for what the work needs, with `O_DIRECT` if that is asked for.
    pub(crate) fn open(&self) -> io::Result<Vec<File>> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let open = |path: &PathBuf| {
            OpenOptions::new()
                .read(true)
                .write(self.work.access.writes())
                .custom_flags(flags)
                .open(path)
        };
        self.paths.iter().map(open).collect()
    }
}

/// A strategy made of tasks, of one kind or the other.
#[derive(Clone, Copy)]
pub(crate) enum Runtime {
    Reads(TaskStrategy),
    Steps(StepStrategy),
}

impl Runtime {
    pub(crate) fn needs_ring(self) -> bool {
        match self {
            Self::Reads(strategy) => strategy.needs_ring,
            Self::Steps(_) => false,
        }
    }

    /// Runs all tasks to their end.
    pub(crate) fn run(self, job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
        match self {
            Self::Steps(strategy) => (strategy.run)(job, tasks),
            Self::Reads(strategy) => {
                let path = job.paths.first().context("a file to read from")?;
                let reads = ReadJob {
                    path: path.clone(),
                    direct: job.direct,
                    block_bytes: usize::try_from(job.work.block_bytes)?,
                    depth: job.depth,
                };
                (strategy.run)(&reads, tasks)
            }
        }
    }
}

/// Memory that a task reads into and writes from.
pub(crate) trait Block {
    /// Makes it as long as the next step.
    fn cut(&mut self, bytes: usize);

    /// The bytes of the step.
    fn bytes(&mut self) -> &mut [u8];
}

/// Memory of which nothing is known: it is never written from, and never looked at.
struct Opaque<B>(B);

impl<B> Block for Opaque<B> {
    fn cut(&mut self, _bytes: usize) {}

    fn bytes(&mut self) -> &mut [u8] {
        &mut []
    }
}

/// How the tasks of a strategy do a step.
///
/// Not a closure: the futures that a strategy awaits would be within that of its function within
/// that of the closure, and each is moved as a whole for each step.
pub(crate) trait Performs<B> {
    /// Is handed memory as long as the step, and hands back the number of bytes (0 of a sync), or
    /// the error, with the memory.
    fn perform(&mut self, block: B, step: Step) -> impl Future<Output = (io::Result<usize>, B)>;
}

/// Reads by a closure.
struct Reading<F>(F);

impl<B, F> Performs<Opaque<B>> for Reading<F>
where
    F: AsyncFnMut(B, u64) -> (io::Result<usize>, B),
{
    async fn perform(
        &mut self,
        Opaque(buffer): Opaque<B>,
        step: Step,
    ) -> (io::Result<usize>, Opaque<B>) {
        let (result, buffer) = (self.0)(buffer, step.offset).await;
        (result, Opaque(buffer))
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
    ops: Ops,
    /// Dropped at the first turn: how the measuring thread learns that all have started.
    ready: Option<Sender<()>>,
    timing: Timing,
    #[cfg(feature = "certainty")]
    forgets_one_in: Option<u64>,
}

impl Task {
    pub(crate) fn new(index: usize, crowd: &Arc<Crowd>, ops: Ops, ready: Sender<()>) -> Self {
        Self {
            index,
            crowd: Arc::clone(crowd),
            ops,
            ready: Some(ready),
            timing: Timing::new(),
            #[cfg(feature = "certainty")]
            forgets_one_in: None,
        }
    }

    /// The same task, slower by one operation in so many: it does not count that.
    #[cfg(feature = "certainty")]
    pub(crate) fn that_forgets_one_in(mut self, operations: u64) -> Self {
        self.forgets_one_in = Some(operations);
        self
    }

    /// Shows what was counted.
    #[inline]
    fn publish(&self, counters: &Counters) {
        #[cfg(feature = "certainty")]
        if let Some(operations) = self.forgets_one_in {
            let shown = Counters {
                ops: counters.ops - counters.ops / operations,
                ..*counters
            };
            return self.crowd.publish(self.index, &shown);
        }
        self.crowd.publish(self.index, counters);
    }

    /// Reads one block after the other until the measurement is over. `read` is handed a buffer
    /// and an offset, and hands back the number of bytes, or the error, with the buffer.
    ///
    /// A failed read is counted as such and the next one begins: it is for the report to say what
    /// the figures of a strategy are worth that failed.
    pub async fn run<B>(self, buffer: B, read: impl AsyncFnMut(B, u64) -> (io::Result<usize>, B)) {
        self.run_steps(Opaque(buffer), Reading(read)).await;
    }

    /// Does one operation after the other until the measurement is over, all steps of each.
    pub(crate) async fn run_steps<B: Block>(mut self, block: B, mut performs: impl Performs<B>) {
        drop(self.ready.take());
        // Every other task has its first turn before work begins, also where that never waits.
        yield_once().await;
        let (mut block, mut counters) = (block, Counters::default());
        loop {
            match self.crowd.phase() {
                Phase::Stop => break,
                Phase::Rest => {
                    self.timing.rest();
                    self.crowd.rest(self.index).await;
                    continue;
                }
                Phase::WarmUp | Phase::Measure => {}
            }
            match self.crowd.alarm() {
                None => self.timing.begin(&self.crowd),
                Some(alarm) => match alarm.next(self.index).await {
                    Some(due_ns) => self.timing.begin_at(due_ns),
                    None => break,
                },
            }
            let mut step = self.ops.next();
            loop {
                prepare(&mut block, &step);
                let (result, returned) = performs.perform(block, step).await;
                block = returned;
                let result = as_answer(&result);
                match counters.end_step(&self.ops, &step, result, || block.bytes()) {
                    Some(next) => step = next,
                    None => break,
                }
            }
            self.timing.end(&self.crowd, self.index);
            self.publish(&counters);
        }
        self.timing.hand_over(&self.crowd, self.index);
    }
}

#[inline]
fn prepare<B: Block>(block: &mut B, step: &Step) {
    block.cut(step.bytes());
    if step.kind == Kind::Write {
        stamp::stamp(block.bytes(), step.file, step.offset);
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

    /// The last reading of the clock is no longer new.
    fn rest(&mut self) {
        self.ended_ns = None;
    }

    /// Begins an operation of an open loop, at the time when it was due.
    fn begin_at(&mut self, due_ns: u64) {
        self.began_ns = Some(due_ns);
    }

    #[inline]
    fn end(&mut self, crowd: &Crowd, index: usize) {
        let Some(began_ns) = self.began_ns.take() else {
            return;
        };
        let now_ns = crowd.now_ns();
        self.ended_ns = (self.until_timed == 0).then_some(now_ns);
        if crowd.counts(began_ns) {
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
