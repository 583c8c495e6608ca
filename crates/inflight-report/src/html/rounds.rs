//! Rounds one after the other: whether a disk warmed up, drifted or was disturbed.

use std::collections::{BTreeMap, BTreeSet};

use super::markup::{Figure, Pen, Table, esc, put, short};
use super::scale::{Kind, Scale};
use super::view::{Series, View};
use crate::record::Cell;
use crate::units::MISSING;

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 128.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// What the text of a tick is high.
const LINE: f64 = 13.0;
/// More rounds than this do not all get their number below the strip.
const MOST_NUMBERED: u32 = 12;
/// More rounds than this are not all in the table: nobody reads so many, and a page has to open.
const MOST_ROWS: usize = 1_000;

/// The rates of one cell over its median, by the number of the round.
struct Strip<'a> {
    series: &'a Series<'a>,
    cell: &'a Cell,
    shares: Vec<(u32, f64)>,
}

pub(super) fn figure(view: &View<'_>) -> Option<Figure> {
    let strip = |(series, cell)| {
        let shares = shares(view, cell);
        (!shares.is_empty()).then_some(Strip {
            series,
            cell,
            shares,
        })
    };
    let strips: Vec<Strip<'_>> = view.focused().into_iter().filter_map(strip).collect();
    strips.first()?;
    let all = strips.iter().flat_map(|strip| &strip.shares);
    let last = all.clone().map(|(round, _)| *round).max()?;
    // The same range for all, and never so narrow that noise looks like a mountain.
    let furthest = all
        .map(|(_, share)| (share - 1.0).abs())
        .fold(0.05, f64::max);
    let mut drawings = String::from("<div class=\"maps\">");
    for strip in &strips {
        drawings += &drawing(view, strip, last, furthest);
    }
    drawings += "</div>";
    Some(Figure {
        id: format!("{}-rounds", view.id),
        title: "Round by round",
        note: format!(
            "Level is better: the rate of each round over the median of its strategy. {}",
            view.focus_note()
        ),
        drawings,
        table: table(view, &strips),
        wide: true,
    })
}

fn shares(view: &View<'_>, cell: &Cell) -> Vec<(u32, f64)> {
    let Some(median) = view.rate(cell) else {
        return Vec::new();
    };
    let share = |round| Some(view.round_rate(round)? / median);
    let rounds = cell.rounds.iter();
    rounds
        .filter_map(|round| Some((round.block, share(round)?)))
        .collect()
}

fn drawing(view: &View<'_>, strip: &Strip<'_>, last: u32, furthest: f64) -> String {
    let x = Scale::new(
        Kind::Linear,
        (0.0, f64::from(last)),
        (LEFT + 10.0, WIDTH - RIGHT - 6.0),
    );
    let ends = ends(furthest);
    let y = Scale::new(Kind::Linear, ends, (HEIGHT - BOTTOM, TOP));
    let (look, name) = (strip.series.look, view.row_name(strip.cell));
    let said = esc(&format!("Rate of each round over the median: {name}"));
    let mut svg = format!(
        "<div class=\"map s c{}\" data-s=\"{}\"><h4>{}{}</h4><svg class=\"plot\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{said}\">",
        look.colour,
        strip.series.key,
        look.swatch(),
        esc(&name)
    );
    svg += &axes(&x, &y, last, furthest);
    let (mut line, mut dots) = (Pen::default(), Pen::default());
    for (place, (round, share)) in strip.shares.iter().enumerate() {
        let (across, up) = (x.at(f64::from(*round)), y.at(*share));
        match place {
            0 => line.go(across, up),
            _ => line.draw(across, up),
        }
        dots.dot(across, up);
    }
    put!(
        &mut svg,
        "<path class=\"line\" d=\"{}\"/><path class=\"dots each\" d=\"{}\"/></svg></div>",
        line.data(),
        dots.data()
    );
    svg
}

