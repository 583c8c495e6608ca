//! Fresh rounds, through the command.

use std::collections::BTreeSet;

use inflight_report::Record;
use inflight_report::ranking::Ranking;
use inflight_report::record::Round;
use inflight_report::regret::to_confirm;

use crate::support::{directory, record};

const ARGS: &[&str] = &[
    "--profile",
    "cached-random-read",
    "--strategy",
    "null,pread,threads",
    "--depth",
    "2,16",
    "--size",
    "16m",
    "--cell-time",
    "5",
];

fn rounds<'a>(record: &'a Record, strategy: &str) -> &'a [Round] {
    let cell = record.cells.iter().find(|cell| cell.strategy == strategy);
    &cell.expect("it takes part").rounds
}

#[test]
fn the_cells_at_the_front_get_fresh_rounds_and_the_record_tells_which() {
    let directory = directory();
    let (code, record) = record(directory.path(), &[ARGS, &["--rounds", "6"]].concat());
    assert_eq!(code, 0);
    let confirms = |strategy: &str| {
        let rounds = rounds(&record, strategy).iter();
        rounds.map(|round| round.confirms).collect::<Vec<_>>()
    };
    // The plain loop is what all are compared with; `null` is never compared.
    assert_eq!(confirms("pread"), [[false; 6], [true; 6]].concat());
    assert_eq!(confirms("null"), [false; 6]);
    let blocks = rounds(&record, "pread").iter().map(|round| round.block);
    assert!(blocks.eq(0..12), "numbers go on, so that pairs are found");
}

#[test]
fn too_few_rounds_confirm_nothing() {
    let directory = directory();
    let (code, record) = record(directory.path(), &[ARGS, &["--rounds", "5"]].concat());
    assert_eq!(code, 0);
    assert_eq!(rounds(&record, "pread").len(), 5);
}

/// What was known of a run after so many rounds.
fn after(record: &Record, rounds: u32) -> Record {
    let mut known = record.clone();
    for cell in &mut known.cells {
        cell.rounds.retain(|round| round.block < rounds);
        cell.turns.retain(|round| round.block < rounds);
    }
    known
}

/// Runs the command, and looks whether the cells that it ran after those at the front are those
/// that the worst regret rested on by then. Says whether there were any.
fn confirms_the_worst(args: &[&str]) -> bool {
    let directory = directory();
    let (code, record) = record(directory.path(), args);
    assert_eq!(code, 0);
    // Eight of all, and eight of those at the front.
    let known = after(&record, 16);
    let ranking = Ranking::new(&known, &known.profiles[0]);
    // On a busy machine the verdict may name another cell by then, whose fresh rounds come first.
    if !ranking.unconfirmed().is_empty() {
        return false;
    }
    let of_worst = to_confirm(&ranking).into_iter();
    let of_worst: BTreeSet<&str> = of_worst.map(|cell| &*cell.id).collect();
    let later = record.cells.iter().filter_map(|cell| {
        let later = cell.rounds.iter().filter(|round| round.block >= 16);
        let blocks: Vec<u32> = later.map(|round| round.block).collect();
        (!blocks.is_empty()).then_some((&*cell.id, blocks))
    });
    let (ran, blocks): (BTreeSet<&str>, Vec<Vec<u32>>) = later.unzip();
    assert_eq!(ran, of_worst);
    let numbers: Vec<u32> = (16..24).collect();
    assert!(blocks.iter().all(|blocks| *blocks == numbers), "{blocks:?}");
    !of_worst.is_empty()
}

#[test]
fn the_worst_regret_gets_fresh_rounds_after_those_at_the_front() {
    // Futures of cached data are never at the front beside plain calls, and a road of the library.
    let strategies = ["--strategy", "pread,inflight,inflight-async"];
    let args = ["--profile", "cached-random-read", "--depth", "1,2,4,8"];
    let short = ["--size", "16m", "--cell-time", "5", "--rounds", "8"];
    let args = [&args[..], &strategies, &short].concat();
    // On a busy machine their threads may get no turn in most rounds, and have no regret then; of
    // the library's own choice at four depths, the worst is now at the front and now not.
    let tries = (0..20).take_while(|_| !confirms_the_worst(&args)).count();
    assert!(
        tries < 20,
        "the worst regret rested on fresh rounds each time"
    );
}
