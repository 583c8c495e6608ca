//! What will be measured and for how long: a function of the options and of the number of
//! processors alone, so that the same command makes the same plan again.

mod cells;
mod left_out;
mod rates;

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use inflight_report::ranking::MOST_FINALISTS;
use inflight_report::record::{Cell, Sync};
use inflight_report::regret::MOST_TO_CONFIRM;
use inflight_report::stats::FEWEST_ROUNDS;
use inflight_report::strategy::is_library;

use self::left_out::LeftOut;
use crate::cli::{DEFAULT_ROUNDS, Options, QUICK_DEPTH, QUICK_ROUNDS};
use crate::measure::histogram::Latencies;
use crate::measure::pace::Pace;
use crate::measure::run::Running;
use crate::measure::turns::IN_STRETCHES;
use crate::profile::{self, Profile};
use crate::strategy::{Modes, Shape, Strategy, Way};

/// Time for all cells of all rounds, fresh ones included; writing the data and reporting come on
/// top.
const BUDGET: Duration = Duration::from_secs(88);
const QUICK_BUDGET: Duration = Duration::from_secs(11);
/// When rounds are over, after the command was begun: two minutes and 25 seconds, but for what it
/// takes to end the cell in hand, to rank and to write the report.
const ALL_DONE: Duration = Duration::from_secs(116);
const QUICK_ALL_DONE: Duration = Duration::from_secs(23);
/// Time that goes with each run of a cell: threads, rings and mappings are made and released.
const CELL_OVERHEAD: Duration = Duration::from_millis(6);
/// And for each thread, where there are more than one: each has to find a processor to begin and to
/// end on, among others that do not wait.
const THREAD_OVERHEAD: Duration = Duration::from_millis(1);
/// The same for a program of its own.
const PROGRAM_OVERHEAD: Duration = Duration::from_millis(300);
/// More profiles than by default take longer: so much for each.
const BUDGET_OF_ONE: Duration = Duration::from_secs(21);
const QUICK_BUDGET_OF_ONE: Duration = Duration::from_millis(2_500);
/// Longer does not make a round better; more rounds do.
const LONGEST_CELL: Duration = Duration::from_millis(400);
const SHORTEST_CELL: Duration = Duration::from_millis(15);
const SHORTEST_QUICK_CELL: Duration = Duration::from_millis(10);
const CELL_STEP: Duration = Duration::from_millis(5);
/// What a strategy learns in its first thousands of operations is not what it goes on with.
const SHORTEST_WARMUP: Duration = Duration::from_millis(10);
const SHORTEST_QUICK_WARMUP: Duration = Duration::from_millis(1);
const LONGEST_WARMUP: Duration = Duration::from_millis(50);
/// Where files grow by synced writes it is longer. A thread of the kernel writes the journal, and
/// for 20 to 60 ms after a pause it runs on the processor of whoever waits for it: syncs take half
/// of what they take later (`docs/pitfalls.md`).
const JOURNAL_WARMUP: Duration = Duration::from_millis(100);
const QUICK_JOURNAL_WARMUP: Duration = Duration::from_millis(20);

/// The whole measurement.
pub(crate) struct Plan {
    pub(crate) profiles: Vec<PlannedProfile>,
    /// What of the profiles there is no time for.
    pub(crate) left_out: LeftOut,
    pub(crate) rounds: u32,
    pub(crate) measured: Duration,
    pub(crate) warmup: Duration,
    shortest_warmup: Duration,
    /// Where files grow by synced writes, if it is longer.
    journal_warmup: Duration,
    pub(crate) limit: Limit,
}

/// What ends the rounds, but for their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Those that were asked for are run, and none is added.
    None,
    /// Rounds are added to tell cells apart as long as measuring takes less than this.
    Asked(Duration),
    /// The same until so long after the command was begun, the test data included; and rounds that
    /// do not fit are left out.
    Promised(Duration),
}

/// One profile with its cells.
pub(crate) struct PlannedProfile {
    pub(crate) profile: Profile,
    pub(crate) cells: Vec<PlannedCell>,
}

/// One cell.
#[derive(Clone, Copy)]
pub(crate) struct PlannedCell {
    pub(crate) strategy: &'static dyn Strategy,
    pub(crate) shape: Shape,
    /// Operations due per second, in an open loop.
    pub(crate) rate_per_s: Option<u64>,
    /// Why it cannot be, though it was asked for.
    pub(crate) refused: Option<&'static str>,
}

