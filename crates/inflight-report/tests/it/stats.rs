//! The interval, against scipy and against what must hold of every comparison.

use inflight_report::record::{Cell, Round};
use inflight_report::stats::{Interval, Word, ahead, compare, median, signed_rank};

use crate::builder::cell;

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * right.abs().max(1.0)
}

fn interval(lo: f64, hi: f64) -> Interval {
    let (ratio, level) = (f64::midpoint(lo, hi), 0.96);
    Interval {
        ratio,
        lo,
        hi,
        level,
        n: 8,
    }
}

#[test]
fn intervals_agree_with_scipy() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../fixtures/signed_rank.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let logs: Vec<f64> = serde_json::from_value(case["logs"].clone()).unwrap();
        let found = signed_rank(&logs).unwrap();
        assert_eq!(found.n, logs.len());
        let pairs = [
            (found.ratio.ln(), &case["estimate"]),
            (found.lo.ln(), &case["lo"]),
            (found.hi.ln(), &case["hi"]),
            (found.level, &case["level"]),
        ];
        for (ours, theirs) in pairs {
            let theirs = theirs.as_f64().unwrap();
            assert!(near(ours, theirs), "{} pairs: {ours} {theirs}", logs.len());
        }
    }
}

#[test]
fn a_against_b_is_the_inverse_of_b_against_a() {
    let (a, b) = (
        cell("uring", 32, 571_000, 1, 8),
        cell("threads", 16, 181_000, 1, 8),
    );
    let (there, back) = (compare(&a, &b).unwrap(), compare(&b, &a).unwrap());
    assert!(near(there.ratio * back.ratio, 1.0));
    assert!(near(there.lo * back.hi, 1.0) && near(there.hi * back.lo, 1.0));
    assert!(there.lo < there.hi && there.lo > 3.0);
    assert_eq!(
        (there.word(), back.word()),
        (Word::ClearlyFaster, Word::ClearlySlower)
    );
}

#[test]
fn rounds_pair_by_block_in_whatever_order_they_are_stored() {
    let (a, mut b) = (
        cell("uring", 32, 571_000, 1, 8),
        cell("uring", 1, 13_000, 1, 8),
    );
    let expected = compare(&a, &b);
    b.rounds.reverse();
    assert_eq!(compare(&a, &b), expected);
    // Were they paired by place, every pair would now be a different one.
    for round in &mut b.rounds {
        round.block += 1;
    }
    assert_ne!(compare(&a, &b), expected);
    assert_eq!(compare(&a, &b).unwrap().n, 7);
}

#[test]
fn what_disturbs_both_cells_of_a_round_does_not_widen_the_interval() {
    let (a, b) = (
        cell("uring", 32, 571_000, 1, 8),
        cell("uring", 1, 13_000, 1, 8),
    );
    let found = compare(&a, &b).unwrap();
    // Rounds differ by 20 % and their ratios by one.
    assert!(found.hi / found.lo < 1.02, "{found:?}");
}

#[test]
fn ties_and_zeros_give_a_point_without_losing_the_level() {
    let same = signed_rank(&[0.0; 8]).unwrap();
    assert_eq!((same.lo, same.ratio, same.hi), (1.0, 1.0, 1.0));
    assert_eq!(same.word(), Word::NoRealDifference);
    let tied = signed_rank(&[0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.5]).unwrap();
    assert!(
        near(tied.lo, 1.0) && near(tied.hi, 0.5_f64.exp()),
        "{tied:?}"
    );
    assert!(near(tied.level, same.level));
}

#[test]
fn one_round_gives_its_ratio_and_no_certainty() {
    let (a, b) = (
        cell("uring", 32, 571_000, 1, 1),
        cell("uring", 1, 13_000, 1, 1),
    );
    let found = compare(&a, &b).unwrap();
    assert_eq!((found.n, found.level), (1, 0.0));
    assert!(found.ratio > 40.0 && found.lo == found.ratio && found.hi == found.ratio);
    assert_eq!(
        (found.word(), found.suffices()),
        (Word::CannotTellYet, false)
    );
}

#[test]
fn five_rounds_can_not_tell_and_six_can() {
    let word = |count: usize| signed_rank(&vec![1.0; count]).unwrap().word();
    assert_eq!(
        (word(5), word(6)),
        (Word::CannotTellYet, Word::ClearlyFaster)
    );
}

#[test]
fn without_a_shared_round_there_is_no_comparison() {
    let (a, mut b) = (
        cell("uring", 32, 571_000, 1, 2),
        cell("uring", 1, 13_000, 1, 2),
    );
    b.rounds.iter_mut().for_each(|round| round.block += 2);
    assert_eq!(compare(&a, &b), None);
    assert_eq!(ahead(&a, &b), (0, 0));
    assert_eq!(signed_rank(&[]), None);
    assert_eq!(median(Vec::new()), None);
}

#[test]
fn rounds_without_operations_or_without_length_are_left_out() {
    let a = cell("uring", 32, 571_000, 1, 8);
    let mut b: Cell = cell("uring", 1, 13_000, 1, 8);
    b.rounds[2].ops = 0;
    b.rounds[5].duration_ns = 0;
    let found = compare(&a, &b).unwrap();
    assert_eq!(found.n, 6);
    assert!(found.ratio.is_finite());
    assert_eq!(ahead(&a, &b), (6, 6));
    assert_eq!(inflight_report::stats::rate(&Round::default()), None);
}

#[test]
fn words_depend_on_the_whole_interval() {
    let words = [
        (1.04, 1.2, Word::ClearlyFaster),
        (1.02, 1.2, Word::CannotTellYet),
        (0.98, 1.02, Word::NoRealDifference),
        (0.95, 1.02, Word::CannotTellYet),
        (0.95, 1.05, Word::CannotTellYet),
        (0.8, 0.98, Word::CannotTellYet),
        (0.8, 0.96, Word::ClearlySlower),
    ];
    for (lo, hi, word) in words {
        assert_eq!(interval(lo, hi).word(), word, "{lo} to {hi}");
        let inverse = match word {
            Word::ClearlyFaster => Word::ClearlySlower,
            Word::ClearlySlower => Word::ClearlyFaster,
            other => other,
        };
        assert_eq!(
            interval(1.0 / hi, 1.0 / lo).word(),
            inverse,
            "1 / ({lo} to {hi})"
        );
    }
}

#[test]
fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
    assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), Some(3.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
}

#[test]
fn rounds_to_tell_grow_with_the_square_of_the_width() {
    let interval = |ratio: f64, width: f64| Interval {
        ratio,
        lo: ratio / width,
        hi: ratio * width,
        level: 0.96,
        n: 8,
    };
    assert_eq!(interval(1.2, 1.01).rounds_to_tell(), Some(8));
    let [narrow, wide] = [1.1, 1.21].map(|width| interval(1.1, width).rounds_to_tell());
    let (narrow, wide) = (narrow.unwrap(), wide.unwrap());
    assert!(wide.abs_diff(narrow * 4) <= 4, "{narrow} and {wide}");
    assert_eq!(wide, interval(1.0 / 1.1, 1.21).rounds_to_tell().unwrap());
    assert_eq!(interval(1.03, 1.2).rounds_to_tell(), None);
    // Both are the ends of one side: 3.0 % of room from 1.0 to the zone's end.
    assert!(interval(1.0, 1.06).rounds_to_tell().unwrap() > 30);
}
