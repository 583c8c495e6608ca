//! How far the library is behind the best of the others, cell by cell.
//!
//! The reference copies into the caller's buffer and reports I/O errors: maps do neither, `null`
//! does nothing, and fio is another program. It has as many operations in flight as the library
//! may have, or fewer: who may have many can do with few.
//!
//! What counts is the bad end of the interval: how far behind the library may be, going by what
//! was measured. The reference is chosen for its rate in the rounds that it is then compared by,
//! unless both have fresh ones, and whoever is chosen for being fast looks faster than it is. So
//! regret errs on the side of too much, and the more strategies take part, the further.

use crate::ranking::Ranking;
use crate::record::{Cell, Record, Regret};
use crate::stats::{Interval, SAME_ZONE, compare};
use crate::strategy::is_library;

/// The regret of every road of the library in every cell that counts, in the order of the cells.
#[must_use]
pub fn regrets(record: &Record) -> Vec<Regret> {
    let of_profile = |profile| {
        let ranking = Ranking::new(record, profile);
        let roads = ranking.cells.iter().copied();
        let found = roads.filter_map(|road| of_cell(&ranking, road));
        found.collect::<Vec<_>>()
    };
    record.profiles.iter().flat_map(of_profile).collect()
}

/// The regret of one cell; `None` if it is none of the library's, does not count, or has nothing
/// to be compared with, or too few rounds for an interval.
pub(crate) fn of_cell(ranking: &Ranking<'_>, road: &Cell) -> Option<Regret> {
    let counts = ranking.ranked.iter().any(|cell| cell.id == road.id);
    let reference = reference(ranking, road.depth).filter(|_| is_library(&road.strategy) && counts);
    let reference = reference?;
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

/// What the library is compared with where it may have so many operations in flight.
fn reference<'a>(ranking: &Ranking<'a>, depth: u32) -> Option<&'a Cell> {
    // Ranked cells are in order of speed, and hold no maps, no `null` and no fio.
    ranking.best(|cell| !is_library(&cell.strategy) && cell.depth <= depth)
}

/// The worst of them by the bad end of its interval, of those that `wanted` is true of.
#[must_use]
pub fn worst(regrets: &[Regret], wanted: impl Fn(&Regret) -> bool) -> Option<&Regret> {
    let wanted = regrets.iter().filter(|regret| wanted(regret));
    wanted.max_by(|a, b| a.hi.total_cmp(&b.hi))
}

impl Regret {
    /// Whether it is at most 3 % with its whole interval.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.hi <= SAME_ZONE
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
