//! Drift: whether a figure went up or down from round to round.
//!
//! Interleaved rounds keep drift out of ratios, but a rate that drifts is no property of the
//! strategy. Rounds of a cell are few, so the chance of their order is counted, not approximated.

use super::{FALSE_ALARM, SAME_ZONE, median};

/// More rounds than this are put together into as many groups, so that all orders can be counted.
const MOST_POINTS: usize = 8;

/// How a figure moved in the course of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// Spearman's rank correlation of figure and time, from -1 to 1.
    pub rho: f64,
    /// Median of the later half over median of the earlier half.
    pub change: f64,
    /// Ranks of time and of figure, times two, less their mean: ties stay whole numbers.
    times: Vec<i64>,
    figures: Vec<i64>,
}

impl Drift {
    /// Whether the drift is more than chance, and large enough to matter.
    ///
    /// `looks` is how many figures are looked at together: the more, the stronger each has to be,
    /// so that the chance of a single false alarm among all of them stays at 5 %.
    #[must_use]
    pub fn is_real(&self, looks: usize) -> bool {
        let matters = !(1.0 / SAME_ZONE..=SAME_ZONE).contains(&self.change);
        matters && self.chance() * looks.max(1) as f64 <= FALSE_ALARM
    }

    /// Chance of a correlation as strong, either way, if there were no drift.
    #[must_use]
    pub fn chance(&self) -> f64 {
        let least = product(&self.times, &self.figures).abs();
        share_as_far(&self.times, &self.figures, least)
    }
}

/// The drift of figures in order of time; `None` of fewer than 5, or if all are equal.
///
/// # Source
/// C. Spearman, American Journal of Psychology 15 (1904); exact chances by counting permutations,
/// with mean ranks for ties (Kendall, "Rank Correlation Methods", chapters 3 and 4).
#[must_use]
pub fn drift(figures: &[f64]) -> Option<Drift> {
    if figures.len() < 5 {
        return None;
    }
    let points = grouped(figures);
    let half = figures.len() / 2;
    let earlier = median(figures[..half].to_vec())?;
    let later = median(figures[figures.len() - half..].to_vec())?;
    let ranks = doubled_ranks(&points);
    let count = points.len();
    let centre = i64::try_from(count + 1).ok()?;
    let times: Vec<i64> = (1..).take(count).map(|at| 2 * at - centre).collect();
    let figures: Vec<i64> = ranks.iter().map(|rank| rank - centre).collect();
    let norm = (product(&times, &times) as f64 * product(&figures, &figures) as f64).sqrt();
    (norm > 0.0).then(|| Drift {
        rho: product(&times, &figures) as f64 / norm,
        change: later / earlier,
        times,
        figures,
    })
}

fn product(a: &[i64], b: &[i64]) -> i64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// At most [`MOST_POINTS`] figures: medians of neighbours where there are more.
fn grouped(figures: &[f64]) -> Vec<f64> {
    let points = figures.len().min(MOST_POINTS);
    let edge = |at: usize| at * figures.len() / points;
    (0..points)
        .filter_map(|at| median(figures[edge(at)..edge(at + 1)].to_vec()))
        .collect()
}

/// Twice the rank of each figure, from 1; equal ones share the mean of their ranks.
fn doubled_ranks(figures: &[f64]) -> Vec<i64> {
    let rank = |figure: &f64| {
        let below = figures.iter().filter(|other| *other < figure).count();
        let equal = figures.iter().filter(|other| *other == figure).count();
        i64::try_from(2 * below + equal + 1).unwrap_or(i64::MAX)
    };
    figures.iter().map(rank).collect()
}

/// The share of all permutations whose product is at least as far from zero as `least`.
///
/// Counted over subsets: those of the first `k` times that are paired with the first `k` figures
/// in some order, by the sum they reach; so `n * 2^n` steps instead of `n!`.
fn share_as_far(times: &[i64], figures: &[i64], least: i64) -> f64 {
    // No sum is further from zero than that of the times with themselves.
    let reach = product(times, times);
    let place = |sum: i64| usize::try_from(sum + reach).expect("a sum is within reach");
    let all = 1_usize << figures.len();
    let mut ways = vec![vec![0.0; place(reach) + 1]; all];
    ways[0][place(0)] = 1.0;
    for used in 0..all - 1 {
        let here = std::mem::take(&mut ways[used]);
        let time = times[used.count_ones() as usize];
        for at in (0..figures.len()).filter(|at| used & (1 << at) == 0) {
            let moved = time * figures[at];
            for (sum, count) in (-reach..).zip(&here).filter(|(_, count)| **count > 0.0) {
                ways[used | (1 << at)][place(sum + moved)] += count;
            }
        }
    }
    let (mut far, mut total) = (0.0, 0.0);
    for (sum, count) in (-reach..).zip(&ways[all - 1]) {
        total += count;
        far += if sum.abs() >= least { *count } else { 0.0 };
    }
    far / total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_only_falls_is_as_unlikely_as_two_orders_of_all() {
        let falling: Vec<f64> = (0..8).map(|at| 100.0 - f64::from(at)).collect();
        let found = drift(&falling).unwrap();
        assert!((found.rho + 1.0).abs() < 1e-12);
        assert!((found.chance() - 2.0 / 40_320.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_small_drift_is_not_worth_a_word() {
        let falling: Vec<f64> = (0..8).map(|at| 100.0 - f64::from(at) * 0.3).collect();
        assert!(!drift(&falling).unwrap().is_real(1));
        let falling: Vec<f64> = (0..8).map(|at| 100.0 - f64::from(at)).collect();
        assert!(drift(&falling).unwrap().is_real(40));
        assert!(!drift(&falling).unwrap().is_real(2_000));
    }

    #[test]
    fn too_few_or_equal_figures_have_no_drift() {
        assert_eq!(drift(&[1.0, 2.0, 3.0, 4.0]), None);
        assert_eq!(drift(&[7.0; 8]), None);
    }

    #[test]
    fn many_rounds_are_put_together() {
        let mut falling: Vec<f64> = (0..57).map(|at| 1_000.0 - f64::from(at)).collect();
        falling.swap(1, 2);
        let found = drift(&falling).unwrap();
        assert!((found.rho + 1.0).abs() < 1e-12);
        assert!((found.chance() - 2.0 / 40_320.0).abs() < 1e-12, "{found:?}");
    }
}
