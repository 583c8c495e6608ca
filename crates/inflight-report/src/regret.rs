//! How far the library is behind the best of the others, cell by cell.
//!
//! The reference copies into the caller's buffer and reports I/O errors: maps do neither, `null`
//! does nothing, and fio is another program. It has as many operations in flight as the library
//! may have, or fewer: who may have many can do with few.
//!
//! What counts is the bad end of the interval: how far behind the library may be, going by what
//! was measured. A reference that is chosen for its rate in the rounds that it is then compared by
//! looks faster than it is, so such a regret errs on the side of too much, and the more strategies
//! take part, the further. Fresh rounds of the two are free of that: [`to_confirm`] says whose are
//! worth most. A road is then held against the fastest of those that have fresh rounds with it, and
//! against the fastest of the others by rounds of the screening, and the worse of the two counts:
//! whoever loses by fresh rounds what luck had given it may have hidden one that is as fast.
//!
//! What is left of the time goes to those of which it is not known yet whether they are within 3 %
//! ([`to_settle`]).

use crate::ranking::Ranking;
use crate::record::{Cell, Record, Regret};
use crate::stats::{Interval, MOST_LOOKS, SAME_ZONE, compare, is_confirmed};
use crate::strategy::{is_awaited, is_blocking, is_library};

/// Most cells of a profile that get fresh rounds at a time for its worst regrets.
pub const MOST_TO_CONFIRM: usize = 4;

/// How often they are looked for at most: again where fresh rounds have shown another to be worse.
pub const MOST_SEARCHES: u32 = 4;

/// Most references that a road is held against at a time, to settle whether it is within 3 %.
pub const MOST_REFERENCES: usize = 3;

/// An interval that does not say whether the library keeps up, and whose ends are more than this
/// apart, is told in words: it does not even tell half as fast from just as fast.
pub const TOO_WIDE: f64 = 2.0;

/// The regret of every road of the library in every cell that counts, in the order of the cells.
#[must_use]
pub fn regrets(record: &Record) -> Vec<Regret> {
    let profiles = record.profiles.iter();
    profiles
        .flat_map(|profile| of_profile(&Ranking::new(record, profile)))
        .collect()
}

/// The same in one profile.
pub(crate) fn of_profile(ranking: &Ranking<'_>) -> Vec<Regret> {
    let roads = ranking.cells.iter();
    roads.filter_map(|road| of_cell(ranking, road)).collect()
}

/// The regret of one cell; `None` if it is none of the library's, does not count, or has nothing
/// to be compared with, or too few rounds for an interval.
pub(crate) fn of_cell(ranking: &Ranking<'_>, road: &Cell) -> Option<Regret> {
    let counts = ranking.ranked.iter().any(|cell| cell.id == road.id);
    if !counts || !is_library(&road.strategy) {
        return None;
    }
    let (fresh, others): (Vec<&Cell>, Vec<&Cell>) =
        references(ranking, road).partition(|reference| is_confirmed(reference, road));
    let fresh = fresh.into_iter().filter_map(|one| between(road, one));
    let fastest = fresh.max_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let next = others.first().and_then(|next| between(road, next));
    let found = fastest.into_iter().chain(next);
    found.max_by(|a, b| a.hi.total_cmp(&b.hi))
}

/// Whom a road of the library may be held against, fastest first.
fn references<'a>(ranking: &Ranking<'a>, road: &Cell) -> impl Iterator<Item = &'a Cell> {
    // Ranked cells are in order of speed, and hold no maps, no `null` and no fio.
    let ranked = ranking.ranked.iter().copied();
    ranked.filter(|cell| !is_library(&cell.strategy) && cell.depth <= road.depth)
}

/// How far a road is behind one reference.
fn between(road: &Cell, reference: &Cell) -> Option<Regret> {
    let interval = compare(reference, road).filter(Interval::suffices)?;
    Some(Regret {
        profile: road.profile.clone(),
        depth: road.depth,
        strategy: road.strategy.clone(),
        cell: road.id.clone(),
        reference: reference.id.clone(),
        ratio: interval.ratio,
        lo: interval.lo,
        hi: interval.hi,
        level: interval.level,
    })
}

