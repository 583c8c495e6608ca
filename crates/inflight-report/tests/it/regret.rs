//! How far the library is behind, and behind whom.

use inflight_report::record::{ProfileSummary, Record, Regret};
use inflight_report::regret::{regrets, worst};

use crate::builder::{cell, disk, find, into_tmpfs};

fn at(record: &Record, strategy: &str, depth: u32) -> Option<Regret> {
    let mut all = regrets(record).into_iter();
    all.find(|regret| regret.strategy == strategy && regret.depth == depth)
}

#[test]
fn the_best_that_copies_and_reports_errors_is_the_reference() {
    let mut record = disk(8);
    // Faster than everything, and never a reference.
    for (strategy, depth) in [("mmap", 1), ("null", 1), ("fio", 32)] {
        let rounds = &mut find(&mut record, strategy, depth).rounds;
        rounds.iter_mut().for_each(|round| round.ops *= 100);
    }
    let regret = at(&record, "inflight", 32).unwrap();
    assert_eq!(regret.reference, "direct-random-read/uring-tuned/32");
    assert!((1.0..1.03).contains(&regret.ratio), "{regret:?}");
    assert!(regret.lo <= regret.ratio && regret.ratio <= regret.hi);
    assert!(regret.level > 0.95);
    let alone = at(&record, "inflight", 1).unwrap();
    assert_eq!(alone.reference, "direct-random-read/uring/1");
}

#[test]
fn the_library_is_no_reference_for_itself() {
    let mut record = disk(8);
    record
        .cells
        .push(cell("inflight-async", 32, 600_000, 2_000, 8));
    let regret = at(&record, "inflight", 32).unwrap();
    assert_eq!(regret.reference, "direct-random-read/uring-tuned/32");
    assert!(at(&record, "inflight-async", 32).unwrap().percent() < -3.0);
}

#[test]
fn one_at_a_time_can_be_had_at_any_depth() {
    let mut record = disk(8);
    let pread = find(&mut record, "pread", 1);
    pread.rounds.iter_mut().for_each(|round| round.ops *= 100);
    let regret = at(&record, "inflight", 32).unwrap();
    assert_eq!(regret.reference, "direct-random-read/pread/1");
    assert!(regret.percent() > 100.0, "{regret:?}");
    assert!(regret.percent_at_worst() >= regret.percent());
}

#[test]
fn cells_that_do_not_count_have_no_regret_and_are_no_reference() {
    let mut record = disk(8);
    for round in &mut find(&mut record, "uring-tuned", 32).rounds {
        round.errors = round.ops;
    }
    let regret = at(&record, "inflight", 32).unwrap();
    assert_eq!(regret.reference, "direct-random-read/uring/32");
    into_tmpfs(&mut record);
    assert!(regrets(&record).is_empty());
    record.profiles = vec![ProfileSummary::default()];
    assert!(regrets(&record).is_empty());
}

#[test]
fn the_worst_is_the_largest_of_those_that_are_wanted() {
    let record = disk(8);
    let all = regrets(&record);
    assert_eq!(all.len(), 2);
    let largest = worst(&all, |_| true).unwrap();
    assert!(all.iter().all(|regret| regret.ratio <= largest.ratio));
    assert_eq!(worst(&all, |regret| regret.depth == 1).unwrap().depth, 1);
    assert!(worst(&all, |regret| regret.depth == 7).is_none());
}
