//! The measuring loop: rounds in which every cell runs once, in shuffled order.
//!
//! Every figure is the difference of two snapshots of the whole process. What is planned comes in,
//! rounds go out; progress and interruption go through [`Watch`].

use std::ops::Range;

use anyhow::Result;
use inflight_report::record::{Cell, DeviceWork, OpenRound, Round, Skipped};
use oorandom::Rand64;

use crate::measure::caught::caught;
use crate::measure::ground::Ground;
use crate::measure::heat::Timed;
use crate::measure::histogram::Latencies;
use crate::measure::meter::{Counters, Meter};
use crate::measure::pace::Pace;
use crate::measure::snapshot::Snapshot;
use crate::measure::usage::{DeviceMeter, device_work_between};
use crate::measure::{alone, by_clock, crew, sampling, tasks};
use crate::strategy::{Job, Lane, Modes, Shape, Strategy, Unavailable, Way};
use crate::work::{Share, mix};

/// One measured stretch of one cell.
pub(crate) struct Stretch {
    pub(crate) start_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) counters: Counters,
    /// As in the counters, unless the strategy cannot know.
    pub(crate) syscalls: Option<u64>,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) device: Option<DeviceWork>,
    pub(crate) user_ns: u64,
    pub(crate) sys_ns: u64,
    pub(crate) worker_ns: Option<u64>,
    pub(crate) ctxsw: u64,
    /// Absent where nobody asked for latencies.
    pub(crate) timed: Option<Timed>,
    pub(crate) effective: Modes,
    pub(crate) sample_every: u32,
    /// Of an open loop.
    pub(crate) open: Option<OpenRound>,
}

impl Stretch {
    pub(crate) fn between(
        before: &Snapshot,
        after: &Snapshot,
        timed: impl Into<Option<Timed>>,
        effective: Modes,
        sample_every: u32,
    ) -> Self {
        let counters = after.counters.since(&before.counters);
        let usage = after.usage.since(&before.usage);
        let device_bytes = after.device_bytes.zip(before.device_bytes);
        let device = before.device.zip(after.device);
        let between = |(before, after)| device_work_between(&before, &after);
        let workers = after.workers.as_ref().zip(before.workers.as_ref());
        Self {
            start_ns: before.at_ns,
            duration_ns: after.at_ns - before.at_ns,
            counters,
            syscalls: Some(counters.syscalls),
            device_bytes: device_bytes.map(|(after, before)| after.saturating_sub(before)),
            device: device.map(between),
            user_ns: usage.user_ns,
            sys_ns: usage.sys_ns,
            worker_ns: workers.map(|(after, before)| after.since_ns(before)),
            ctxsw: usage.ctxsw,
            timed: timed.into(),
            effective,
            sample_every,
            open: None,
        }
    }

    /// The round that was begun with its place in the run.
    pub(crate) fn round(&self, begun: Round) -> Round {
        Round {
            start_ns: self.start_ns,
            duration_ns: self.duration_ns,
            ops: self.counters.ops,
            bytes: self.counters.bytes,
            device_bytes: self.device_bytes,
            errors: self.counters.errors,
            errno: (self.counters.errno != 0).then_some(self.counters.errno),
            short: self.counters.short,
            user_ns: self.user_ns,
            sys_ns: self.sys_ns,
            worker_ns: self.worker_ns,
            syscalls: self.syscalls,
            ctxsw: self.ctxsw,
            wrong: self.counters.wrong,
            device: self.device,
            open: self.open,
            ..begun
        }
    }
}

/// Where a profile is measured.
pub(crate) struct Place<'f> {
    pub(crate) device: DeviceMeter,
    pub(crate) ground: Ground<'f>,
}

/// A cell while it is measured.
pub(crate) struct Running {
    pub(crate) cell: Cell,
    pub(crate) strategy: &'static dyn Strategy,
    pub(crate) shape: Shape,
    pub(crate) latencies: Latencies,
    /// One text for each round, or none where a strategy does not tell.
    pub(crate) heat: Vec<String>,
    pub(crate) sample_every: Option<u32>,
    /// Where it could not run because there is no io_uring: what to do about that; can be empty.
    pub(crate) denied: Option<&'static str>,
}

