//! Unpaired intervals, drift and steady state, against scipy.

use inflight_report::stats::{Word, drift, rank_sum, steady};
use serde_json::Value;

fn cases(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("the fixture is JSON")
}

fn list(case: &Value, key: &str) -> Vec<f64> {
    serde_json::from_value(case[key].clone()).expect("a list of numbers")
}

fn assert_near(ours: f64, theirs: &Value, what: &str) {
    let theirs = theirs.as_f64().expect("a number");
    let near = (ours - theirs).abs() <= 1e-9 * theirs.abs().max(1.0);
    assert!(near, "{what}: {ours}, scipy {theirs}");
}

#[test]
fn unpaired_intervals_agree_with_scipy() {
    let cases = cases(include_str!("../fixtures/rank_sum.json"));
    assert_eq!(cases.len(), 7);
    for case in cases {
        let (first, second) = (list(&case, "first"), list(&case, "second"));
        let found = rank_sum(&first, &second).unwrap();
        let sizes = format!("{} and {} rounds", first.len(), second.len());
        assert_eq!(found.n, first.len().min(second.len()));
        assert_near(found.ratio.ln(), &case["estimate"], &sizes);
        assert_near(found.lo.ln(), &case["lo"], &sizes);
        assert_near(found.hi.ln(), &case["hi"], &sizes);
        assert_near(found.level, &case["level"], &sizes);
    }
}

#[test]
fn unpaired_intervals_turn_over_with_their_sides() {
    let (a, b) = (
        [0.1, 0.4, 0.2, 0.35, 0.3],
        [0.0, 0.05, -0.1, 0.11, 0.02, 0.01],
    );
    let (there, back) = (rank_sum(&a, &b).unwrap(), rank_sum(&b, &a).unwrap());
    assert!((there.ratio * back.ratio - 1.0).abs() < 1e-12);
    assert!((there.lo * back.hi - 1.0).abs() < 1e-12);
    assert_eq!((there.level, there.n), (back.level, back.n));
    assert_eq!(rank_sum(&a, &[]), None);
    assert_eq!(rank_sum(&[], &b), None);
}

#[test]
fn rounds_that_are_all_equal_are_no_difference() {
    let found = rank_sum(&[0.7; 8], &[0.7; 8]).unwrap();
    assert_eq!((found.lo, found.hi), (1.0, 1.0));
    assert_eq!(found.word(), Word::NoRealDifference);
}

#[test]
fn drift_agrees_with_scipy_also_with_ties() {
    let cases = cases(include_str!("../fixtures/drift.json"));
    assert_eq!(cases.len(), 6);
    for case in cases {
        let figures = list(&case, "figures");
        let found = drift(&figures).unwrap();
        let what = format!("{figures:?}");
        assert_near(found.rho, &case["rho"], &what);
        assert_near(found.chance(), &case["p"], &what);
    }
}

#[test]
fn steady_state_agrees_with_scipy() {
    let cases = cases(include_str!("../fixtures/steady.json"));
    assert_eq!(cases.len(), 4);
    for case in cases {
        let figures = list(&case, "figures");
        let found = steady(&figures).unwrap();
        let what = format!("{figures:?}");
        assert_near(found.excursion, &case["excursion"], &what);
        assert_near(found.slope, &case["slope"], &what);
    }
}

#[test]
fn a_spread_or_a_trend_is_not_steady() {
    let holds = |figures: &[f64]| steady(figures).map(|found| found.holds());
    assert_eq!(holds(&[100.0, 101.0, 99.0, 100.0]), None);
    assert_eq!(holds(&[0.0; 5]), None);
    assert_eq!(holds(&[50.0, 100.0, 101.0, 99.0, 100.0, 102.0]), Some(true));
    assert_eq!(holds(&[100.0, 100.0, 79.0, 100.0, 100.0]), Some(false));
    assert_eq!(holds(&[106.0, 103.0, 100.0, 97.0, 94.0]), Some(false));
}
