//! Comparison by turns: the exact interval of a median, from hundreds of short stretches.
//!
//! What disturbs a machine comes and goes: another program takes the processor for some
//! milliseconds, the disk is busy elsewhere. A round of tens of milliseconds nearly always has a
//! part of that, a turn of two mostly has none or nothing else. So of many turns the median of the
//! ratios is that of an undisturbed machine, however long the tails are, where a mean, and ranks
//! that weigh how far a ratio is off, are moved by them.
//!
//! Turns of one round share what lasts as long as a round: where memory lies, which processor a
//! thread is on. So they say less than as many that have nothing in common, and the interval is
//! widened by how much more rounds differ than those would. Of few rounds that is not known, so
//! there have to be as many as for whole rounds.

use std::collections::BTreeMap;

use super::{FEWEST_ROUNDS, Interval, best_cut, median};
use crate::record::{Cell, Turns};

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
    let rounds = logs(a, b);
    are_enough(&rounds).then(|| of_median(&rounds))?
}

/// Whether two cells took enough turns next to each other to be compared by them.
#[must_use]
pub fn took_turns(a: &Cell, b: &Cell) -> bool {
    are_enough(&pairs(a, b))
}

fn are_enough<T>(rounds: &[Vec<T>]) -> bool {
    let turns: usize = rounds.iter().map(Vec::len).sum();
    let with_turns = rounds.iter().filter(|turns| !turns.is_empty());
    turns >= FEWEST_TURNS && with_turns.count() >= FEWEST_ROUNDS
}

/// Logarithms of how many times `a` was as fast as `b`, by rounds.
fn logs(a: &Cell, b: &Cell) -> Vec<Vec<f64>> {
    let log = |(a, b): (u64, u64)| (b as f64 / a as f64).ln();
    let rounds = pairs(a, b).into_iter();
    rounds
        .map(|pairs| pairs.into_iter().map(log).collect())
        .collect()
}

/// What an operation took in the turns next to each other, in picoseconds, by rounds. A turn in
/// which one of them completed nothing is left out: it was disturbed for all of its length.
fn pairs(a: &Cell, b: &Cell) -> Vec<Vec<(u64, u64)>> {
    let of_b: BTreeMap<u32, &[u64]> = b.turns.iter().map(|one| (one.block, &*one.op_ps)).collect();
    let both = |round: &Turns| {
        let other = of_b.get(&round.block).copied().unwrap_or_default();
        let both = round.op_ps.iter().copied().zip(other.iter().copied());
        both.filter(|(a, b)| *a > 0 && *b > 0).collect()
    };
    a.turns.iter().map(both).collect()
}

/// The interval of the median ratio, from logarithms: two of them, counted from the ends.
///
/// Nothing is assumed about the noise but that it is as often up as down, and in no round more than
/// in others.
///
/// # Source
/// Hollander, Wolfe, Chicken, "Nonparametric Statistical Methods", 3rd edition, section 3.6
/// (interval from the order statistics of the sign test).
fn of_median(rounds: &[Vec<f64>]) -> Option<Interval> {
    let mut sorted = rounds.concat();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (cut, level) = best_cut(&sign_chances(n), LEVEL_OF_A_LOOK);
    let middle = median(sorted.clone())?;
    let from_middle = |cut: usize| n as f64 / 2.0 - cut as f64;
    let half = from_middle(cut) * widening(rounds, middle);
    let wide = (0..=cut).rev().find(|cut| from_middle(*cut) >= half);
    let cut = wide.unwrap_or(0);
    Some(Interval {
        lo: sorted.get(cut)?.exp(),
        hi: sorted[n - 1 - cut].exp(),
        ratio: middle.exp(),
        level,
        n,
    })
}