/// The cells whose fresh rounds the worst regret of a profile needs: those that it rests on, and as
/// many of the next worst as there is room for among [`MOST_TO_CONFIRM`]. That of the library's
/// blocking calls comes first, then that of its other roads. None where the worst rest on fresh
/// rounds.
#[must_use]
pub fn to_confirm<'a>(ranking: &Ranking<'a>) -> Vec<&'a Cell> {
    let all = of_profile(ranking);
    let (blocking, _) = blocking_and_others(&all);
    let is_blocking = |road: &Cell| blocking.iter().any(|one| one.cell == road.id);
    let own = worst_pairs(ranking, is_blocking);
    match own.is_empty() {
        true => worst_pairs(ranking, |road| !is_blocking(road)),
        false => own,
    }
}

/// The same of some roads.
fn worst_pairs<'a>(ranking: &Ranking<'a>, wanted: impl Fn(&Cell) -> bool) -> Vec<&'a Cell> {
    let ranked = ranking.ranked.iter().copied();
    let roads: Vec<&Cell> = ranked
        .filter(|road| is_library(&road.strategy) && wanted(road))
        .collect();
    let is_fresh = |regret: &Regret| {
        let of_road = roads.iter().find(|road| road.id == regret.cell);
        let mut ranked = ranking.ranked.iter();
        let reference = ranked.find(|cell| cell.id == regret.reference);
        of_road
            .zip(reference)
            .is_some_and(|(road, reference)| is_confirmed(reference, road))
    };
    // Who is better than this does not matter.
    let known = roads.iter().filter_map(|road| of_cell(ranking, road));
    let known = known.filter(is_fresh).map(|regret| regret.hi);
    let mut at_least = known.fold(f64::NEG_INFINITY, f64::max);
    let mut chosen: Vec<&Cell> = Vec::new();
    loop {
        let is_chosen = |cell: &Cell| chosen.iter().any(|one| one.id == cell.id);
        let next = |road: &&'a Cell| {
            let is_done = |reference: &Cell| {
                is_confirmed(reference, road) || (is_chosen(reference) && is_chosen(road))
            };
            let reference = references(ranking, road).find(|one| !is_done(one))?;
            Some((between(road, reference)?.hi, [*road, reference]))
        };
        let worst = roads.iter().filter_map(next);
        let worst = worst.max_by(|(a, _), (b, _)| a.total_cmp(b));
        let Some((_, pair)) = worst.filter(|(hi, _)| *hi > at_least) else {
            return chosen;
        };
        let new: Vec<&Cell> = pair.into_iter().filter(|cell| !is_chosen(cell)).collect();
        if chosen.len() + new.len() > MOST_TO_CONFIRM {
            return chosen;
        }
        chosen.extend(new);
        // Of the others, those that are known to be fine are left as they are.
        at_least = at_least.max(SAME_ZONE);
    }
}

/// The road of which to find out next whether it is within 3 %, and those it may be behind by more:
/// the one that has been looked at least often, the library's blocking calls before its others.
/// None if that is known of all, or they have been `looked` at [`MOST_LOOKS`] times.
#[must_use]
pub fn to_settle<'a>(ranking: &Ranking<'a>, looked: impl Fn(&Cell) -> u32) -> Vec<&'a Cell> {
    let ranked = ranking.ranked.iter().copied();
    let roads = ranked.filter(|road| is_library(&road.strategy) && looked(road) < MOST_LOOKS);
    let open = roads.filter_map(|road| {
        let references = may_be_behind(ranking, road);
        (!references.is_empty()).then_some((road, references))
    });
    let all = of_profile(ranking);
    let (_, others) = blocking_and_others(&all);
    let is_other = |road: &Cell| others.iter().any(|one| one.cell == road.id);
    let next = open.min_by_key(|(road, _)| (looked(road), is_other(road)));
    next.map_or(Vec::new(), |(road, references)| {
        [vec![road], references].concat()
    })
}

