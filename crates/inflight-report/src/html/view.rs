//! One profile as it is drawn: which cells are shown, under which names, and in which units.
//!
//! Shown is what counts, and beside it what is only compared (maps, fio). What does not count is
//! in the notes and the tables, never in a drawing: a figure from memory is not to be taken home.

use std::collections::BTreeSet;

use super::look::{self, Look};
use super::markup::slug;
use crate::figures::iops;
use crate::histogram;
use crate::ranking::Ranking;
use crate::record::{Access, Cell, Latency, ProfileSummary, Record, Round, Sync};
use crate::stats::{median, rate};
use crate::strategy::{self, name, name_at_depth};
use crate::units::{count, nanos, plain};

/// From this size on, bytes are counted and not operations.
const LARGE_BLOCK_BYTES: u32 = 128 << 10;

/// The cells of one strategy, by depth.
pub(super) struct Series<'a> {
    pub(super) name: String,
    /// What marks and legend know it by, in as few letters as there can be.
    pub(super) key: String,
    pub(super) look: Look,
    pub(super) cells: Vec<&'a Cell>,
}

/// One profile.
pub(super) struct View<'a> {
    pub(super) record: &'a Record,
    pub(super) ranking: Ranking<'a>,
    pub(super) series: Vec<Series<'a>>,
    /// As ids of the page begin.
    pub(super) id: String,
    /// What one operation is called, and many.
    pub(super) one: &'static str,
    pub(super) many: &'static str,
    /// Whether rates are in bytes.
    in_bytes: bool,
}

impl<'a> View<'a> {
    pub(super) fn new(record: &'a Record, profile: &'a ProfileSummary, number: usize) -> Self {
        let ranking = Ranking::new(record, profile);
        let series = series(&ranking);
        let (one, many) = words(profile);
        Self {
            record,
            series,
            id: format!("p{number}-{}", slug(&profile.name)),
            one,
            many,
            in_bytes: profile.block_size_bytes >= LARGE_BLOCK_BYTES,
            ranking,
        }
    }

    /// The unit of rates.
    pub(super) fn unit(&self) -> String {
        if self.in_bytes {
            "MiB/s".to_owned()
        } else {
            format!("{}/s", self.many)
        }
    }

    /// The rate of a round in that unit.
    pub(super) fn round_rate(&self, round: &Round) -> Option<f64> {
        let rate = rate(round)?;
        let bytes = round.bytes as f64 / round.ops as f64;
        Some(if self.in_bytes {
            rate * bytes / 1_048_576.0
        } else {
            rate
        })
    }

    /// The median rate of a cell in that unit.
    pub(super) fn rate(&self, cell: &Cell) -> Option<f64> {
        median(
            cell.rounds
                .iter()
                .filter_map(|round| self.round_rate(round))
                .collect(),
        )
    }

    /// A rate as it is written beside its unit.
    pub(super) fn written(&self, rate: f64) -> String {
        if self.in_bytes {
            plain(rate)
        } else {
            count(rate)
        }
    }

    /// How a rate is written on an axis.
    pub(super) fn tick(&self) -> fn(f64) -> String {
        if self.in_bytes {
            |rate| short(&plain(rate))
        } else {
            tick_count
        }
    }

    /// All depths that are shown, in order.
    pub(super) fn depths(&self) -> Vec<u32> {
        let cells = self.series.iter().flat_map(|series| &series.cells);
        let depths: BTreeSet<u32> = cells.map(|cell| cell.depth.max(1)).collect();
        depths.into_iter().collect()
    }

    /// The depth at which strategies are compared where only one can be shown: that of the pick.
    pub(super) fn focus(&self) -> u32 {
        self.ranking.pick().map_or(1, |pick| pick.depth.max(1))
    }