/// How many times as far the ends are from the middle as of independent turns: as rounds differ,
/// and more where that is estimated from few of them; at least 1.
///
/// # Source
/// S. Datta, G. A. Satten, "A signed-rank test for clustered data", Biometrics 64 (2008): the
/// variance is that of the sums of clusters. It is an estimate from as many sums as there are
/// rounds, so the quantile is that of Student's distribution.
fn widening(rounds: &[Vec<f64>], middle: f64) -> f64 {
    let full: Vec<_> = rounds.iter().filter(|logs| !logs.is_empty()).collect();
    let squares = full.iter().map(|logs| {
        let above = logs.iter().filter(|log| **log > middle).count() as f64;
        let below = logs.iter().filter(|log| **log < middle).count() as f64;
        (above - below).powi(2) / logs.len() as f64
    });
    let sum: f64 = squares.sum();
    if full.len() < 2 {
        // One tells nothing of how rounds differ; who compares has more.
        return 1.0;
    }
    let freedom = (full.len() - 1) as f64;
    match sum / freedom {
        inflation if inflation > 1.0 => inflation.sqrt() * student(freedom) / NORMAL,
        _ => 1.0,
    }
}

/// The quantile of the normal distribution that one end of an interval of [`LEVEL_OF_A_LOOK`] is
/// at.
const NORMAL: f64 = 2.326_35;

/// That of Student's distribution with so many degrees of freedom, of which there are
/// [`FEWEST_ROUNDS`] less one at least: there this is 0.4 % too low, and later less.
///
/// # Source
/// Abramowitz, Stegun, "Handbook of Mathematical Functions", 26.7.5.
fn student(freedom: f64) -> f64 {
    let (z, v) = (NORMAL, freedom);
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    let by_power = terms.iter().zip(1..);
    z + by_power
        .map(|(term, power)| term / v.powi(power))
        .sum::<f64>()
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
        let found = of_median(&[logs]).unwrap();
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
        let found = of_median(&[logs]).unwrap();
        assert!(found.lo.ln() > 0.045 && found.hi.ln() < 0.06, "{found:?}");
        assert!(found.level >= LEVEL_OF_A_LOOK);
    }

    #[test]
    fn rounds_that_differ_widen_the_interval_and_others_do_not() {
        let round =
            |at: f64| -> Vec<f64> { (0..40).map(|turn| at + f64::from(turn % 8)).collect() };
        let alike: Vec<_> = (0..8).map(|_| round(0.0)).collect();
        let apart: Vec<_> = (0..8).map(|at| round(f64::from(at % 2) * 4.0)).collect();
        let width = |rounds: &[Vec<f64>]| {
            let found = of_median(rounds).expect("there are enough");
            found.hi.ln() - found.lo.ln()
        };
        assert!(widening(&alike, 3.5) <= 1.0);
        assert!(widening(&apart, 5.5) > 8_f64.sqrt() * student(7.0) / NORMAL);
        // The same turns, but each round has some of all.
        let all = apart.concat();
        let share = |first| {
            all.iter()
                .enumerate()
                .filter(move |(at, _)| (at + at / 8) % 8 == first)
        };
        let mixed: Vec<Vec<_>> = (0..8)
            .map(|first| share(first).map(|(_, log)| *log).collect())
            .collect();
        assert!(width(&apart) > 2.0 * width(&mixed), "{}", width(&mixed));
        assert!(widening(&apart[..1], 3.5) <= 1.0, "one tells nothing");
    }

    #[test]
    fn estimates_of_few_rounds_are_as_uncertain_as_they_are() {
        for (freedom, expected) in [(5.0, 3.365), (7.0, 2.998), (15.0, 2.602), (1e9, NORMAL)] {
            let found = student(freedom);
            assert!((found - expected).abs() < 0.015, "{freedom}: {found}");
        }
    }

    #[test]
    fn turns_of_fewer_rounds_than_are_compared_tell_nothing() {
        let rounds = |count: usize| vec![vec![0.0; FEWEST_TURNS]; count];
        assert!(!are_enough(&rounds(FEWEST_ROUNDS - 1)));
        assert!(are_enough(&rounds(FEWEST_ROUNDS)));
        let with_empty = [rounds(FEWEST_ROUNDS - 1), vec![Vec::new(); 8]].concat();
        assert!(!are_enough(&with_empty));
        assert!(!are_enough(&vec![vec![0.0]; FEWEST_ROUNDS]));
    }
}
