//! What becomes of cells that only say how fast they are.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use clap::Parser;
use inflight_report::record::{Machine, Target, Tool};

use super::*;
use crate::cli::{Cli, Command, DEFAULT_ROUNDS};
use crate::measure::ground::Ground;
use crate::measure::meter::Counters;
use crate::measure::run::Stretch;
use crate::measure::usage::DeviceMeter;
use crate::plan::PlannedCell;
use crate::progress::Form;
use crate::strategy::{ALONE, Modes, STRATEGIES, Strategy, Way};

/// A record of nothing.
fn blank() -> Record {
    Record {
        schema: String::new(),
        tool: Tool::default(),
        started_utc: String::new(),
        took_ns: 0,
        seed: 0,
        argv: Vec::new(),
        plan_hash: String::new(),
        rounds_planned: 0,
        cell_duration_ns: 0,
        warmup_ns: 0,
        interrupted: false,
        machine: Machine::default(),
        target: Target::default(),
        profiles: Vec::new(),
        findings: Vec::new(),
        reread: None,
        cells: Vec::new(),
        regrets: Vec::new(),
    }
}

/// One profile, and how it is measured.
pub(super) fn plan(args: &[&str]) -> Plan {
    let usual = [
        "inflight",
        "bench",
        "--strategy",
        "null",
        "--cell-time",
        "1",
    ];
    let profile = ["--profile", "cached-random-read"];
    let cli = Cli::try_parse_from(usual.iter().chain(&profile).chain(args)).unwrap();
    let Command::Bench(flags) = cli.command else {
        unreachable!("{:?}", cli.command);
    };
    Plan::new(&flags.into_options(STRATEGIES).unwrap(), 2).unwrap()
}

/// The usual number of rounds, of which none is left out.
fn usual_rounds() -> Plan {
    plan(&["--rounds", &DEFAULT_ROUNDS.to_string()])
}

/// Cells of a profile, not yet measured.
pub(super) fn begin<'a>(
    plan: &Plan,
    planned: impl IntoIterator<Item = &'a PlannedCell>,
) -> Vec<Running> {
    let profile = &plan.profiles[0].profile.name;
    let begun = |cell: &PlannedCell| {
        // Nobody asks a file how fast it is: there is none.
        Running {
            sample_every: Some(1),
            ..cell.begin(profile, Modes::new())
        }
    };
    planned.into_iter().map(begun).collect()
}

