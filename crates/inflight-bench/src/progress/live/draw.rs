//! One frame: curves on the left, latencies on the right, the strategies below.

use inflight_report::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Paragraph, Row, Table};

use super::heat_map;
use super::story::{Entry, Story};
use crate::progress::words;

/// Told apart also by those who do not tell red from green; more strategies use them again.
pub(super) const COLOURS: [Color; 10] = [
    Color::Indexed(39),
    Color::Indexed(208),
    Color::Indexed(43),
    Color::Indexed(220),
    Color::Indexed(170),
    Color::Indexed(250),
    Color::Indexed(203),
    Color::Indexed(112),
    Color::Indexed(141),
    Color::Indexed(180),
];
/// With fewer columns there is no room for latencies beside the curves.
const COLUMNS_FOR_LATENCIES: u16 = 96;
/// With fewer rows there is none for curves.
const ROWS_FOR_CURVES: u16 = 16;
/// More labels would run into each other.
const MOST_LABELS: u32 = 10;

/// Draws everything.
pub(super) fn draw(story: &Story, frame: &mut Frame<'_>) {
    let best = story.best();
    let strategies = u16::try_from(story.strategies().len()).unwrap_or(u16::MAX);
    let height = frame.area().height;
    let curves = height >= ROWS_FOR_CURVES;
    let table_rows = strategies.min(if curves { height / 3 } else { height });
    let [head, middle, table, gauge, told] = frame.area().layout(&Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(table_rows),
        Constraint::Length(1),
        Constraint::Length(1),
    ]));
    frame.render_widget(heading(story), head);
    if curves {
        let (left, right) = if middle.width >= COLUMNS_FOR_LATENCIES {
            let halves = Layout::horizontal([Constraint::Percentage(55), Constraint::Min(0)]);
            let [left, right] = middle.layout(&halves);
            (left, Some(right))
        } else {
            (middle, None)
        };
        draw_curves(story, left, frame);
        if let Some(area) = right {
            let block = framed(" latencies over the rounds ");
            let inner = block.inner(area);
            frame.render_widget(block, area);
            heat_map::draw(&best, story.rounds, inner, frame.buffer_mut());
        }
    }
    frame.render_widget(ranking(story, &best), table);
    let passed = LineGauge::default()
        .ratio(story.passed().clamp(0.0, 1.0))
        .filled_symbol("━")
        .unfilled_symbol("╌")
        .filled_style(Style::new().fg(COLOURS[0]))
        .label(story.left());
    frame.render_widget(passed, gauge);
    let last = story.messages.last().map_or("", String::as_str);
    frame.render_widget(Paragraph::new(last).dim(), told);
}

fn framed(title: &str) -> Block<'_> {
    Block::bordered()
        .border_style(Style::new().dim())
        .title(title)
}

fn heading(story: &Story) -> Line<'_> {
    if !story.preparing.is_empty() {
        return Line::from(format!("inflight bench · {}", story.preparing)).bold();
    }
    let Story {
        profile,
        round,
        rounds,
        ..
    } = story;
    Line::from(format!(
        "inflight bench · {profile} · round {round}/{rounds} · Ctrl-C keeps what is measured"
    ))
    .bold()
}

fn colour_of(story: &Story, strategy: &str) -> Color {
    let strategies = story.strategies();
    let place = strategies.iter().position(|known| *known == strategy);
    COLOURS[place.unwrap_or(0) % COLOURS.len()]
}

/// The strategies, the fastest first: colour, name, rate, latency, rounds.
fn ranking<'a>(story: &Story, best: &[&'a Entry]) -> Table<'a> {
    let rows = best.iter().map(|entry| {
        let mark = if story.is_latest(entry) { "▸" } else { " " };
        let swatch = Style::new().fg(colour_of(story, &entry.strategy));
        let p99 = entry
            .ns_p99
            .map(|ns| format!("p99 {}", units::nanos(ns as f64)));
        Row::new([
            Line::from(mark),
            Line::from(Span::styled("━━", swatch)),
            Line::from(entry.name.as_str()),
            Line::from(words::rate(entry.rate(), story.noun)).right_aligned(),
            Line::from(p99.unwrap_or_default()).right_aligned(),
            Line::from(words::bars(&entry.rates)),
        ])
    });
    let widths = [1, 2, 38, 22, 14, 8].map(Constraint::Length);
    Table::new(rows, widths)
}

fn draw_curves(story: &Story, area: Rect, frame: &mut Frame<'_>) {
    let depths = || story.cells().map(|entry| entry.depth);
    let title = format!(" {}/s against depth ", story.noun);
    let (Some(least), Some(most)) = (depths().min(), depths().max()) else {
        frame.render_widget(framed(""), area);
        return;
    };
    let curves: Vec<(Color, Vec<(f64, f64)>)> = story
        .strategies()
        .into_iter()
        .map(|strategy| (colour_of(story, strategy), curve(story, strategy)))
        .collect();
    let rates = curves.iter().flat_map(|(_, points)| points);
    let top = round_up(rates.map(|(_, rate)| *rate).fold(0.0, f64::max));
    let datasets = curves.iter().map(|(colour, points)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(*colour))
            .data(points)
    });
    let (bounds, labels) = depth_axis(least, most);
    let dim = Style::new().dim();
    let chart = Chart::new(datasets.collect())
        .block(framed(&title))
        .legend_position(None)
        .x_axis(Axis::default().style(dim).bounds(bounds).labels(labels))
        .y_axis(Axis::default().style(dim).bounds([0.0, top]).labels([
            "0".to_owned(),
            units::count(top / 2.0),
            units::count(top),
        ]));
    frame.render_widget(chart, area);
}

/// The median rate at each depth, depths as powers of two.
fn curve(story: &Story, strategy: &str) -> Vec<(f64, f64)> {
    let cells = story.cells().filter(|entry| entry.strategy == strategy);
    let measured = cells.filter(|entry| !entry.rates.is_empty());
    let mut points: Vec<(f64, f64)> = measured
        .map(|entry| (f64::from(entry.depth).log2(), entry.rate()))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Bounds and labels of the axis of depths; labels are evenly spaced, as the chart wants them.
pub(super) fn depth_axis(least: u32, most: u32) -> ([f64; 2], Vec<String>) {
    let (low, high) = (f64::from(least).log2(), f64::from(most).log2());
    if least == most {
        let labels = vec![String::new(), least.to_string(), String::new()];
        return ([low - 1.0, high + 1.0], labels);
    }
    let exact = least.is_power_of_two() && most.is_power_of_two();
    let (first, last) = (least.ilog2(), most.ilog2());
    let labels = if exact && last - first < MOST_LABELS {
        (first..=last)
            .map(|power| (1u32 << power).to_string())
            .collect()
    } else {
        vec![least.to_string(), most.to_string()]
    };
    ([low, high], labels)
}

/// The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, .. that is not less.
pub(super) fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0].map(|step| step * power);
    let enough = steps.into_iter().find(|step| *step >= value);
    enough.unwrap_or(10.0 * power)
}
