//! Lanes of an open loop: each on a thread of its own, begun by the clock.

use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::measure::heat::Timed;
use crate::measure::meter::Meter;
use crate::measure::pace::{Pace, sharpen_timers};
use crate::measure::published::{self, Published};
use crate::measure::run::{Stretch, drive};
use crate::measure::snapshot::Snapshot;
use crate::measure::threads::NO_THREAD;
use crate::measure::usage::DeviceMeter;
use crate::measure::workers::Workers;
use crate::strategy::{Body, Job, Modes};

/// Runs `threads` lanes by the clock of `pace`, and measures them together from outside.
pub(crate) fn measure(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    threads: u32,
    pace: &Pace,
    device: &DeviceMeter,
) -> Result<Stretch> {
    let threads = threads.max(1);
    let all: Vec<Published> = (0..threads).map(|_| Published::default()).collect();
    scope(|scope| {
        let (ready, all_ready) = channel();
        let start = |(index, published)| {
            let job = Job {
                share: job.share.of(index, threads),
                pace: Some(pace),
                ..job.clone()
            };
            let ready = ready.clone();
            std::thread::Builder::new()
                .spawn_scoped(scope, move || work(with_lane, &job, pace, published, ready))
        };
        let workers: Vec<_> = (0u32..).zip(&all).map(start).collect();
        drop(ready);
        // Nothing is ever sent: it ends when every thread has dropped its end.
        while let Ok(()) = all_ready.recv() {}
        if workers.iter().any(Result::is_err) {
            // Those that were started are not to wait for ever.
            pace.start(Duration::ZERO, Duration::ZERO);
        }
        pace.start(job.warmup, job.measured);
        pace.sleep_through_warmup();
        let mut known = Workers::find();
        let before = Snapshot::begin(device, job.clock, &known, || published::sum(&all));
        pace.sleep_through_stretch();
        let after = Snapshot::end(device, job.clock, &mut known, || published::sum(&all));
        let (mut timed, mut effective, mut knows_syscalls) = (Timed::new(), Modes::new(), true);
        for worker in workers {
            let worker = worker.context(NO_THREAD)?;
            let done = worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            timed.merge(&done.timed);
            effective = done.effective;
            knows_syscalls &= done.knows_syscalls;
        }
        let open = pace.account(&mut timed);
        ensure!(
            timed.latencies.count() == open.due,
            "it did not begin by the clock"
        );
        let stretch = Stretch::between(&before, &after, timed, effective, 1);
        Ok(Stretch {
            syscalls: stretch.syscalls.filter(|_| knows_syscalls),
            open: Some(open),
            ..stretch
        })
    })
}

/// What a lane hands back.
struct Done {
    timed: Timed,
    effective: Modes,
    knows_syscalls: bool,
}

