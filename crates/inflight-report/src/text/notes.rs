//! Notes below a table: cells that did not run, do not count, or failed; and the library's roads.

use super::paint::{Paint, Screen};
use crate::figures::{empty_rounds, full_rounds, ops, told_failures};
use crate::ranking::Ranking;
use crate::record::{Cell, ProfileSummary};
use crate::strategy::{NULL, access_of, condition, is_threads, name};
use crate::units::count;

/// A label, a sentence, and whether it is a warning.
pub(crate) type Note = (&'static str, String, bool);

/// Draws the notes of one profile.
pub(super) fn draw(screen: &mut Screen, ranking: &Ranking<'_>) {
    for (label, text, warns) in notes(ranking) {
        let paint = if warns { Paint::Red } else { Paint::Plain };
        screen.statement(label, &text, paint);
    }
}

/// What has to be said below the table of a profile, in which no cell may be missing without a
/// word: a label, a sentence, and whether it is a warning.
pub(crate) fn notes(ranking: &Ranking<'_>) -> Vec<Note> {
    let mut notes = of_not_run(ranking);
    let works = |cell: &&Cell| full_rounds(cell) > 0 && cell.strategy != NULL;
    let measured = ranking.cells.iter().copied().filter(works).count();
    for (cells, why) in by_reason(ranking.out.iter().cloned()) {
        let who = match cells.len() > 1 && cells.len() == measured {
            true => "all of them".to_owned(),
            false => names_in(ranking.profile, &cells),
        };
        notes.push(("not ranked", format!("{who}: {why}"), true));
    }
    for (cells, why) in by_reason(mapped(ranking)) {
        let text = format!("{}: {why}", names_in(ranking.profile, &cells));
        notes.push(("not ranked", text, false));
    }
    for cell in &ranking.cells {
        let name = names_in(ranking.profile, &[cell]);
        if let Some(told) = told_failures(cell) {
            let all = count(ops(cell) as f64);
            notes.push(("errors", format!("{name}: {told}; {all} completed"), true));
        }
    }
    for (cells, what) in by_reason(empty(ranking)) {
        let text = format!("{}: {what}", names_in(ranking.profile, &cells));
        notes.push(("empty", text, true));
    }
    for (cells, mode) in by_reason(not_polled(ranking)) {
        let text = format!("{}: writes are {mode}", names_in(ranking.profile, &cells));
        notes.push(("mode", text, false));
    }
    for (cells, road) in roads(ranking) {
        let text = format!("{}: {road}", names_in(ranking.profile, &cells));
        notes.push(("road", text, false));
    }
    notes
}

/// Says who did not run; where nobody did, most of them have no need of names.
fn of_not_run(ranking: &Ranking<'_>) -> Vec<Note> {
    let mut groups = by_reason(not_run(ranking));
    let told: usize = groups.iter().map(|(cells, _)| cells.len()).sum();
    if told == ranking.cells.len() {
        groups.sort_by_key(|(cells, _)| cells.len());
    }
    let last = groups.len().saturating_sub(1);
    let one = |(at, (cells, why)): (usize, &(Vec<&Cell>, String))| {
        let who = match () {
            () if told < ranking.cells.len() || at < last || cells.len() < 2 => {
                names_in(ranking.profile, cells)
            }
            () if last == 0 => "all of them".to_owned(),
            () => "all others".to_owned(),
        };
        ("not run", format!("{who}: {why}"), false)
    };
    groups.iter().enumerate().map(one).collect()
}

/// Cells with rounds in which not one operation came to its end.
fn empty<'a>(ranking: &Ranking<'a>) -> Vec<(&'a Cell, String)> {
    let what = |cell: &&'a Cell| {
        let (empty, rounds) = (empty_rounds(cell), cell.rounds.len());
        let what = format!("{empty} of {rounds} rounds completed nothing, left out");
        (empty > 0).then_some((*cell, what))
    };
    ranking.cells.iter().filter_map(what).collect()
}

