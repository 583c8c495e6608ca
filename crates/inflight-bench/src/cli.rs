//! Flags, and their translation into typed options.

use std::iter;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use inflight_report::regret::LONGEST_RUN_S;
use inflight_report::stats::MOST_ROUNDS;

use crate::commands::{compare, completions, man, merge, show};
use crate::doctor;
use crate::exit::{CODES, usage};
use crate::exports::Exports;
use crate::profile::{self, DEFAULT_SET, MAX_DEPTH, Profile};
use crate::progress::Form;
use crate::size;
use crate::strategy::{self, FIO_CHECKS, Strategy};

/// Rounds when nothing is said: with fewer, no comparison can be significant.
pub(crate) const DEFAULT_ROUNDS: u32 = 8;
/// Rounds of `--quick`.
pub(crate) const QUICK_ROUNDS: u32 = 6;
const DEFAULT_SIZE_BYTES: u64 = 1 << 30;
/// A slow or busy disk takes 15 seconds to write and to read what the default is.
const QUICK_SIZE_BYTES: u64 = 256 << 20;
/// Of the depths of a profile, `--quick` has the first, this one, and the last.
pub(crate) const QUICK_DEPTH: u32 = 32;

/// Which way of doing I/O is fastest on this disk, by how much, and how sure that is.
#[derive(Debug, Parser)]
#[command(name = "inflight", version, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the ways of reading and writing a disk, and say which one to use.
    Bench(BenchFlags),
    /// Say what became faster or slower from one record to another, and check limits.
    Compare(compare::Flags),
    /// Put the records of many machines together, without averaging percentiles.
    Merge(merge::Flags),
    /// Show the result of a record again, or write it in another form.
    Show(show::Flags),
    /// Examine this machine for fast disk I/O: what stands in the way, and what to do about it.
    Doctor(doctor::Flags),
    /// Print the completions of a shell.
    Completions(completions::Flags),
    /// Print a manual page, as roff: `inflight man bench | man -l -`.
    Man(man::Flags),
}

/// Where to begin.
const FIRST_STEPS: &str = "\
Examples:
  inflight bench           which way is fastest on the disk of this directory
  inflight doctor          what stands in its way on this machine
  inflight help bench      all flags, with their reasons";

/// What most people want.
const EXAMPLES: &str = "\
Examples:
  inflight bench                          the disk of this directory, in two minutes
  inflight bench /data --quick            another one, in 25 seconds
  inflight bench /data --report all.html  with charts, to look at and to keep
  inflight bench /dev/nvme0n1             a whole device, which is only read";

/// The flags of `inflight bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{CODES}"))]
pub(crate) struct BenchFlags {
    /// A directory, where a test file is made and removed; or an existing file or block device,
    /// which is only read.
    #[arg(default_value = ".")]
    target: PathBuf,

