//! Paired comparison: the exact Wilcoxon signed-rank interval on log-ratios of rounds.
//!
//! Here is how sure a ratio is; what is compared with what is in [`crate::ranking`], and in
//! [`crate::compare`] for two runs, which share no rounds ([`rank_sum`]). Whether the rounds of a
//! cell may be put together at all is asked in [`drift`] and [`steady`]; what many comparisons at
//! once take, in [`among_all`].
//! Deliberately absent: means of rounds, standard deviations and normal approximations. Rounds
//! are few and skewed, and a run next to a run shares its disturbances, so pairs are compared
//! wherever there are pairs.

mod drift;
mod many;
mod rank_sum;
mod steady;
mod turns;

pub use drift::{Drift, drift};
pub use many::{FALSE_ALARM, among_all};
pub use rank_sum::{chance_of_slower, least_chance, rank_sum};
pub use steady::{Steady, steady};
pub use turns::{FEWEST_TURNS, MOST_LOOKS, took_turns};

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use self::turns::LEVEL_OF_A_LOOK;
use crate::record::{Cell, Round};

/// The level that an interval aims for; with fewer than 6 rounds it cannot be reached.
pub const LEVEL: f64 = 0.95;

/// The fewest rounds of which an interval can reach [`LEVEL`].
pub const FEWEST_ROUNDS: usize = 6;

/// The most rounds that `--rounds` takes. Each is kept for each cell, about 1 KiB of a record; and
/// the exact chances of so many pairs take time with the cube of their number.
pub const MOST_ROUNDS: u32 = 1_000;

/// Ratios between `1 / SAME_ZONE` and `SAME_ZONE` are no real difference.
///
/// The zone is symmetric in logarithms, so that "a against b" and "b against a" always agree.
pub const SAME_ZONE: f64 = 1.03;

/// How many times as fast one thing is as another, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Hodges-Lehmann estimate of the ratio: the median of all pairwise averages, in logarithms.
    pub ratio: f64,
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Achieved confidence level, from 0 to 1: at least [`LEVEL`] where the number of rounds
    /// allows it, else the level of the widest interval there is.
    pub level: f64,
    /// Pairs of rounds, or of turns, it rests on; of two separate runs, rounds of the one that has
    /// fewer.
    pub n: usize,
}

/// What an interval says, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The whole interval is above the zone of no difference.
    ClearlyFaster,
    /// The whole interval is below the zone of no difference.
    ClearlySlower,
    /// The whole interval is inside the zone.
    NoRealDifference,
    /// Anything else, and every interval that does not reach [`LEVEL`].
    CannotTellYet,
}

impl Interval {
    /// Says in one word what the interval says.
    #[must_use]
    pub fn word(&self) -> Word {
        let zone = 1.0 / SAME_ZONE..=SAME_ZONE;
        if !self.suffices() {
            Word::CannotTellYet
        } else if self.lo > *zone.end() {
            Word::ClearlyFaster
        } else if self.hi < *zone.start() {
            Word::ClearlySlower
        } else if zone.contains(&self.lo) && zone.contains(&self.hi) {
            Word::NoRealDifference
        } else {
            Word::CannotTellYet
        }
    }

    /// Whether it reaches [`LEVEL`]; if not, its ends say nothing.
    #[must_use]
    pub fn suffices(&self) -> bool {
        self.level >= LEVEL
    }

    /// How many rounds, or turns, would probably put the whole interval on one side of the zone's
    /// end, if the ratio stays as it is; `None` if that takes more than [`MOST_ROUNDS`], and more
    /// than ten times as many.
    ///
    /// An interval shrinks with the square root of its rounds.
    #[must_use]
    pub fn rounds_to_tell(&self) -> Option<usize> {
        let half = (self.hi / self.lo).ln() / 2.0;
        let room = (self.ratio.ln().abs() - SAME_ZONE.ln()).abs();
        let factor = (half / room).powi(2);
        let most = self.n.saturating_mul(10).max(MOST_ROUNDS as usize);
        (self.n..=most).find(|rounds| *rounds as f64 >= self.n as f64 * factor)
    }
}

