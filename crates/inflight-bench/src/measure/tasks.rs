//! Tasks of an asynchronous runtime, started before and stopped after the measured time.
//!
//! The runtime has a thread of its own; the measuring thread sleeps, and reads from outside what
//! the tasks have counted. A runtime that does not end is left behind, thread and all, so that a
//! strategy that hangs costs its own cell and not the run. It owns what it uses for that reason.

use std::future::poll_fn;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::measure::alarm::Alarm;
use crate::measure::calls::Calls;
use crate::measure::caught::caught;
use crate::measure::clock::Clock;
use crate::measure::ground::Ground;
use crate::measure::heat::Timed;
use crate::measure::host;
use crate::measure::meter::Counters;
use crate::measure::pace::Pace;
use crate::measure::published::{self, Published};
use crate::measure::run::Stretch;
use crate::measure::runner;
use crate::measure::snapshot::Snapshot;
use crate::measure::threads::NO_THREAD;
use crate::measure::turns;
use crate::measure::usage::DeviceMeter;
use crate::measure::workers::Workers;
use crate::strategy::tasks::{Runtime, StepJob, Task};
use crate::strategy::{Job, Modes, blocked, least_every};
use crate::work::Ops;

/// How long a runtime may take to start, and to finish what is in flight, before it counts as
/// hanging: 4096 reads of a slow disk take 40 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// What part of the stretch it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    WarmUp,
    Measure,
    /// Between two turns: nothing new begins, and the tasks wait to be woken.
    Rest,
    Stop,
}

/// What the tasks of one stretch share with the measuring thread.
pub(crate) struct Crowd {
    clock: Clock,
    /// What begins the operations of an open loop.
    alarm: Option<Arc<Alarm>>,
    phase: AtomicU8,
    sample_every: u32,
    /// One for each task. A runtime may move a task to another thread, but it runs on one at a
    /// time, and what it wrote on the last is seen on the next.
    published: Vec<Published>,
    /// A few for all tasks, so that hardly ever two of them want the same one.
    timed: Vec<Mutex<Timed>>,
    /// Those of all tasks together, where somebody counts them.
    calls: Arc<Calls>,
    /// One for each task, there while it rests.
    resting: Mutex<Vec<Option<Waker>>>,
}

impl Crowd {
    fn new(depth: u32, clock: Clock, sample_every: u32) -> Self {
        Self {
            clock,
            alarm: None,
            phase: AtomicU8::new(Phase::WarmUp as u8),
            sample_every,
            published: (0..depth).map(|_| Published::default()).collect(),
            timed: (0..depth.min(host::cpus()))
                .map(|_| Mutex::new(Timed::new()))
                .collect(),
            calls: Arc::default(),
            resting: Mutex::new((0..depth).map(|_| None).collect()),
        }
    }

