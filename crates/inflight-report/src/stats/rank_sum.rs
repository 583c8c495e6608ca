//! Unpaired comparison: the exact Mann-Whitney interval, for rounds of two separate runs.
//!
//! Two runs share no rounds, so there are no pairs. Every round of one is held against every
//! round of the other; what disturbed the runs differently is not averaged out.

use super::{Interval, LEVEL, SAME_ZONE, best_cut, median};

/// The interval of the median ratio of two independent samples, from logarithms.
///
/// `ratio` is how many times `a` is as large as `b`. `None` if either is empty. Ties need no
/// correction: they make the true level higher than the one reported, never lower.
///
/// # Source
/// Hollander, Wolfe, Chicken, "Nonparametric Statistical Methods", 3rd edition, sections 4.2
/// (Hodges-Lehmann estimate) and 4.3 (interval from the ordered differences).
#[must_use]
pub fn rank_sum(a: &[f64], b: &[f64]) -> Option<Interval> {
    let mut differences: Vec<f64> = a
        .iter()
        .flat_map(|a| b.iter().map(move |b| a - b))
        .collect();
    differences.sort_by(f64::total_cmp);
    let (cut, level) = best_cut(&smaller_half(a.len(), b.len()), LEVEL);
    Some(Interval {
        lo: differences.get(cut)?.exp(),
        hi: differences[differences.len() - 1 - cut].exp(),
        ratio: median(differences)?.exp(),
        level,
        n: a.len().min(b.len()),
    })
}

/// The chance that `a` looks as much slower than `b`, or more, if it is not beyond the zone of no
/// difference; from logarithms of rates. 1 if either is empty.
///
/// One side of the same test: the interval of a level of 95 % is below the zone as a whole where
/// this is at most 2.5 %.
#[must_use]
pub fn chance_of_slower(a: &[f64], b: &[f64]) -> f64 {
    let zone = -SAME_ZONE.ln();
    let of_a = |a: &f64| b.iter().filter(|b| a - *b >= zone).count();
    let not_slower: usize = a.iter().map(of_a).sum();
    let half = smaller_half(a.len(), b.len());
    match half.get(..=not_slower) {
        Some(as_far) => as_far.iter().sum(),
        None => 1.0,
    }
}

/// The least chance that so many rounds against so many others can have: that of a single order
/// of all of them.
#[must_use]
pub fn least_chance(m: usize, n: usize) -> f64 {
    let share = |step: usize| step as f64 / (n + step) as f64;
    (1..=m).map(share).product()
}

/// The exact chance of every value of the Mann-Whitney statistic up to its middle, under the null.
///
/// The counts are the coefficients of the Gaussian binomial, built factor by factor. Each depends
/// on smaller ones alone, so the upper half need not be known.
///
/// # Source
/// E. F. Harding, "An efficient, minimal-storage procedure for calculating the Mann-Whitney U,
/// generalized U and similar distributions", Applied Statistics 33 (1984).
fn smaller_half(m: usize, n: usize) -> Vec<f64> {
    let mut chances = vec![0.0; m * n / 2 + 1];
    chances[0] = 1.0;
    for step in 1..=m {
        for at in (n + step..chances.len()).rev() {
            chances[at] -= chances[at - n - step];
        }
        for at in step..chances.len() {
            chances[at] += chances[at - step];
        }
        // In steps, because the number of arrangements alone would overflow.
        let share = step as f64 / (n + step) as f64;
        chances.iter_mut().for_each(|chance| *chance *= share);
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_null_distribution_of_two_and_three_is_the_one_in_the_textbook() {
        let counts: Vec<f64> = smaller_half(2, 3)
            .iter()
            .map(|chance| chance * 10.0)
            .collect();
        for (found, expected) in counts.iter().zip([1.0, 1.0, 2.0, 2.0]) {
            assert!((found - expected).abs() < 1e-12, "{counts:?}");
        }
        assert_eq!(counts.len(), 4);
    }

    #[test]
    fn the_null_distribution_is_a_distribution_also_for_many_rounds() {
        for (m, n) in [(1, 1), (3, 8), (8, 8), (30, 41), (200, 150)] {
            let half = smaller_half(m, n);
            let mut sum: f64 = 2.0 * half.iter().sum::<f64>();
            if (m * n).is_multiple_of(2) {
                // The middle is its own mirror image.
                sum -= half[half.len() - 1];
            }
            assert!((sum - 1.0).abs() < 1e-9, "{m} and {n}: {sum}");
            assert!(half.iter().all(|chance| *chance >= 0.0));
        }
    }

    #[test]
    fn the_chance_is_one_side_of_the_interval() {
        let b = [0.0, 0.01, 0.02, 0.03, 0.04];
        let mut seen = [0, 0];
        for at in 0..60 {
            let a: Vec<f64> = b.iter().map(|b| b - f64::from(at) * 0.0021).collect();
            let interval = rank_sum(&a, &b).unwrap();
            let below = interval.hi < 1.0 / SAME_ZONE;
            assert_eq!(chance_of_slower(&a, &b) <= 0.025, below, "{at}");
            seen[usize::from(below)] += 1;
        }
        assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
    }

    #[test]
    fn the_least_chance_is_that_of_one_order() {
        assert!((least_chance(8, 8) - 1.0 / 12_870.0).abs() < 1e-12);
        assert!((least_chance(3, 8) - smaller_half(3, 8)[0]).abs() < 1e-12);
        assert_eq!(chance_of_slower(&[-9.0], &[1.0]), 0.5);
        assert_eq!(chance_of_slower(&[1.0, 2.0], &[1.0, 2.0]), 1.0);
        assert_eq!(chance_of_slower(&[], &[1.0]), 1.0);
    }

    #[test]
    fn four_rounds_each_are_the_fewest_that_reach_the_level() {
        let level = |m, n| best_cut(&smaller_half(m, n), LEVEL).1;
        assert!(level(3, 4) < LEVEL);
        assert!(level(4, 4) >= LEVEL);
    }
}
