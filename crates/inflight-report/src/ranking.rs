//! Who is compared with whom in one profile, who leads, and what follows for the reader.
//!
//! The leader is the cell with the highest median rate; who is no real difference from it ties
//! with it, and the simplest of those is the pick. Rounds in which all cells ran put them in order;
//! cells with fresh rounds of their own are then put in the order of those. What is said about it
//! is in [`crate::verdict`].

use crate::figures::{iops, rounds_run, screened_iops, screening_rounds};
use crate::open;
use crate::record::{Cell, ProfileSummary, Record};
use crate::stats::{FEWEST_ROUNDS, Word, compare, is_confirmed, took_turns, word};
use crate::strategy::{self, is_blocking, simplicity};
use crate::truth::out_of_ranking;

/// Most cells of a profile that get fresh rounds for being at the front.
pub const MOST_FINALISTS: usize = 5;

/// One profile of a record, put in order.
#[derive(Clone, Debug)]
pub struct Ranking<'a> {
    /// The profile.
    pub profile: &'a ProfileSummary,
    /// All its cells of the closed loop, in the order of the record: a rate that was given is
    /// compared with none that was found.
    pub cells: Vec<&'a Cell>,
    /// The cells that count, fastest first.
    pub ranked: Vec<&'a Cell>,
    /// Measured cells that do not count, with the sentence that says why.
    pub out: Vec<(&'a Cell, String)>,
    /// What every row is compared with: the plain loop, also where it does not count.
    pub baseline: Option<&'a Cell>,
    /// What follows.
    pub outcome: Outcome<'a>,
    /// Whether there are too few rounds for any interval to reach its level.
    pub tentative: bool,
}

/// What follows from a ranking.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// No cell counts.
    Nothing,
    /// Something simpler may be as fast as the leader: it is kept until more is known.
    Undecided {
        /// The simplest cell that may be as fast.
        keep: &'a Cell,
        /// The fastest cell.
        leader: &'a Cell,
    },
    /// No simpler strategy is as fast as the pick.
    Clear {
        /// The simplest cell that ties with the leader.
        pick: &'a Cell,
        /// The fastest cell; often the pick itself.
        leader: &'a Cell,
    },
}

impl<'a> Ranking<'a> {
    /// Puts one profile of a record in order.
    #[must_use]
    pub fn new(record: &'a Record, profile: &'a ProfileSummary) -> Self {
        let of_profile = |cell: &&Cell| cell.profile == profile.name && !open::is_open(cell);
        let cells: Vec<&Cell> = record.cells.iter().filter(of_profile).collect();
        let mut ranked = Vec::new();
        let mut out = Vec::new();
        let most = most_rounds(&cells);
        for cell in cells.iter().copied().filter(|cell| iops(cell).is_some()) {
            let skipped = cell.skipped.as_ref().map(|skipped| skipped.reason.clone());
            let not_true = || out_of_ranking(cell, profile, &record.target);
            let behind = || rests(cell, most).filter(|_| !record.interrupted);
            match skipped.or_else(not_true).or_else(behind) {
                Some(why) => out.push((cell, why)),
                None if strategy::only_shown(&cell.strategy) => {}
                None => ranked.push(cell),
            }
        }
        let screened = |cell: &Cell| screened_iops(cell).unwrap_or(0.0);
        ranked.sort_by(|a, b| screened(b).total_cmp(&screened(a)));
        let ranked = reorder_confirmed(ranked);
        let is_baseline = |cell: &&Cell| cell.strategy == strategy::PREAD && iops(cell).is_some();
        let baseline = cells.iter().copied().filter(is_baseline);
        let baseline = baseline.min_by_key(|cell| (cell.threads, cell.depth));
        let tentative = ranked.first().is_some_and(|leader| too_few(leader));
        let mut ranking = Self {
            profile,
            cells,
            ranked,
            out,
            baseline,
            outcome: Outcome::Nothing,
            tentative,
        };
        ranking.outcome = ranking.decide();
        ranking
    }