    /// Waits while the tasks are to rest.
    pub(crate) async fn rest(&self, task: usize) {
        poll_fn(|context| {
            let mut resting = locked(&self.resting);
            match self.phase() {
                Phase::Rest => {
                    resting[task] = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Ends the rest of all tasks.
    fn wake_into(&self, phase: Phase) {
        self.enter(phase);
        let mut resting = locked(&self.resting);
        let wakers: Vec<Waker> = resting.iter_mut().filter_map(Option::take).collect();
        drop(resting);
        // Foreign code, so that no lock is held.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn all_rest(&self) -> bool {
        locked(&self.resting).iter().all(Option::is_some)
    }

    #[inline]
    pub(crate) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_deref()
    }

    /// Whether the latency of an operation counts that began, or was due, at this time.
    #[inline]
    pub(crate) fn counts(&self, began_ns: u64) -> bool {
        match &self.alarm {
            None => self.phase() == Phase::Measure,
            Some(alarm) => alarm.pace.counts(began_ns),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            phase if phase == Phase::WarmUp as u8 => Phase::WarmUp,
            phase if phase == Phase::Measure as u8 => Phase::Measure,
            phase if phase == Phase::Rest as u8 => Phase::Rest,
            _ => Phase::Stop,
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    /// Every how many operations of a task one is timed, at least 1.
    #[inline]
    pub(crate) fn sample_every(&self) -> u32 {
        self.sample_every
    }

    /// Shows what a task has counted; only that task may call this.
    #[inline]
    pub(crate) fn publish(&self, task: usize, counters: &Counters) {
        self.published[task].store(counters);
    }

    fn counters(&self) -> Counters {
        Counters {
            syscalls: self.calls.now().unwrap_or(0),
            ..published::sum(&self.published)
        }
    }

    /// What has been done, without the system calls where nobody counts them: runtimes do not.
    fn told(&self, stretch: Stretch) -> Stretch {
        Stretch {
            syscalls: stretch.syscalls.filter(|_| self.calls.now().is_some()),
            ..stretch
        }
    }

    /// Ends the warm-up.
    fn begin(&self, measured: Duration) {
        self.begin_at(self.clock.now_ns(), measured);
    }

    fn begin_at(&self, now_ns: u64, measured: Duration) {
        for timed in &self.timed {
            locked(timed).begin(now_ns, measured);
        }
        self.enter(Phase::Measure);
    }

    /// Takes over what a task has timed: when operations ended, and how long they took.
    pub(crate) fn record(&self, task: usize, samples_ns: &[(u64, u64)]) {
        let mut timed = locked(&self.timed[task % self.timed.len()]);
        for &(now_ns, ns) in samples_ns {
            timed.record(now_ns, ns);
        }
    }

    fn timed(&self) -> Timed {
        let mut all = Timed::new();
        for some in &self.timed {
            all.merge(&locked(some));
        }
        all
    }
}

/// A histogram stays one, and a list too, wherever a panic came from.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs as many tasks as operations are to be in flight, and measures them together.
pub(crate) fn measure(
    strategy: Runtime,
    job: &Job<'_>,
    sample_every: u32,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    measure_within(PATIENCE, strategy, job, sample_every, device, ground)
}

fn measure_within(
    patience: Duration,
    strategy: Runtime,
    job: &Job<'_>,
    sample_every: u32,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    if strategy.needs_ring() {
        // The reason for a refusal is better told here than by a panic in there.
        blocked::open_ring(|| io_uring::IoUring::new(1)).map(drop)?;
    }
    let sample_every = sample_every.max(least_every(job.depth));
    let crowd = Arc::new(Crowd::new(job.depth, job.clock, sample_every));
    if job.work.synced_at_end() {
        return synced_at_end(patience, strategy, job, &crowd, device, ground);
    }
    let (runner, all_ready) = start(strategy, job, &crowd)?;
    // Nothing is ever sent: it ends when every task has dropped its end.
    if let Err(limit) = runner::wait(&all_ready, patience) {
        crowd.enter(Phase::Stop);
        bail!("not all of its tasks were started within {limit:?}; its threads were left behind");
    }
    sleep(job.warmup);
    let mut known = Workers::find();
    let before = Snapshot::begin(device, job.clock, &known, || crowd.counters());
    crowd.begin(job.measured);
    sleep(job.measured);
    let after = Snapshot::end(device, job.clock, &mut known, || crowd.counters());
    let ended_early = runner.is_finished();
    crowd.enter(Phase::Stop);
    let effective = runner.end(patience)?;
    if ended_early {
        bail!("its tasks ended before they were told to");
    }
    let stretch = Stretch::between(&before, &after, crowd.timed(), effective, sample_every);
    Ok(crowd.told(stretch))
}

/// Tasks that work when they are told to.
pub(crate) struct Shifts<'c> {
    crowd: &'c Crowd,
    runner: &'c Runner,
}

impl Shifts<'_> {
    /// Lets all of them work for a turn, and waits until all of them rest.
    pub(crate) fn turn(&mut self, pace: turns::Pace, device: &DeviceMeter) -> Result<Stretch> {
        let crowd = self.crowd;
        crowd.wake_into(Phase::WarmUp);
        sleep(pace.warmup);
        let mut known = Workers::find();
        let before = Snapshot::begin(device, crowd.clock, &known, || crowd.counters());
        sleep(pace.turn);
        let after = Snapshot::end(device, crowd.clock, &mut known, || crowd.counters());
        crowd.enter(Phase::Rest);
        self.wait_for_rest(PATIENCE)?;
        let stretch = Stretch::between(&before, &after, None, Modes::new(), 1);
        Ok(crowd.told(stretch))
    }

    fn wait_for_rest(&self, patience: Duration) -> Result<()> {
        let told = Instant::now();
        while !self.crowd.all_rest() {
            if self.runner.is_finished() {
                bail!("its tasks ended before they were told to");
            }
            let limit = runner::limit(patience);
            if told.elapsed() > limit {
                bail!("not all of its tasks came to rest within {limit:?}");
            }
            sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

/// Runs as many tasks as operations are to be in flight, which work in the turns that `body` gives
/// them.
pub(crate) fn in_turns(
    strategy: Runtime,
    job: &Job<'_>,
    sample_every: u32,
    body: &mut dyn FnMut(&mut Shifts<'_>) -> Result<()>,
) -> Result<()> {
    let sample_every = sample_every.max(least_every(job.depth));
    let crowd = Arc::new(Crowd::new(job.depth, job.clock, sample_every));
    crowd.enter(Phase::Rest);
    let (runner, _all_ready) = start(strategy, job, &crowd)?;
    let mut shifts = Shifts {
        crowd: &crowd,
        runner: &runner,
    };
    let done = shifts
        .wait_for_rest(PATIENCE)
        .and_then(|()| caught(|| body(&mut shifts)));
    crowd.wake_into(Phase::Stop);
    runner.end(PATIENCE)?;
    done
}

/// Runs as many tasks as operations may be in flight, begun by the clock of `pace`, and measures
/// them together.
pub(crate) fn measure_open(
    strategy: Runtime,
    job: &Job<'_>,
    pace: Pace,
    device: &DeviceMeter,
) -> Result<Stretch> {
    if strategy.needs_ring() {
        blocked::open_ring(|| io_uring::IoUring::new(1)).map(drop)?;
    }
    let alarm = Arc::new(Alarm::new(job.clock, pace));
    let crowd = Arc::new(Crowd {
        alarm: Some(Arc::clone(&alarm)),
        ..Crowd::new(job.depth, job.clock, 1)
    });
    scope(|scope| {
        std::thread::Builder::new()
            .spawn_scoped(scope, || alarm.run())
            .context(NO_THREAD)?;
        let measured = by_the_alarm(strategy, job, &alarm, &crowd, device);
        crowd.enter(Phase::Stop);
        alarm.close();
        measured
    })
}

fn by_the_alarm(
    strategy: Runtime,
    job: &Job<'_>,
    alarm: &Alarm,
    crowd: &Arc<Crowd>,
    device: &DeviceMeter,
) -> Result<Stretch> {
    let pace = &alarm.pace;
    let (runner, all_ready) = start(strategy, job, crowd)?;
    // Nothing is ever sent: it ends when every task has dropped its end.
    if let Err(limit) = runner::wait(&all_ready, PATIENCE) {
        bail!("not all of its tasks were started within {limit:?}; its threads were left behind");
    }
    pace.start(job.warmup, job.measured);
    crowd.begin_at(pace.wait_for_start(), job.measured);
    pace.sleep_through_warmup();
    let mut known = Workers::find();
    let before = Snapshot::begin(device, job.clock, &known, || crowd.counters());
    pace.sleep_through_stretch();
    let after = Snapshot::end(device, job.clock, &mut known, || crowd.counters());
    // Tasks end when the schedule is over, which is soon.
    let effective = runner.end(PATIENCE)?;
    let mut timed = crowd.timed();
    let open = pace.account(&mut timed);
    let stretch = Stretch::between(&before, &after, timed, effective, 1);
    Ok(Stretch {
        open: Some(open),
        ..crowd.told(stretch)
    })
}

/// Measures without a warm-up: what it wrote would be synced at the expense of what is measured.
/// Starting and ending the runtime is part of the stretch, which is short beside the writing.
fn synced_at_end(
    patience: Duration,
    strategy: Runtime,
    job: &Job<'_>,
    crowd: &Arc<Crowd>,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    let mut known = Workers::find();
    ground.sync()?;
    crowd.begin(job.measured);
    let before = Snapshot::begin(device, job.clock, &known, || crowd.counters());
    let (runner, _all_ready) = start(strategy, job, crowd)?;
    sleep(job.measured);
    crowd.enter(Phase::Stop);
    let effective = runner.end(patience)?;
    ground.sync()?;
    let after = Snapshot::end(device, job.clock, &mut known, || crowd.counters());
    let sample_every = crowd.sample_every();
    let stretch = Stretch::between(&before, &after, crowd.timed(), effective, sample_every);
    Ok(crowd.told(stretch))
}

type Runner = runner::Runner<Modes>;

/// Has the strategy run its runtime on a thread.
fn start(
    strategy: Runtime,
    job: &Job<'_>,
    crowd: &Arc<Crowd>,
) -> Result<(Runner, std::sync::mpsc::Receiver<()>)> {
    let (ready, all_ready) = channel();
    let task = |index: u32| {
        let ops = Ops::new(job.work, &job.share.of(index, job.depth), job.seed);
        let index = usize::try_from(index).expect("u32 fits into usize");
        Task::new(index, crowd, ops, ready.clone())
    };
    let tasks: Vec<Task> = (0..job.depth).map(task).collect();
    let step_job = StepJob {
        paths: job.paths.to_vec(),
        direct: job.direct,
        work: job.work.clone(),
        depth: job.depth,
        calls: Arc::clone(&crowd.calls),
    };
    let runner = runner::start(move || strategy.run(&step_job, tasks))?;
    Ok((runner, all_ready))
}

/// The smallest of runtimes: it asks again and again.
#[cfg(test)]
pub(super) fn run_to_end(future: impl Future<Output = ()>) {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while future.as_mut().poll(&mut context).is_pending() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::load;
    use crate::strategy::tasks::{ReadJob, StepStrategy, TaskStrategy};
    use std::path::PathBuf;

    const BLOCK_BYTES: u32 = 512;

    type Run = fn(&ReadJob, Vec<Task>) -> Result<Modes>;

    /// Measures two tasks for a moment.
    fn measured(patience: Duration, run: Run) -> Result<Stretch> {
        let strategy = Runtime::Reads(TaskStrategy {
            name: "test",
            needs_ring: false,
            run,
        });
        let mut profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        profile.resize(BLOCK_BYTES).unwrap();
        let work = profile.work(1 << 20);
        let job = Job {
            paths: &[PathBuf::from("/dev/null")],
            depth: 2,
            warmup: Duration::from_millis(1),
            measured: Duration::from_millis(50),
            ..Job::of(&work)
        };
        let device = DeviceMeter::open(None);
        let ground = Ground::new(&profile, &[], 0);
        measure_within(patience, strategy, &job, 1, &device, &ground)
    }

    fn on_two_threads(tasks: Vec<Task>, result: fn() -> std::io::Result<usize>) {
        std::thread::scope(|scope| {
            for task in tasks {
                scope.spawn(move || run_to_end(task.run((), async |(), _offset| (result(), ()))));
            }
        });
    }

    fn refusal(patience: Duration, run: Run) -> String {
        let refused = measured(patience, run).err();
        refused.expect("it cannot be measured").to_string()
    }

    #[test]
    fn reads_are_counted_and_timed() {
        let stretch = measured(PATIENCE, |job, tasks| {
            assert_eq!((job.block_bytes, job.depth), (512, 2));
            on_two_threads(tasks, || Ok(512));
            Ok(crate::strategy::modes(&[("threads", "2")]))
        })
        .unwrap();
        let counters = stretch.counters;
        assert!(counters.ops > 0);
        assert_eq!(counters.bytes, counters.ops * u64::from(BLOCK_BYTES));
        assert_eq!((counters.errors, counters.short), (0, 0));
        assert!(stretch.timed.unwrap().latencies.count() > 0);
        assert_eq!(stretch.effective["threads"], "2");
        assert!(stretch.syscalls.is_none());
    }

    #[test]
    fn failed_and_short_reads_are_counted_as_such() {
        let stretch = measured(PATIENCE, |_, tasks| {
            on_two_threads(tasks, || Err(std::io::Error::from_raw_os_error(5)));
            Ok(Modes::new())
        })
        .unwrap();
        assert_eq!(stretch.counters.ops, 0);
        assert!(stretch.counters.errors > 0);
        let stretch = measured(PATIENCE, |_, tasks| {
            on_two_threads(tasks, || Ok(511));
            Ok(Modes::new())
        })
        .unwrap();
        assert!(stretch.counters.short > 0);
    }

    #[test]
    fn why_a_runtime_failed_is_told() {
        assert_eq!(
            refusal(PATIENCE, |_, _| bail!("no such runtime")),
            "no such runtime"
        );
        let told = refusal(PATIENCE, |_, tasks| {
            panic!("{} tasks are too many", tasks.len())
        });
        assert_eq!(told, "it panicked: 2 tasks are too many");
        let told = refusal(PATIENCE, |_, _| Ok(Modes::new()));
        assert!(told.contains("before they were told to"), "{told}");
    }

    #[test]
    fn tasks_that_ended_are_not_waited_for_to_rest() {
        let strategy = Runtime::Steps(StepStrategy {
            name: "test",
            about: "for a test",
            awaits_library: false,
            run: |_, _| bail!("no such runtime"),
        });
        let work = load(&["cached-random-read".to_owned()]).unwrap()[0].work(1 << 20);
        let job = Job {
            depth: 2,
            ..Job::of(&work)
        };
        let told = in_turns(strategy, &job, 1, &mut |_| Ok(())).unwrap_err();
        assert_eq!(told.to_string(), "no such runtime");
    }

    #[test]
    fn a_runtime_that_hangs_is_left_behind() {
        let short = Duration::from_secs(1);
        let told = refusal(short, |_, mut tasks| {
            run_to_end(tasks.remove(0).run((), async |(), _| (Ok(512), ())));
            Ok(Modes::new())
        });
        assert!(told.contains("started within 1s"), "{told}");
        let told = refusal(short, |_, tasks| {
            on_two_threads(tasks, || Ok(512));
            sleep(Duration::from_secs(3600));
            Ok(Modes::new())
        });
        assert!(told.contains("did not end within 1s"), "{told}");
    }
}
