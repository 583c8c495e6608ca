//! Latencies over time: the stretch is cut into slices, and each has coarse bands of its own.

use std::time::Duration;

use inflight_report::heat::{self, BANDS};

use crate::measure::histogram::Latencies;

/// Slices of a stretch: short enough to show a stall, few enough to be kept for every round.
const SLICES: u32 = 6;

/// How many operations took how long, by when they ended.
#[derive(Clone, Debug)]
pub(crate) struct Heat {
    start_ns: u64,
    /// Endless before the stretch begins.
    slice_ns: u64,
    counts: Vec<[u32; BANDS]>,
}

impl Heat {
    fn new() -> Self {
        Self {
            start_ns: 0,
            slice_ns: u64::MAX,
            counts: (0..SLICES).map(|_| [0; BANDS]).collect(),
        }
    }

    /// What ends late, as the last operations of a stretch do, counts for its last slice.
    #[inline]
    fn record(&mut self, now_ns: u64, ns: u64) {
        let slice = now_ns.saturating_sub(self.start_ns) / self.slice_ns;
        let last = self.counts.len() - 1;
        let slice = usize::try_from(slice).unwrap_or(last).min(last);
        let count = &mut self.counts[slice][heat::band(ns)];
        *count = count.saturating_add(1);
    }

    fn merge(&mut self, other: &Self) {
        // A sum begins when the first of those begins that it is made of.
        if self.slice_ns == u64::MAX {
            (self.start_ns, self.slice_ns) = (other.start_ns, other.slice_ns);
        }
        let ours = self.counts.iter_mut().flatten();
        for (count, more) in ours.zip(other.counts.iter().flatten()) {
            *count = count.saturating_add(*more);
        }
    }

    /// As it is stored; absent if it was never told when the stretch begins.
    pub(crate) fn store(&self) -> Option<String> {
        let slices = || self.counts.iter().map(|slice| &slice[..]);
        (self.slice_ns < u64::MAX).then(|| heat::encode(slices()))
    }
}

/// What was timed in a stretch: all of it together, and over time.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) latencies: Latencies,
    pub(crate) heat: Heat,
}

impl Timed {
    /// Nothing yet; the memory is there before the stretch begins.
    pub(crate) fn new() -> Self {
        Self {
            latencies: Latencies::new(),
            heat: Heat::new(),
        }
    }

    /// The stretch begins, and will last about as long as `measured`.
    pub(crate) fn begin(&mut self, start_ns: u64, measured: Duration) {
        let slice = measured / SLICES;
        self.heat.start_ns = start_ns;
        self.heat.slice_ns = u64::try_from(slice.as_nanos()).unwrap_or(1).max(1);
    }

    /// Records an operation that took `ns` and ended at `now_ns`.
    #[inline]
    pub(crate) fn record(&mut self, now_ns: u64, ns: u64) {
        self.latencies.record(ns);
        self.heat.record(now_ns, ns);
    }

    /// Adds what another thread has timed in the same stretch.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.heat.merge(&other.heat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_in_the_slice_in_which_they_end() {
        let mut timed = Timed::new();
        assert_eq!(timed.heat.store(), None);
        timed.begin(1_000, Duration::from_nanos(600));
        timed.record(1_000, 1);
        timed.record(1_099, 1);
        timed.record(1_550, 4);
        let mut other = Timed::new();
        other.begin(1_010, Duration::from_nanos(600));
        other.record(5_000, 2);
        timed.merge(&other);
        let stored = timed.heat.store().unwrap();
        assert_eq!(stored, "0:2;;;;;4:1,,,,1");
        assert_eq!(timed.latencies.count(), 4);
    }
}
