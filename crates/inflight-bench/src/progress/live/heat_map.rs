//! Latencies over time, one map a strategy, all with the same axes and the same scale.

use inflight_report::heat::{Slice, lower_edge_ns};
use inflight_report::units;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::story::Entry;

/// Shades and colours from few operations to many; shades alone are told apart without colours.
const SHADES: [(&str, Color); 4] = [
    ("░", Color::Indexed(61)),
    ("▒", Color::Indexed(133)),
    ("▓", Color::Indexed(209)),
    ("█", Color::Indexed(229)),
];
/// Columns for the latencies on the left.
const LABEL_COLUMNS: u16 = 9;

/// The bands that any of these cells has, from the lowest to the one after the highest.
fn bands(entries: &[&Entry]) -> Option<(usize, usize)> {
    let slices = entries.iter().flat_map(|entry| &entry.slices);
    let timed = || slices.clone().filter(|slice| !slice.counts.is_empty());
    let low = timed().map(|slice| slice.first_band).min()?;
    let high = timed()
        .map(|slice| slice.first_band + slice.counts.len())
        .max()?;
    Some((low, high))
}

/// What part of the operations of some slices is in the bands from `low` to before `high`.
fn share(slices: &[Slice], low: usize, high: usize) -> f64 {
    let all: u64 = slices.iter().flat_map(|slice| &slice.counts).sum();
    let inside = slices.iter().flat_map(|slice| {
        let bands = slice.first_band..;
        bands.zip(&slice.counts)
    });
    let inside = inside.filter(|(band, _)| (low..high).contains(band));
    let inside: u64 = inside.map(|(_, count)| count).sum();
    inside as f64 / all.max(1) as f64
}

/// Which shade; none for nothing. Few slow operations are what is looked for, so they are lifted.
fn shade(share: f64) -> Option<usize> {
    let steps = [0.02, 0.15, 0.5];
    let reached = steps.iter().filter(|step| share > **step).count();
    (share > 0.0).then_some(reached)
}

/// Part `number` of `parts` of `whole` things: from, and to before; never empty.
fn part(whole: usize, number: usize, parts: usize) -> (usize, usize) {
    let from = whole * number / parts;
    (from, (whole * (number + 1) / parts).max(from + 1))
}

/// Draws the maps one below the other, as many as there is room for, in `rounds` rounds each.
pub(super) fn draw(entries: &[&Entry], rounds: u32, area: Rect, buffer: &mut Buffer) {
    /// A title and enough rows to see a shape.
    const LEAST_ROWS: u16 = 7;
    let timed = entries.iter().filter(|entry| !entry.slices.is_empty());
    let room = usize::from((area.height / LEAST_ROWS).max(1));
    let shown: Vec<&Entry> = timed.take(room).copied().collect();
    let Some(bands) = bands(&shown) else { return };
    let count = u16::try_from(shown.len()).unwrap_or(u16::MAX).max(1);
    let height = area.height / count;
    for (number, entry) in (0..).zip(&shown) {
        let y = area.y + number * height;
        let map = Rect { y, height, ..area };
        draw_one(entry, rounds, bands, map, buffer);
    }
}

fn draw_one(
    entry: &Entry,
    rounds: u32,
    (low, high): (usize, usize),
    area: Rect,
    buffer: &mut Buffer,
) {
    buffer.set_stringn(
        area.x,
        area.y,
        &entry.name,
        usize::from(area.width),
        Style::new().bold(),
    );
    let (rows, columns) = (
        area.height.saturating_sub(1),
        area.width.saturating_sub(LABEL_COLUMNS),
    );
    let done = entry.rates.len().max(1);
    let all_slices = entry.slices.len() / done * usize::try_from(rounds).unwrap_or(done);
    for row in 0..rows {
        let y = area.y + 1 + row;
        let from_below = usize::from(rows - 1 - row);
        let (from, to) = part(high - low, from_below, usize::from(rows));
        let (from, to) = (low + from, low + to);
        let label = match row {
            0 => Some(to),
            _ if row + 1 == rows => Some(from),
            _ => None,
        };
        if let Some(band) = label {
            let text = format!("{:>8}", units::nanos(lower_edge_ns(band)));
            buffer.set_string(area.x, y, text, Style::new().dim());
        }
        for column in 0..columns {
            let (first, after) = part(all_slices, usize::from(column), usize::from(columns));
            let last = after.min(entry.slices.len());
            let Some(slices) = entry.slices.get(first..last) else {
                continue;
            };
            if let Some(shade) = shade(share(slices, from, to)) {
                let (symbol, colour) = SHADES[shade];
                let x = area.x + LABEL_COLUMNS + column;
                buffer.set_string(x, y, symbol, Style::new().fg(colour));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_and_are_never_empty() {
        let parts = |whole, parts| {
            let all = (0..parts).map(|number| part(whole, number, parts));
            all.collect::<Vec<_>>()
        };
        assert_eq!(parts(6, 3), [(0, 2), (2, 4), (4, 6)]);
        assert_eq!(parts(2, 4), [(0, 1), (0, 1), (1, 2), (1, 2)]);
    }

    #[test]
    fn one_slow_operation_in_many_is_seen() {
        let slice = Slice {
            first_band: 60,
            counts: vec![9_999, 0, 0, 1],
        };
        let slices = [slice.clone(), slice];
        assert_eq!(shade(share(&slices, 60, 61)), Some(3));
        assert_eq!(shade(share(&slices, 61, 63)), None);
        assert_eq!(shade(share(&slices, 63, 64)), Some(0));
    }
}