/// Who watches the measurement, and may stop it between two cells.
pub(crate) trait Watch {
    fn cell_done(&mut self, block: u32, running: &Running);
    fn block_done(&mut self, block: u32);
    fn stopped(&self) -> bool;

    /// Those with a lower one come before the others, in a round that may be stopped.
    fn rank(&self, _cell: &Cell) -> u32 {
        0
    }
}

/// Some rounds of a run.
pub(crate) struct Stage {
    /// Their numbers.
    pub(crate) blocks: Range<u32>,
    /// Whether they are to confirm what the rounds before have chosen.
    pub(crate) confirms: bool,
}

/// Measures cells of one profile. `job` is what they have in common.
pub(crate) fn run(
    cells: &mut [&mut Running],
    job: &Job<'_>,
    place: &Place<'_>,
    stage: &Stage,
    watch: &mut dyn Watch,
) -> Result<()> {
    let mut random = Rand64::new(u128::from(job.seed ^ mix(u64::from(stage.blocks.start))));
    if cells.iter().any(|cell| cell.sample_every.is_none()) && !watch.stopped() {
        sampling::agree(cells, job, place);
    }
    for block in stage.blocks.clone() {
        let mut order: Vec<usize> = (0..cells.len()).collect();
        shuffle(&mut order, &mut random);
        order.sort_by_key(|index| watch.rank(&cells[*index].cell));
        for (order, index) in (0u32..).zip(order) {
            if watch.stopped() {
                return Ok(());
            }
            let seed = mix(random.rand_u64());
            let cell = &mut *cells[index];
            let job = Job {
                seed,
                share: Share::whole(),
                ..job.clone()
            };
            let place_of_round = Round {
                block,
                order,
                confirms: stage.confirms,
                ..Round::default()
            };
            measure_once(cell, &job, place_of_round, place);
            watch.cell_done(block, cell);
        }
        watch.block_done(block);
    }
    Ok(())
}

/// Runs a cell once. A strategy that cannot run leaves its reason in the cell and is not
/// tried again; the others go on.
fn measure_once(cell: &mut Running, job: &Job<'_>, begun: Round, place: &Place<'_>) {
    let failed_before =
        cell.cell.skipped.is_some() && cell.cell.rounds.is_empty() && begun.block > 0;
    if failed_before {
        return;
    }
    match caught(|| stretch(cell, job, place)) {
        Ok(stretch) => {
            cell.cell.rounds.push(stretch.round(begun));
            if let Some(timed) = &stretch.timed {
                cell.latencies.merge(&timed.latencies);
                cell.heat.extend(timed.heat.store());
            }
            cell.cell.effective.extend(stretch.effective);
            cell.sample_every = Some(stretch.sample_every);
        }
        Err(error) => {
            let unavailable = error.downcast_ref::<Unavailable>();
            cell.denied = unavailable.and_then(|why| why.denied);
            cell.cell.skipped = Some(Skipped {
                reason: format!("{error:#}"),
            });
        }
    }
}

fn stretch(cell: &Running, job: &Job<'_>, place: &Place<'_>) -> Result<Stretch> {
    let Place { device, ground } = place;
    ground.prepare()?;
    let Shape { depth, threads } = cell.shape;
    let job = Job {
        depth: depth / threads.max(1),
        ..job.clone()
    };
    if let Some(rate_per_s) = cell.cell.rate_per_s {
        let pace = Pace::new(job.clock, rate_per_s);
        return match cell.strategy.way() {
            Way::Program(_) => unreachable!("no other program has an open loop here"),
            Way::Tasks(strategy) => tasks::measure_open(strategy, &job, pace, device),
            Way::Lanes(with_lane) => by_clock::measure(with_lane, &job, threads, &pace, device),
        };
    }
    let sample_every = cell.sample_every.unwrap_or(1);
    match cell.strategy.way() {
        Way::Program(measure) => measure(&job),
        Way::Tasks(strategy) => tasks::measure(strategy, &job, sample_every, device, ground),
        Way::Lanes(with_lane) if threads <= 1 => {
            alone::measure(with_lane, &job, sample_every, device, ground)
        }
        Way::Lanes(with_lane) => {
            crew::measure(with_lane, &job, threads, sample_every, device, ground)
        }
    }
}