impl Plan {
    pub(crate) fn new(options: &Options, cpus: u32) -> Result<Self> {
        let mut profiles: Vec<PlannedProfile> = Vec::new();
        let mut left_out = LeftOut::default();
        let at_length = Options {
            quick: false,
            ..options.clone()
        };
        for mut profile in profile::load(&options.profiles)? {
            if let Some(bytes) = options.block_size_bytes {
                profile.resize(bytes)?;
            }
            // Those that differed in block size alone are one now.
            let mut known = profiles.iter().map(|planned| &planned.profile.name);
            if known.any(|name| *name == profile.name) {
                continue;
            }
            let depths = &mut profile.asked.queue_depths;
            if let Some(asked) = &options.depths {
                depths.clone_from(asked);
            }
            depths.sort_unstable();
            depths.dedup();
            let whole = PlannedProfile::new(profile.clone(), &at_length, cpus);
            let depths = &mut profile.asked.queue_depths;
            // What an open loop shows is not a question of fine steps.
            let few = options.quick || !options.rates.is_empty();
            if few && options.depths.is_none() {
                let (first, last) = (depths.first().copied(), depths.last().copied());
                depths.retain(|depth| [first, Some(QUICK_DEPTH), last].contains(&Some(*depth)));
            }
            let kept = PlannedProfile::new(profile, options, cpus);
            left_out.note(&whole, &kept);
            profiles.push(kept);
        }
        let (shortest_warmup, journal_warmup) = match options.quick {
            true => (SHORTEST_QUICK_WARMUP, QUICK_JOURNAL_WARMUP),
            false => (SHORTEST_WARMUP, JOURNAL_WARMUP),
        };
        let mut plan = Self {
            profiles,
            left_out,
            rounds: if options.quick {
                QUICK_ROUNDS
            } else {
                DEFAULT_ROUNDS
            },
            measured: Duration::ZERO,
            warmup: Duration::ZERO,
            shortest_warmup,
            journal_warmup,
            limit: Limit::None,
        };
        match options.cell_time {
            Some(asked) => plan.measure_for(asked),
            None => plan.fit_into_budget(options.quick),
        }
        rates::check(&options.rates, plan.measured)?;
        plan.rounds = options.rounds;
        plan.limit = match options.max_time {
            Some(asked) => Limit::Asked(asked),
            None if options.rounds_asked => Limit::None,
            None => plan.promise(options.quick),
        };
        Ok(plan)
    }

    /// Has each cell measured for so long in a round.
    fn measure_for(&mut self, measured: Duration) {
        self.measured = measured;
        self.warmup = (measured / 6)
            .clamp(self.shortest_warmup, LONGEST_WARMUP)
            .min(measured / 3);
    }

    /// Has the cells measured for as long as lets the rounds fit into the usual time.
    fn fit_into_budget(&mut self, quick: bool) {
        let budget = budget(self.profiles.len(), quick);
        let mut measured = LONGEST_CELL;
        let shortest = if quick {
            SHORTEST_QUICK_CELL
        } else {
            SHORTEST_CELL
        };
        self.measure_for(measured);
        while measured > shortest && self.expected() > budget {
            measured -= CELL_STEP;
            self.measure_for(measured);
        }
    }

    /// What is said of the time in the help, or more where more is asked for.
    fn promise(&self, quick: bool) -> Limit {
        let promised = if quick { QUICK_ALL_DONE } else { ALL_DONE };
        Limit::Promised(promised.max(self.expected() * 5 / 4))
    }

    /// How long the rounds may go on, `since` the command was begun. Where writing the data has
    /// taken nearly all of it, an eighth is left all the same: it was written for something.
    pub(crate) fn left(&self, since: Duration) -> Duration {
        match self.limit {
            Limit::None => Duration::ZERO,
            Limit::Asked(limit) => limit,
            Limit::Promised(limit) => limit.saturating_sub(since).max(limit / 8),
        }
    }

    /// Whether there will hardly be time for all that is planned, `since` the command was begun.
    pub(crate) fn is_short(&self, since: Duration) -> bool {
        self.leaves_out() && self.left(since) < self.planned_of(&self.profiles)
    }

    /// Whether fresh rounds are added as long as there is time: none are in open loops.
    pub(crate) fn adds(&self) -> bool {
        let mut closed = self.profiles.iter().flat_map(closed_cells);
        self.limit != Limit::None && self.confirms() && closed.next().is_some()
    }

    /// How long it will still take at most, if what is planned takes `planned` and rounds may be
    /// added for so long.
    pub(crate) fn at_most(&self, planned: Duration, until_end: Duration) -> Duration {
        match self.limit {
            _ if !self.adds() => planned,
            Limit::Promised(_) => until_end,
            Limit::None | Limit::Asked(_) => planned.max(until_end),
        }
    }

