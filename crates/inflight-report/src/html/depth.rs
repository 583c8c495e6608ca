//! Charts over depth: rates, latencies, and what one costs of the other.

use super::look::Look;
use super::markup::{Figure, Table, put};
use super::plot::{Axis, CHART, Plot, SMALL, Size};
use super::scale::{Kind, rounded_up};
use super::view::{Series, View, latency, tick_count, tick_nanos};
use crate::record::{Cell, Latency};
use crate::stats::signed_rank;
use crate::units::{MISSING, nanos, or_missing};

/// A percentile: its name and where it is stored.
type Percentile = (&'static str, fn(&Latency) -> Option<u64>);

const PERCENTILES: [Percentile; 3] = [
    ("p50", |latency| Some(latency.ns_p50)),
    ("p99", |latency| latency.ns_p99),
    ("p99.9", |latency| latency.ns_p999),
];

/// Rates over depth, with the dots of the rounds and the intervals of the medians.
pub(super) fn rates(view: &View<'_>) -> Figure {
    let unit = view.unit();
    let cells = view.series.iter().flat_map(|series| &series.cells);
    let rounds = cells.flat_map(|cell| &cell.rounds);
    let most = rounds
        .filter_map(|round| view.round_rate(round))
        .fold(0.0, f64::max);
    let y = Axis {
        label: unit.clone(),
        kind: Kind::Linear,
        ends: (0.0, rounded_up(most, 5)),
        ticks: None,
        write: view.tick(),
    };
    let said = format!("{unit} against operations in flight, one line for each strategy");
    let mut plot = Plot::new(CHART, &said, &depth_axis(view), &y);
    for series in &view.series {
        plot.add(&rate_line(view, &plot, series));
    }
    if let Some(pick) = view.ranking.pick()
        && let Some(rate) = view.rate(pick)
    {
        let (x, y) = (plot.x.at(f64::from(pick.depth)), plot.y.at(rate));
        plot.add(&format!(
            "<circle class=\"pick\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\">\
             <title>recommended</title></circle>"
        ));
    }
    let note = "Higher is better. Dots are rounds, bands the interval of their median; the ring \
                is round the recommendation.";
    Figure {
        id: format!("{}-rate", view.id),
        title: "Rate against depth",
        note: note.to_owned(),
        drawings: plot.finish(),
        table: rate_table(view),
        wide: false,
    }
}

fn depth_axis(view: &View<'_>) -> Axis {
    let depths = view.depths();
    let first = f64::from(depths.first().copied().unwrap_or(1));
    let last = f64::from(depths.last().copied().unwrap_or(1));
    let ticks = depths
        .iter()
        .map(|depth| (f64::from(*depth), depth.to_string()));
    Axis {
        label: "operations in flight".to_owned(),
        kind: Kind::Log,
        // Some room, so that marks at the ends are whole.
        ends: (first / 1.12, last * 1.12),
        ticks: Some(ticks.collect()),
        write: tick_count,
    }
}

fn depth(cell: &Cell) -> f64 {
    f64::from(cell.depth.max(1))
}

/// The group of one series, which the legend shows and hides.
pub(super) fn group(series: &Series<'_>, inside: &str) -> String {
    let Look { colour, .. } = series.look;
    let name = &series.key;
    format!("<g class=\"s c{colour}\" data-s=\"{name}\">{inside}</g>")
}

fn rate_line(view: &View<'_>, plot: &Plot, series: &Series<'_>) -> String {
    let mut inside = String::new();
    let (mut line, mut band, mut marks) = (Vec::new(), Vec::new(), String::new());
    for cell in &series.cells {
        let Some(rate) = view.rate(cell) else {
            continue;
        };
        line.push((depth(cell), rate));
        let logs: Vec<f64> = round_rates(view, cell).map(f64::ln).collect();
        let ends = signed_rank(&logs).map_or((rate, rate), |found| (found.lo, found.hi));
        band.push((depth(cell), ends.0, ends.1));
        let said = format!(
            "{}: {} {}",
            view.row_name(cell),
            view.written(rate),
            view.unit()
        );
        marks += &series
            .look
            .mark(plot.x.at(depth(cell)), plot.y.at(rate), &said);
    }
    let dots = series.cells.iter().flat_map(|cell| {
        let rates = round_rates(view, cell);
        rates.map(move |rate| (depth(cell), rate))
    });
    put!(
        &mut inside,
        "<path class=\"band\" d=\"{}\"/>",
        plot.band(&band)
    );
    put!(
        &mut inside,
        "<path class=\"dots\" d=\"{}\"/>",
        plot.dots(dots)
    );
    let dashes = series.look.dashes();
    put!(
        &mut inside,
        "<path class=\"line\" d=\"{}\"{dashes}/>",
        plot.line(&line)
    );
    inside += &marks;
    group(series, &inside)
}

fn round_rates(view: &View<'_>, cell: &Cell) -> impl Iterator<Item = f64> {
    cell.rounds
        .iter()
        .filter_map(|round| view.round_rate(round))
}

/// One row for each strategy, one column for each depth.
fn by_depth(view: &View<'_>, caption: String, write: impl Fn(&Cell) -> String) -> Table {
    let depths = view.depths();
    let row = |series: &Series<'_>| {
        let at = |depth: &u32| {
            let cell = series.cells.iter().find(|cell| cell.depth.max(1) == *depth);
            cell.map_or_else(|| MISSING.to_owned(), |cell| write(cell))
        };
        let figures = depths.iter().map(at);
        [series.name.clone()].into_iter().chain(figures).collect()
    };
    let columns = depths.iter().map(|depth| format!("depth {depth}"));
    Table {
        caption,
        columns: ["strategy".to_owned()].into_iter().chain(columns).collect(),
        rows: view.series.iter().map(row).collect(),
    }
}

