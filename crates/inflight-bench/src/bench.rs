//! `inflight bench`: options in; plan, data, measurement, record and report, in this order.

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use inflight_report::Record;
use inflight_report::open;
use inflight_report::ranking::Ranking;
use inflight_report::record::{NO_TIME, ProfileSummary, Reread, STOPPED, Skipped};
use inflight_report::truth::in_memory;

use crate::cli::Options;
use crate::confirm::{Course, GRACE};
use crate::exports::Inputs;
use crate::measure::clock::{Clock, utc_now};
use crate::measure::ground::Ground;
use crate::measure::run::{self, Running};
use crate::measure::usage::DeviceMeter;
use crate::measure::{host, storage};
use crate::plan::{Plan, PlannedCell, PlannedProfile};
use crate::profile::Profile;
use crate::progress::{Progress, Rounds};
use crate::size::human;
use crate::strategy::{self, FIO_CHECKS, Job, Modes, Strategy};
use crate::target::{self, Files, Place, TestData};
use crate::timetable::{self, Timetable};
use crate::work::{Share, mix};
use crate::{assemble, doctor, exit, explain, exports, leftover, reread, show, signals};

/// Runs the benchmark and returns the exit code.
pub(crate) fn bench(options: &Options) -> Result<u8> {
    let progress = Arc::new(Progress::new(options.progress));
    progress.end(run(options, &progress))
}

fn run(options: &Options, progress: &Arc<Progress>) -> Result<u8> {
    let clock = Clock::start();
    let started_utc = utc_now();
    let plan = Plan::new(options, host::cpus())?;
    if options.explain {
        return explain::print(options, &plan);
    }
    let inputs = Inputs::of(options.read_only());
    check_before_writing(options, &inputs)?;
    signals::watch(Arc::clone(progress))?;
    progress.start(&plan);
    let place = target::examine(&options.target)?;
    if let Place::Directory(directory) = &place {
        clean_up(directory, progress);
    }
    let mut data = TestData::new(place, options, &plan.asked())?;
    if plan.profiles.iter().any(|planned| planned.profile.direct()) {
        for unfit in doctor::unfit_place(&options.target)? {
            progress.say(&format!("Blocker: {unfit}"));
        }
    }
    announce(&plan, &data, options.quick, progress);
    let begun = Instant::now();
    let paths = make_first(&plan, &mut data, progress)?;
    let writing = begun.elapsed();
    tell_if_short(&plan, clock, writing, progress);
    let mut record = assemble::blank(options, &plan, &data, &paths, clock)?;
    record.started_utc = started_utc;
    let patience = signals::Patience::begin();
    let run = Run {
        options,
        plan: &plan,
        blank: &record,
        clock,
        progress,
        writing,
    };
    let measured = run.measure(&mut data)?;
    record.reread = measured.reread;
    progress.rest();
    record.took_ns = clock.now_ns();
    record.interrupted = signals::interrupted();
    assemble::finish(&mut record, measured.cells)?;
    if options.keep_file {
        for path in data.keep()? {
            progress.say(&format!("kept {}", path.display()));
        }
    }
    drop(data);
    let shown = show::show(&record, &options.exports, &inputs);
    if shown.is_err() {
        exports::rescue(&record, progress);
    }
    shown?;
    drop(patience);
    Ok(exit_code(&record, options, &plan, measured.refused))
}

/// Makes the test data of the first profile that can have some. What keeps another one from it is
/// told where that is measured; if none has any, it is what keeps the first.
fn make_first(plan: &Plan, data: &mut TestData, progress: &Progress) -> Result<Vec<PathBuf>> {
    let mut refusal = None;
    for planned in &plan.profiles {
        match data.make(&planned.profile, progress) {
            Ok(paths) => return Ok(paths),
            Err(error) => _ = refusal.get_or_insert(error),
        }
    }
    Err(refusal.context("no profile was asked for")?)
}

/// Says which profiles have no place here, how long the others will take, and what is left out.
fn announce(plan: &Plan, data: &TestData, quick: bool, progress: &Progress) {
    let mut expected = Duration::ZERO;
    for planned in &plan.profiles {
        match data.refusal(&planned.profile) {
            Some(reason) => {
                progress.say(&format!("{}: not run: {reason}", planned.profile.name));
            }
            None => expected += plan.expected_of(slice::from_ref(planned)),
        }
    }
    if expected > Duration::ZERO {
        let told = timetable::told(plan, expected);
        progress.say(&format!("measuring for {told}"));
        if let Some(left_out) = plan.left_out.told(quick) {
            progress.say(&left_out);
        }
    }
}