/// Writes that were to be polled, and that the kernel took and did not poll.
fn not_polled<'a>(ranking: &Ranking<'a>) -> Vec<(&'a Cell, String)> {
    let mode = |cell: &&'a Cell| {
        let mode = cell.effective.get("writes")?;
        let ran = full_rounds(cell) > 0 && mode.starts_with("not polled");
        ran.then(|| (*cell, mode.clone()))
    };
    ranking.cells.iter().filter_map(mode).collect()
}

/// Which way the library took, in its own words, cells of one way together.
pub(crate) fn roads<'a>(ranking: &Ranking<'a>) -> Vec<(Vec<&'a Cell>, String)> {
    let road = |cell: &&'a Cell| Some((*cell, cell.effective.get("road")?.clone()));
    by_reason(ranking.cells.iter().filter_map(road))
}

/// Cells without any figures, with the reason that is stored or the one that is plain to see.
fn not_run<'a>(ranking: &Ranking<'a>) -> Vec<(&'a Cell, String)> {
    let any = ranking.cells.iter().any(|cell| full_rounds(cell) > 0);
    let why = |cell: &Cell| match &cell.skipped {
        Some(skipped) => Some(skipped.reason.clone()),
        // Where nothing has figures the table and the verdict have said so.
        None => (any && cell.rounds.is_empty()).then(|| "no round was completed".to_owned()),
    };
    let cells = ranking.cells.iter().copied();
    let cells = cells.filter(|cell| full_rounds(cell) == 0);
    cells.filter_map(|cell| Some((cell, why(cell)?))).collect()
}

/// Maps are fast rows that nobody is told to use; the reader is told why.
fn mapped<'a>(ranking: &Ranking<'a>) -> Vec<(&'a Cell, String)> {
    let is_out = |cell: &Cell| ranking.out.iter().any(|(out, _)| out.id == cell.id);
    let counts = |cell: &&Cell| full_rounds(cell) > 0 && !is_out(cell);
    let cells = ranking.cells.iter().copied().filter(counts);
    let why = |cell: &Cell| condition(&cell.strategy).map(str::to_owned);
    cells.filter_map(|cell| Some((cell, why(cell)?))).collect()
}

/// Gathers cells that have the same reason, in order of appearance.
pub(crate) fn by_reason<'a>(
    cells: impl IntoIterator<Item = (&'a Cell, String)>,
) -> Vec<(Vec<&'a Cell>, String)> {
    let mut groups: Vec<(Vec<&Cell>, String)> = Vec::new();
    for (cell, why) in cells {
        match groups.iter_mut().find(|(_, known)| *known == why) {
            Some((members, _)) => members.push(cell),
            None => groups.push((vec![cell], why)),
        }
    }
    groups
}

/// Names cells of one profile.
pub(crate) fn names_in(profile: &ProfileSummary, cells: &[&Cell]) -> String {
    names(cells, std::slice::from_ref(profile))
}

/// Names cells of these profiles in a sentence: `pread, 1 thread; io_uring (depth 1, 4, 16)`.
#[must_use]
pub fn names(cells: &[&Cell], profiles: &[ProfileSummary]) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for cell in cells {
        // The depth of plain calls is the number of their threads.
        let depth = is_threads(&cell.strategy);
        let depth = (!depth).then(|| cell.depth.to_string());
        let name = name(cell, access_of(cell, profiles));
        match groups.iter_mut().find(|(known, _)| *known == name) {
            // Another profile has the same depths.
            Some((_, depths)) => depths.extend(depth.filter(|depth| !depths.contains(depth))),
            None => groups.push((name, depth.into_iter().collect())),
        }
    }
    let one = |(name, depths): &(String, Vec<String>)| match depths.join(", ") {
        none if none.is_empty() => name.clone(),
        depths => format!("{name} (depth {depths})"),
    };
    groups.iter().map(one).collect::<Vec<_>>().join("; ")
}
