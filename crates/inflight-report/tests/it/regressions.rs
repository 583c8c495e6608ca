//! How often a comparison of two records cries wolf, and what it finds, on simulated rounds.
//!
//! Noise is log-normal, another one for each round of each cell: that of the machine within a run,
//! without what differs between runs. `--nocapture` prints the figures.

use inflight_report::compare::{Comparison, rounds_to_show};
use inflight_report::record::Record;
use inflight_report::text::{Style, comparison};
use oorandom::Rand64;

use crate::builder::{cell, empty};

/// Comparisons of each kind.
const PAIRS: u32 = 60;

/// Cells of a run of all profiles.
const ROWS: u32 = 116;

const THRESHOLD: f64 = 0.05;

/// One run: so many rows with so many rounds of this noise, the first at this share of the rate.
fn run(random: &mut Rand64, rows: u32, rounds: u32, noise: f64, first: f64) -> Record {
    let mut record = empty(rounds);
    for depth in 1..=rows {
        let mut cell = cell("inflight", depth, 100_000, 1_000, rounds);
        let share = if depth == 1 { first } else { 1.0 };
        for round in &mut cell.rounds {
            round.ops = as_count(1e8 * share * (noise * normal(random)).exp());
            round.bytes = round.ops * 4096;
            round.device_bytes = Some(round.bytes);
        }
        record.cells.push(cell);
    }
    record
}

/// Two uniform figures make a normal one.
fn normal(random: &mut Rand64) -> f64 {
    let [one, other] = [random.rand_float(), random.rand_float()];
    (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "far from both ends"
)]
fn as_count(ops: f64) -> u64 {
    ops as u64
}

/// In how many comparisons some row regressed that had not, and in how many the first one did that
/// had.
fn counted(rows: u32, rounds: u32, noise: f64, first: f64, threshold: f64) -> (u32, u32) {
    let mut random = Rand64::new(u128::from(rows * rounds) + 7);
    let (mut false_alarms, mut found) = (0, 0);
    for _ in 0..PAIRS {
        let old = run(&mut random, rows, rounds, noise, 1.0);
        let new = run(&mut random, rows, rounds, noise, first);
        let compared = Comparison::new(&old, &new);
        let ids: Vec<u32> = compared
            .regressions(threshold)
            .map(|row| row.new.depth)
            .collect();
        found += u32::from(ids.contains(&1));
        false_alarms += u32::from(ids.iter().any(|depth| *depth != 1));
    }
    (false_alarms, found)
}

/// What happens once in twenty happens at most so often in so many, but for one time in a thousand.
const MOST_FALSE: u32 = 9;

#[test]
fn equal_runs_have_a_regression_in_one_comparison_of_twenty_at_most() {
    for noise in [0.05, 0.1, 0.2] {
        let (others, first) = counted(ROWS, 8, noise, 1.0, THRESHOLD);
        println!("{ROWS} rows, 8 rounds, {noise}: {others} of {PAIRS}");
        assert!(others + first <= MOST_FALSE, "{noise}: {others}, {first}");
    }
    // With few rows the test has no steps that are too coarse to be met.
    let (others, first) = counted(10, 12, 0.2, 1.0, 0.0);
    assert!(others + first <= MOST_FALSE, "{others}, {first}");
}

#[test]
fn a_large_regression_is_found_among_many_rows() {
    for (rounds, noise, fewest) in [(8, 0.03, PAIRS), (8, 0.1, PAIRS / 2), (16, 0.1, PAIRS)] {
        let (others, found) = counted(ROWS, rounds, noise, 0.7, THRESHOLD);
        println!("{ROWS} rows, {rounds} rounds, {noise}: {found} found, {others} false");
        assert!(found >= fewest && others <= MOST_FALSE, "{found}, {others}");
    }
}

#[test]
fn too_few_rounds_for_so_many_rows_are_told_and_not_taken_for_a_pass() {
    let text = |rows: u32, rounds: u32| {
        let mut random = Rand64::new(7);
        let old = run(&mut random, rows, rounds, 0.01, 1.0);
        let new = run(&mut random, rows, rounds, 0.01, 0.5);
        let compared = Comparison::new(&old, &new);
        let (width, colour) = (2_000, false);
        comparison(&compared, THRESHOLD, Style { width, colour })
    };
    let few = text(116, 6);
    for told in [
        "Too few rounds to show a regression among 116 rows, however slow: measure 7 rounds",
        "1 of the rows would be slower beyond 5 % if no other one had been compared. Among 116",
        "slower, or chance",
        "0 regressions beyond 5 %, of 116 rows that were compared.",
    ] {
        assert!(few.contains(told), "{told}\n{few}");
    }
    let enough = text(46, 6);
    assert!(!enough.contains("Too few"), "{enough}");
    assert!(
        enough.contains("1 regression beyond 5 %, of 46 rows"),
        "{enough}"
    );
    let alone = text(1, 3);
    assert!(
        alone.contains("Too few rounds to show a regression among 1 row,"),
        "{alone}"
    );
}

#[test]
fn so_many_rounds_can_show_a_regression_among_so_many_rows() {
    for (rows, rounds) in [
        (1, 4),
        (3, 4),
        (4, 5),
        (12, 5),
        (13, 6),
        (46, 6),
        (47, 7),
        (171, 7),
        (172, 8),
        (643, 8),
        (644, 9),
    ] {
        assert_eq!(rounds_to_show(rows), rounds, "{rows} rows");
    }
}