    /// The cell that the reader is told to use, or to keep.
    #[must_use]
    pub fn pick(&self) -> Option<&'a Cell> {
        match self.outcome {
            Outcome::Nothing => None,
            Outcome::Undecided { keep, .. } => Some(keep),
            Outcome::Clear { pick, .. } => Some(pick),
        }
    }

    /// The cells on which the verdict rests, for fresh rounds: the leader, the best of another
    /// strategy, what is recommended or kept, the plain loop, and the library's blocking calls at
    /// the leader's depth. At most [`MOST_FINALISTS`]; none where there is nobody to compare with.
    #[must_use]
    pub fn finalists(&self) -> Vec<&'a Cell> {
        let Some(leader) = self.ranked.first().copied() else {
            return Vec::new();
        };
        let runner_up = self.best(|cell| cell.strategy != leader.strategy);
        let counts = |cell: &&Cell| self.ranked.iter().any(|ranked| ranked.id == cell.id);
        let baseline = self.baseline.filter(counts);
        let own = self.best(|cell| is_blocking(&cell.strategy) && cell.depth == leader.depth);
        let mut finalists = vec![leader];
        for cell in [runner_up, self.pick(), baseline, own]
            .into_iter()
            .flatten()
        {
            if finalists.iter().all(|known| known.id != cell.id) {
                finalists.push(cell);
            }
        }
        if finalists.len() < 2 {
            finalists.clear();
        }
        finalists
    }

    /// The cells that were measured, those first without which a verdict says least: the plain
    /// loop, those at the front, the fastest ring, plain calls and library, the same one at a time,
    /// and then the others by their speed. Where there is not time for all, the first have it.
    #[must_use]
    pub fn by_need(&self) -> Vec<&'a Cell> {
        let is_ring = |cell: &Cell| strategy::is_ring(&cell.strategy);
        let is_plain =
            |cell: &Cell| [strategy::PREAD, strategy::THREADS].contains(&cell.strategy.as_str());
        let is_library = |cell: &Cell| cell.strategy == strategy::INFLIGHT;
        let alone = |is_of_it: &dyn Fn(&Cell) -> bool| {
            self.best(|cell| cell.depth == 1 && cell.threads <= 1 && is_of_it(cell))
        };
        let kinds = [
            self.best(is_ring),
            self.best(is_plain),
            self.best(is_library),
        ];
        let alone = [alone(&is_ring), alone(&is_library)];
        let needed = self.baseline.into_iter().chain(self.finalists());
        let needed = needed.chain(kinds.into_iter().flatten());
        let needed = needed.chain(alone.into_iter().flatten());
        let measured = self.cells.iter().copied();
        let measured = measured.filter(|cell| iops(cell).is_some());
        let mut order: Vec<&Cell> = Vec::new();
        for cell in needed.chain(self.ranked.iter().copied()).chain(measured) {
            if order.iter().all(|known| known.id != cell.id) {
                order.push(cell);
            }
        }
        order
    }

    /// The leader and the pick where too few fresh rounds have both: those of others may have put
    /// another cell in either place. None where there is nobody else to be held against.
    #[must_use]
    pub fn unconfirmed(&self) -> Vec<&'a Cell> {
        let leader = self.ranked.first().copied().filter(|_| !self.tentative);
        let pair = leader.zip(self.pick());
        let pair = pair.filter(|(leader, pick)| leader.id != pick.id);
        let pair = pair.filter(|(leader, pick)| !is_confirmed(leader, pick));
        pair.map_or(Vec::new(), |(leader, pick)| vec![leader, pick])
    }

    /// Whether what is said of the pick rests on other rounds than what is said of the leader: one
    /// of the two has fresh rounds, and too few of them have both.
    pub(crate) fn rests_on_others(&self) -> bool {
        self.unconfirmed().into_iter().any(has_fresh_rounds)
    }

    /// The leader and whom more fresh rounds may tell it from; none where nothing is open.
    #[must_use]
    pub fn open(&self) -> Vec<&'a Cell> {
        let Some(leader) = self.ranked.first().copied().filter(|_| !self.tentative) else {
            return Vec::new();
        };
        let may_tell = |cell: &&Cell| {
            let fresh = is_confirmed(leader, cell) && cell.id != leader.id;
            let interval = compare(leader, cell).filter(|_| fresh);
            interval.is_some_and(|interval| {
                // Turns are so many that the estimate itself still moves.
                let worth_it = took_turns(leader, cell) || interval.rounds_to_tell().is_some();
                interval.word() == Word::CannotTellYet && worth_it
            })
        };
        let others = self.ranked.iter().copied().filter(may_tell);
        let open: Vec<&Cell> = [leader].into_iter().chain(others).collect();
        if open.len() < 2 { Vec::new() } else { open }
    }

    /// Whether a cell does not count because there was no time for enough rounds of it.
    pub(crate) fn rests(&self, cell: &Cell) -> bool {
        rests(cell, most_rounds(&self.cells)).is_some()
    }

    /// The fastest cell that counts and of which `wanted` is true.
    pub fn best(&self, wanted: impl Fn(&Cell) -> bool) -> Option<&'a Cell> {
        self.ranked.iter().copied().find(|cell| wanted(cell))
    }

    fn decide(&self) -> Outcome<'a> {
        let Some(leader) = self.ranked.first().copied() else {
            return Outcome::Nothing;
        };
        let (mut ties, mut open) = (vec![leader], Vec::new());
        for cell in self.ranked.iter().copied().skip(1) {
            match word(leader, cell) {
                Word::NoRealDifference => ties.push(cell),
                Word::CannotTellYet => open.push(cell),
                Word::ClearlyFaster | Word::ClearlySlower => {}
            }
        }
        let pick = simplest(ties).unwrap_or(leader);
        open.retain(|cell| simplicity(&cell.strategy) < simplicity(&pick.strategy));
        match simplest(open) {
            Some(keep) => Outcome::Undecided { keep, leader },
            None => Outcome::Clear { pick, leader },
        }
    }
}