    /// Whether rounds that do not fit into the time are left out.
    pub(crate) fn leaves_out(&self) -> bool {
        matches!(self.limit, Limit::Promised(_))
    }

    /// What is asked for, without the cells.
    pub(crate) fn asked(&self) -> Vec<Profile> {
        let profiles = self.profiles.iter();
        profiles.map(|planned| planned.profile.clone()).collect()
    }

    /// How long the rounds will take, without those that may be added.
    pub(crate) fn expected(&self) -> Duration {
        self.expected_of(&self.profiles)
    }

    /// How long the rounds of some profiles will take.
    pub(crate) fn expected_of(&self, profiles: &[PlannedProfile]) -> Duration {
        self.planned_of(profiles) + self.fresh_of(profiles)
    }

    /// The part of it that the rounds of all cells will take.
    pub(crate) fn planned_of(&self, profiles: &[PlannedProfile]) -> Duration {
        let cells = profiles
            .iter()
            .flat_map(|planned| planned.runs().map(|cell| (&planned.profile, cell)));
        let one_round: Duration = cells.map(|(profile, cell)| self.takes(profile, cell)).sum();
        one_round * self.rounds
    }

    /// The part of it that fresh rounds will take.
    pub(crate) fn fresh_of(&self, profiles: &[PlannedProfile]) -> Duration {
        if !self.confirms() {
            return Duration::ZERO;
        }
        let of_one = |planned: &PlannedProfile| {
            let profile = &planned.profile;
            // What begins anew each time takes no turns.
            let is_anew = profile.grows() || profile.misses();
            let stretches = if is_anew { 1 } else { IN_STRETCHES };
            self.fresh_round(self.warmup(profile), stretches) * fresh_cells(planned)
        };
        profiles.iter().map(of_one).sum::<Duration>() * self.rounds
    }

    /// How long a cell will take in a fresh round of so many stretches with such warm-ups.
    pub(crate) fn fresh_round(&self, warmup: Duration, stretches: u32) -> Duration {
        (self.measured + warmup) * stretches + CELL_OVERHEAD
    }

    /// What does not count of each round of a profile.
    pub(crate) fn warmup(&self, profile: &Profile) -> Duration {
        match profile.grows() && profile.asked.sync == Sync::Each {
            true => self.journal_warmup.max(self.warmup),
            false => self.warmup,
        }
    }

    /// Whether the cells at the front get fresh rounds: fewer rounds than this confirm nothing.
    pub(crate) fn confirms(&self) -> bool {
        self.rounds as usize >= FEWEST_ROUNDS
    }

    /// How long a cell will take in a round.
    pub(crate) fn takes(&self, profile: &Profile, cell: &PlannedCell) -> Duration {
        self.measured + self.warmup(profile) + overhead(cell) + after(cell, self.measured)
    }

    /// A hash of everything that must agree before two records may be compared.
    pub(crate) fn hash(&self, size_bytes: u64) -> String {
        let mut text = format!("size {size_bytes} cell {}\n", self.measured.as_nanos());
        for planned in &self.profiles {
            let Profile {
                name,
                block_bytes,
                asked,
                ..
            } = &planned.profile;
            let warmup = self.warmup(&planned.profile).as_nanos();
            let written = write!(text, "{name} {block_bytes} {asked:?} after {warmup}:");
            written.expect("a string takes everything");
            for cell in &planned.cells {
                let Shape { depth, threads } = cell.shape;
                let rate = cell.at_rate();
                let written = write!(text, " {}/{depth}x{threads}{rate}", cell.strategy.name());
                written.expect("a string takes everything");
            }
        }
        format!("{:016x}", fnv1a(text.as_bytes()))
    }
}

impl PlannedProfile {
    fn new(profile: Profile, options: &Options, cpus: u32) -> Self {
        let cells = cells::of(&profile, options, cpus);
        Self { profile, cells }
    }

    /// The cells that can be measured.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &PlannedCell> {
        let fits = |cell: &&PlannedCell| cell.unfit(&self.profile).is_none();
        self.cells.iter().filter(fits)
    }
}

impl PlannedCell {
    /// What was planned of a cell that is measured.
    pub(crate) fn of(running: &Running) -> Self {
        Self {
            rate_per_s: running.cell.rate_per_s,
            ..Self::new(running.strategy, running.shape)
        }
    }

    /// One of a closed loop, that nothing is known against.
    pub(crate) fn new(strategy: &'static dyn Strategy, shape: Shape) -> Self {
        Self {
            strategy,
            shape,
            rate_per_s: None,
            refused: None,
        }
    }

