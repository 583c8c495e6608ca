//! Fresh rounds, through the command.

use inflight_report::Record;
use inflight_report::record::Round;

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
