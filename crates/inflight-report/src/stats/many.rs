//! Many comparisons at once: how unlikely each has to be, so that none is a false alarm.

/// How likely a single false alarm may be, among all that are looked at together.
pub const FALSE_ALARM: f64 = 0.05;

/// The chances of many comparisons, each as it counts among all of them: of those that are at most
/// [`FALSE_ALARM`] not one is a false alarm, but in one run of twenty.
///
/// Nothing is assumed about how they depend on each other. The least likely one is held against all
/// of them, the next one against all others, and so on, and none counts more than one before it.
///
/// # Source
/// S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
/// Statistics 6 (1979).
#[must_use]
pub fn among_all(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let (mut found, mut most) = (vec![1.0; chances.len()], 0.0_f64);
    for (before, at) in order.into_iter().enumerate() {
        let others = chances.len() - before;
        most = most.max(chances[at] * others as f64).min(1.0);
        found[at] = most;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_held_against_those_that_are_as_likely_or_more() {
        let found = among_all(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in found.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
        assert_eq!(among_all(&[0.04]), [0.04]);
        assert_eq!(among_all(&[0.7, 0.6]), [1.0, 1.0]);
        assert_eq!(among_all(&[]), [0.0; 0]);
    }
}
