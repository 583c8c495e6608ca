//! Latencies over time: one map for each strategy, all with the same axes and the same colours.
//!
//! Time is that of the strategy's own rounds, one after the other; a thin line is between two of
//! them. A map is a few paths, one for each shade, whose pieces are one slice wide and one band
//! high: that is a hundredth of what as many rectangles would take.

use std::collections::BTreeMap;

use super::markup::{Figure, Pen, Table, esc, put, short};
use super::rounds::{by_round, by_round_columns};
use super::scale::{Kind, Scale};
use super::view::{Series, View, tick_nanos};
use crate::heat::{BANDS, Slice, decode, lower_edge_ns};
use crate::record::Cell;
use crate::units::{MISSING, nanos, percent};

/// Shades of the style sheet, from few to many.
const SHADES: usize = 8;

const WIDTH: f64 = 400.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// Height of all bands together, unless that makes one of them lower than can be seen.
const BANDS_HEIGHT: f64 = 190.0;
const LEAST_BAND: f64 = 2.5;

/// What one map shows.
struct Map<'a> {
    series: &'a Series<'a>,
    cell: &'a Cell,
    rounds: Vec<Vec<Slice>>,
}

/// What all maps share: the bands that are drawn, and how many slices at most.
#[derive(Clone, Copy)]
struct Ground {
    lowest: usize,
    highest: usize,
    slices: usize,
    /// Height of one, in units of the drawing.
    band: f64,
}

impl Ground {
    fn height(self) -> f64 {
        TOP + (self.highest - self.lowest) as f64 * self.band + BOTTOM
    }
}

pub(super) fn figure(view: &View<'_>) -> Option<Figure> {
    let with_heat = |(series, cell)| {
        Some(Map {
            series,
            cell,
            rounds: rounds(cell)?,
        })
    };
    let maps: Vec<Map<'_>> = view.focused().into_iter().filter_map(with_heat).collect();
    let ground = ground(&maps)?;
    let mut drawings = String::from("<div class=\"maps\">");
    for map in &maps {
        drawings += &drawing(view, map, ground);
    }
    drawings += "</div>";
    drawings += &key(view);
    Some(Figure {
        id: format!("{}-heat", view.id),
        title: "Latency over time",
        note: format!(
            "A stall is a column that reaches up; a drift is a slope. All maps have the same axes \
             and shades, each column sums to all {} that were timed in it. {}",
            view.many,
            view.focus_note()
        ),
        drawings,
        table: table(view, &maps),
        wide: true,
    })
}

/// The slices of every round; nothing if the record has none or they cannot be read.
fn rounds(cell: &Cell) -> Option<Vec<Vec<Slice>>> {
    let stored = &cell.heat.as_ref()?.rounds;
    let rounds: Result<Vec<_>, _> = stored.iter().map(|round| decode(round)).collect();
    let rounds = rounds.ok()?;
    let any = rounds
        .iter()
        .flatten()
        .any(|slice| !slice.counts.is_empty());
    any.then_some(rounds)
}

