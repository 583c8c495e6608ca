//! How long it will still take: what is planned, corrected by how long what is done took.

use std::time::Duration;

/// Counts as done at the planned speed, so that the first cells do not decide alone.
const TRUST_IN_PLAN: Duration = Duration::from_secs(2);

/// What was planned so far, and what it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    planned: Duration,
    took: Duration,
}

impl Pace {
    /// A cell that was to take `planned` took `took`.
    pub(crate) fn ran(&mut self, planned: Duration, took: Duration) {
        self.planned += planned;
        self.took += took;
    }

    /// How long what was to take `planned` will take at this pace.
    pub(crate) fn of(&self, planned: Duration) -> Duration {
        let took = (self.took + TRUST_IN_PLAN).as_secs_f64();
        let expected = (self.planned + TRUST_IN_PLAN).as_secs_f64();
        planned.mul_f64(took / expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_believed_until_it_proves_wrong() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::default();
        assert_eq!(pace.of(second * 40), second * 40);
        pace.ran(second * 2, second * 6);
        assert_eq!(pace.of(second * 40), second * 80);
        pace.ran(second * 1000, second * 3000);
        let left = pace.of(second * 40);
        assert!(left > second * 119 && left < second * 121, "{left:?}");
    }
}