/// Turns a lane until it is told to stop: the innermost loop of every measurement.
pub(crate) fn drive(
    lane: &mut dyn Lane,
    meter: &mut Meter,
    stop: impl Fn(&Meter) -> bool,
) -> Result<()> {
    loop {
        lane.turn(meter)?;
        if stop(meter) {
            return Ok(());
        }
    }
}

/// Nanoseconds of a length of time.
pub(crate) fn length_of(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// Fisher and Yates.
pub(crate) fn shuffle(order: &mut [usize], random: &mut Rand64) {
    for last in (1..order.len()).rev() {
        let bound = u64::try_from(last).expect("usize fits into u64") + 1;
        let other = usize::try_from(random.rand_range(0..bound)).expect("below a usize");
        order.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::measure::{turns, usage};
    use crate::plan::PlannedCell;
    use crate::profile::load;
    use crate::strategy::one_by_one::{OneByOne, Perform};
    use crate::strategy::{ALONE, pread};
    use crate::work::Step;

    /// Panics at its first operation.
    struct Breaks;

    impl Perform for Breaks {
        const SYSCALLS: u64 = 0;

        fn perform(&mut self, _step: &Step) -> i32 {
            panic!("planned")
        }

        fn block(&mut self, _bytes: usize) -> &mut [u8] {
            &mut []
        }
    }

    struct Broken;

    impl Strategy for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn about(&self) -> &'static str {
            "for a test"
        }

        fn way(&self) -> Way {
            Way::Lanes(|job, body| OneByOne::unverified(job, Breaks).lend(job, body))
        }
    }

    struct NobodyWatches;

    impl Watch for NobodyWatches {
        fn cell_done(&mut self, _block: u32, _running: &Running) {}
        fn block_done(&mut self, _block: u32) {}
        fn stopped(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_strategy_that_panics_costs_its_own_cell_and_not_the_run() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(1 << 20).expect("room for 1 MiB");
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 20);
        let job = Job {
            fds: &[file.as_raw_fd()],
            paths: &[PathBuf::from(file.path())],
            measured: Duration::from_millis(1),
            ..Job::of(&work)
        };
        let place = Place {
            device: usage::DeviceMeter::open(None),
            ground: Ground::new(&profile, &[], 0),
        };
        let cell = |strategy: &'static dyn Strategy, threads| {
            let depth = threads;
            let planned = PlannedCell::new(strategy, Shape { depth, threads });
            planned.begin(&profile.name, Modes::new())
        };
        let stage = Stage {
            blocks: 0..2,
            confirms: false,
        };
        for threads in [ALONE.threads, 2] {
            let mut broken = cell(&Broken, threads);
            let mut fine = cell(&pread::Pread, 1);
            let mut both = [&mut broken, &mut fine];
            run(&mut both, &job, &place, &stage, &mut NobodyWatches).expect("it goes on");
            let skipped = broken.cell.skipped.expect("it is told");
            assert_eq!(skipped.reason, "it panicked: planned");
            assert_eq!((broken.cell.rounds.len(), fine.cell.rounds.len()), (0, 2));
        }
        for threads in [ALONE.threads, 2] {
            let (mut broken, mut fine) = (cell(&Broken, threads), cell(&pread::Pread, 1));
            broken.latencies.record(1_000);
            let mut both = [&mut fine, &mut broken];
            let long_enough = Job {
                measured: Duration::from_millis(20),
                ..job.clone()
            };
            let pace = turns::Pace::of(&both, &long_enough).expect("they are short");
            let refused = turns::measure(&mut both, &long_enough, &place, pace, &stage, None);
            let told = refused.expect_err("one is broken").to_string();
            assert_eq!(told, "it panicked: planned");
            assert!(fine.cell.rounds.is_empty() && fine.cell.turns.is_empty());
        }
    }

    #[test]
    fn a_shuffle_keeps_everything_and_depends_on_the_seed() {
        let shuffled = |seed| {
            let mut order: Vec<usize> = (0..50).collect();
            shuffle(&mut order, &mut Rand64::new(seed));
            order
        };
        let mut sorted = shuffled(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
    }
}