fn ground(maps: &[Map<'_>]) -> Option<Ground> {
    let slices = || maps.iter().flat_map(|map| map.rounds.iter().flatten());
    let busy = || slices().filter(|slice| !slice.counts.is_empty());
    let lowest = busy().map(|slice| slice.first_band).min()?;
    let ends = busy().map(|slice| slice.first_band + slice.counts.len());
    let highest = ends.max()?;
    let lengths = maps.iter().map(|map| map.rounds.iter().map(Vec::len).sum());
    Some(Ground {
        lowest,
        highest,
        slices: lengths.max()?,
        band: (BANDS_HEIGHT / (highest - lowest) as f64).clamp(LEAST_BAND, 12.0),
    })
}

/// The shade of a share of a slice: each is twice the one before, the last from one half on.
fn shade(share: f64) -> usize {
    let halvings = -share.log2();
    (1..SHADES)
        .rev()
        .find(|shade| halvings <= (SHADES - shade) as f64)
        .unwrap_or(0)
}

fn drawing(view: &View<'_>, map: &Map<'_>, ground: Ground) -> String {
    let (height, band) = (ground.height(), ground.band);
    let (name, colour) = (view.row_name(map.cell), map.series.look.colour);
    let swatch = map.series.look.swatch();
    let said = esc(&format!("Latency of {} over time: {name}", view.many));
    let mut svg = format!(
        "<div class=\"map s c{colour}\" data-s=\"{}\"><h4>{swatch}{}</h4><svg class=\"plot heat\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{said}\">",
        map.series.key,
        esc(&name)
    );
    svg += &axes(ground, height);
    let across = (WIDTH - LEFT - RIGHT) / ground.slices as f64;
    let (floor, at) = (height - BOTTOM - band / 2.0, LEFT);
    put!(
        &mut svg,
        "<g transform=\"translate({at} {floor:.2}) scale({across:.4} -{band:.4})\">"
    );
    for (shade, data) in shades(map, ground) {
        put!(&mut svg, "<path class=\"h h{shade}\" d=\"{data}\"/>");
    }
    svg += "</g>";
    let mut column = 0;
    let mut between = String::new();
    for round in map.rounds.iter().take(map.rounds.len().saturating_sub(1)) {
        column += round.len();
        let at = short(LEFT + column as f64 * across);
        put!(&mut between, "M{at} {TOP}V{}", height - BOTTOM);
    }
    put!(
        &mut svg,
        "<path class=\"between\" d=\"{between}\"/></svg></div>"
    );
    svg
}

/// The pieces of each shade, neighbours of one shade in one piece.
fn shades(map: &Map<'_>, ground: Ground) -> BTreeMap<usize, String> {
    let slices: Vec<&Slice> = map.rounds.iter().flatten().collect();
    let mut paths: BTreeMap<usize, Pen> = BTreeMap::new();
    for band in ground.lowest..ground.highest {
        let row = (band - ground.lowest) as f64;
        let mut open: Option<(usize, usize)> = None;
        for column in 0..=slices.len() {
            let shade = slices.get(column).and_then(|slice| shade_of(slice, band));
            if open.is_some_and(|(_, before)| shade == Some(before)) {
                continue;
            }
            if let Some((from, before)) = open.take() {
                let pen = paths.entry(before).or_default();
                pen.go(from as f64, row);
                pen.along((column - from) as f64);
            }
            open = shade.map(|shade| (column, shade));
        }
    }
    let written = paths.into_iter();
    written.map(|(shade, pen)| (shade, pen.data())).collect()
}

fn shade_of(slice: &Slice, band: usize) -> Option<usize> {
    let all: f64 = slice.counts.iter().map(|count| *count as f64).sum();
    let count = slice.counts.get(band.checked_sub(slice.first_band)?)?;
    (*count > 0).then(|| shade(*count as f64 / all))
}

fn axes(ground: Ground, height: f64) -> String {
    let (lo, hi) = (
        lower_edge_ns(ground.lowest),
        lower_edge_ns(ground.highest.min(BANDS)),
    );
    let (floor, end) = (height - BOTTOM, WIDTH - RIGHT);
    let scale = Scale::new(Kind::Log, (lo, hi), (floor, TOP));
    let mut svg = format!(
        "<rect class=\"ground\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>\
         <g class=\"axis\">",
        end - LEFT,
        floor - TOP
    );
    for tick in scale.ticks(6) {
        let at = place(tick, ground, height);
        put!(
            &mut svg,
            "<path class=\"notch\" d=\"M{LEFT} {}h-5\"/>\
             <text class=\"tick ty\" x=\"{}\" y=\"{}\">{}</text>",
            short(at),
            LEFT - 8.0,
            short(at + 4.0),
            esc(&tick_nanos(tick))
        );
    }
    let (middle, low) = ((LEFT + end) / 2.0, height - 14.0);
    put!(
        &mut svg,
        "<text class=\"label lx\" x=\"{middle}\" y=\"{low}\">time, round after round</text></g>"
    );
    svg
}

/// Where a latency is drawn: bands have all the same height, and are linear inside an octave.
fn place(ns: f64, ground: Ground, height: f64) -> f64 {
    let bands = ground.lowest..=ground.highest;
    let band = bands
        .rev()
        .find(|band| lower_edge_ns(*band) <= ns * 1.000_001);
    let band = band.unwrap_or(ground.lowest);
    let (from, to) = (lower_edge_ns(band), lower_edge_ns(band + 1));
    let within = ((ns - from) / (to - from)).clamp(0.0, 1.0);
    height - BOTTOM - ((band - ground.lowest) as f64 + within) * ground.band
}

/// What the shades mean.
fn key(view: &View<'_>) -> String {
    let mut html = format!(
        "<p class=\"key\"><span>share of the {} in one column:</span>",
        view.many
    );
    for shade in 0..SHADES {
        let from = 0.5f64.powi(i32::try_from(SHADES - shade).unwrap_or(0));
        let text = match shade {
            0 => "less".to_owned(),
            _ if from >= 0.01 => format!("≥ {}", percent(from)),
            _ => format!("≥ {:.1}%", from * 100.0),
        };
        put!(
            &mut html,
            "<span class=\"step\"><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\">\
             <path class=\"h h{shade}\" d=\"M0 .5h1\"/></svg>{text}</span>"
        );
    }
    html += "</p>";
    html
}

/// One row for each strategy, one column for each round: the highest band that was reached.
fn table(view: &View<'_>, maps: &[Map<'_>]) -> Table {
    let rounds = maps.iter().map(|map| map.rounds.len()).max().unwrap_or(0);
    let slowest = |map: &Map<'_>, round: u32| {
        let slices = usize::try_from(round)
            .ok()
            .and_then(|at| map.rounds.get(at));
        let slices = slices.into_iter().flatten();
        let ends = slices.filter(|slice| !slice.counts.is_empty());
        let slowest = ends
            .map(|slice| slice.first_band + slice.counts.len())
            .max();
        slowest.map_or_else(|| MISSING.to_owned(), |band| nanos(lower_edge_ns(band)))
    };
    Table {
        caption: "The slowest in each round, by its number, took less than".to_owned(),
        columns: by_round_columns(view, maps.iter().map(|map| map.cell)),
        rows: by_round((0..).take(rounds), |round| {
            maps.iter().map(|map| slowest(map, round)).collect()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shade_is_twice_the_one_before() {
        let shares = [1.0, 0.5, 0.3, 0.13, 0.01, 0.0001];
        assert_eq!(shares.map(shade), [7, 7, 6, 5, 1, 0]);
    }
}
