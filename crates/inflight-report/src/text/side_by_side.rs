//! The profiles of a published comparison, one row each: plain calls beside a ring with one entry
//! and with several, here and there, and below them what was counted ([`super::reasons`]).

use super::grid;
use super::paint::{Paint, Screen, clean};
use super::reasons::reasons;
use crate::figures::{calls_per_op, iops};
use crate::ranking::Ranking;
use crate::record::Cell;
use crate::stats::{Word, compare};
use crate::strategy::{PREAD, URING};
use crate::study;
use crate::units::{MISSING, count, or_missing, ratio};

/// What stands above the table.
pub(crate) const TITLE: &str =
    "Plain calls and io_uring side by side: ratio to plain calls, here / published";

/// What stands behind a figure that does not count in the table of its own profile either.
const MARK: char = '*';

/// The table, before it is drawn.
pub(crate) struct SideBySide {
    /// Titles, and whether what stands below them is set to the right.
    pub(crate) columns: Vec<(String, bool)>,
    pub(crate) rows: Vec<Vec<String>>,
    /// What the marks mean, and where the published figures are from.
    pub(crate) legend: String,
    /// The name of each row, and what follows from what was counted in it.
    pub(crate) said: Vec<(String, String)>,
}

/// The rows of the comparison with plain calls to compare; `None` if there are none.
pub(crate) fn side_by_side<'a>(
    rankings: impl IntoIterator<Item = &'a Ranking<'a>>,
) -> Option<SideBySide> {
    let is_row = |ranking: &&Ranking<'_>| study::has(ranking.profile) && plain(ranking).is_some();
    let rankings: Vec<_> = rankings.into_iter().filter(is_row).collect();
    if rankings.is_empty() {
        return None;
    }
    let rings = rankings.iter().flat_map(|ranking| rings(ranking));
    let mut depths: Vec<u32> = rings.map(|cell| cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut columns = vec![
        ("profile".to_owned(), false),
        ("plain calls/s".to_owned(), true),
    ];
    columns.extend(depths.iter().map(|depth| (title(*depth), true)));
    columns.push(("calls per operation".to_owned(), true));
    let rows = rankings.iter().map(|ranking| row(ranking, &depths));
    let rows: Vec<Vec<String>> = rows.collect();
    let legend = format!("? cannot tell yet. {MARK} not ranked. {}", study::SOURCE);
    let said = |ranking: &&Ranking<'_>| (ranking.profile.name.clone(), said(ranking));
    Some(SideBySide {
        columns,
        rows,
        legend,
        said: rankings.iter().map(said).collect(),
    })
}

/// Draws the table, if there is one.
pub(super) fn draw(screen: &mut Screen, rankings: &[Ranking<'_>]) {
    let Some(table) = side_by_side(rankings) else {
        return;
    };
    let columns: Vec<grid::Column<'_>> = table
        .columns
        .iter()
        .map(|(title, right)| (title.as_str(), *right))
        .collect();
    let painted = |row: Vec<String>| (row.iter().map(|text| clean(text)).collect(), Paint::Plain);
    let rows: Vec<_> = table.rows.into_iter().map(painted).collect();
    screen.blank();
    screen.prose(TITLE, 1, Paint::Bold);
    grid::draw(screen, &columns, &rows);
    screen.prose(&table.legend, 1, Paint::Plain);
    for (name, said) in &table.said {
        screen.prose(&format!("{name}: {said}"), 1, Paint::Plain);
    }
}

fn title(depth: u32) -> String {
    match depth {
        1 => "1 entry".to_owned(),
        _ => format!("batches of {depth}"),
    }
}

fn plain<'a>(ranking: &Ranking<'a>) -> Option<&'a Cell> {
    let mut cells = ranking.cells.iter().copied();
    cells.find(|cell| cell.strategy == PREAD && iops(cell).is_some())
}

fn rings<'a>(ranking: &Ranking<'a>) -> impl Iterator<Item = &'a Cell> {
    let cells = ranking.cells.iter().copied();
    cells.filter(|cell| cell.strategy == URING && iops(cell).is_some())
}

fn counts(ranking: &Ranking<'_>, cell: &Cell) -> bool {
    ranking.out.iter().all(|(out, _)| out.id != cell.id)
}

fn row(ranking: &Ranking<'_>, depths: &[u32]) -> Vec<String> {
    let plain = plain(ranking);
    let ring = |depth: &u32| rings(ranking).find(|cell| cell.depth == *depth);
    let marked = |text: String, cells: &[Option<&Cell>]| {
        let mut cells = cells.iter().flatten();
        match cells.all(|cell| counts(ranking, cell)) {
            true => text,
            false => format!("{text}{MARK}"),
        }
    };
    let ratio = |depth: &u32| {
        let ring = ring(depth);
        let here = marked(versus(ring, plain), &[ring, plain]);
        let there = study::published(ranking.profile, *depth);
        format!("{here} / {}", there.unwrap_or(MISSING))
    };
    let calls = |cell: Option<&Cell>| {
        or_missing(cell.and_then(calls_per_op), |calls| format!("{calls:.2}"))
    };
    let all_calls: Vec<String> = [plain]
        .into_iter()
        .chain(depths.iter().map(ring))
        .map(calls)
        .collect();
    let rate = or_missing(plain.and_then(iops), count);
    let mut row = vec![ranking.profile.name.clone(), marked(rate, &[plain])];
    row.extend(depths.iter().map(ratio));
    row.push(all_calls.join(" / "));
    row
}

/// The ratio to plain calls, and whether it is told apart from them or from no difference.
fn versus(ring: Option<&Cell>, plain: Option<&Cell>) -> String {
    let found = ring
        .zip(plain)
        .and_then(|(ring, plain)| compare(ring, plain));
    let Some(found) = found else {
        return MISSING.to_owned();
    };
    let open = match found.word() {
        Word::CannotTellYet => "?",
        Word::ClearlyFaster | Word::ClearlySlower | Word::NoRealDifference => "",
    };
    format!("{}{open}", ratio(found.ratio))
}

/// What follows from what was counted in a row.
fn said(ranking: &Ranking<'_>) -> String {
    let counting: Vec<&Cell> = rings(ranking)
        .filter(|cell| counts(ranking, cell))
        .collect();
    match plain(ranking).filter(|cell| counts(ranking, cell)) {
        Some(plain) => reasons(ranking, plain, &counting),
        None => "Plain calls are not ranked, so nothing can be held against them.".to_owned(),
    }
}