    /// Workloads: names of profiles or of sets of them, `all`, or a .toml file.
    ///
    /// The set `o1` has the four rows of a published comparison of system calls and io_uring for
    /// databases: reads and writes through the page cache, sequential and random.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = DEFAULT_SET,
        value_name = "NAME|all|FILE.toml"
    )]
    profile: Vec<String>,

    /// Ways of doing I/O.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    strategy: Vec<String>,

    /// Operations in flight, instead of those of the profile.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)),
    )]
    depth: Vec<u32>,

    /// Operations due per second: an open loop, latencies from when they were due; `20k` is 20,000.
    ///
    /// Operations begin by the clock, however long others take, so that a stall counts for all who
    /// would have come meanwhile. The depth is the maximum in flight; what finds no place waits for
    /// one. Nothing is ranked then: rates are given, not found. Several rates have rows of their
    /// own.
    #[arg(long, value_delimiter = ',', value_parser = size::parse_rate, value_name = "R")]
    rate: Vec<u64>,

    /// Bytes per operation, instead of those of the profile; `4k` is 4 KiB.
    ///
    /// Profiles that differ in block size alone are then one. Ranges have no block size.
    #[arg(hide_short_help = true, long, value_parser = size::parse_block, value_name = "SIZE")]
    block_size: Option<u32>,

    /// Size of the test file [default: 1g, with --quick 256m]; for an existing file: read only its
    /// beginning.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    size: Option<u64>,

    /// Measured rounds; in each, every cell runs once, in shuffled order [default: 8, with
    /// --quick 6].
    ///
    /// From 6 on, the cells that the verdict and the worst regret rest on get as many fresh ones.
    #[arg(long, short = 'r', value_parser = parse_rounds, value_name = "N")]
    rounds: Option<u32>,

    /// Add rounds until cells can be told apart, for at most S seconds of measuring.
    ///
    /// Rounds are added while the fastest cell cannot be told from another at the front: by default
    /// for what is left of two minutes, or of 25 seconds with --quick, and none where --rounds is
    /// given. With this no planned round is left out for lack of time.
    #[arg(
        hide_short_help = true,
        long,
        value_parser = clap::value_parser!(u64).range(1..=LONGEST_RUN_S),
        value_name = "S"
    )]
    max_time: Option<u64>,

    /// Fewer depths, shorter rounds and a smaller test file: 25 seconds, unless more is asked for.
    ///
    /// Where that is not enough for all cells, those that a verdict needs least have fewer rounds.
    #[arg(long)]
    quick: bool,

    /// Check against fio, found in PATH or named here.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "fio",
          value_name = "PATH")]
    fio: Option<PathBuf>,

    #[command(flatten)]
    exports: Exports,

    /// Print the plan, and the same as a job for fio; measure nothing and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Say why each profile is there, and which way the library would take; measure nothing. A
    /// small file is made in the target for that, and removed.
    #[arg(hide_short_help = true, long)]
    explain: bool,

    /// How to report progress on stderr.
    #[arg(
        hide_short_help = true,
        long,
        value_enum,
        default_value_t,
        value_name = "FORM"
    )]
    progress: Form,

    /// Show curves and latencies on the whole screen while they are measured.
    #[cfg(feature = "live")]
    #[arg(long, conflicts_with = "progress")]
    live: bool,

    /// Keep the test file.
    #[arg(hide_short_help = true, long)]
    keep_file: bool,

    /// Seed of offsets, data and order, to ask for the same I/O again.
    #[arg(hide_short_help = true, long, value_name = "N")]
    seed: Option<u64>,

    /// Measured time of a cell in a round, in milliseconds, instead of an automatic choice.
    #[arg(
        hide_short_help = true,
        long,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
        value_name = "MS"
    )]
    cell_time: Option<u64>,
}

/// What `inflight bench` is to do.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) target: PathBuf,
    pub(crate) profiles: Vec<String>,
    pub(crate) strategies: Vec<&'static dyn Strategy>,
    pub(crate) depths: Option<Vec<u32>>,
    /// Operations due per second; none for a closed loop.
    pub(crate) rates: Vec<u64>,
    pub(crate) block_size_bytes: Option<u32>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) rounds: u32,
    /// Whether the number of rounds was asked for.
    pub(crate) rounds_asked: bool,
    pub(crate) max_time: Option<Duration>,
    pub(crate) quick: bool,
    pub(crate) fio: PathBuf,
    /// Whether it was said that fio is to take part, and perhaps where it is.
    pub(crate) fio_asked: bool,
    pub(crate) exports: Exports,
    pub(crate) dry_run: bool,
    pub(crate) explain: bool,
    pub(crate) progress: Form,
    pub(crate) keep_file: bool,
    pub(crate) seed: u64,
    pub(crate) cell_time: Option<Duration>,
}

impl Options {
    /// Size of a test file that is made.
    pub(crate) fn scratch_size_bytes(&self) -> u64 {
        let usual_bytes = match self.quick {
            true => QUICK_SIZE_BYTES,
            false => DEFAULT_SIZE_BYTES,
        };
        self.size_bytes.unwrap_or(usual_bytes)
    }

    /// What is only read: the target, unless it is a directory, and the files of profiles.
    pub(crate) fn read_only(&self) -> impl Iterator<Item = &Path> {
        let files = self.profiles.iter().map(Path::new);
        let files = files.filter(|name| profile::is_file(name));
        iter::once(self.target.as_path()).chain(files)
    }

    /// Whether this profile was asked for by name, not by default or as one of a set.
    pub(crate) fn names_profile(&self, profile: &Profile) -> bool {
        // Names that are built in have no ending.
        let stems = self
            .profiles
            .iter()
            .map(|asked| Path::new(asked).file_stem());
        stems
            .flatten()
            .any(|stem| profile.is_named(&stem.to_string_lossy()))
    }
}