fn work(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    pace: &Pace,
    published: &Published,
    ready: Sender<()>,
) -> Result<Done> {
    sharpen_timers();
    let (mut ready, mut effective, mut knows_syscalls) = (Some(ready), Modes::new(), true);
    let mut meter = Meter::new(job.clock);
    with_lane(job, &mut |lane| {
        drop(ready.take());
        meter.record_from(pace.wait_for_start(), job.measured);
        drive(lane, &mut meter, |meter| {
            published.store(&meter.counters);
            pace.is_over(meter.last_reading_ns())
        })?;
        lane.finish(&mut meter)?;
        published.store(&meter.counters);
        knows_syscalls = lane.counts_its_own();
        effective = lane.effective();
        Ok(())
    })?;
    Ok(Done {
        timed: meter.timed,
        effective,
        knows_syscalls,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread::sleep;

    use super::*;
    use crate::measure::clock::Clock;
    use crate::measure::ground::Ground;
    use crate::measure::histogram::Latencies;
    use crate::measure::{alone, tasks};
    use crate::profile::load;
    use crate::strategy::one_by_one::{OneByOne, Perform};
    use crate::strategy::tasks::{ReadJob, Runtime, Task, TaskStrategy};
    use crate::work::Step;

    const RATE_PER_S: u64 = 2_000;
    const MEASURED: Duration = Duration::from_millis(400);
    /// An eighth of the measured time: so many of those who would have come are late.
    const STALL: Duration = Duration::from_millis(50);
    /// Longer than what a busy machine does to a few operations.
    const LATE_NS: u64 = 20_000_000;

    /// A disk that answers at once, but for one long stall in the measured time.
    struct Stalls {
        block: [u8; 4096],
        begun_ns: u64,
        clock: Clock,
        stalled: bool,
    }

    impl Perform for Stalls {
        const SYSCALLS: u64 = 0;

        fn perform(&mut self, step: &Step) -> i32 {
            let is_time = self.clock.now_ns() > self.begun_ns + 100_000_000;
            if is_time && !std::mem::replace(&mut self.stalled, true) {
                sleep(STALL);
            }
            i32::try_from(step.wanted()).expect("a block")
        }

        fn block(&mut self, bytes: usize) -> &mut [u8] {
            &mut self.block[..bytes]
        }
    }

    fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
        let disk = Stalls {
            block: [0; 4096],
            begun_ns: job.clock.now_ns(),
            clock: job.clock,
            stalled: false,
        };
        OneByOne::new(job, disk).lend(job, body)
    }

    /// What is done with a job on `/dev/null`.
    fn with_job<T>(measure: impl FnOnce(&Job<'_>, &DeviceMeter, &Ground<'_>) -> T) -> T {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 20);
        let job = Job {
            paths: &[PathBuf::from("/dev/null")],
            warmup: Duration::from_millis(20),
            measured: MEASURED,
            ..Job::of(&work)
        };
        let ground = Ground::new(&profile, &[], 0);
        measure(&job, &DeviceMeter::open(None), &ground)
    }

    fn timed(stretch: &Stretch) -> &Latencies {
        &stretch.timed.as_ref().expect("rounds are timed").latencies
    }

    /// The share of operations that were late.
    fn late(stretch: &Stretch) -> f64 {
        timed(stretch).share_above(LATE_NS)
    }

    #[test]
    fn a_stall_counts_for_all_who_would_have_come_and_a_closed_loop_hides_it() {
        let closed =
            with_job(|job, device, ground| alone::measure(with_lane, job, 1, device, ground));
        assert!(late(&closed.unwrap()) < 0.01, "one of very many");
        let open = with_job(|job, device, _| {
            let pace = Pace::new(job.clock, RATE_PER_S);
            measure(with_lane, job, 1, &pace, device)
        });
        let open = open.unwrap();
        // 30 of the 50 ms: 60 of 800 operations.
        assert!(late(&open) > 0.05, "{}", late(&open));
        let counted = open.open.unwrap();
        assert_eq!((counted.due, timed(&open).count()), (800, 800));
        assert!(open.counters.ops > 0 && open.counters.errors == 0);
    }

    #[test]
    fn several_threads_share_the_schedule_and_one_that_stalls_holds_up_only_itself() {
        let open = with_job(|job, device, _| {
            let pace = Pace::new(job.clock, RATE_PER_S);
            measure(with_lane, job, 8, &pace, device)
        });
        let open = open.unwrap();
        assert_eq!(timed(&open).count(), 800, "each once");
        assert_eq!(open.open.unwrap().due, 800);
    }

    #[test]
    fn a_lane_that_cannot_be_opened_is_told_and_nobody_waits_for_ever() {
        let refused = with_job(|job, device, _| {
            let pace = Pace::new(job.clock, RATE_PER_S);
            measure(|_, _| anyhow::bail!("no such lane"), job, 3, &pace, device)
        });
        assert_eq!(refused.err().unwrap().to_string(), "no such lane");
    }

    /// Tasks on one thread each that poll until they are ready, and stall once.
    fn stalling_runtime(_: &ReadJob, tasks: Vec<Task>) -> Result<Modes> {
        let reads = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for task in tasks {
                let reads = &reads;
                scope.spawn(move || {
                    let read = async |(), _offset| {
                        if reads.fetch_add(1, Relaxed) == 300 {
                            sleep(STALL);
                        }
                        (Ok(4096), ())
                    };
                    tasks::run_to_end(task.run((), read));
                });
            }
        });
        Ok(Modes::new())
    }

    #[test]
    fn tasks_are_woken_when_they_are_due_and_a_stall_counts_for_all() {
        let strategy = Runtime::Reads(TaskStrategy {
            name: "test",
            needs_ring: false,
            run: stalling_runtime,
        });
        let open = with_job(|job, device, _| {
            let pace = Pace::new(job.clock, RATE_PER_S);
            tasks::measure_open(strategy, job, pace, device)
        });
        let open = open.unwrap();
        assert!(late(&open) > 0.05, "{}", late(&open));
        assert_eq!(timed(&open).count(), 800);
    }
}
