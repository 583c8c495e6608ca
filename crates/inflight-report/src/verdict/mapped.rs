//! How the library does against a map of the same files, at each number of readers.
//!
//! Neither a map nor the library's mapped road is in a ranking, because neither is for everybody;
//! who may have either still wants to know what the other costs.

use super::answers::in_words;
use crate::figures::full_rounds;
use crate::ranking::Ranking;
use crate::record::Cell;
use crate::stats::compare;
use crate::strategy::{self, MAPPED, MMAP, name};
use crate::units::ratio_with_ends;

/// The library's mapped road against `mmap`, or where one of the two was not measured, the one that
/// was against the library's blocking calls or plain calls.
pub(super) fn mapped(ranking: &Ranking<'_>) -> Option<String> {
    let mut depths: Vec<u32> = ranking.cells.iter().map(|cell| cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let pairs: Vec<(&Cell, &Cell)> = depths
        .into_iter()
        .filter_map(|depth| pair(ranking, depth))
        .collect();
    let said: Vec<String> = pairs
        .iter()
        .filter_map(|(ours, other)| against(ranking, ours, other))
        .collect();
    if said.is_empty() {
        return None;
    }
    let mut text = format!("{}.", said.join("; "));
    let of_map = strategy::condition(MMAP).filter(|_| pairs.iter().any(|(_, other)| is_map(other)));
    text += &of_map.map_or_else(String::new, |condition| format!(" {MMAP} {condition}."));
    Some(text)
}

/// Who is held against whom at a depth.
fn pair<'a>(ranking: &Ranking<'a>, depth: u32) -> Option<(&'a Cell, &'a Cell)> {
    let is_out = |cell: &Cell| ranking.out.iter().any(|(out, _)| out.id == cell.id);
    let shown = |strategy: &str| {
        let mut cells = ranking.cells.iter().copied();
        cells.find(|cell| {
            cell.strategy == strategy
                && cell.depth == depth
                && full_rounds(cell) > 0
                && !is_out(cell)
        })
    };
    let best = |wanted: fn(&str) -> bool| {
        ranking.best(|cell| wanted(&cell.strategy) && cell.depth == depth)
    };
    let is_plain = |of: &str| [strategy::PREAD, strategy::THREADS].contains(&of);
    match (shown(MAPPED), shown(MMAP)) {
        (Some(ours), Some(map)) => Some((ours, map)),
        (Some(ours), None) => Some((ours, best(is_plain)?)),
        (None, Some(map)) => Some((best(strategy::is_blocking)?, map)),
        (None, None) => None,
    }
}

fn is_map(cell: &Cell) -> bool {
    cell.strategy == MMAP
}

fn against(ranking: &Ranking<'_>, ours: &Cell, other: &Cell) -> Option<String> {
    let interval = compare(ours, other)?;
    let word = in_words(interval.word());
    let readers = match other.depth {
        1 => "1 reader".to_owned(),
        readers => format!("{readers} readers"),
    };
    let other = match is_map(other) {
        true => format!("{MMAP} with {readers}"),
        // The number of threads says it.
        false => name(other, ranking.profile.access),
    };
    let called = match ours.strategy.as_str() {
        MAPPED => "inflight, mapped",
        _ => "inflight",
    };
    let times = ratio_with_ends(&interval);
    Some(format!("{called} is {times} {other}: {word}"))
}
