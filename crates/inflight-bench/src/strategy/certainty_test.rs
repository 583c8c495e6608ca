//! How often the words are wrong, by real runs: one strategy under two names, and one that is
//! slowed by a twentieth. They take minutes and measure this machine, so they run when asked:
//! `cargo test --release -p inflight-bench --lib -- --ignored --nocapture certainty`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use inflight_report::Record;
use inflight_report::record::Round;
use inflight_report::stats::{Word, compare, median, rate};
use io_uring::IoUring;

use super::blocked::open_ring;
use super::slots::flags_mode;
use super::uring::{self, Calls};
use super::{Body, Job, Lane, Modes, STRATEGIES, Shape, Strategy, Way};
use crate::assemble;
use crate::cli::{Cli, Command, Options};
use crate::confirm::{Course, Quiet};
use crate::measure::clock::Clock;
use crate::measure::ground::Ground;
use crate::measure::histogram::Latencies;
use crate::measure::meter::Meter;
use crate::measure::run::{Place, Running};
use crate::measure::usage::DeviceMeter;
use crate::plan::{Plan, PlannedCell};
use crate::progress::{Form, Progress};
use crate::target::{self, TestData};
use crate::work::Share;

/// Runs of twins; half as many are made of the slowed one.
const RUNS: u32 = 100;
/// Of so many operations the slowed one forgets one.
const FORGETS_ONE_IN: u64 = 20;
/// Of the rounds that tell them apart, when a profile has as much of a default run's two minutes.
const LIMIT: Duration = Duration::from_secs(7);

/// A strategy under another name.
struct Twin {
    of: &'static dyn Strategy,
    name: &'static str,
    way: Option<fn(&Job<'_>, Body<'_>) -> Result<()>>,
}

impl Strategy for Twin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn way(&self) -> Way {
        self.way.map_or_else(|| self.of.way(), Way::Lanes)
    }
}

/// A lane that does not count one operation in so many: slower by exactly that, however its work
/// overlaps.
struct Slowed<'l> {
    lane: &'l mut dyn Lane,
    counted: u64,
}

impl Lane for Slowed<'_> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let before = meter.counters.ops;
        self.lane.turn(meter)?;
        self.counted += meter.counters.ops - before;
        meter.counters.ops -= self.counted / FORGETS_ONE_IN;
        self.counted %= FORGETS_ONE_IN;
        Ok(())
    }

    fn sample_every(&mut self, every: u32) -> u32 {
        self.lane.sample_every(every)
    }

    fn finish(&mut self, meter: &mut Meter) -> Result<()> {
        self.lane.finish(meter)
    }
}

fn slowed(of: &dyn Strategy, job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let Way::Lanes(with_lane) = of.way() else {
        anyhow::bail!("{} has no lane", of.name());
    };
    with_lane(job, &mut |lane| body(&mut Slowed { lane, counted: 0 }))
}

const fn twin(of: &'static dyn Strategy) -> Twin {
    Twin {
        of,
        name: "twin",
        way: None,
    }
}

static URING: uring::Uring = uring::Uring;
static PREAD: super::pread::Pread = super::pread::Pread;
static TWIN_OF_URING: Twin = twin(&URING);
static TWIN_OF_PREAD: Twin = twin(&PREAD);
static SLOWED_URING: Twin = Twin {
    name: "slowed",
    way: Some(|job, body| slowed(&URING, job, body)),
    ..twin(&URING)
};
static SLOWED_PREAD: Twin = Twin {
    name: "slowed",
    way: Some(|job, body| slowed(&PREAD, job, body)),
    ..twin(&PREAD)
};

/// The plain ring, set up as fio 3.33 sets up its own.
static AS_FIO: Twin = Twin {
    name: "uring-as-fio",
    way: Some(|job, body| {
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun().setup_single_issuer();
        builder.setup_defer_taskrun().setup_cqsize(job.depth);
        let ring = open_ring(|| builder.build(job.depth))?;
        uring::run(job, ring, Calls::EachTurn, flags_mode("as fio"), body)
    }),
    ..twin(&URING)
};

