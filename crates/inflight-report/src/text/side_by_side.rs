//! The profiles of a published comparison, one row each: plain calls beside a ring with one entry
//! and with several, and below them what was counted ([`super::reasons`]).

use super::grid;
use super::paint::{Paint, Screen};
use super::reasons::reasons;
use crate::figures::{calls_per_op, iops};
use crate::ranking::Ranking;
use crate::record::Cell;
use crate::strategy::{PREAD, URING};
use crate::study;
use crate::units::{count, or_missing};

/// What stands behind a figure that does not count in the table of its own profile either.
const MARK: char = '*';

/// Draws the table, if there are such profiles with plain calls to compare.
pub(super) fn draw(screen: &mut Screen, rankings: &[Ranking<'_>]) {
    let is_row = |ranking: &&Ranking<'_>| study::has(ranking.profile) && plain(ranking).is_some();
    let rankings: Vec<_> = rankings.iter().filter(is_row).collect();
    if rankings.is_empty() {
        return;
    }
    let rings = rankings.iter().flat_map(|ranking| rings(ranking));
    let mut depths: Vec<u32> = rings.map(|cell| cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let titles: Vec<String> = depths.iter().map(|depth| ring_title(*depth)).collect();
    let mut columns: Vec<grid::Column<'_>> = vec![("  profile", false), ("plain calls/s", true)];
    columns.extend(titles.iter().map(|title| (title.as_str(), true)));
    columns.push(("calls per operation", true));
    let row = |ranking: &&Ranking<'_>| (row(ranking, &depths), Paint::Plain);
    let rows: Vec<_> = rankings.iter().map(row).collect();
    let is_marked = rows
        .iter()
        .flat_map(|(row, _)| row)
        .any(|text| text.ends_with(MARK));
    screen.blank();
    screen.prose("Plain calls and io_uring side by side", 1, Paint::Bold);
    grid::draw(screen, &columns, &rows);
    if is_marked {
        screen.prose(
            &format!("{MARK} not ranked, for the reason above."),
            1,
            Paint::Plain,
        );
    }
    for ranking in rankings {
        screen.prose(&said(ranking), 1, Paint::Plain);
    }
}

fn ring_title(depth: u32) -> String {
    match depth {
        1 => "ring, 1 entry/s".to_owned(),
        _ => format!("ring, batches of {depth}/s"),
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
    let ring = |depth: &u32| rings(ranking).find(|cell| cell.depth == *depth);
    let cells: Vec<Option<&Cell>> = [plain(ranking)]
        .into_iter()
        .chain(depths.iter().map(ring))
        .collect();
    let rate = |cell: &Option<&Cell>| {
        let mut text = or_missing(cell.and_then(iops), count);
        text.extend(cell.filter(|cell| !counts(ranking, cell)).map(|_| MARK));
        text
    };
    let calls = |cell: &Option<&Cell>| {
        or_missing(cell.and_then(calls_per_op), |calls| format!("{calls:.2}"))
    };
    let mut row = vec![format!("  {}", ranking.profile.name)];
    row.extend(cells.iter().map(rate));
    row.push(cells.iter().map(calls).collect::<Vec<_>>().join(" / "));
    row
}

/// The name of the row, and what follows from what was counted in it.
fn said(ranking: &Ranking<'_>) -> String {
    let counting: Vec<&Cell> = rings(ranking)
        .filter(|cell| counts(ranking, cell))
        .collect();
    let why = match plain(ranking).filter(|cell| counts(ranking, cell)) {
        Some(plain) => reasons(ranking, plain, &counting),
        None => "Plain calls are not ranked, so nothing can be held against them.".to_owned(),
    };
    format!("{}: {why}", ranking.profile.name)
}