fn rate_table(view: &View<'_>) -> Table {
    let caption = format!(
        "{}: median of the rounds, and the interval of the median",
        view.unit()
    );
    by_depth(view, caption, |cell| {
        let logs: Vec<f64> = round_rates(view, cell).map(f64::ln).collect();
        let rate = or_missing(view.rate(cell), |rate| view.written(rate));
        let ends = signed_rank(&logs);
        let ends = ends.map(|found| (view.written(found.lo), view.written(found.hi)));
        ends.map_or(rate.clone(), |(lo, hi)| format!("{rate} ({lo}–{hi})"))
    })
}

/// One drawing for each percentile, all with the same axes.
pub(super) fn latencies(view: &View<'_>) -> Option<Figure> {
    let found: Vec<&Latency> = cells(view).filter_map(latency).collect();
    let all = PERCENTILES
        .iter()
        .flat_map(|(_, of)| found.iter().filter_map(|found| of(found)));
    let ends = ends(all.map(|ns| ns as f64))?;
    let mut drawings = String::from("<div class=\"row\">");
    for (name, of) in PERCENTILES {
        let y = latency_axis(name.to_owned(), ends);
        let said = format!("{name} latency against operations in flight");
        let mut plot = Plot::new(SMALL, &said, &depth_axis(view), &y);
        for series in &view.series {
            plot.add(&latency_line(view, &plot, series, name, of));
        }
        drawings += &plot.finish();
    }
    drawings += "</div>";
    let caption = "Latency: median, 99th and 99.9th percentile".to_owned();
    let table = by_depth(view, caption, |cell| {
        let write = |(_, of): &Percentile| {
            or_missing(latency(cell).and_then(of).map(|ns| ns as f64), nanos)
        };
        PERCENTILES
            .iter()
            .map(write)
            .collect::<Vec<_>>()
            .join(" / ")
    });
    Some(Figure {
        id: format!("{}-latency", view.id),
        title: "Latency against depth",
        note: "Lower is better. A percentile that too few samples support is left out.".to_owned(),
        drawings,
        table,
        wide: true,
    })
}

fn cells<'a>(view: &'a View<'_>) -> impl Iterator<Item = &'a Cell> {
    view.series
        .iter()
        .flat_map(|series| series.cells.iter().copied())
}

/// The least and the greatest, with some room; nothing of nothing.
pub(super) fn ends(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let wider = |(lo, hi): (f64, f64), figure: f64| (lo.min(figure), hi.max(figure));
    let figures = figures.filter(|figure| figure.is_finite() && *figure > 0.0);
    let found = figures.fold((f64::INFINITY, 0.0), wider);
    (found.1 > 0.0).then_some((found.0 / 1.25, found.1 * 1.25))
}

/// Latency on a logarithmic axis.
pub(super) fn latency_axis(label: String, ends: (f64, f64)) -> Axis {
    Axis {
        label,
        kind: Kind::Log,
        ends,
        ticks: None,
        write: tick_nanos,
    }
}

