//! The table of one profile: a row for each cell that was measured, a group for each strategy.

use super::grid;
use super::paint::{Paint, Screen, clean};
use crate::figures::{calls_per_op, cpu_ns_per_op, disk_share, iops, mib_per_second};
use crate::noun;
use crate::ranking::Ranking;
use crate::record::{Cell, ProfileSummary, Sync};
use crate::regret;
use crate::stats::compare;
use crate::strategy::{NULL, name, plain_call};
use crate::study;
use crate::units::{MISSING, comparison, count, nanos, or_missing, percent, plain, signed_percent};

/// What stands in one column.
struct Column {
    /// `{}` stands for what one operation is called, `{}s` for what several are, `{call}` for what
    /// a plain one is.
    title: &'static str,
    /// On a narrow terminal columns go in this order, from 1; 0 stays always.
    goes: usize,
    right: bool,
    write: fn(&Ranking<'_>, &Cell) -> String,
}

/// Places of columns that are treated specially.
const BANDWIDTH: usize = 3;
const CALLS: usize = 11;
const REGRET: usize = 12;

/// What stands in the place of a table without rows.
pub(crate) const NO_FIGURES: &str = "No figures: no round of this profile is complete.";

const COLUMNS: [Column; 14] = [
    column("  strategy", 0, false, marked_name),
    column("depth", 0, true, |_, cell| cell.depth.to_string()),
    column("{}s/s", 0, true, |_, cell| or_missing(iops(cell), count)),
    column("MiB/s", 3, true, |_, cell| {
        or_missing(mib_per_second(cell), plain)
    }),
    column("vs {call}", 0, true, |ranking, cell| {
        versus(ranking, cell, 0)
    }),
    column("", 9, false, |ranking, cell| versus(ranking, cell, 1)),
    column("p50", 8, true, |_, cell| {
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
    column("CPU/{}", 5, true, |_, cell| {
        or_missing(cpu_ns_per_op(cell), nanos)
    }),
    column("calls/{}", 4, true, |_, cell| {
        or_missing(calls_per_op(cell), |calls| format!("{calls:.2}"))
    }),
    column("regret", 7, true, behind),
    column("disk", 0, true, |ranking, cell| {
        or_missing(disk_share(cell, ranking.profile), percent)
    }),
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

/// The title of a column, with the noun of the profile.
fn title(column: &Column, profile: &ProfileSummary) -> String {
    let noun = noun::of(profile);
    let title = column.title.replace("{}s", noun.many);
    let title = title.replace("{call}", plain_call(profile.access));
    title.replace("{}", noun.short)
}

/// Draws the table, without the columns for which the screen is too narrow.
pub(super) fn draw(screen: &mut Screen, ranking: &Ranking<'_>) {
    let rows = rows(ranking);
    if rows.is_empty() {
        screen.prose(NO_FIGURES, 3, Paint::Plain);
        return;
    }
    let texts = texts(ranking);
    let titles = titles(ranking.profile);
    let all = [std::slice::from_ref(&titles), texts.as_slice()].concat();
    let mut shown = fitting(&all, screen.width(), ranking.profile);
    if texts.iter().all(|row| row[REGRET].is_empty()) {
        shown.retain(|at| *at != REGRET);
    }
    let columns: Vec<grid::Column<'_>> = shown
        .iter()
        .map(|at| (titles[*at].as_str(), COLUMNS[*at].right))
        .collect();
    let only_shown = |row: &Vec<String>| shown.iter().map(|at| row[*at].clone()).collect();
    let paints = rows.iter().map(|cell| paint(ranking, cell));
    let rows: Vec<_> = texts.iter().map(only_shown).zip(paints).collect();
    grid::draw(screen, &columns, &rows);
}

/// The titles of all columns.
pub(crate) fn titles(profile: &ProfileSummary) -> Vec<String> {
    COLUMNS
        .iter()
        .map(|column| title(column, profile))
        .collect()
}

/// The titles with whether what stands below them is set to the right.
pub(crate) fn columns(titles: &[String]) -> Vec<grid::Column<'_>> {
    let pairs = titles.iter().zip(&COLUMNS);
    pairs
        .map(|(title, column)| (title.trim(), column.right))
        .collect()
}

/// Whether each of these rows has figures that do not count.
pub(crate) fn does_not_count(ranking: &Ranking<'_>) -> Vec<bool> {
    rows(ranking)
        .iter()
        .map(|cell| is_out(ranking, cell))
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

/// The columns that fit side by side; those that never go stay even where they do not, and so
/// does bandwidth where it says more than a count.
fn fitting(texts: &[Vec<String>], width: usize, profile: &ProfileSummary) -> Vec<usize> {
    let needs = |at: usize| {
        let longest = texts.iter().map(|row| row[at].chars().count()).max();
        longest.unwrap_or(0) + 2
    };
    let goes = |at: usize| match at {
        BANDWIDTH if noun::are_large(profile) => 0,
        CALLS if is_about_calls(profile) => COLUMNS.len(),
        _ => COLUMNS[at].goes,
    };
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    for turn in 1..=COLUMNS.len() {
        if shown.iter().map(|at| needs(*at)).sum::<usize>() <= width {
            break;
        }
        shown.retain(|at| goes(*at) != turn);
    }
    shown
}

/// Whether how many system calls an operation takes is what a profile is to show: that of a batch,
/// of a write with its sync, or because its own text says so.
fn is_about_calls(profile: &ProfileSummary) -> bool {
    let says_so = profile.reason.contains("system calls");
    study::has(profile) || profile.sync == Sync::Each || says_so
}

fn paint(ranking: &Ranking<'_>, cell: &Cell) -> Paint {
    // What is red is the share of the device, which is right where rounds are missing.
    if is_out(ranking, cell) && !ranking.rests(cell) {
        Paint::RedEnd
    } else if is_pick(ranking, cell) {
        Paint::Bold
    } else {
        Paint::Plain
    }
}

fn is_out(ranking: &Ranking<'_>, cell: &Cell) -> bool {
    ranking.out.iter().any(|(out, _)| out.id == cell.id)
}

fn is_pick(ranking: &Ranking<'_>, cell: &Cell) -> bool {
    ranking.pick().is_some_and(|pick| pick.id == cell.id)
}

fn marked_name(ranking: &Ranking<'_>, cell: &Cell) -> String {
    let mark = if is_pick(ranking, cell) { '▸' } else { ' ' };
    format!("{mark} {}", name(cell, ranking.profile.access))
}

/// How far a road of the library may be behind the best of the others, which is the bad end of the
/// interval, or that it is not known; nothing for those.
fn behind(ranking: &Ranking<'_>, cell: &Cell) -> String {
    match regret::of_cell(ranking, cell) {
        Some(found) if found.is_known() => signed_percent(found.percent_at_worst() / 100.0),
        Some(_) => "?".to_owned(),
        None => String::new(),
    }
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