/// Compares the rates of two cells, `a` over `b`, by the rounds they share.
///
/// Where both were confirmed, by the fresh rounds alone: those of the screening have chosen the
/// two, and whoever is chosen for being fast looks faster than it is. Where both worked by turns
/// in them, by the turns. Fresh rounds are looked at several times, while some are added, so their
/// level is that of one look.
///
/// `None` if they share no round. A round in which one of them completed nothing has no
/// ratio and is left out; [`crate::text`] says how many there were.
#[must_use]
pub fn compare(a: &Cell, b: &Cell) -> Option<Interval> {
    let of_rounds = || {
        let logs: Vec<f64> = pairs(a, b).iter().map(|(a, b)| (a / b).ln()).collect();
        match is_confirmed(a, b) {
            true => signed_rank_at(LEVEL_OF_A_LOOK, &logs),
            false => signed_rank(&logs),
        }
    };
    turns::compare(a, b).or_else(of_rounds)
}

/// The word for `a` against `b`; cells that never ran side by side cannot be told apart.
#[must_use]
pub fn word(a: &Cell, b: &Cell) -> Word {
    compare(a, b).map_or(Word::CannotTellYet, |interval| interval.word())
}

/// In how many of the rounds that [`compare`] looks at `a` was faster than `b`, and how many
/// those are.
#[must_use]
pub fn ahead(a: &Cell, b: &Cell) -> (usize, usize) {
    let pairs = pairs(a, b);
    let won = pairs.iter().filter(|(a, b)| a > b).count();
    (won, pairs.len())
}

/// Whether the comparison of two cells rests on fresh rounds.
#[must_use]
pub fn is_confirmed(a: &Cell, b: &Cell) -> bool {
    shared(a, b, true).len() >= FEWEST_ROUNDS || took_turns(a, b)
}

/// The rates of two cells in the rounds by which they are compared.
fn pairs(a: &Cell, b: &Cell) -> Vec<(f64, f64)> {
    shared(a, b, is_confirmed(a, b))
}

/// The rates of two cells in the rounds that both have, of one kind.
fn shared(a: &Cell, b: &Cell, confirm: bool) -> Vec<(f64, f64)> {
    let of_b: BTreeMap<u32, f64> = rates(b, confirm).collect();
    rates(a, confirm)
        .filter_map(|(block, rate)| Some((rate, *of_b.get(&block)?)))
        .collect()
}

/// Operations per second of a round; `None` for a round that has no length or did nothing.
#[must_use]
pub fn rate(round: &Round) -> Option<f64> {
    (round.duration_ns > 0 && round.ops > 0)
        .then(|| round.ops as f64 * 1e9 / round.duration_ns as f64)
}

/// The median; `None` of nothing.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The interval of the median ratio, from one log-ratio for each pair of rounds.
///
/// `None` of nothing. Ties and zeros need no correction: they make the true level higher than
/// the one reported, never lower.
///
/// # Source
/// Hollander, Wolfe, Chicken, "Nonparametric Statistical Methods", 3rd edition, sections 3.2
/// (Hodges-Lehmann estimate) and 3.3 (interval from the ordered Walsh averages).
#[must_use]
pub fn signed_rank(logs: &[f64]) -> Option<Interval> {
    signed_rank_at(LEVEL, logs)
}

fn signed_rank_at(wanted: f64, logs: &[f64]) -> Option<Interval> {
    let mut walsh = Vec::with_capacity(logs.len() * (logs.len() + 1) / 2);
    for (index, first) in logs.iter().enumerate() {
        walsh.extend(
            logs[index..]
                .iter()
                .map(|other| f64::midpoint(*first, *other)),
        );
    }
    walsh.sort_by(f64::total_cmp);
    let (cut, level) = signed_rank_cut(logs.len(), wanted);
    Some(Interval {
        lo: walsh.get(cut)?.exp(),
        hi: walsh[walsh.len() - 1 - cut].exp(),
        ratio: median(walsh)?.exp(),
        level,
        n: logs.len(),
    })
}