/// The simplest strategy, and of that the lowest depth.
fn simplest(cells: Vec<&Cell>) -> Option<&Cell> {
    let cost = |cell: &&Cell| (simplicity(&cell.strategy), cell.depth, cell.threads);
    cells.into_iter().min_by_key(cost)
}

/// Before anything is known: those of a strategy with a lower number come first where there may not
/// be time for all. Without the plain loop there is nothing to compare with.
#[must_use]
pub fn need(strategy: &str) -> u32 {
    match strategy {
        strategy::PREAD => 0,
        strategy::THREADS | strategy::URING | strategy::URING_TUNED | strategy::INFLIGHT => 1,
        _ => 2,
    }
}

/// The most rounds of a cell in which all that were to run did, also those without a rate.
fn most_rounds(cells: &[&Cell]) -> usize {
    let done = cells.iter().map(|cell| rounds_run(cell));
    done.max().unwrap_or(0)
}

/// Why a cell is compared with none that has `most` rounds, if so: others were more needed for the
/// verdict, and there was not time for all.
fn rests(cell: &Cell, most: usize) -> Option<String> {
    let done = rounds_run(cell);
    let were = if done == 1 { "was" } else { "were" };
    (done < FEWEST_ROUNDS && most >= FEWEST_ROUNDS).then(|| {
        format!("only {done} of {most} rounds {were} run, as there was not time for all cells")
    })
}

/// Whether even the widest interval of the rounds of this cell does not reach the level.
fn too_few(cell: &Cell) -> bool {
    screening_rounds(cell) < FEWEST_ROUNDS
}

/// Puts first whom none is clearly faster than on fresh rounds of both: whom a cell is held against
/// may not have run in all of its fresh rounds.
fn lead_unbeaten(order: &mut [&Cell]) {
    let mut first = 0;
    for (at, cell) in order.iter().enumerate().skip(1) {
        let leader = order[first];
        if is_confirmed(cell, leader) && word(cell, leader) == Word::ClearlyFaster {
            first = at;
        }
    }
    if let Some(front) = order.get_mut(..=first) {
        front.rotate_right(1);
    }
}

/// Puts the cells that have fresh rounds with the first of them in the order of those. Whoever was
/// found to be no slower than another is in front of all that the other was in front of.
///
/// Not by their rates: some have more rounds than others, and a disk may have become slower by
/// half between these.
fn reorder_confirmed(ranked: Vec<&Cell>) -> Vec<&Cell> {
    let mut fresh = ranked.iter().filter(|cell| has_fresh_rounds(cell));
    let shares = |cell: &&&Cell| ranked.iter().any(|other| is_another(cell, other));
    let Some(first) = fresh.find(shares).copied() else {
        return ranked;
    };
    let against_first = |cell: &Cell| match cell.id == first.id {
        true => Some(1.0),
        false if is_confirmed(cell, first) => Some(compare(cell, first)?.ratio),
        false => None,
    };
    let found = ranked
        .iter()
        .map(|cell| Some((*cell, against_first(cell)?)));
    let mut found: Vec<(&Cell, f64)> = found.flatten().collect();
    found.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut confirmed: Vec<&Cell> = found.into_iter().map(|(cell, _)| cell).collect();
    let mut order = Vec::with_capacity(ranked.len());
    for cell in ranked {
        match confirmed.iter().position(|one| one.id == cell.id) {
            Some(at) => order.extend(confirmed.drain(..=at)),
            None if order.iter().all(|known: &&Cell| known.id != cell.id) => order.push(cell),
            None => {}
        }
    }
    lead_unbeaten(&mut order);
    order
}

/// Whether it is another cell that has fresh rounds with this one.
fn is_another(cell: &Cell, other: &Cell) -> bool {
    other.id != cell.id && has_fresh_rounds(other) && is_confirmed(cell, other)
}

fn has_fresh_rounds(cell: &Cell) -> bool {
    cell.rounds.iter().any(|round| round.confirms)
}