    /// What names the cell in records.
    pub(crate) fn id(&self, profile: &str) -> String {
        let Shape { depth, threads } = self.shape;
        let crew = if threads > 1 {
            format!("x{threads}")
        } else {
            String::new()
        };
        let rate = self.at_rate();
        format!("{profile}/{}/{depth}{crew}{rate}", self.strategy.name())
    }

    fn at_rate(&self) -> String {
        self.rate_per_s
            .map_or_else(String::new, |rate| format!("@{rate}"))
    }

    /// Why it has no place in a profile, if so.
    pub(crate) fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let by_the_clock = || match self.rate_per_s {
            None => None,
            Some(_) if profile.asked.batched => {
                Some("what begins together with others does not begin by the clock")
            }
            Some(_) if profile.asked.sync == Sync::End => {
                Some("one sync for all that was written is no part of any latency")
            }
            Some(_) => self.strategy.closed_only(),
        };
        let unfit = self.strategy.unfit(profile).or_else(by_the_clock);
        unfit.or(self.refused)
    }

    /// An empty cell of the record, to be filled by measuring.
    pub(crate) fn begin(&self, profile: &str, requested: Modes) -> Running {
        let Shape { depth, threads } = self.shape;
        let cell = Cell {
            id: self.id(profile),
            profile: profile.to_owned(),
            strategy: self.strategy.name().to_owned(),
            depth,
            threads,
            requested,
            effective: Modes::new(),
            skipped: None,
            rounds: Vec::new(),
            rate_per_s: self.rate_per_s,
            latency: None,
            heat: None,
            turns: Vec::new(),
        };
        Running {
            cell,
            strategy: self.strategy,
            shape: self.shape,
            latencies: Latencies::new(),
            heat: Vec::new(),
            sample_every: None,
            denied: None,
        }
    }
}

/// What is due and late at the end of an open loop is waited for.
fn after(cell: &PlannedCell, measured: Duration) -> Duration {
    cell.rate_per_s
        .map_or(Duration::ZERO, |_| Pace::grace(measured))
}

fn overhead(cell: &PlannedCell) -> Duration {
    match cell.strategy.way() {
        Way::Lanes(_) | Way::Tasks(_) => {
            CELL_OVERHEAD + THREAD_OVERHEAD * cell.shape.threads.saturating_sub(1)
        }
        Way::Program(_) => PROGRAM_OVERHEAD,
    }
}

/// At most so many cells of a profile get fresh rounds, one for each time that they do: those at
/// the front, and those that the worst regret rests on. More than once, these do so in the time
/// that is left.
fn fresh_cells(planned: &PlannedProfile) -> u32 {
    let cells = closed_cells(planned).count();
    let has_library = closed_cells(planned).any(|cell| is_library(cell.strategy.name()));
    let of_regret = if has_library { MOST_TO_CONFIRM } else { 0 };
    let fresh = cells.min(MOST_FINALISTS) + cells.min(of_regret);
    u32::try_from(fresh).expect("a few")
}

/// The cells that can be measured and are compared with each other.
fn closed_cells(planned: &PlannedProfile) -> impl Iterator<Item = &PlannedCell> {
    planned.runs().filter(|cell| cell.rate_per_s.is_none())
}

/// Time for the rounds of so many profiles.
fn budget(profiles: usize, quick: bool) -> Duration {
    let (budget, each) = match quick {
        true => (QUICK_BUDGET, QUICK_BUDGET_OF_ONE),
        false => (BUDGET, BUDGET_OF_ONE),
    };
    budget.max(each * u32::try_from(profiles).unwrap_or(u32::MAX))
}