/// Runs some rounds of a profile, of which none are added after `until`.
pub(super) fn measure(
    plan: &Plan,
    until: Instant,
    rounds: impl FnOnce(&Course<'_>, &Job<'_>, &Place<'_>),
) {
    let profile = &plan.profiles[0].profile;
    let work = profile.work(1 << 20);
    let job = Job {
        warmup: plan.warmup(profile),
        measured: plan.measured,
        ..Job::of(&work)
    };
    let place = Place {
        device: DeviceMeter::open(None),
        ground: Ground::new(profile, &[], 0),
    };
    let (blank, progress) = (blank(), Progress::new(Form::Auto));
    let table = Timetable {
        plan,
        number: 0,
        end: until,
        reading: Duration::ZERO,
    };
    let course = Course::new(&blank, table, &progress);
    rounds(&course, &job, &place);
}

/// Does nothing, and says that it has done so much in each round.
pub(super) struct Pretended {
    pub(super) name: &'static str,
    pub(super) measure: fn(&Job<'_>) -> Result<Stretch>,
}

impl Strategy for Pretended {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "for a test"
    }

    fn way(&self) -> Way {
        Way::Program(self.measure)
    }
}

pub(super) fn done(ops: u64) -> Result<Stretch> {
    Ok(Stretch {
        start_ns: 0,
        duration_ns: 1_000_000,
        counters: Counters {
            ops,
            ..Counters::default()
        },
        syscalls: None,
        device_bytes: None,
        device: None,
        user_ns: 0,
        sys_ns: 0,
        worker_ns: None,
        ctxsw: 0,
        timed: None,
        effective: Modes::new(),
        sample_every: 1,
        open: None,
    })
}

const LIBRARY: Pretended = Pretended {
    name: "inflight",
    measure: |_| done(100_000),
};
/// Known to be slower.
const SLOW: Pretended = Pretended {
    name: "pread",
    measure: |_| done(50_000),
};
const LEVEL: Pretended = Pretended {
    name: "uring",
    measure: |_| done(100_000),
};
const AHEAD: Pretended = Pretended {
    name: "uring",
    measure: |_| done(112_000),
};
/// Around 3 % ahead: however often it is looked at, that can be more or less.
const STRAYING: Pretended = Pretended {
    name: "uring",
    measure: |job| done(95_000 + job.seed % 16_000),
};

/// The numbers of the fresh rounds, from 100 on, that each of three cells gets after screening:
/// the library's, that of its rival, and a slow one.
fn settled(rival: &'static Pretended, until: Instant) -> [Vec<u32>; 3] {
    let plan = usual_rounds();
    let strategies: [&'static dyn Strategy; 3] = [&LIBRARY, rival, &SLOW];
    let planned = strategies.map(|strategy| PlannedCell::new(strategy, ALONE));
    let mut cells = begin(&plan, &planned);
    measure(&plan, until, |course, job, place| {
        course.screen(&mut cells, job, place, &mut Quiet).unwrap();
        course.settle(&mut cells, 100, job, place).unwrap();
    });
    let fresh = |number: usize| {
        let rounds = cells[number].cell.rounds.iter();
        rounds
            .filter(|round| round.confirms)
            .map(|round| round.block)
    };
    [0, 1, 2].map(|number| fresh(number).collect())
}

#[test]
fn rounds_go_on_until_it_is_known_who_is_within_3_percent() {
    let later = Instant::now() + Duration::from_secs(3_600);
    let none: [Vec<u32>; 3] = [const { Vec::new() }; 3];
    assert_eq!(settled(&LEVEL, later), none, "it is known already");
    let once: Vec<u32> = (100..100 + DEFAULT_ROUNDS).collect();
    assert_eq!(settled(&AHEAD, later), [once.clone(), once, Vec::new()]);
    // Each look is at half as many rounds more, and there are only so many.
    let looks = [DEFAULT_ROUNDS, 4, 6, 9, 13, 20, 30, 45];
    assert_eq!(looks.len(), MOST_LOOKS as usize);
    let all: Vec<u32> = (100..100 + looks.iter().sum::<u32>()).collect();
    assert_eq!(settled(&STRAYING, later), [all.clone(), all, Vec::new()]);
    assert_eq!(settled(&STRAYING, Instant::now()), none, "no time is left");
}

const PLAIN: Pretended = Pretended {
    name: "pread",
    measure: |_| done(10_000),
};
const POOL: Pretended = Pretended {
    name: "threads",
    measure: |_| done(98_500),
};
const RING: Pretended = Pretended {
    name: "uring",
    measure: |_| done(100_000),
};
/// How often `LUCKY` was asked.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// In front in the rounds of all cells, and never again.
const LUCKY: Pretended = Pretended {
    name: "uring-tuned",
    measure: |_| match ASKED.fetch_add(1, Relaxed) {
        0..DEFAULT_ROUNDS => done(104_000),
        _ => done(95_000),
    },
};

#[test]
fn who_is_recommended_and_who_is_fastest_have_fresh_rounds_of_both() {
    let plan = usual_rounds();
    let strategies: [&'static dyn Strategy; 4] = [&PLAIN, &POOL, &RING, &LUCKY];
    let planned = strategies.map(|strategy| PlannedCell::new(strategy, ALONE));
    let mut cells = begin(&plan, &planned);
    // What is asked for is done although no time is left for more.
    measure(&plan, Instant::now(), |course, job, place| {
        course.screen(&mut cells, job, place, &mut Quiet).unwrap();
        let next = course
            .confirm(&mut cells, DEFAULT_ROUNDS, job, place)
            .unwrap();
        assert_eq!(next, 3 * DEFAULT_ROUNDS);
    });
    let fresh = |number: usize| {
        let rounds = cells[number].cell.rounds.iter();
        let fresh = rounds.filter(|round| round.confirms);
        fresh.map(|round| round.block).collect::<Vec<_>>()
    };
    let times = |range: Range<u32>| -> Vec<u32> {
        (range.start * DEFAULT_ROUNDS..range.end * DEFAULT_ROUNDS).collect()
    };
    let first = times(1..2);
    assert_eq!(fresh(3), first, "the fastest of the screening");
    assert_eq!(fresh(2), times(1..3), "the fastest");
    assert_eq!(fresh(1), times(2..3), "the recommended");
    assert_eq!(fresh(0), first, "the plain loop");
}
