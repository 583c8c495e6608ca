//! The table of one profile: a row for each cell that was measured, a group for each strategy.

use super::grid;
use super::paint::{Paint, Screen, clean};
use crate::figures::{calls_per_op, cpu_ns_per_op, device_share, iops, mib_per_second};
use crate::ranking::Ranking;
use crate::record::Cell;
use crate::stats::compare;
use crate::strategy::{NULL, name};
use crate::units::{MISSING, comparison, count, nanos, or_missing, percent, plain};

/// What stands in one column.
struct Column {
    title: &'static str,
    /// On a narrow terminal columns go in this order, from 1; 0 stays always.
    goes: usize,
    right: bool,
    write: fn(&Ranking<'_>, &Cell) -> String,
}

const COLUMNS: [Column; 13] = [
    column("  strategy", 0, false, marked_name),
    column("depth", 0, true, |_, cell| cell.depth.to_string()),
    column("reads/s", 0, true, |_, cell| or_missing(iops(cell), count)),
    column("MiB/s", 3, true, |_, cell| {
        or_missing(mib_per_second(cell), plain)
    }),
    column("vs pread", 0, true, |ranking, cell| {
        versus(ranking, cell, 0)
    }),
    column("", 8, false, |ranking, cell| versus(ranking, cell, 1)),
    column("p50", 7, true, |_, cell| {
        latency(cell, |found| Some(found.ns_p50))
    }),
    column("p99", 6, true, |_, cell| {
        latency(cell, |found| found.ns_p99)
    }),
    column("p99.9", 2, true, |_, cell| {
        latency(cell, |found| found.ns_p999)
    }),
    column("max", 1, true, |_, cell| {
        latency(cell, |found| Some(found.ns_max))
    }),
    column("CPU/read", 5, true, |_, cell| {
        or_missing(cpu_ns_per_op(cell), nanos)
    }),
    column("calls/read", 4, true, |_, cell| {
        or_missing(calls_per_op(cell), |calls| format!("{calls:.2}"))
    }),
    column("disk", 0, true, |_, cell| or_missing(share(cell), percent)),
];

const fn column(
    title: &'static str,
    goes: usize,
    right: bool,
    write: fn(&Ranking<'_>, &Cell) -> String,
) -> Column {
    Column {
        title,
        goes,
        right,
        write,
    }
}

/// Draws the table, without the columns for which the screen is too narrow.
pub(super) fn draw(screen: &mut Screen, ranking: &Ranking<'_>) {
    let rows = rows(ranking);
    if rows.is_empty() {
        let text = "No figures: no round of this profile is complete.";
        screen.prose(text, 3, Paint::Plain);
        return;
    }
    let texts = texts(ranking);
    let shown = fitting(&texts, screen.width());
    let columns: Vec<grid::Column> = shown
        .iter()
        .map(|at| (COLUMNS[*at].title, COLUMNS[*at].right))
        .collect();
    let only_shown = |row: &Vec<String>| shown.iter().map(|at| row[*at].clone()).collect();
    let paints = rows.iter().map(|cell| paint(ranking, cell));
    let rows: Vec<_> = texts.iter().map(only_shown).zip(paints).collect();
    grid::draw(screen, &columns, &rows);
}

/// The titles of all columns, and whether they are set to the right.
pub(crate) fn titles() -> Vec<grid::Column> {
    let columns = COLUMNS.iter();
    columns
        .map(|column| (column.title.trim(), column.right))
        .collect()
}

/// Every row with every column of it.
pub(crate) fn texts(ranking: &Ranking<'_>) -> Vec<Vec<String>> {
    let rows = rows(ranking).into_iter();
    rows.map(|cell| texts_of(ranking, cell)).collect()
}

fn texts_of(ranking: &Ranking<'_>, cell: &Cell) -> Vec<String> {
    let write = |column: &Column| clean(&(column.write)(ranking, cell));
    COLUMNS.iter().map(write).collect()
}

/// The measured cells, those of one strategy together, by depth.
fn rows<'a>(ranking: &Ranking<'a>) -> Vec<&'a Cell> {
    let appears = |cell: &Cell| {
        let same = |other: &&Cell| other.strategy == cell.strategy;
        ranking.cells.iter().position(same)
    };
    let measured = |cell: &&Cell| iops(cell).is_some();
    let mut rows: Vec<&Cell> = ranking.cells.iter().copied().filter(measured).collect();
    rows.sort_by_key(|cell| (appears(cell), cell.depth, cell.threads));
    rows
}

/// The columns that fit side by side; those that never go stay even where they do not.
fn fitting(texts: &[Vec<String>], width: usize) -> Vec<usize> {
    let needs = |at: usize| {
        let longest = texts.iter().map(|row| row[at].chars().count()).max();
        longest.unwrap_or(0).max(COLUMNS[at].title.chars().count()) + 2
    };
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    for turn in 1..=COLUMNS.len() {
        if shown.iter().map(|at| needs(*at)).sum::<usize>() <= width {
            break;
        }
        shown.retain(|at| COLUMNS[*at].goes != turn);
    }
    shown
}

fn paint(ranking: &Ranking<'_>, cell: &Cell) -> Paint {
    if ranking.out.iter().any(|(out, _)| out.id == cell.id) {
        Paint::RedEnd
    } else if is_pick(ranking, cell) {
        Paint::Bold
    } else {
        Paint::Plain
    }
}

fn is_pick(ranking: &Ranking<'_>, cell: &Cell) -> bool {
    ranking.pick().is_some_and(|pick| pick.id == cell.id)
}

fn marked_name(ranking: &Ranking<'_>, cell: &Cell) -> String {
    let mark = if is_pick(ranking, cell) { '▸' } else { ' ' };
    format!("{mark} {}", name(cell))
}

/// The share that the device served; what does no I/O has none.
fn share(cell: &Cell) -> Option<f64> {
    device_share(cell).filter(|_| cell.strategy != NULL)
}

/// The ratio to the plain loop, or its interval; the plain loop itself is 1 by definition.
fn versus(ranking: &Ranking<'_>, cell: &Cell, part: usize) -> String {
    let missing = [MISSING.to_owned(), String::new()];
    let words = match ranking.baseline {
        _ if cell.strategy == NULL => missing,
        Some(baseline) if baseline.id == cell.id => ["1x".to_owned(), String::new()],
        Some(baseline) => compare(cell, baseline).map_or(missing, |found| comparison(&found)),
        None => missing,
    };
    words.into_iter().nth(part).unwrap_or_default()
}

fn latency(cell: &Cell, figure: fn(&crate::record::Latency) -> Option<u64>) -> String {
    let found = cell.latency.as_ref().filter(|latency| latency.samples > 0);
    or_missing(found.and_then(figure).map(|ns| ns as f64), nanos)
}
