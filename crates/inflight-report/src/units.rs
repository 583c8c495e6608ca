//! Figures as people read them: µs, k, GiB. A figure that is not known is a dash.

use crate::stats::{Interval, Word};

/// What stands for a figure that is not known.
pub(crate) const MISSING: &str = "–";

/// A count per second, three digits: `12.9 k`.
#[must_use]
pub fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// So many of something: `1 round`, `2 rounds`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Nanoseconds, three digits: `76.0 µs`.
#[must_use]
pub fn nanos(value: f64) -> String {
    if value >= 60e9 {
        let seconds = (value / 1e9).round();
        return format!(
            "{:.0} min {:02.0} s",
            (seconds / 60.0).floor(),
            seconds % 60.0
        );
    }
    scaled(value, 1000.0, &["ns", "µs", "ms", "s"])
}

/// Bytes: `4.00 GiB`.
pub(crate) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A rate in a column of its own, where rows are read against each other: no prefixes.
pub(crate) fn plain(value: f64) -> String {
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$}")
}

/// A share as percent, without digits that nobody can use.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// A change as percent, with its sign: `-12.1%`, `+147%`.
pub(crate) fn signed_percent(change: f64) -> String {
    let percent = change * 100.0;
    let digits = usize::from(percent.abs() < 99.95);
    format!("{percent:+.digits$}%")
}

/// A figure, or the dash.
pub(crate) fn or_missing(figure: Option<f64>, write: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| MISSING.to_owned(), write)
}

/// A ratio alone: `8.1x`.
pub(crate) fn ratio(value: f64) -> String {
    format!("{value:.*}x", ratio_digits(value))
}

/// The ends of an interval: `7.9-8.3`, with the digits its ratio is written with.
pub(crate) fn ends(interval: &Interval) -> String {
    let digits = ratio_digits(interval.ratio);
    format!("{:.digits$}-{:.digits$}", interval.lo, interval.hi)
}

/// A comparison in a sentence: `8.1x (7.9-8.3)`; without ends where they say nothing.
pub(crate) fn ratio_with_ends(interval: &Interval) -> String {
    match interval.suffices() {
        true => format!("{} ({})", ratio(interval.ratio), ends(interval)),
        false => ratio(interval.ratio),
    }
}

/// A comparison in two narrow columns: `8.1x`, or `=` for no real difference; and the ends,
/// with `?` where nothing can be told yet.
pub(crate) fn comparison(interval: &Interval) -> [String; 2] {
    let ends = ends(interval);
    match interval.word() {
        _ if !interval.suffices() => [ratio(interval.ratio), "?".to_owned()],
        Word::NoRealDifference => ["=".to_owned(), ends],
        Word::CannotTellYet => [ratio(interval.ratio), format!("{ends} ?")],
        Word::ClearlyFaster | Word::ClearlySlower => [ratio(interval.ratio), ends],
    }
}

fn ratio_digits(value: f64) -> usize {
    match value {
        _ if value < 0.1 => 3,
        _ if value < 2.0 => 2,
        _ if value < 100.0 => 1,
        _ => 0,
    }
}

/// Three digits and the unit; whole numbers of the smallest unit stay whole.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    // 999.5 would be written as 1000, and belongs to the next unit.
    while value >= step - 0.5 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let digits = match value {
        _ if value >= 99.95 || (at == 0 && value.fract() == 0.0) => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", units[at])
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits_and_roll_over_to_the_next_unit() {
        let counts = [0.0, 7.0, 999.4, 999.6, 12_940.0, 571_000.0, 1_250_000.0];
        assert_eq!(
            counts.map(count),
            ["0", "7", "999", "1.00 k", "12.9 k", "571 k", "1.25 M"]
        );
        let times = [312.0, 55_040.0, 9_999.0, 2e9, 74.4e9, 119.7e9];
        assert_eq!(
            times.map(nanos),
            [
                "312 ns",
                "55.0 µs",
                "10.0 µs",
                "2.00 s",
                "1 min 14 s",
                "2 min 00 s"
            ]
        );
        assert_eq!(bytes(4.0 * 1_073_741_824.0), "4.00 GiB");
        assert_eq!(bytes(4096.0), "4.00 KiB");
    }

    #[test]
    fn an_interval_is_written_with_the_digits_of_its_ratio() {
        let interval = |ratio, lo, hi, level| Interval {
            ratio,
            lo,
            hi,
            level,
            n: 8,
        };
        assert_eq!(
            comparison(&interval(8.12, 7.94, 8.31, 0.96)),
            ["8.1x", "7.9-8.3"]
        );
        assert_eq!(
            comparison(&interval(1.0, 0.98, 1.02, 0.96)),
            ["=", "0.98-1.02"]
        );
        assert_eq!(
            comparison(&interval(1.05, 0.98, 1.12, 0.96)),
            ["1.05x", "0.98-1.12 ?"]
        );
        assert_eq!(comparison(&interval(8.12, 7.94, 8.31, 0.5)), ["8.1x", "?"]);
    }
}
