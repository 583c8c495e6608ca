//! One strategy under two names, and one that is slower by a twentieth.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use inflight_report::stats::{Interval, Word, compare};

use super::{Bench, with_bench};
use crate::measure::meter::Meter;
use crate::measure::run::Running;
use crate::strategy::tasks::{Runtime, StepJob, StepStrategy, Task};
use crate::strategy::{Body, Job, Lane, Modes, STRATEGIES, Shape, Strategy, Way, find};

/// Of so many operations the slowed one forgets one.
const FORGETS_ONE_IN: u64 = 20;
/// Of the rounds that tell them apart: what a default run has for each of its four profiles, when
/// all cells have run.
const LIMIT: Duration = Duration::from_secs(10);

/// The columns of what is printed.
const HEAD: &str = "cell,other,seed,took_s,n,ratio,lo,hi,word,timed_one_in,other_timed_one_in";

/// What is done twice: a strategy in a profile.
struct Pair {
    name: &'static str,
    profile: &'static str,
    shape: Shape,
    three: [&'static dyn Strategy; 3],
}

const fn pair<const OF: usize>(
    name: &'static str,
    profile: &'static str,
    depth: u32,
    threads: u32,
) -> Pair {
    Pair {
        name,
        profile,
        shape: Shape { depth, threads },
        three: [&Same::<OF>, &Twin::<OF>, &Slowed::<OF>],
    }
}

/// The strategies, by number: what is wrapped must be known where a plain function is asked for.
const OF: [&str; 6] = [
    "pread",
    "uring",
    "threads",
    "tokio",
    "inflight-async",
    "inflight-local",
];

const PAIRS: [Pair; 9] = [
    pair::<0>("cached-pread", "cached-random-read", 1, 1),
    pair::<1>("direct-uring", "direct-random-read", 32, 1),
    pair::<2>("cached-threads", "cached-random-read", 2, 2),
    pair::<2>("direct-threads", "direct-random-read", 16, 16),
    pair::<1>("written-uring", "direct-random-write", 32, 1),
    pair::<3>("direct-tokio", "direct-random-read", 16, 1),
    pair::<3>("cached-tokio", "cached-random-read", 16, 1),
    pair::<4>("direct-async", "direct-random-read", 16, 1),
    pair::<5>("cached-local", "cached-random-read", 16, 1),
];

fn of<const OF_NUMBER: usize>() -> &'static dyn Strategy {
    find(STRATEGIES, OF[OF_NUMBER]).expect("a strategy of the command")
}

/// The strategy itself.
struct Same<const OF: usize>;

impl<const OF: usize> Strategy for Same<OF> {
    fn name(&self) -> &'static str {
        of::<OF>().name()
    }

    fn about(&self) -> &'static str {
        "the same once more"
    }

    fn way(&self) -> Way {
        of::<OF>().way()
    }
}

/// The strategy under another name.
struct Twin<const OF: usize>;

impl<const OF: usize> Strategy for Twin<OF> {
    fn name(&self) -> &'static str {
        "twin"
    }

    fn about(&self) -> &'static str {
        "the same once more"
    }

    fn way(&self) -> Way {
        of::<OF>().way()
    }
}

/// The strategy, slower by exactly as much as it forgets, however its work overlaps.
struct Slowed<const OF: usize>;

impl<const OF: usize> Strategy for Slowed<OF> {
    fn name(&self) -> &'static str {
        "slowed"
    }

    fn about(&self) -> &'static str {
        "the same once more"
    }

    fn way(&self) -> Way {
        match of::<OF>().way() {
            Way::Lanes(_) => Way::Lanes(slowed_lane::<OF>),
            Way::Tasks(Runtime::Steps(strategy)) => Way::Tasks(Runtime::Steps(StepStrategy {
                run: slowed_tasks::<OF>,
                ..strategy
            })),
            other => other,
        }
    }
}

fn slowed_lane<const OF: usize>(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let Way::Lanes(with_lane) = of::<OF>().way() else {
        bail!("it has no lane");
    };
    with_lane(job, &mut |lane| body(&mut SlowedLane { lane, counted: 0 }))
}

fn slowed_tasks<const OF: usize>(job: &StepJob, tasks: Vec<Task>) -> Result<Modes> {
    let Way::Tasks(runtime) = of::<OF>().way() else {
        bail!("it has no tasks");
    };
    let forgetful = |task: Task| task.that_forgets_one_in(FORGETS_ONE_IN);
    runtime.run(job, tasks.into_iter().map(forgetful).collect())
}

/// A lane that does not count one operation in so many.
struct SlowedLane<'l> {
    lane: &'l mut dyn Lane,
    counted: u64,
}

impl Lane for SlowedLane<'_> {
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

/// The names of the pairs.
pub(super) fn names() -> String {
    PAIRS.map(|pair| pair.name).join(", ")
}

fn find_pair(name: &str) -> Result<Pair> {
    let found = PAIRS.into_iter().find(|pair| pair.name == name);
    found.with_context(|| format!("no such pair: there are {}", names()))
}