/// Fowler, Noll and Vo, 64 bits: short, and the same in every version of this program.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::strategy::STRATEGIES;
    use clap::Parser;

    fn plan(args: &[&str]) -> Plan {
        let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args)).unwrap();
        let Command::Bench(flags) = cli.command else {
            unreachable!("{:?}", cli.command);
        };
        Plan::new(&flags.into_options(STRATEGIES).unwrap(), 2).unwrap()
    }

    #[test]
    fn the_default_fits_into_two_minutes_and_quick_into_25_seconds() {
        assert!(plan(&[]).expected() < Duration::from_secs(105));
        assert!(plan(&[]).rounds >= 8);
        assert!(plan(&["--fio"]).expected() < Duration::from_secs(115));
        assert!(plan(&["--quick"]).expected() < Duration::from_secs(18));
        assert_eq!(plan(&[]).limit, Limit::Promised(ALL_DONE));
        assert_eq!(plan(&["--quick"]).limit, Limit::Promised(QUICK_ALL_DONE));
    }

    #[test]
    fn rounds_are_added_and_left_out_unless_their_number_was_asked_for() {
        let usual = plan(&[]);
        assert!(usual.leaves_out());
        // Writing the data takes from it, but never all.
        let (written, slowly) = (Duration::from_secs(10), Duration::from_secs(900));
        assert_eq!(usual.left(written), ALL_DONE - written);
        assert_eq!(usual.left(slowly), ALL_DONE / 8);
        let asked = plan(&["--rounds", "8"]);
        assert_eq!(
            (asked.limit, asked.left(written)),
            (Limit::None, Duration::ZERO)
        );
        let longer = plan(&["--rounds", "8", "--max-time", "300"]);
        assert_eq!(longer.left(slowly), Duration::from_secs(300));
        assert!(!longer.leaves_out() && !asked.leaves_out());
        // More work than two minutes hold is not cut down to them.
        let all = plan(&["--profile", "all"]);
        assert!(all.left(Duration::ZERO) > all.expected() && all.expected() > ALL_DONE);
        assert!(plan(&["--rounds", "6"]).confirms() && !plan(&["--rounds", "5"]).confirms());
    }

    #[test]
    fn the_time_that_is_left_includes_fresh_rounds_where_they_are_added() {
        let [short, long] = [3, 9].map(Duration::from_secs);
        let quick = plan(&["--quick"]);
        assert_eq!(quick.at_most(short, long), long);
        assert_eq!(quick.at_most(long, short), short, "rounds are left out");
        let asked = plan(&["--max-time", "9"]);
        assert_eq!(asked.at_most(short, long), long);
        assert_eq!(
            asked.at_most(long, short),
            long,
            "all planned rounds are run"
        );
        for none_added in [&["--rounds", "8"][..], &["--quick", "--rate", "1k"]] {
            assert_eq!(plan(none_added).at_most(short, long), short);
        }
    }

    #[test]
    fn only_where_a_journal_is_written_is_the_warmup_longer() {
        let of = |name| {
            let plan = plan(&["--cell-time", "30", "--profile", name]);
            plan.warmup(&plan.profiles[0].profile).as_millis()
        };
        let some = ["durable-append", "group-commit", "write-fsync-read"];
        assert_eq!(some.map(of), [100, 100, 10]);
    }

    #[test]
    fn ids_are_unique_and_name_the_threads() {
        let plan = plan(&["--fio"]);
        let mut ids: Vec<String> = plan
            .profiles
            .iter()
            .flat_map(|planned| {
                planned
                    .cells
                    .iter()
                    .map(|cell| (cell, &planned.profile.name))
            })
            .map(|(cell, profile)| cell.begin(profile, Modes::new()).cell.id)
            .collect();
        assert!(ids.contains(&"direct-random-read/threads/16x16".to_owned()));
        assert!(ids.contains(&"cached-random-read/uring/128".to_owned()));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn profiles_that_differ_in_block_size_alone_are_one_where_it_is_given() {
        let names = |args| {
            let profiles = plan(args).profiles;
            let told = profiles.iter().map(|planned| planned.profile.summary());
            let told = told.map(|told| (told.name, told.title[..6].to_owned()));
            told.collect::<Vec<_>>()
        };
        let one = |name: &str| (name.to_owned(), "16 KiB".to_owned());
        let large = ["--profile", "direct-large-read", "--block-size", "16k"];
        assert_eq!(names(&large), [one("direct-large-read-16k")]);
        let o1 = names(&["--profile", "o1", "--block-size", "16k"]);
        assert_eq!(o1.len(), 4);
        assert!(o1.contains(&one("buffered-random-write-16k")), "{o1:?}");
        // One that has one size keeps its name.
        let plain = ["--profile", "direct-random-read", "--block-size", "16k"];
        assert_eq!(names(&plain), [one("direct-random-read")]);
    }

    #[test]
    fn the_hash_follows_the_plan() {
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        let hash = |args| plan(args).hash(1 << 30);
        assert_eq!(hash(&["--seed", "1"]), hash(&["--seed", "2"]));
        assert_eq!(hash(&["--depth", "4,1"]), hash(&["--depth", "1,4"]));
        assert_ne!(hash(&["--depth", "1"]), hash(&["--depth", "4"]));
        assert_ne!(hash(&[]), hash(&["--block-size", "8k"]));
        assert_ne!(plan(&[]).hash(1), plan(&[]).hash(2));
    }
}
