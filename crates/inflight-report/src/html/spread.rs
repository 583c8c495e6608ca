//! How latencies are spread, of one cell for each strategy: by percentile, and as a share.

use hdrhistogram::Histogram;

use super::depth::{ends, group, latency_axis};
use super::markup::{Figure, Table};
use super::plot::{Axis, CHART, Plot};
use super::scale::Kind;
use super::view::{Series, View, histogram_of, tick_nanos};
use crate::record::Cell;
use crate::units::{MISSING, nanos};

/// Samples above a percentile before it is drawn: a tail of fewer is chance.
const LEAST_BEYOND: f64 = 10.0;

/// Steps of a curve between one nine and the next.
const STEPS: u32 = 8;

/// Percentiles that the table has, and as people write them.
const NINES: [(f64, &str); 6] = [
    (0.5, "p50"),
    (0.9, "p90"),
    (0.99, "p99"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
    (0.99999, "p99.999"),
];

/// One cell with its histogram.
struct Spread<'a> {
    series: &'a Series<'a>,
    cell: &'a Cell,
    histogram: Histogram<u64>,
}

fn spreads<'a>(view: &'a View<'a>) -> Vec<Spread<'a>> {
    let with_histogram = |(series, cell): (&'a Series<'a>, &'a Cell)| {
        let histogram = histogram_of(cell)?;
        Some(Spread {
            series,
            cell,
            histogram,
        })
    };
    view.focused()
        .into_iter()
        .filter_map(with_histogram)
        .collect()
}

impl Spread<'_> {
    /// The latency at a quantile, if enough samples lie beyond it.
    fn at(&self, quantile: f64) -> Option<f64> {
        let beyond = self.histogram.len() as f64 * (1.0 - quantile);
        (beyond >= LEAST_BEYOND).then(|| self.histogram.value_at_quantile(quantile) as f64)
    }
}

/// How many nines a quantile has: 0.99 has two.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

/// Latency by percentile, each nine as wide as the last; and the share of operations by latency.
pub(super) fn figures(view: &View<'_>) -> Vec<Figure> {
    let spreads = spreads(view);
    [by_nines(view, &spreads), cumulative(view, &spreads)]
        .into_iter()
        .flatten()
        .collect()
}

fn by_nines(view: &View<'_>, spreads: &[Spread<'_>]) -> Option<Figure> {
    let curve = |spread: &Spread<'_>| {
        let points = (0..=STEPS * 5).map(|step| f64::from(step) / f64::from(STEPS));
        let points = points.map_while(|nines| {
            let quantile = 1.0 - 10f64.powf(-nines);
            Some((nines, spread.at(quantile)?.max(1.0)))
        });
        points.collect::<Vec<_>>()
    };
    let curves: Vec<Vec<(f64, f64)>> = spreads.iter().map(curve).collect();
    let furthest = curves
        .iter()
        .flatten()
        .map(|(nines, _)| *nines)
        .fold(1.0, f64::max);
    let y = latency_axis(
        "latency".to_owned(),
        ends(curves.iter().flatten().map(|(_, ns)| *ns))?,
    );
    let shown = NINES
        .iter()
        .filter(|(quantile, _)| nines(*quantile) <= furthest + 0.01);
    let mut ticks: Vec<(f64, String)> = shown
        .map(|(quantile, name)| (nines(*quantile), (*name).to_owned()))
        .collect();
    ticks.insert(0, (0.0, "min".to_owned()));
    let x = Axis {
        label: "percentile, each nine as wide as the last".to_owned(),
        kind: Kind::Linear,
        ends: (0.0, furthest),
        ticks: Some(ticks),
        write: tick_nanos,
    };
    let said = "Latency by percentile, on a scale of nines";
    let mut plot = Plot::new(CHART, said, &x, &y);
    for (spread, curve) in spreads.iter().zip(&curves) {
        plot.add(&curve_with_mark(view, &plot, spread, curve));
    }
    let columns = NINES.iter().map(|(_, name)| (*name).to_owned());
    let row = |spread: &Spread<'_>| {
        let at = |(quantile, _): &(f64, &str)| {
            spread
                .at(*quantile)
                .map_or_else(|| MISSING.to_owned(), nanos)
        };
        let figures = NINES.iter().map(at);
        [view.row_name(spread.cell)]
            .into_iter()
            .chain(figures)
            .collect()
    };
    Some(Figure {
        id: format!("{}-nines", view.id),
        title: "Latency by percentile",
        note: format!("Low and flat is better. {}", view.focus_note()),
        drawings: plot.finish(),
        table: Table {
            caption: "Latency by percentile; a dash where fewer than 10 samples lie beyond".into(),
            columns: ["strategy".to_owned()].into_iter().chain(columns).collect(),
            rows: spreads.iter().map(row).collect(),
        },
        wide: false,
    })
}