/// Says that writing the data has taken what the rounds would need, if so.
fn tell_if_short(plan: &Plan, clock: Clock, writing: Duration, progress: &Progress) {
    let since = Duration::from_nanos(clock.now_ns());
    if plan.is_short(since) && writing > since / 2 {
        let (writing, left) = (writing.as_secs_f64(), plan.left(since).as_secs_f64());
        progress.say(&format!(
            "the test data took {writing:.1} s to write, which leaves {left:.1} s for rounds: not \
             all cells will have enough; --size makes it smaller, --max-time gives more time"
        ));
    }
}

/// What would otherwise fail only after the data was written.
fn check_before_writing(options: &Options, inputs: &Inputs) -> Result<()> {
    let is_check = |strategy: &&dyn Strategy| FIO_CHECKS.contains(&strategy.name());
    let checks = options.strategies.iter().copied().filter(is_check).count();
    // One strategy among others is not run where it cannot be; the others are.
    if checks > 0 && (options.fio_asked || checks == options.strategies.len()) {
        strategy::check_fio(&options.fio)?;
    }
    options.exports.check(inputs)
}

/// Removes the test files of runs that were killed, and tells it.
fn clean_up(directory: &Path, progress: &Progress) {
    for left in leftover::find(directory) {
        let shown = left.path.display().to_string();
        let size = human(left.size_bytes);
        let done = match left.remove() {
            Ok(()) => "removed".to_owned(),
            Err(error) => format!("cannot be removed: {error}"),
        };
        progress.say(&format!(
            "left over from a run that was killed: {shown} ({size}), {done}"
        ));
    }
    if let Some(pid) = leftover::neighbour(directory) {
        // In a container, or on another machine, processes have numbers of their own.
        let known = match leftover::is_another(pid) {
            true => format!("process {pid}"),
            false => format!("process {pid} elsewhere"),
        };
        progress.say(&format!(
            "another run works in {} ({known}): each slows the other down, so that figures of \
             neither are those of the disk",
            directory.display()
        ));
    }
}

/// What the profiles of a run have in common.
struct Run<'a> {
    options: &'a Options,
    plan: &'a Plan,
    /// The record without its cells.
    blank: &'a Record,
    clock: Clock,
    progress: &'a Progress,
    /// How long it took to write the data: reading it will hardly take longer.
    writing: Duration,
}

/// What was measured.
#[derive(Default)]
struct Measured {
    cells: Vec<Running>,
    reread: Option<Reread>,
    /// The exit code of the first profile that could not be set up, if one could not.
    refused: Option<u8>,
}

impl Run<'_> {
    /// Measures all profiles. One that cannot be set up leaves its reason; the others go on.
    fn measure(&self, data: &mut TestData) -> Result<Measured> {
        let end = Instant::now() + self.plan.left(Duration::from_nanos(self.clock.now_ns()));
        let stat = storage::stat_of(&self.blank.target);
        let mut done = Measured::default();
        for (number, planned) in self.plan.profiles.iter().enumerate() {
            let profile = &planned.profile;
            if signals::interrupted() {
                done.cells.extend(all_skipped(planned, STOPPED));
                continue;
            }
            if self.plan.leaves_out() && Instant::now() >= end + GRACE {
                done.cells.extend(all_skipped(planned, NO_TIME));
                continue;
            }
            let refused = data.refusal(profile).map(str::to_owned);
            // What is memory as a whole needs none beside.
            let is_disk = !in_memory(&self.blank.target);
            let too_large = || data.too_large_for_cache(profile).filter(|_| is_disk);
            if let Some(reason) = refused.or_else(too_large) {
                done.cells.extend(all_skipped(planned, &reason));
                continue;
            }
            let device = DeviceMeter::open(stat.as_deref());
            if let Err(error) = self.measure_one(number, data, device, end, &mut done) {
                let reason = format!("{error:#}");
                self.progress
                    .say(&format!("{}: not run: {reason}", profile.name));
                done.cells.extend(all_skipped(planned, &reason));
                done.refused = done.refused.or(Some(exit::code_of(&error)));
            }
        }
        Ok(done)
    }

    /// Sets the profile of this number up and measures it.
    fn measure_one(
        &self,
        number: usize,
        data: &mut TestData,
        device: DeviceMeter,
        end: Instant,
        done: &mut Measured,
    ) -> Result<()> {
        let (options, plan) = (self.options, self.plan);
        let planned = &plan.profiles[number];
        let profile = &planned.profile;
        let paths = data.make(profile, self.progress)?;
        let (files, refused) = data.open(profile, paths)?;
        let (fds, work) = (files.fds(), profile.work(files.file_bytes));
        let job = Job {
            fds: &fds,
            paths: &files.paths,
            work: &work,
            pace: None,
            share: Share::whole(),
            direct: profile.direct() && refused.is_none(),
            depth: 1,
            seed: mix(options.seed ^ mix(u64::try_from(number)?)),
            clock: self.clock,
            fio: &options.fio,
            warmup: plan.warmup(profile),
            measured: plan.measured,
        };
        let (mut cells, unfit) = begin(planned, &job, refused.as_deref());
        if !signals::interrupted() {
            target::prepare_cache(&files, profile)?;
        }
        let asks = profile.direct() && profile.asked.access.reads();
        if done.reread.is_none() && refused.is_none() && asks && !signals::interrupted() {
            done.reread = read_twice(profile, &files, &job)?;
        }
        let mut watch = Rounds::begin(self.progress, plan, number, end);
        let place = run::Place {
            device,
            ground: Ground::new(profile, files.handles(), files.file_bytes),
        };
        let later = plan.profiles[number + 1..].iter();
        let cached = later.filter(|later| later.profile.cached()).count();
        let table = Timetable {
            plan,
            number,
            end,
            reading: self.writing * u32::try_from(cached)?,
        };
        let course = Course::new(self.blank, table, self.progress);
        course.run(&mut cells, &job, &place, &mut watch)?;
        done.cells.extend(cells.into_iter().chain(unfit));
        Ok(())
    }
}