    /// For each strategy the cell at that depth, or the one that is nearest to it.
    pub(super) fn focused(&self) -> Vec<(&Series<'a>, &'a Cell)> {
        let wanted = f64::from(self.focus()).ln();
        let off = |cell: &Cell| (f64::from(cell.depth.max(1)).ln() - wanted).abs();
        let nearest = |series: &Series<'a>| {
            let cells = series.cells.iter().copied();
            cells.min_by(|a, b| off(a).total_cmp(&off(b)))
        };
        self.series
            .iter()
            .filter_map(|series| Some((series, nearest(series)?)))
            .collect()
    }

    /// What is said about the choice of those cells.
    pub(super) fn focus_note(&self) -> String {
        match self.focus() {
            1 => "One operation at a time, as recommended.".to_owned(),
            depth => format!("At depth {depth}, as recommended, or the nearest there is."),
        }
    }

    /// The name of a cell in a row of its own.
    pub(super) fn row_name(&self, cell: &Cell) -> String {
        name_at_depth(cell, self.ranking.profile.access)
    }

    /// Whether anything can be drawn.
    pub(super) fn has_charts(&self) -> bool {
        !self.ranking.ranked.is_empty() && !self.series.is_empty()
    }
}

/// The latencies of a cell, if any were timed.
pub(super) fn latency(cell: &Cell) -> Option<&Latency> {
    cell.latency.as_ref().filter(|latency| latency.samples > 0)
}

/// The histogram of a cell, if it can be read.
pub(super) fn histogram_of(cell: &Cell) -> Option<hdrhistogram::Histogram<u64>> {
    let stored = &latency(cell)?.hist_v2_b64;
    histogram::decode(stored)
        .ok()
        .filter(|histogram| !histogram.is_empty())
}

/// Nanoseconds on an axis, without digits that a round figure does not have.
pub(super) fn tick_nanos(ns: f64) -> String {
    short(&nanos(ns))
}

/// A count on an axis.
pub(super) fn tick_count(figure: f64) -> String {
    short(&count(figure))
}

/// `200 k` for `200 k`, `2 µs` for `2.00 µs`.
fn short(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = match number.split_once('.') {
        Some(_) => number.trim_end_matches('0').trim_end_matches('.'),
        None => number,
    };
    format!("{number} {unit}").trim_end().to_owned()
}

fn series<'a>(ranking: &Ranking<'a>) -> Vec<Series<'a>> {
    let out = |cell: &Cell| ranking.out.iter().any(|(out, _)| out.id == cell.id);
    let shown =
        |cell: &&Cell| iops(cell).is_some() && cell.strategy != strategy::NULL && !out(cell);
    let mut all: Vec<Series<'a>> = Vec::new();
    let mut unknown = 0;
    for cell in ranking.cells.iter().copied().filter(shown) {
        let title = series_name(cell, ranking.profile.access);
        match all.iter_mut().find(|series| series.name == title) {
            Some(series) => series.cells.push(cell),
            None => {
                let look = look::of(&cell.strategy, unknown);
                unknown += usize::from(!look::is_known(&cell.strategy));
                let (cells, key) = (vec![cell], all.len().to_string());
                all.push(Series {
                    name: title,
                    key,
                    look,
                    cells,
                });
            }
        }
    }
    for series in &mut all {
        series.cells.sort_by_key(|cell| (cell.depth, cell.threads));
    }
    all
}

/// Threads of plain calls are their depth; those of other strategies are part of the name.
pub(super) fn series_name(cell: &Cell, access: Access) -> String {
    match cell.strategy.as_str() {
        strategy::THREADS => format!("{}, threads", strategy::plain_call(access)),
        strategy::INFLIGHT_THREADS => "inflight, threads".to_owned(),
        _ => name(cell, access),
    }
}

fn words(profile: &ProfileSummary) -> (&'static str, &'static str) {
    match (profile.access, profile.sync) {
        _ if profile.read_back => ("cycle", "cycles"),
        (Access::Append | Access::RandomWrite | Access::SequentialWrite, Sync::Each) => {
            ("durable write", "durable writes")
        }
        (Access::Append | Access::RandomWrite | Access::SequentialWrite, _) => ("write", "writes"),
        (Access::RandomRead | Access::SequentialRead, _) => ("read", "reads"),
        (Access::RangeRead, _) => ("range", "ranges"),
        (Access::Mixed, _) => ("operation", "operations"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_on_axes_are_short() {
        assert_eq!(tick_nanos(2_000.0), "2 µs");
        assert_eq!(tick_nanos(50_000.0), "50 µs");
        assert_eq!(tick_nanos(500.0), "500 ns");
        assert_eq!(tick_count(200_000.0), "200 k");
        assert_eq!(tick_count(1_250_000.0), "1.25 M");
        assert_eq!(tick_count(0.0), "0");
    }
}