/// The ends of the axis: as far down as up, but nothing is slower than nothing.
fn ends(furthest: f64) -> (f64, f64) {
    ((1.0 - furthest).max(0.0), 1.0 + furthest)
}

fn axes(x: &Scale, y: &Scale, last: u32, furthest: f64) -> String {
    let (mut svg, end) = (String::from("<g class=\"axis\">"), WIDTH - RIGHT);
    let (low, high) = ends(furthest);
    // Where one round was far above the others, there is no room for a line below the median.
    let has_room = y.at(low) - y.at(1.0) >= LINE;
    for share in [low, 1.0, high].into_iter().skip(usize::from(!has_room)) {
        let (at, before) = (y.at(share), LEFT - 8.0);
        let class = if share == 1.0 { "base" } else { "grid" };
        put!(
            &mut svg,
            "<path class=\"{class}\" d=\"M{LEFT} {}H{end}\"/>\
             <text class=\"tick ty\" x=\"{before}\" y=\"{}\">{:+.0} %</text>",
            short(at),
            short(at + 4.0),
            (share - 1.0) * 100.0
        );
    }
    // Every round has its number, unless there are many.
    let every = match last {
        ..MOST_NUMBERED => 1,
        _ => last / 5 + 1,
    };
    let every = usize::try_from(every).unwrap_or(usize::MAX);
    for round in (0..=last).step_by(every) {
        let (at, below) = (x.at(f64::from(round)), HEIGHT - BOTTOM + 17.0);
        put!(
            &mut svg,
            "<text class=\"tick tx\" x=\"{}\" y=\"{below}\">{}</text>",
            short(at),
            round + 1
        );
    }
    let (middle, low) = ((LEFT + end) / 2.0, HEIGHT - 6.0);
    put!(
        &mut svg,
        "<text class=\"label lx\" x=\"{middle}\" y=\"{low}\">round</text></g>"
    );
    svg
}

/// How far from the median, in per cent.
fn signed(share: f64) -> String {
    format!("{:+.1} %", (share - 1.0) * 100.0)
}

fn table(view: &View<'_>, strips: &[Strip<'_>]) -> Table {
    let by_number = |strip: &Strip<'_>| strip.shares.iter().copied().collect();
    let all: Vec<BTreeMap<u32, f64>> = strips.iter().map(by_number).collect();
    // Those that occur: the numbers of a record need not be close together.
    let numbers: BTreeSet<u32> = all.iter().flat_map(|strip| strip.keys().copied()).collect();
    let share = |strip: &BTreeMap<u32, f64>, round| {
        let found = strip.get(&round).copied();
        found.map_or_else(|| MISSING.to_owned(), signed)
    };
    let mut caption =
        "Rate of each round, by its number, over the median of its strategy".to_owned();
    if numbers.len() > MOST_ROWS {
        put!(&mut caption, "; the first {MOST_ROWS} of {}", numbers.len());
    }
    Table {
        caption,
        columns: by_round_columns(view, strips.iter().map(|strip| strip.cell)),
        rows: by_round(numbers.into_iter().take(MOST_ROWS), |round| {
            all.iter().map(|strip| share(strip, round)).collect()
        }),
    }
}

/// The columns of a table with a row for each round: there may be more of these than fit side by
/// side.
pub(super) fn by_round_columns<'a>(
    view: &View<'_>,
    cells: impl Iterator<Item = &'a Cell>,
) -> Vec<String> {
    let names = cells.map(|cell| view.row_name(cell));
    ["round".to_owned()].into_iter().chain(names).collect()
}

/// The rows of such a table, of the rounds with these numbers.
pub(super) fn by_round(
    numbers: impl Iterator<Item = u32>,
    figures: impl Fn(u32) -> Vec<String>,
) -> Vec<Vec<String>> {
    let row = |round: u32| {
        let number = [(u64::from(round) + 1).to_string()].into_iter();
        number.chain(figures(round)).collect()
    };
    numbers.map(row).collect()
}