/// Before anybody reads of a file: whether what was read once is there sooner.
fn read_twice(profile: &Profile, files: &Files, job: &Job<'_>) -> Result<Option<Reread>> {
    let Some(file) = files.handles().first() else {
        return Ok(None);
    };
    reread::reread(&profile.name, file, files.file_bytes, job.seed, job.clock)
        .context("reading some blocks twice")
}

/// The cells of a profile that cannot be measured here at all.
fn all_skipped(planned: &PlannedProfile, reason: &str) -> Vec<Running> {
    let skipped = |cell: &PlannedCell| {
        let mut running = cell.begin(&planned.profile.name, Modes::new());
        running.cell.skipped = Some(Skipped {
            reason: reason.to_owned(),
        });
        running
    };
    planned.cells.iter().map(skipped).collect()
}

/// The cells of a profile: those to measure, and those that have no place in it.
fn begin(
    planned: &PlannedProfile,
    job: &Job<'_>,
    refused: Option<&str>,
) -> (Vec<Running>, Vec<Running>) {
    let profile: &Profile = &planned.profile;
    let cells = planned.cells.iter().map(|cell| {
        let job = Job {
            depth: cell.shape.depth,
            ..job.clone()
        };
        let mut requested = cell.strategy.requested(&job);
        requested.insert("direct".to_owned(), yes_no(profile.direct()));
        let mut running = cell.begin(&profile.name, requested);
        running
            .cell
            .effective
            .insert("direct".to_owned(), yes_no(job.direct));
        let unfit = cell.unfit(profile);
        let reason = unfit.or(refused);
        running.cell.skipped = reason.map(|reason| Skipped {
            reason: reason.to_owned(),
        });
        (running, unfit.is_none())
    });
    let (fit, unfit): (Vec<_>, Vec<_>) = cells.partition(|(_, fits)| *fits);
    let running = |cells: Vec<(Running, bool)>| cells.into_iter().map(|(cell, _)| cell).collect();
    (running(fit), running(unfit))
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// Whether any cell of a profile has figures that count.
fn counts(record: &Record, profile: &ProfileSummary) -> bool {
    let open_loop = open::cells(record, profile);
    let mut done = open_loop.iter().filter(|cell| !cell.rounds.is_empty());
    !Ranking::new(record, profile).ranked.is_empty()
        || done.any(|cell| open::out(record, profile, cell).is_none())
}

fn exit_code(record: &Record, options: &Options, plan: &Plan, refused: Option<u8>) -> u8 {
    if record.interrupted {
        return signals::exit_code();
    }
    if let Some(code) = refused {
        return code;
    }
    let nothing_ran = record.cells.iter().all(|cell| cell.rounds.is_empty());
    let in_vain = |profile: &ProfileSummary| {
        let mut planned = plan.profiles.iter().map(|planned| &planned.profile);
        let its = planned.find(|planned| planned.name == profile.name);
        let is_named = its.is_some_and(|its| options.names_profile(its));
        profile.direct && is_named && !counts(record, profile)
    };
    // `null` and the like are never ranked: to ask for them alone is no failure.
    let rankable = record
        .cells
        .iter()
        .any(|cell| !matches!(&*cell.strategy, "null" | "mmap"));
    if nothing_ran || (rankable && record.profiles.iter().any(in_vain)) {
        return exit::CANNOT;
    }
    exit::DONE
}
