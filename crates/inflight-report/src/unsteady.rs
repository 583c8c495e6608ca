//! Cells whose rate is of a moment: they drifted in the course of the run, or writes to them had
//! not settled at its end; and those that were measured less often than planned. All are findings,
//! tied to the rows that they spoil.

use crate::figures::rounds_run;
use crate::ranking::Ranking;
use crate::record::{Cell, Finding, NO_TIME, ProfileSummary, Record, Severity};
use crate::stats::{Drift, drift, rate, steady};
use crate::strategy::NULL;
use crate::truth::in_memory;
use crate::units::percent;

/// The names of these findings.
pub const DRIFTED: &str = "drifted";
/// As above.
pub const LEFT_OUT: &str = "rounds-left-out";
/// As above.
pub const UNSETTLED: &str = "unsettled";

/// What the rounds of a record say about its own steadiness, profile by profile.
#[must_use]
pub fn findings(record: &Record) -> Vec<Finding> {
    let of_profile = |profile| {
        let ranking = Ranking::new(record, profile);
        let [slower, faster] = [true, false].map(|slower| drifted(&ranking, slower));
        // Memory has nothing to settle.
        let unsettled = unsettled(&ranking).filter(|_| !in_memory(&record.target));
        [slower, faster, unsettled]
    };
    let all = record.profiles.iter().flat_map(of_profile);
    all.flatten().chain(left_out(record)).collect()
}

/// Cells that became slower round by round, or faster.
fn drifted(ranking: &Ranking<'_>, slower: bool) -> Option<Finding> {
    let moved = drifting(ranking).into_iter();
    let moved = moved.filter(|(_, drift)| (drift.change < 1.0) == slower);
    let (cells, drifts): (Vec<&Cell>, Vec<Drift>) = moved.unzip();
    let most = drifts.iter().map(|drift| (drift.change - 1.0).abs());
    let most = percent(most.reduce(f64::max)?);
    let went = if slower { "slower" } else { "faster" };
    let ProfileSummary { name, .. } = ranking.profile;
    Some(Finding {
        id: DRIFTED.to_owned(),
        severity: Severity::Warning,
        what: format!(
            "Round by round, rates of {name} became up to {most} {went}, from the earlier half of \
             the rounds to the later one"
        ),
        why_it_matters:
            "Such a rate is of this run and of no other; ratios are of rounds that ran \
                         next to each other, and hold"
                .to_owned(),
        fix: "measure for longer (--max-time), when nothing else uses the disk".to_owned(),
        affects: ids(&cells),
    })
}

/// Rounds for which there was no time: of all cells, or of those that the verdict needs least.
fn left_out(record: &Record) -> Option<Finding> {
    let planned = usize::try_from(record.rounds_planned).unwrap_or(usize::MAX);
    let ran = |cell: &&Cell| match &cell.skipped {
        Some(skipped) => skipped.reason == NO_TIME,
        None => !cell.rounds.is_empty(),
    };
    let cells = record.cells.iter().filter(ran);
    let fewer: Vec<&Cell> = cells.filter(|cell| rounds_run(cell) < planned).collect();
    let least = fewer.iter().map(|cell| rounds_run(cell)).min();
    let most = planned - least.filter(|_| !record.interrupted)?;
    Some(Finding {
        id: LEFT_OUT.to_owned(),
        severity: Severity::Warning,
        what: format!(
            "{most} of {planned} rounds were left out: they took longer than planned, and the run \
             was to end in time"
        ),
        why_it_matters: "Fewer rounds tell less, and cells with too few are not compared"
            .to_owned(),
        fix: format!(
            "measure when nothing else runs, or take the time that it needs: --rounds {planned}"
        ),
        affects: ids(&fewer),
    })
}

/// Writes to a disk that has not settled are of this moment only.
fn unsettled(ranking: &Ranking<'_>) -> Option<Finding> {
    if !ranking.profile.access.writes() {
        return None;
    }
    // `null` writes nothing.
    let writes = |cell: &&&Cell| cell.strategy != NULL;
    let moves = |cell: &&&Cell| steady(&rates(cell)).is_some_and(|found| !found.holds());
    let cells: Vec<&Cell> = ranking
        .cells
        .iter()
        .filter(writes)
        .filter(moves)
        .copied()
        .collect();
    (!cells.is_empty()).then(|| Finding {
        id: UNSETTLED.to_owned(),
        severity: Severity::Warning,
        what: format!(
            "Writes of {} had not settled: the last 5 rounds are not within 20 %, with a trend \
             within 10 %",
            ranking.profile.name
        ),
        why_it_matters: "A disk that is written to for longer may be slower".to_owned(),
        fix: "measure for longer (--rounds), on a disk that was written over twice".to_owned(),
        affects: ids(&cells),
    })
}

fn ids(cells: &[&Cell]) -> Vec<String> {
    cells.iter().map(|cell| cell.id.clone()).collect()
}

fn rates(cell: &Cell) -> Vec<f64> {
    cell.rounds.iter().filter_map(rate).collect()
}

/// Cells whose rate went up or down from round to round by more than chance explains.
fn drifting<'a>(ranking: &Ranking<'a>) -> Vec<(&'a Cell, Drift)> {
    let of_cell = |cell: &&'a Cell| drift(&rates(cell)).map(|found| (*cell, found));
    let found: Vec<(&Cell, Drift)> = ranking.cells.iter().filter_map(of_cell).collect();
    let looks = found.len();
    let is_real = |(_, drift): &(&Cell, Drift)| drift.is_real(looks);
    found.into_iter().filter(is_real).collect()
}