/// As [`best_cut`], for so many pairs. What is ranked compares the same number of pairs again and
/// again, and the chances take time with the cube of it.
fn signed_rank_cut(pairs: usize, wanted: f64) -> (usize, f64) {
    type Cuts = HashMap<(usize, u64), (usize, f64)>;
    thread_local! {
        static CUTS: RefCell<Cuts> = RefCell::default();
    }
    CUTS.with_borrow_mut(|cuts| {
        let cut = cuts.entry((pairs, wanted.to_bits()));
        *cut.or_insert_with(|| best_cut(&signed_rank_chances(pairs), wanted))
    })
}

/// How many of the ordered averages or differences may be cut off at each end, and the level
/// that is left: the narrowest interval that reaches the one wanted, or else the widest.
///
/// Takes the chances of the values of the statistic, from the smallest on.
fn best_cut(chances: &[f64], wanted: f64) -> (usize, f64) {
    let mut best = (0, 1.0 - 2.0 * chances[0]);
    let mut tail = chances[0];
    for (at, chance) in chances.iter().enumerate().skip(1) {
        tail += chance;
        let level = 1.0 - 2.0 * tail;
        if level < wanted {
            break;
        }
        best = (at, level);
    }
    best
}

/// The exact chance of every value of the signed-rank statistic of `n` pairs under the null.
///
/// Rank `r` is in the sum or not, with equal chance; so the distribution for `r` ranks is the
/// one for `r - 1`, half of it moved up by `r`. Halves are exact in binary floating point.
fn signed_rank_chances(n: usize) -> Vec<f64> {
    let mut chances = vec![0.0; n * (n + 1) / 2 + 1];
    chances[0] = 1.0;
    for rank in 1..=n {
        // No sum of these ranks is greater.
        for sum in (0..=rank * (rank + 1) / 2).rev() {
            let moved = sum.checked_sub(rank).map_or(0.0, |from| chances[from]);
            chances[sum] = f64::midpoint(chances[sum], moved);
        }
    }
    chances
}

/// The rate of every round of one kind that has one, by block.
fn rates(cell: &Cell, confirm: bool) -> impl Iterator<Item = (u32, f64)> {
    let rounds = cell.rounds.iter();
    let of_kind = rounds.filter(move |round| round.confirms == confirm);
    of_kind.filter_map(|round| Some((round.block, rate(round)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_null_distribution_of_three_pairs_is_the_one_in_the_textbook() {
        let eighth = 0.125;
        let chances = signed_rank_chances(3);
        assert_eq!(
            chances,
            [eighth, eighth, eighth, 2.0 * eighth, eighth, eighth, eighth]
        );
    }

    #[test]
    fn the_null_distribution_is_a_distribution_also_for_many_pairs() {
        for n in [1, 8, 60, 200] {
            let sum: f64 = signed_rank_chances(n).iter().sum();
            assert!((sum - 1.0).abs() < 1e-12, "{n} pairs: {sum}");
        }
    }

    #[test]
    fn eight_rounds_cut_three_averages_at_each_end_and_leave_96_percent() {
        let (at, level) = best_cut(&signed_rank_chances(8), LEVEL);
        assert_eq!(at, 3);
        assert!((level - (1.0 - 10.0 / 256.0)).abs() < 1e-12);
    }

    #[test]
    fn six_rounds_are_the_fewest_that_reach_the_level() {
        assert_eq!(FEWEST_ROUNDS, 6);
        assert_eq!(best_cut(&signed_rank_chances(5), LEVEL), (0, 0.9375));
        assert_eq!(best_cut(&signed_rank_chances(6), LEVEL), (0, 0.96875));
    }
}
