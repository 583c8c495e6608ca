//! The open loop: operations begin by the clock, and latencies count from when they were due.
//!
//! A closed loop asks for nothing while all wait, so a stall makes a few operations late. Here
//! everybody is late who would have come meanwhile. What such cells have done in a second was
//! given, not found, so they have no place in a ranking, and a table of their own.

use crate::figures::full_rounds;
use crate::record::{Cell, OpenRound, ProfileSummary, Record};
use crate::stats::median;
use crate::truth::out_of_ranking;

/// A rate of which less than this share was done was not kept, if the rest waited for a place.
const LEAST_DONE: f64 = 0.99;
/// So many may wait for a place when a round is over without being a queue that grows: also where
/// a rate is kept somebody comes just before somebody else has ended.
const MAY_WAIT: f64 = 1.0;

/// Whether the operations of a cell begin by the clock.
#[must_use]
pub fn is_open(cell: &Cell) -> bool {
    cell.rate_per_s.is_some()
}

/// The cells of a profile whose operations begin by the clock, by rate, then in the order of the
/// record.
#[must_use]
pub fn cells<'a>(record: &'a Record, profile: &ProfileSummary) -> Vec<&'a Cell> {
    let of_profile = |cell: &&Cell| cell.profile == profile.name && is_open(cell);
    let mut cells: Vec<&Cell> = record.cells.iter().filter(of_profile).collect();
    cells.sort_by_key(|cell| cell.rate_per_s);
    cells
}

/// Whether a profile was measured in an open loop alone: then there is nothing to rank.
#[must_use]
pub fn is_only(record: &Record, profile: &ProfileSummary) -> bool {
    let mut cells = record
        .cells
        .iter()
        .filter(|cell| cell.profile == profile.name)
        .peekable();
    cells.peek().is_some() && cells.all(is_open)
}

/// Why the figures of a cell do not count, if so: it was skipped, or something else than the disk
/// answered.
#[must_use]
pub fn out(record: &Record, profile: &ProfileSummary, cell: &Cell) -> Option<String> {
    let skipped = cell.skipped.as_ref().map(|skipped| skipped.reason.clone());
    skipped.or_else(|| out_of_ranking(cell, profile, &record.target))
}

/// What became of a rate that was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Operations due per second.
    pub asked: f64,
    /// Operations per second that began in time and did not fail: what was due in a round without
    /// its backlog, the median over rounds.
    pub done: f64,
    /// Operations that were due in a round, the median over rounds.
    pub due: f64,
    /// Operations that were due and had not begun when a round was over, the median over rounds.
    pub backlog: f64,
    /// Operations that were given up, over all rounds.
    pub unserved: u64,
    /// How late the clock itself began operations, the median over rounds, in nanoseconds.
    pub lag_ns: f64,
}

impl Kept {
    /// Whether more was asked for than could be done: latencies then grow as long as it lasts, and
    /// say how long that was. That some are in flight when a round is over is no evidence; what had
    /// not begun because no place was free is.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.backlog > (self.due * (1.0 - LEAST_DONE)).max(MAY_WAIT)
    }
}

/// What became of the rate of a cell; `None` if it has no round of an open loop.
#[must_use]
pub fn kept(cell: &Cell) -> Option<Kept> {
    let asked = cell.rate_per_s? as f64;
    let of_rounds = |figure: fn(&OpenRound) -> u64| {
        let rounds = cell.rounds.iter().filter_map(|round| round.open.as_ref());
        median(rounds.map(|open| figure(open) as f64).collect())
    };
    // Not by what was completed meanwhile: whoever counts that may come late among many who serve.
    let shares = cell.rounds.iter().filter_map(|round| {
        let open = round.open.as_ref()?;
        let left = open.backlog.saturating_add(round.errors);
        Some(match open.due {
            0 => 1.0,
            due => due.saturating_sub(left) as f64 / due as f64,
        })
    });
    let done = median(shares.collect())? * asked;
    let opened = cell.rounds.iter().filter_map(|round| round.open.as_ref());
    Some(Kept {
        asked,
        done,
        due: of_rounds(|open| open.due)?,
        backlog: of_rounds(|open| open.backlog)?,
        unserved: opened.fold(0, |sum, open| sum.saturating_add(open.unserved)),
        lag_ns: of_rounds(|open| open.lag_ns)?,
    })
}

/// The measured cells of these, each with what became of its rate.
pub(crate) fn measured<'a>(cells: &[&'a Cell]) -> Vec<(&'a Cell, Kept)> {
    let figures = |cell: &&'a Cell| Some((*cell, kept(cell)?));
    let some = cells.iter().filter(|cell| full_rounds(cell) > 0);
    some.filter_map(figures).collect()
}
