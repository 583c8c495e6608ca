//! How far the command can be trusted, by real runs: how often its words are wrong, and how far
//! its figures are from fio's. `benches/certainty.rs` says how to call it; it asserts nothing.

mod against_fio;
mod twins;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use inflight_report::Record;

use crate::assemble;
use crate::cli::{Cli, Command, Options};
use crate::confirm::{Course, Quiet};
use crate::measure::clock::Clock;
use crate::measure::ground::Ground;
use crate::measure::host;
use crate::measure::run::{Place, Running};
use crate::measure::usage::DeviceMeter;
use crate::plan::{Plan, PlannedCell};
use crate::progress::{Form, Progress};
use crate::strategy::{Job, Modes, STRATEGIES, Shape, Strategy};
use crate::target::{self, TestData};
use crate::timetable::Timetable;
use crate::work::Share;

/// Runs the program that the arguments name.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["twins", pair, directory] => twins::confirmed(pair, directory, 100, false),
        ["twins", pair, directory, runs] => twins::confirmed(pair, directory, runs.parse()?, false),
        ["turns", pair, directory, runs] => twins::confirmed(pair, directory, runs.parse()?, true),
        ["rounds", pair, directory, runs] => twins::screened(pair, directory, runs.parse()?),
        ["fio", place] => against_fio::run(place, "1,4,16,32,64,128", "8", "400", &[]),
        ["fio", place, depths, rounds, cell_ms, ref only @ ..] => {
            against_fio::run(place, depths, rounds, cell_ms, only)
        }
        [] => {
            println!("pairs: {}", twins::names());
            Ok(())
        }
        _ => bail!("not understood: see benches/certainty.rs"),
    }
}

fn options(args: &[&str]) -> Result<Options> {
    let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args))?;
    let Command::Bench(flags) = cli.command else {
        bail!("not a benchmark");
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

impl Bench<'_> {
    /// An empty cell of the profile.
    fn cell(&self, strategy: &'static dyn Strategy, shape: Shape) -> Running {
        let name = &self.plan.profiles[0].profile.name;
        PlannedCell::new(strategy, shape).begin(name, Modes::new())
    }

    /// The rounds of the profile; none are added after `until`.
    fn course(&self, until: Instant) -> Course<'_> {
        let table = Timetable {
            plan: self.plan,
            number: 0,
            end: until,
            reading: Duration::ZERO,
        };
        Course::new(self.blank, table, self.progress)
    }

    /// Runs the rounds of some cells.
    fn screen(&self, cells: &mut [Running]) -> Result<()> {
        let course = self.course(Instant::now());
        course.screen(cells, self.job, self.place, &mut Quiet)?;
        for Running { cell, .. } in cells {
            if let Some(skipped) = &cell.skipped {
                bail!("{}: {}", cell.id, skipped.reason);
            }
        }
        Ok(())
    }
}

/// Makes test data in a directory and hands over what is needed to measure on it.
fn with_bench(
    directory: &str,
    args: &[&str],
    body: &mut dyn FnMut(&Bench<'_>) -> Result<()>,
) -> Result<()> {
    let options = options(&[args, &[directory]].concat())?;
    let plan = Plan::new(&options, host::cpus())?;
    let progress = Arc::new(Progress::new(Form::Auto));
    let place = target::examine(&options.target)?;
    let mut data = TestData::new(place, &options, &plan.asked())?;
    let planned = plan.profiles.first().context("one profile")?;
    let profile = &planned.profile;
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
        fio: Path::new("fio"),
        warmup: plan.warmup(profile),
        measured: plan.measured,
    };
    let place = Place {
        device: DeviceMeter::open(None),
        ground: Ground::new(profile, files.handles(), files.file_bytes),
    };
    body(&Bench {
        plan: &plan,
        blank: &blank,
        progress: &progress,
        job: &job,
        place: &place,
    })
}
