//! Comparison by turns: the exact interval of a median, from hundreds of short stretches.
//!
//! What disturbs a machine comes and goes: another program takes the processor for some
//! milliseconds, the disk is busy elsewhere. A round of tens of milliseconds nearly always has a
//! part of that, a turn of two mostly has none or nothing else. So of many turns the median of the
//! ratios is that of an undisturbed machine, however long the tails are, where a mean, and ranks
//! that weigh how far a ratio is off, are moved by them.

use std::collections::BTreeMap;

use super::{Interval, best_cut, median};
use crate::record::Cell;

/// The fewest turns that two cells are compared by.
pub const FEWEST_TURNS: usize = 64;

/// How often one may look whether the turns so far can tell, before adding half as many.
pub const MOST_LOOKS: u32 = 8;

/// The level of an interval of fresh turns or rounds, so that the word is wrong in one run of
/// twenty at most, all looks together.
///
/// A word is wrong where the true ratio is on the other side of an end of the zone than the whole
/// interval, so one end of the interval alone decides that, whichever word it is: of a level of
/// 98 % that end is wrong once in a hundred looks.
///
/// # Source
/// D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
/// J. Pharmacokinetics and Biopharmaceutics 15 (1987): one end at a time.
/// S. J. Pocock, "Group sequential methods in the design and analysis of clinical trials",
/// Biometrika 64 (1977): the same level at each look. Eight looks, each at half as many turns more
/// than the one before, take a nominal one-sided 1.08 % for 5 % of all (`tests/it/certainty.rs`
/// counts it).
pub(super) const LEVEL_OF_A_LOOK: f64 = 0.98;

/// Compares two cells by the turns they took next to each other; `None` of too few.
pub(super) fn compare(a: &Cell, b: &Cell) -> Option<Interval> {
    let logs = logs(a, b);
    (logs.len() >= FEWEST_TURNS).then(|| of_median(&logs))?
}

/// Whether two cells took enough turns next to each other to be compared by them.
#[must_use]
pub fn took_turns(a: &Cell, b: &Cell) -> bool {
    pairs(a, b).len() >= FEWEST_TURNS
}

/// Logarithms of how many times `a` was as fast as `b`.
fn logs(a: &Cell, b: &Cell) -> Vec<f64> {
    let pairs = pairs(a, b).into_iter();
    pairs.map(|(a, b)| (b as f64 / a as f64).ln()).collect()
}

/// What an operation took in the turns next to each other, in picoseconds. A turn in which one of
/// them completed nothing is left out: it was disturbed for all of its length.
fn pairs(a: &Cell, b: &Cell) -> Vec<(u64, u64)> {
    let of_b: BTreeMap<u32, &[u64]> = b.turns.iter().map(|one| (one.block, &*one.op_ps)).collect();
    let mut pairs = Vec::new();
    for round in &a.turns {
        let other = of_b.get(&round.block).copied().unwrap_or_default();
        let both = round.op_ps.iter().copied().zip(other.iter().copied());
        pairs.extend(both.filter(|(a, b)| *a > 0 && *b > 0));
    }
    pairs
}

/// The interval of the median ratio, from logarithms: two of them, counted from the ends.
///
/// Nothing is assumed about the noise but that it is as often up as down.
///
/// # Source
/// Hollander, Wolfe, Chicken, "Nonparametric Statistical Methods", 3rd edition, section 3.6
/// (interval from the order statistics of the sign test).
fn of_median(logs: &[f64]) -> Option<Interval> {
    let mut sorted = logs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (cut, level) = best_cut(&sign_chances(sorted.len()), LEVEL_OF_A_LOOK);
    Some(Interval {
        lo: sorted.get(cut)?.exp(),
        hi: sorted[sorted.len() - 1 - cut].exp(),
        ratio: median(sorted)?.exp(),
        level,
        n: logs.len(),
    })
}

/// The chance of each number of heads of `n` coins, up to the middle. In logarithms, because of
/// thousands of coins the chance of no head is too small a number.
fn sign_chances(n: usize) -> Vec<f64> {
    let mut log = n as f64 * 0.5_f64.ln();
    let mut chances = vec![log.exp()];
    for heads in 1..=n / 2 {
        log += ((n - heads + 1) as f64 / heads as f64).ln();
        chances.push(log.exp());
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_ten_is_the_one_in_the_textbook() {
        let counts: Vec<f64> = sign_chances(10).iter().map(|one| one * 1_024.0).collect();
        for (found, expected) in counts.iter().zip([1.0, 10.0, 45.0, 120.0, 210.0, 252.0]) {
            assert!((found - expected).abs() < 1e-9, "{counts:?}");
        }
        let logs: Vec<f64> = (0..10).map(f64::from).collect();
        let found = of_median(&logs).unwrap();
        assert_eq!((found.lo.ln(), found.hi.ln()), (0.0, 9.0));
        assert!((found.level - (1.0 - 2.0 / 1_024.0)).abs() < 1e-9);
    }

    #[test]
    fn thousands_of_turns_have_chances_too() {
        let half: f64 = sign_chances(4_001).iter().sum();
        assert!((half - 0.5).abs() < 1e-9, "{half}");
    }

    #[test]
    fn turns_that_were_disturbed_do_not_move_the_interval() {
        let calm = |at: u32| 0.05 + f64::from(at % 7) * 0.001;
        // Every third is off by a factor of up to e^3, either way.
        let disturbed = |at: u32| match at % 6 {
            0 => -3.0 + f64::from(at % 5) * 0.1,
            3 => 3.0 - f64::from(at % 5) * 0.1,
            _ => calm(at),
        };
        let logs: Vec<f64> = (0..300).map(disturbed).collect();
        let found = of_median(&logs).unwrap();
        assert!(found.lo.ln() > 0.045 && found.hi.ln() < 0.06, "{found:?}");
        assert!(found.level >= LEVEL_OF_A_LOOK);
    }
}
