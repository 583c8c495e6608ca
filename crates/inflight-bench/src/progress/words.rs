//! How progress is worded, wherever it is shown.

use std::time::Duration;

use inflight_report::units;

use super::event::{Done, Outcome};
use crate::size::human;

/// What the first signal does.
pub(crate) const INTERRUPTED: &str =
    "interrupted: finishing the current cell; once more ends it at once";

/// Bars of growing height.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// More rounds than this are not told apart.
const MOST_BARS: usize = 8;

/// The time that is left: `41 s left`.
pub(crate) fn left(ns: u64) -> String {
    let seconds = Duration::from_nanos(ns).as_secs();
    match seconds {
        ..100 => format!("{seconds} s left"),
        _ => format!("{} min {:02} s left", seconds / 60, seconds % 60),
    }
}

/// How far the test data is.
pub(crate) fn writing(done_bytes: u64, size_bytes: u64) -> String {
    if done_bytes < size_bytes {
        return format!("writing {} of {}", human(done_bytes), human(size_bytes));
    }
    "bringing the data to the device".to_owned()
}

/// A cell that had its turn, in at most `width` columns as far as that is possible: the profile
/// goes first, then the bars, then the latency.
pub(crate) fn cell(done: &Done<'_>, width: usize) -> String {
    let profile = Some(done.profile.to_owned());
    let round = format!("round {}/{}", done.round, done.rounds);
    let left = left(done.left_ns);
    let (rate, p99) = figures(done);
    let bars = Some(bars(&done.shown.rates)).filter(|bars| !bars.is_empty());
    let line = |profile: Option<&String>, p99: Option<&String>, bars: Option<&String>| {
        let tail = [p99, bars].into_iter().flatten().cloned();
        let tail = Some(tail.collect::<Vec<_>>().join(" ")).filter(|tail| !tail.is_empty());
        let parts = [
            profile,
            Some(&round),
            Some(&done.shown.name),
            Some(&rate),
            tail.as_ref(),
            Some(&left),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        parts.join(" · ")
    };
    let lines = [
        line(profile.as_ref(), p99.as_ref(), bars.as_ref()),
        line(None, p99.as_ref(), bars.as_ref()),
        line(None, p99.as_ref(), None),
        line(None, None, None),
    ];
    let fits = |line: &&String| line.chars().count() <= width;
    lines.iter().find(fits).unwrap_or(&lines[3]).clone()
}

/// Rate and latency of a cell: `571 k reads/s`, `p99 98.0 µs`.
fn figures(done: &Done<'_>) -> (String, Option<String>) {
    match done.outcome {
        Outcome::Ran { ns_p99, .. } => {
            let rate = done.shown.rates.last().copied().unwrap_or(0.0);
            let p99 = ns_p99.map(|ns| format!("p99 {}", units::nanos(ns as f64)));
            (self::rate(rate, done.shown.noun), p99)
        }
        Outcome::Skipped { .. } => ("not possible here".to_owned(), None),
    }
}

/// A rate: `571 k reads/s`.
pub(crate) fn rate(per_second: f64, noun: &str) -> String {
    format!("{} {noun}/s", units::count(per_second))
}

/// A bar for each of the last figures, in proportion to the largest: steady figures are alike.
pub(crate) fn bars(figures: &[f64]) -> String {
    let last = &figures[figures.len().saturating_sub(MOST_BARS)..];
    let most = last.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bar = |figure: &f64| {
        let steps = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
        let reached = steps.iter().filter(|step| figure / most > **step).count();
        BARS[reached]
    };
    last.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::event::Shown;

    fn done(outcome: Outcome<'static>) -> Done<'static> {
        Done {
            id: "direct-random-read/uring/32",
            profile: "direct-random-read",
            round: 3,
            rounds: 8,
            outcome,
            left_ns: 41_900_000_000,
            shown: Shown {
                name: "io_uring at depth 32".to_owned(),
                noun: "reads",
                rates: vec![140e3, 350e3, 571e3],
                ..Shown::default()
            },
        }
    }

    const RAN: Outcome<'_> = Outcome::Ran {
        ops: 1,
        bytes: 1,
        errors: 0,
        duration_ns: 1,
        ns_p50: None,
        ns_p99: Some(98_000),
    };

    #[test]
    fn a_line_says_less_where_there_is_less_room() {
        let ran = done(RAN);
        let full = "direct-random-read · round 3/8 · io_uring at depth 32 · 571 k reads/s · \
                    p99 98.0 µs ▂▅█ · 41 s left";
        assert_eq!(cell(&ran, 120), full);
        let usual = &full["direct-random-read · ".len()..];
        assert_eq!(cell(&ran, 80), usual);
        assert_eq!(cell(&ran, usual.chars().count()), usual);
        let narrow = usual.replace(" ▂▅█", "");
        assert_eq!(cell(&ran, usual.chars().count() - 1), narrow);
        let least = "round 3/8 · io_uring at depth 32 · 571 k reads/s · 41 s left";
        assert_eq!(cell(&ran, 60), least);
        assert_eq!(cell(&ran, 10), least);
    }

    #[test]
    fn a_cell_that_cannot_run_has_no_figures() {
        let mut skipped = done(Outcome::Skipped { skipped: "why" });
        skipped.shown.rates.clear();
        let line = "round 3/8 · io_uring at depth 32 · not possible here · 41 s left";
        assert_eq!(cell(&skipped, 70), line);
    }

    #[test]
    fn bars_are_in_proportion_to_the_largest() {
        assert_eq!(bars(&[]), "");
        assert_eq!(bars(&[5.0, 5.01, 4.99]), "███");
        assert_eq!(bars(&[0.0, 1.0, 8.0, 4.1]), "▁▁█▅");
        assert_eq!(bars(&[9.0; 20]).chars().count(), MOST_BARS);
    }

    #[test]
    fn time_is_told_in_seconds_and_minutes() {
        assert_eq!(left(41_900_000_000), "41 s left");
        assert_eq!(left(99_000_000_000), "99 s left");
        assert_eq!(left(605_000_000_000), "10 min 05 s left");
    }
}