/// Reads the command line; ends the program with what clap says if it is wrong or asks for help.
pub(crate) fn parse(known: &[&'static dyn Strategy]) -> Command {
    let matches = command(known).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.command
}

/// The flags, with the names of the strategies in their help.
pub(crate) fn command(known: &[&'static dyn Strategy]) -> clap::Command {
    let (usual, others): (Vec<_>, Vec<_>) =
        known.iter().partition(|strategy| strategy.by_default());
    let (usual, others) = (strategy::names(&usual), strategy::names(&others));
    let help = format!("Ways of doing I/O: {usual}; only when named: {others}");
    let each = known
        .iter()
        .map(|one| format!("{}: {}", one.name(), one.about()));
    let long_help = format!("{help}\n\n{}", each.collect::<Vec<_>>().join("\n"));
    Cli::command().mut_subcommand("bench", |bench| {
        let bench = bench.mut_arg("strategy", |strategy| {
            strategy.help(help).long_help(long_help)
        });
        bench.mut_arg("profile", |profile| {
            let told = profile.get_long_help().map(ToString::to_string);
            let told = told.unwrap_or_default();
            profile.long_help(format!("{told}\n\n{}", profile::list()))
        })
    })
}

impl BenchFlags {
    /// Checks the flags and fills in what was left out.
    pub(crate) fn into_options(self, known: &[&'static dyn Strategy]) -> Result<Options> {
        self.check_that_it_measures()?;
        let mut strategies = chosen(&self.strategy, known)?;
        let named = |name: &&str| strategies.iter().any(|strategy| strategy.name() == *name);
        if self.fio.is_some() && !FIO_CHECKS.iter().any(named) {
            let checks = FIO_CHECKS.iter();
            strategies.extend(checks.filter_map(|name| strategy::find(known, name)));
        }
        let depths = (!self.depth.is_empty()).then_some(self.depth);
        let mut rates = self.rate;
        rates.sort_unstable();
        rates.dedup();
        let rounds = if self.quick {
            QUICK_ROUNDS
        } else {
            DEFAULT_ROUNDS
        };
        Ok(Options {
            target: self.target,
            profiles: self.profile,
            strategies,
            depths,
            rates,
            block_size_bytes: self.block_size,
            size_bytes: self.size,
            rounds: self.rounds.unwrap_or(rounds),
            rounds_asked: self.rounds.is_some(),
            max_time: self.max_time.map(Duration::from_secs),
            quick: self.quick,
            fio_asked: self.fio.is_some(),
            fio: self.fio.unwrap_or_else(|| PathBuf::from("fio")),
            exports: self.exports,
            dry_run: self.dry_run,
            explain: self.explain,
            #[cfg(feature = "live")]
            progress: if self.live { Form::Live } else { self.progress },
            #[cfg(not(feature = "live"))]
            progress: self.progress,
            keep_file: self.keep_file,
            seed: self.seed.unwrap_or_else(fresh_seed),
            cell_time: self.cell_time.map(Duration::from_millis),
        })
    }

    /// Refuses what would come of nothing because nothing is measured.
    fn check_that_it_measures(&self) -> Result<()> {
        let instead = match (self.dry_run, self.explain) {
            (true, true) => return Err(usage("--dry-run and --explain: ask for one at a time")),
            (true, false) => "--dry-run",
            (false, true) => "--explain",
            (false, false) => return Ok(()),
        };
        match self.exports.first() {
            Some(flag) => Err(usage(format!(
                "{flag}: with {instead} nothing is measured that could be written"
            ))),
            None => Ok(()),
        }
    }
}

/// Reads a number of rounds.
fn parse_rounds(text: &str) -> Result<u32, String> {
    let number: Result<u32, _> = text.trim().parse();
    match number {
        Ok(rounds @ 1..=MOST_ROUNDS) => Ok(rounds),
        _ => Err(format!(
            "1 to {MOST_ROUNDS} rounds can be asked for: every round of every cell is kept, and \
             held against the others; --cell-time makes them longer"
        )),
    }
}

/// The strategies named, in the order of the list; if none is named, those that are by default.
fn chosen(names: &[String], known: &[&'static dyn Strategy]) -> Result<Vec<&'static dyn Strategy>> {
    let is_unknown = |name: &&String| strategy::find(known, name).is_none();
    if let Some(unknown) = names.iter().find(is_unknown) {
        let known = strategy::names(known);
        return Err(usage(format!(
            "unknown strategy `{unknown}`; known are {known}"
        )));
    }
    let wanted = |strategy: &&dyn Strategy| match names.is_empty() {
        true => strategy.by_default(),
        false => names.iter().any(|name| name == strategy.name()),
    };
    Ok(known.iter().copied().filter(wanted).collect())
}

/// A seed that differs from run to run and is short enough to be typed again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (now.as_micros() ^ u128::from(std::process::id()))
        .try_into()
        .unwrap_or(1_u64)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        >> 40
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::STRATEGIES;
    use crate::strategy::tasks::TaskStrategy;

    fn options(args: &[&str]) -> Result<Options> {
        options_of(STRATEGIES, args)
    }

    fn options_of(known: &[&'static dyn Strategy], args: &[&str]) -> Result<Options> {
        let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args)).unwrap();
        match cli.command {
            Command::Bench(flags) => flags.into_options(known),
            other => unreachable!("{other:?}"),
        }
    }

    fn names(options: &Options) -> Vec<&'static str> {
        options
            .strategies
            .iter()
            .map(|strategy| strategy.name())
            .collect()
    }

    #[test]
    fn the_flags_are_consistent() {
        command(STRATEGIES).debug_assert();
    }

    #[test]
    fn strategies_from_outside_are_known_like_the_others() {
        const EXTRA: &[TaskStrategy] = &[TaskStrategy {
            name: "outsider",
            needs_ring: false,
            run: |_, _| Ok(strategy::modes(&[])),
        }];
        let known = strategy::known(EXTRA);
        let help = command(&known)
            .find_subcommand_mut("bench")
            .unwrap()
            .render_help();
        assert!(help.to_string().contains("outsider"), "{help}");
        let named = options_of(&known, &["--strategy", "outsider,pread"]).unwrap();
        assert_eq!(names(&named), ["pread", "outsider"]);
        let all = names(&options_of(&known, &[]).unwrap());
        assert!(
            all.contains(&"outsider") && !all.contains(&"fio"),
            "{all:?}"
        );
        assert!(options(&["--strategy", "outsider"]).is_err());
    }

    #[test]
    fn fio_takes_part_only_when_asked() {
        assert!(!names(&options(&[]).unwrap()).contains(&"fio"));
        let with = options(&["--fio=/opt/fio", "."]).unwrap();
        assert!(FIO_CHECKS.iter().all(|name| names(&with).contains(name)));
        // Who names one of them and says where it is wants no other.
        let one = options(&["--fio=/opt/fio", "--strategy", "fio-psync", "."]).unwrap();
        assert_eq!(names(&one), ["fio-psync"]);
        assert_eq!(with.fio, PathBuf::from("/opt/fio"));
        let bare = options(&["--fio", "somewhere"]).unwrap();
        assert_eq!((bare.fio, bare.target), ("fio".into(), "somewhere".into()));
    }

    #[test]
    fn lists_and_sizes_are_read() {
        let options = options(&[
            "--strategy",
            "uring,pread",
            "--depth",
            "1,8",
            "--size",
            "16m",
        ])
        .unwrap();
        assert_eq!(names(&options), ["pread", "uring"]);
        assert_eq!(options.depths, Some(vec![1, 8]));
        assert_eq!(options.size_bytes, Some(16 << 20));
        assert_eq!(options.rounds, DEFAULT_ROUNDS);
    }

    #[test]
    fn more_rounds_than_can_be_kept_are_refused() {
        let read = |rounds: &str| {
            let args = ["inflight", "bench", "--rounds", rounds];
            Cli::try_parse_from(args)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("1"), Ok(()));
        assert_eq!(read(&MOST_ROUNDS.to_string()), Ok(()));
        for beyond in ["0", "1001", "4000000000", "many"] {
            let why = read(beyond).expect_err(beyond);
            let told = "1 to 1000 rounds can be asked for: every round of every cell is kept";
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        let error = options(&["--strategy", "aio"]).err().expect("refused");
        assert_eq!(crate::exit::code_of(&error), crate::exit::USAGE);
        for depth in ["0", "5000", "4294967296"] {
            let refused = Cli::try_parse_from(["inflight", "bench", "--depth", depth]);
            let error = refused.expect_err("refused");
            assert_eq!(error.exit_code(), i32::from(crate::exit::USAGE), "{depth}");
            assert!(error.to_string().contains("1..=4096"), "{error}");
        }
    }
}