/// The references that a road may be more than 3 % behind, the worst first; none if it is known to
/// be behind one by as much.
fn may_be_behind<'a>(ranking: &Ranking<'a>, road: &Cell) -> Vec<&'a Cell> {
    let all = references(ranking, road);
    let found = all.filter_map(|reference| Some((reference, between(road, reference)?)));
    let mut open: Vec<(&Cell, Regret)> = found.filter(|(_, found)| !found.is_within()).collect();
    let is_settled =
        |(reference, found): &(&Cell, Regret)| is_confirmed(reference, road) && found.is_beyond();
    if open.iter().any(is_settled) {
        return Vec::new();
    }
    open.sort_by(|(_, a), (_, b)| b.hi.total_cmp(&a.hi));
    let worst = open.into_iter().take(MOST_REFERENCES);
    worst.map(|(reference, _)| reference).collect()
}

/// The regrets of the library's blocking calls, and those of its other roads. A program that waits
/// for results has several operations in flight by a queue or by as many threads, as it likes: so
/// at each depth the better one of the two stands for them, and the other is among the others.
#[must_use]
pub fn blocking_and_others(regrets: &[Regret]) -> (Vec<&Regret>, Vec<&Regret>) {
    let is_same = |a: &Regret, b: &Regret| a.profile == b.profile && a.depth == b.depth;
    let is_best = |one: &&Regret| {
        let mut rivals = regrets.iter().filter(|other| is_same(one, other));
        is_blocking(&one.strategy)
            && rivals.all(|other| !is_blocking(&other.strategy) || one.ratio <= other.ratio)
    };
    regrets.iter().partition(is_best)
}

/// The worst of them by the bad end of its interval.
#[must_use]
pub fn worst<'r>(regrets: &[&'r Regret]) -> Option<&'r Regret> {
    let regrets = regrets.iter().copied();
    regrets.max_by(|a, b| a.hi.total_cmp(&b.hi))
}

/// The same of those that are known, and how many are not.
#[must_use]
pub fn worst_known<'r>(regrets: &[&'r Regret]) -> (Option<&'r Regret>, usize) {
    let (known, unknown): (Vec<&Regret>, Vec<&Regret>) = regrets
        .iter()
        .copied()
        .partition(|regret| regret.is_known());
    (worst(&known), unknown.len())
}

/// What can tell more of a record in which some regrets are not known, as a sentence.
pub(crate) fn what_tells(record: &Record) -> String {
    // Intervals are half as wide with four times the rounds.
    let minutes = (record.took_ns / 1_000_000_000 * 4).div_ceil(60);
    let seconds = (minutes * 60).clamp(120, LONGEST_RUN_S);
    format!("A longer run can tell more (--max-time {seconds}).")
}

/// The most seconds that `--max-time` takes.
pub const LONGEST_RUN_S: u64 = 86_400;

impl Regret {
    /// Whether its interval says anything. One that is wide says enough where all of it is on one
    /// side of 3 %.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.is_within() || self.is_beyond() || self.hi <= self.lo * TOO_WIDE
    }

    /// Whether the road is one that is awaited: in the library's run loop, or on tokio.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        is_awaited(&self.strategy)
    }

    /// Whether it is at most 3 % with its whole interval.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.hi <= SAME_ZONE
    }

    /// Whether it is more than 3 % with its whole interval.
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.lo > SAME_ZONE
    }

    /// How far the library is behind by the best estimate, in per cent of its own rate; negative
    /// where it is ahead.
    #[must_use]
    pub fn percent(&self) -> f64 {
        (self.ratio - 1.0) * 100.0
    }

    /// The good end of its interval, in per cent.
    #[must_use]
    pub fn percent_at_best(&self) -> f64 {
        (self.lo - 1.0) * 100.0
    }

    /// The bad end of its interval, in per cent.
    #[must_use]
    pub fn percent_at_worst(&self) -> f64 {
        (self.hi - 1.0) * 100.0
    }
}