fn cumulative(view: &View<'_>, spreads: &[Spread<'_>]) -> Option<Figure> {
    const SHARES: [f64; 6] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.95];
    let quantiles = || (0..=50).map(|step| f64::from(step) * 0.02);
    // The outermost hundredths would take most of the width and say nothing about the shape.
    let bounds = |spread: &Spread<'_>| [0.002, 0.99].map(|at| value(spread, at));
    let (lo, hi) = ends(spreads.iter().flat_map(bounds))?;
    let x = Axis {
        label: "latency".to_owned(),
        kind: Kind::Log,
        ends: (lo, hi),
        ticks: None,
        write: tick_nanos,
    };
    let y = Axis {
        label: format!("share of {}", view.many),
        kind: Kind::Linear,
        ends: (0.0, 1.0),
        ticks: None,
        write: |share| format!("{:.0} %", share * 100.0),
    };
    let said = format!("Share of {} that took no longer than a latency", view.many);
    let mut plot = Plot::new(CHART, &said, &x, &y);
    for spread in spreads {
        let points = quantiles().map(|at| (value(spread, at.min(0.99)), at.min(0.99)));
        let mut curve: Vec<(f64, f64)> = points.collect();
        curve.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
        plot.add(&curve_with_mark(view, &plot, spread, &curve));
    }
    let columns = SHARES
        .iter()
        .map(|share| format!("{:.0} % within", share * 100.0));
    let row = |spread: &Spread<'_>| {
        let figures = SHARES.iter().map(|share| nanos(value(spread, *share)));
        [view.row_name(spread.cell)]
            .into_iter()
            .chain(figures)
            .collect()
    };
    Some(Figure {
        id: format!("{}-cdf", view.id),
        title: "How many within which time",
        note: format!(
            "Left and steep is better; up to 99 %. {}",
            view.focus_note()
        ),
        drawings: plot.finish(),
        table: Table {
            caption: format!("Time within which a share of the {} was done", view.many),
            columns: ["strategy".to_owned()].into_iter().chain(columns).collect(),
            rows: spreads.iter().map(row).collect(),
        },
        wide: false,
    })
}

fn value(spread: &Spread<'_>, quantile: f64) -> f64 {
    (spread.histogram.value_at_quantile(quantile) as f64).max(1.0)
}

/// A curve with one marker, by which it is told from others without colours.
fn curve_with_mark(
    view: &View<'_>,
    plot: &Plot,
    spread: &Spread<'_>,
    curve: &[(f64, f64)],
) -> String {
    let (data, dashes) = (plot.line(curve), spread.series.look.dashes());
    let name = view.row_name(spread.cell);
    let marks = [curve.len() / 2, curve.len().saturating_sub(1)];
    let marks = marks
        .into_iter()
        .filter_map(|at| curve.get(at))
        .map(|(x, y)| spread.series.look.mark(plot.x.at(*x), plot.y.at(*y), &name));
    let marks: String = marks.collect();
    group(
        spread.series,
        &format!("<path class=\"line\" d=\"{data}\"{dashes}/>{marks}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_is_as_wide_as_the_last() {
        for (at, (quantile, _)) in (1u32..).zip(&NINES[1..]) {
            assert!((nines(*quantile) - f64::from(at)).abs() < 1e-9);
        }
    }
}