/// How often the words were these.
#[derive(Default)]
struct Tally {
    runs: u32,
    different: u32,
    slower: u32,
    ratios: Vec<f64>,
}

impl Tally {
    fn count(&mut self, found: &Interval) {
        let word = found.word();
        self.runs += 1;
        self.different += u32::from([Word::ClearlyFaster, Word::ClearlySlower].contains(&word));
        self.slower += u32::from(word == Word::ClearlySlower);
        self.ratios.push(found.ratio);
    }

    fn say(mut self, what: &str) {
        self.ratios.sort_by(f64::total_cmp);
        let last = self.ratios.len().saturating_sub(1);
        let at = |part: usize| {
            self.ratios
                .get(last * part / 2)
                .copied()
                .unwrap_or(f64::NAN)
        };
        eprintln!(
            "{what}: {} runs, {} called different, {} of them slower; ratio {:.3} (median), \
             {:.3} to {:.3}",
            self.runs,
            self.different,
            self.slower,
            at(1),
            at(0),
            at(2)
        );
    }
}

/// Rounds and cell time of a default run of four profiles.
fn args(profile: &str) -> [&str; 6] {
    ["--profile", profile, "--rounds", "8", "--cell-time", "50"]
}

/// Runs of the kind that a verdict rests on: fresh rounds of two cells, until they can be told
/// apart, or until the time is up.
pub(super) fn confirmed(name: &str, directory: &str, runs: u32, turns: bool) -> Result<()> {
    let Pair {
        profile,
        shape,
        three,
        ..
    } = find_pair(name)?;
    let [one, twin, slowed] = three;
    let args = args(profile);
    with_bench(directory, &args, &mut |bench| {
        let pair = |other| [one, other].map(|strategy| bench.cell(strategy, shape));
        let (mut twins, mut slowed) = (pair(twin), pair(slowed));
        bench.screen(&mut twins)?;
        bench.screen(&mut slowed)?;
        println!("{HEAD}");
        let (mut same, mut slower) = (Tally::default(), Tally::default());
        for run in 0..runs {
            same.count(&confirm(bench, &mut twins, u64::from(run), turns)?);
            if run % 2 == 0 {
                slower.count(&confirm(bench, &mut slowed, u64::from(run), turns)?);
            }
        }
        same.say(&format!("{name}, twins"));
        slower.say(&format!("{name}, slowed by a twentieth"));
        Ok(())
    })
}

/// Confirms two screened cells as a run does, and then forgets the fresh rounds.
fn confirm(bench: &Bench<'_>, cells: &mut [Running], seed: u64, turns: bool) -> Result<Interval> {
    let job = Job {
        seed,
        ..bench.job.clone()
    };
    let began = Instant::now();
    let course = bench.course(began + LIMIT);
    course.confirm(cells, bench.plan.rounds, &job, bench.place)?;
    let found = print(cells, seed, began.elapsed())?;
    if turns {
        print_turns(cells, seed);
    }
    for Running { cell, .. } in cells {
        cell.rounds.retain(|round| !round.confirms);
        cell.turns.clear();
    }
    Ok(found)
}

/// Runs of whole rounds alone, each with cells that know nothing of the others' runs.
pub(super) fn screened(name: &str, directory: &str, runs: u32) -> Result<()> {
    let Pair {
        profile,
        shape,
        three: [one, twin, _],
        ..
    } = find_pair(name)?;
    let args = args(profile);
    with_bench(directory, &args, &mut |bench| {
        println!("{HEAD}");
        let mut same = Tally::default();
        for run in 0..runs {
            let mut cells = [one, twin].map(|strategy| bench.cell(strategy, shape));
            let began = Instant::now();
            bench.screen(&mut cells)?;
            same.count(&print(&cells, u64::from(run), began.elapsed())?);
        }
        same.say(&format!("{name}, twins by whole rounds"));
        Ok(())
    })
}

/// Prints what each turn of two cells took.
fn print_turns(cells: &[Running], seed: u64) {
    let [one, other] = [&cells[0].cell, &cells[1].cell];
    for (of_one, of_other) in one.turns.iter().zip(&other.turns) {
        for (number, (ps, other_ps)) in of_one.op_ps.iter().zip(&of_other.op_ps).enumerate() {
            println!(
                "turn,{},{seed},{},{number},{ps},{other_ps}",
                other.strategy, of_one.block
            );
        }
    }
}

fn print(cells: &[Running], seed: u64, took: Duration) -> Result<Interval> {
    let found = compare(&cells[1].cell, &cells[0].cell).context("they share rounds")?;
    let timed = |cell: &Running| cell.sample_every.unwrap_or(0);
    println!(
        "{},{},{seed},{:.3},{},{:.4},{:.4},{:.4},{:?},{},{}",
        cells[0].cell.id,
        cells[1].cell.strategy,
        took.as_secs_f64(),
        found.n,
        found.ratio,
        found.lo,
        found.hi,
        found.word(),
        timed(&cells[0]),
        timed(&cells[1])
    );
    Ok(found)
}