fn options(args: &[&str]) -> Result<Options> {
    let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args))?;
    let Command::Bench(flags) = cli.command else {
        anyhow::bail!("not a benchmark");
    };
    flags.into_options(STRATEGIES)
}

/// What a run of one profile works with.
struct Bench<'b> {
    plan: &'b Plan,
    blank: &'b Record,
    progress: &'b Progress,
    job: &'b Job<'b>,
    place: &'b Place<'b>,
}

/// Makes test data and hands over what is needed to measure on it.
fn with_bench(args: &[&str], body: &mut dyn FnMut(&Bench<'_>) -> Result<()>) -> Result<()> {
    let directory = std::env::var("INFLIGHT_TEST_DIR").unwrap_or_else(|_| ".".to_owned());
    let options = options(&[args, &[directory.as_str()]].concat())?;
    let plan = Plan::new(&options, 2)?;
    let progress = Arc::new(Progress::new(Form::Auto));
    let place = target::examine(&options.target)?;
    let mut data = TestData::new(place, &options, &plan.asked())?;
    let profile = &plan.profiles[0].profile;
    let (paths, clock) = (data.make(profile, &progress)?, Clock::start());
    let blank = assemble::blank(&options, &plan, &data, &paths, clock)?;
    let (files, _) = data.open(profile, paths)?;
    target::prepare_cache(&files, profile)?;
    let (fds, work) = (files.fds(), profile.work(files.file_bytes));
    let job = Job {
        fds: &fds,
        paths: &files.paths,
        work: &work,
        pace: None,
        share: Share::whole(),
        direct: profile.direct(),
        depth: 1,
        seed: 1,
        clock,
        fio: &options.fio,
        warmup: plan.warmup,
        measured: plan.measured,
    };
    let place = Place {
        device: DeviceMeter::open(None),
        ground: Ground::new(profile, files.handles()),
    };
    body(&Bench {
        plan: &plan,
        blank: &blank,
        progress: &progress,
        job: &job,
        place: &place,
    })
}

fn cell(bench: &Bench<'_>, strategy: &'static dyn Strategy, depth: u32) -> Running {
    let shape = Shape { depth, threads: 1 };
    let name = &bench.plan.profiles[0].profile.name;
    PlannedCell {
        strategy,
        shape,
        rate_per_s: None,
    }
    .begin(name, Modes::new())
}

/// Confirms two screened cells as a run does, and says what follows; then forgets the fresh rounds.
fn one_run(bench: &Bench<'_>, cells: &mut [Running], seed: u64) -> Result<Word> {
    let job = Job {
        seed,
        ..bench.job.clone()
    };
    let (began, profile) = (Instant::now(), &bench.plan.profiles[0].profile);
    let until = began + LIMIT;
    let course = Course::new(bench.blank, bench.plan, profile, until, bench.progress);
    course.confirm(cells, &job, bench.place)?;
    let found = compare(&cells[1].cell, &cells[0].cell).context("they share rounds")?;
    println!(
        "{},{},{},{:.3},{},{:.4},{:.4},{:.4},{:?}",
        cells[0].cell.id,
        cells[1].cell.strategy,
        seed,
        began.elapsed().as_secs_f64(),
        found.n,
        found.ratio,
        found.lo,
        found.hi,
        found.word()
    );
    for Running { cell, .. } in cells {
        cell.rounds.retain(|round| !round.confirms);
        cell.turns.clear();
    }
    Ok(found.word())
}

/// Shares of the twins that were called different, and of the slowed ones that were called slower.
fn shares(
    profile: &str,
    depth: u32,
    [one, twin, slowed]: [&'static dyn Strategy; 3],
) -> Result<(f64, f64)> {
    let (mut different, mut slower) = (0, 0);
    // The cell time of a default run of four profiles.
    with_bench(&["--profile", profile, "--cell-time", "50"], &mut |bench| {
        let mut pairs = [twin, slowed].map(|other| {
            let pair = [one, other].map(|strategy| cell(bench, strategy, depth));
            Vec::from(pair)
        });
        for pair in &mut pairs {
            Course::new(
                bench.blank,
                bench.plan,
                &bench.plan.profiles[0].profile,
                Instant::now(),
                bench.progress,
            )
            .screen(pair, bench.job, bench.place, &mut Quiet)?;
        }
        let [twins, slowed] = &mut pairs;
        for run in 0..RUNS {
            let word = one_run(bench, twins, u64::from(run))?;
            let is_wrong = [Word::ClearlyFaster, Word::ClearlySlower].contains(&word);
            different += u32::from(is_wrong);
            if run % 2 == 0 {
                let word = one_run(bench, slowed, u64::from(run))?;
                slower += u32::from(word == Word::ClearlySlower);
            }
        }
        Ok(())
    })?;
    let share = |count: u32, of: u32| f64::from(count) * 100.0 / f64::from(of);
    Ok((share(different, RUNS), share(slower, RUNS / 2)))
}

#[test]
#[ignore = "takes ten minutes"]
fn twins_are_seldom_called_different_and_a_slowed_one_is_found_on_the_disk() {
    let three: [&dyn Strategy; 3] = [&URING, &TWIN_OF_URING, &SLOWED_URING];
    let (wrong, found) = shares("direct-random-read", 32, three).unwrap();
    println!("disk: {wrong:.1} % of twins called different, {found:.1} % of slowed ones slower");
    assert!(wrong <= 5.0 && found >= 90.0);
}

#[test]
#[ignore = "takes ten minutes"]
fn twins_are_seldom_called_different_and_a_slowed_one_is_found_in_memory() {
    let three: [&dyn Strategy; 3] = [&PREAD, &TWIN_OF_PREAD, &SLOWED_PREAD];
    let (wrong, found) = shares("cached-random-read", 1, three).unwrap();
    println!("memory: {wrong:.1} % of twins called different, {found:.1} % of slowed ones slower");
    assert!(wrong <= 5.0 && found >= 90.0);
}

/// A figure of ours over fio's, of the rounds that both have: operations per second.
fn against_fio(ours: &Running, theirs: &Running) -> Result<[f64; 3]> {
    let logs = ours.cell.rounds.iter().filter_map(|round| {
        let same = |other: &&Round| other.block == round.block;
        let other = theirs.cell.rounds.iter().find(same)?;
        Some(rate(round)? / rate(other)?)
    });
    let rates = median(logs.collect()).context("they share rounds")?;
    let times = |of: fn(&Latencies) -> Option<u64>| {
        let both = of(&ours.latencies).zip(of(&theirs.latencies));
        let (ours, theirs) = both.context("both are timed")?;
        Ok::<_, anyhow::Error>(ours as f64 / theirs as f64)
    };
    Ok([rates, times(Latencies::ns_p50)?, times(Latencies::ns_p99)?])
}

#[test]
#[ignore = "takes a minute, and fio"]
fn our_loop_and_fio_measure_the_same_with_the_same_ring() {
    let args = ["--profile", "direct-random-read", "--cell-time", "200"];
    let mut apart = Vec::new();
    let found = with_bench(&args, &mut |bench| {
        for depth in [1, 4, 16, 32, 64, 128] {
            let pair: [&'static dyn Strategy; 2] = [&AS_FIO, &super::fio::Fio];
            let mut cells = pair.map(|strategy| cell(bench, strategy, depth));
            let profile = &bench.plan.profiles[0].profile;
            let (now, progress) = (Instant::now(), bench.progress);
            Course::new(bench.blank, bench.plan, profile, now, progress).screen(
                &mut cells,
                bench.job,
                bench.place,
                &mut Quiet,
            )?;
            let [rate, p50, p99] = against_fio(&cells[0], &cells[1])?;
            println!(
                "depth {depth}: {rate:.3} of fio's rate, {p50:.3} of its p50, {p99:.3} of its p99"
            );
            if (rate - 1.0).abs() > 0.03 || (p50 - 1.0).abs() > 0.05 || (p99 - 1.0).abs() > 0.05 {
                apart.push(depth);
            }
        }
        Ok(())
    });
    found.unwrap();
    assert!(apart.is_empty(), "apart at {apart:?}");
}
