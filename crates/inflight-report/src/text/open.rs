//! The table of the open loop, and what there is to say below it.

use super::grid;
use super::notes::{Note, by_reason, names_in};
use super::paint::{Paint, Screen, clean};
use crate::figures::{calls_per_op, cpu_ns_per_op, disk_share, full_rounds, ops, told_failures};
use crate::noun;
use crate::open::{self, Kept};
use crate::record::{Cell, Latency, ProfileSummary, Record};
use crate::strategy::name;
use crate::truth::not_durable;
use crate::units::{count, nanos, or_missing, percent};

/// What heads the table, behind the title of the profile.
pub(crate) const TITLE: &str = "open loop: latencies from when operations were due";

/// What stands in the place of a table without rows.
pub(crate) const NO_FIGURES: &str = "No figures: no round of it completed anything.";

/// The titles of the columns, and whether what stands below them is set to the right.
pub(crate) fn titles(profile: &ProfileSummary) -> Vec<(String, bool)> {
    let noun = noun::of(profile);
    let (many, short) = (noun.many, noun.short);
    let right = [
        "depth".to_owned(),
        "due/s".to_owned(),
        format!("{many}/s"),
        "p50".to_owned(),
        "p99".to_owned(),
        "p99.9".to_owned(),
        "max".to_owned(),
        format!("CPU/{short}"),
        format!("calls/{short}"),
        "disk".to_owned(),
    ];
    let left = |title: &str| (title.to_owned(), false);
    let middle = right.into_iter().map(|title| (title, true));
    [left("strategy")]
        .into_iter()
        .chain(middle)
        .chain([left("rate")])
        .collect()
}

/// A row for each measured cell.
pub(crate) fn texts(profile: &ProfileSummary, cells: &[&Cell]) -> Vec<Vec<String>> {
    let measured = open::measured(cells).into_iter();
    let rows = measured.map(|(cell, kept)| row(profile, cell, &kept));
    rows.map(|row| row.iter().map(|text| clean(text)).collect())
        .collect()
}

fn row(profile: &ProfileSummary, cell: &Cell, kept: &Kept) -> Vec<String> {
    let latency = cell.latency.as_ref();
    // What cannot be kept up with gets later and later: a percentile is of the length of the round.
    let latency = latency.filter(|latency| latency.samples > 0 && !kept.is_saturated());
    let at = |figure: fn(&Latency) -> Option<u64>| {
        or_missing(latency.and_then(figure).map(|ns| ns as f64), nanos)
    };
    let word = match kept.is_saturated() {
        true => "saturated",
        false => "kept",
    };
    vec![
        name(cell, profile.access),
        cell.depth.to_string(),
        count(kept.asked),
        count(kept.done),
        at(|found| Some(found.ns_p50)),
        at(|found| found.ns_p99),
        at(|found| found.ns_p999),
        at(|found| Some(found.ns_max)),
        or_missing(cpu_ns_per_op(cell), nanos),
        or_missing(calls_per_op(cell), |calls| format!("{calls:.2}")),
        or_missing(disk_share(cell, profile), percent),
        word.to_owned(),
    ]
}

/// Draws the open loop of a profile; nothing where it has none.
pub(super) fn draw(screen: &mut Screen, record: &Record, profile: &ProfileSummary) {
    let cells = open::cells(record, profile);
    if cells.is_empty() {
        return;
    }
    screen.blank();
    let title = format!("{}, {TITLE}", noun::heading(profile));
    screen.prose(&title, 1, Paint::Bold);
    let rows = texts(profile, &cells);
    if rows.is_empty() {
        screen.prose(NO_FIGURES, 3, Paint::Plain);
    } else {
        let titles = titles(profile);
        let columns: Vec<grid::Column<'_>> = titles
            .iter()
            .map(|(title, right)| (title.as_str(), *right))
            .collect();
        let paints = open::measured(&cells).into_iter();
        let paints = paints.map(|(_, kept)| match kept.is_saturated() {
            true => Paint::RedEnd,
            false => Paint::Plain,
        });
        let rows: Vec<_> = rows.into_iter().zip(paints).collect();
        grid::draw(screen, &columns, &rows);
    }
    for (label, text, warns) in notes(record, profile, &cells) {
        let paint = if warns { Paint::Red } else { Paint::Plain };
        screen.statement(label, &text, paint);
    }
}

/// What has to be said about these cells: a label, a sentence, and whether it is a warning.
pub(crate) fn notes<'a>(
    record: &Record,
    profile: &ProfileSummary,
    cells: &[&'a Cell],
) -> Vec<Note> {
    let mut notes = Vec::new();
    let out = |cell: &&'a Cell| Some((*cell, open::out(record, profile, cell)?));
    let all = cells.iter().filter_map(out);
    for (cells, why) in by_reason(all) {
        let (label, warns) = match cells.iter().any(|cell| full_rounds(cell) > 0) {
            true => ("no figure", true),
            false => ("not run", false),
        };
        notes.push((
            label,
            format!("{}: {why}", names_in(profile, &cells)),
            warns,
        ));
    }
    let measured = open::measured(cells);
    let not_durable = not_durable(profile, &record.target).filter(|_| !measured.is_empty());
    notes.extend(not_durable.map(|said| ("memory", said, true)));
    notes.extend(saturated(profile, &measured));
    notes.extend(alone(profile, &measured));
    for (cell, kept) in &measured {
        let name = names_in(profile, &[cell]);
        if let Some(told) = told_failures(cell) {
            let all = count(ops(cell) as f64);
            notes.push(("errors", format!("{name}: {told}; {all} completed"), true));
        }
        if kept.unserved > 0 && !kept.is_saturated() {
            let text = format!(
                "{name}: {} were given up in the end; they count as late as they were then",
                count(kept.unserved as f64)
            );
            notes.push(("given up", text, true));
        }
    }
    let lags = measured.iter().map(|(_, kept)| kept.lag_ns);
    if let Some(most) = lags.reduce(f64::max) {
        let text = format!(
            "where a place was free, the clock itself began operations up to {} late on average, \
             which is part of their latency",
            nanos(most)
        );
        notes.push(("timer", text, false));
    }
    notes
}

/// The cells that could not do what was asked for, in one sentence.
fn saturated(profile: &ProfileSummary, measured: &[(&Cell, Kept)]) -> Option<Note> {
    let behind = || measured.iter().filter(|(_, kept)| kept.is_saturated());
    let cells: Vec<&Cell> = behind().map(|(cell, _)| *cell).collect();
    let most = behind().map(|(_, kept)| kept.backlog).reduce(f64::max)?;
    let text = format!(
        "{}: fewer were done than were due; up to {} had not begun when a round was over. \
         Latencies would grow for as long as it lasts, so none is shown",
        names_in(profile, &cells),
        count(most)
    );
    Some(("saturated", text, true))
}

/// Those that could not keep a rate with one operation in flight, where others had more.
fn alone(profile: &ProfileSummary, measured: &[(&Cell, Kept)]) -> Option<Note> {
    let most = measured.iter().map(|(cell, _)| cell.depth).max()?;
    let behind = measured.iter().filter(|(_, kept)| kept.is_saturated());
    let cells: Vec<&Cell> = behind
        .map(|(cell, _)| *cell)
        .filter(|cell| cell.depth == 1 && most > 1)
        .collect();
    let text = format!(
        "{}: one operation in flight, where others have up to {most}; of the library, \
         inflight-threads and inflight-async have as many by the clock",
        names_in(profile, &cells),
    );
    (!cells.is_empty()).then_some(("one", text, false))
}