fn latency_line(
    view: &View<'_>,
    plot: &Plot,
    series: &Series<'_>,
    name: &str,
    of: fn(&Latency) -> Option<u64>,
) -> String {
    let (mut line, mut marks) = (Vec::new(), String::new());
    for cell in &series.cells {
        let Some(ns) = latency(cell).and_then(of) else {
            continue;
        };
        let ns = ns as f64;
        line.push((depth(cell), ns));
        let said = format!("{}: {name} {}", view.row_name(cell), nanos(ns));
        marks += &series
            .look
            .mark(plot.x.at(depth(cell)), plot.y.at(ns), &said);
    }
    let (data, dashes) = (plot.line(&line), series.look.dashes());
    group(
        series,
        &format!("<path class=\"line\" d=\"{data}\"{dashes}/>{marks}"),
    )
}

/// What a rate costs in waiting: one trail for each strategy, from shallow to deep.
pub(super) fn frontier(view: &View<'_>) -> Option<Figure> {
    let point = |cell: &Cell| Some((view.rate(cell)?, latency(cell)?.ns_p99? as f64));
    let points: Vec<(f64, f64)> = cells(view).filter_map(point).collect();
    let ends = ends(points.iter().map(|(_, ns)| *ns))?;
    let most = points.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let x = Axis {
        label: view.unit(),
        kind: Kind::Linear,
        ends: (0.0, rounded_up(most, 5)),
        ticks: None,
        write: view.tick(),
    };
    let y = latency_axis("p99".to_owned(), ends);
    let said = format!("99th percentile of latency against {}", view.unit());
    // Room for a mark at the right end.
    let size = Size {
        right: 26.0,
        ..CHART
    };
    let mut plot = Plot::new(size, &said, &x, &y);
    let front = plot.line(&steps(&front(&points)));
    plot.add(&format!("<path class=\"front\" d=\"{front}\"/>"));
    for series in &view.series {
        let (mut trail, mut marks) = (Vec::new(), String::new());
        for cell in &series.cells {
            let Some((rate, ns)) = point(cell) else {
                continue;
            };
            trail.push((rate, ns));
            let (at, p99) = (view.written(rate), nanos(ns));
            let said = format!("{}: {at} {}, p99 {p99}", view.row_name(cell), view.unit());
            marks += &series.look.mark(plot.x.at(rate), plot.y.at(ns), &said);
        }
        let (data, dashes) = (plot.line(&trail), series.look.dashes());
        let inside = format!("<path class=\"line\" d=\"{data}\"{dashes}/>{marks}");
        plot.add(&group(series, &inside));
    }
    let caption = format!("{} and 99th percentile of latency", view.unit());
    let table = by_depth(view, caption, |cell| {
        let write = |(rate, ns): (f64, f64)| format!("{}, {}", view.written(rate), nanos(ns));
        point(cell).map_or_else(|| MISSING.to_owned(), write)
    });
    Some(Figure {
        id: format!("{}-frontier", view.id),
        title: "Rate against waiting",
        note: "Right and low is better. A trail goes from few operations in flight to many; the \
               grey line joins what nothing else beats in both."
            .to_owned(),
        drawings: plot.finish(),
        table,
        wide: false,
    })
}

/// The points that no other one beats in both, by rate.
fn front(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let beaten = |point: &&(f64, f64)| {
        let beats = |other: &(f64, f64)| {
            other.0 >= point.0 && other.1 <= point.1 && (other.0 > point.0 || other.1 < point.1)
        };
        !points.iter().any(beats)
    };
    let mut front: Vec<(f64, f64)> = points.iter().filter(beaten).copied().collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    front
}

/// From point to point without promising what lies between: first up, then across.
fn steps(front: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let first = front.first().map(|(_, ns)| (0.0, *ns));
    let corners = front
        .windows(2)
        .flat_map(|pair| [pair[0], (pair[0].0, pair[1].1)]);
    first
        .into_iter()
        .chain(corners)
        .chain(front.last().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_has_what_nothing_beats() {
        let points = [
            (10.0, 5.0),
            (20.0, 9.0),
            (15.0, 12.0),
            (5.0, 5.0),
            (30.0, 40.0),
        ];
        assert_eq!(front(&points), [(10.0, 5.0), (20.0, 9.0), (30.0, 40.0)]);
    }
}
