//! Latencies of a cell: an HdrHistogram of nanoseconds with three digits (0.1 %), of which 0.2 %
//! is kept when it is stored. Percentiles are taken before.

use anyhow::Result;
use hdrhistogram::Histogram;
use inflight_report::histogram;
use inflight_report::record::{Latency, LatencyClock};

/// The longest latency that is told apart; anything longer counts as this.
const LONGEST_NS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;
/// Leading bits of a latency that are stored. Counts of a thousand neighbours are noise, which
/// cannot be packed: with four of them together a record is half as long.
const STORED_BITS: u32 = 9;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    ns: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let ns = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds");
        Self { ns }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.ns.saturating_record(ns);
    }

    pub(crate) fn record_many(&mut self, ns: u64, count: u64) {
        self.ns.saturating_record_n(ns, count);
    }

    /// How many were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.ns.len()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.ns.add(&other.ns).expect("equal bounds and digits");
    }

    /// The median, if anything was timed.
    pub(crate) fn ns_p50(&self) -> Option<u64> {
        self.quantile(1, 0.5)
    }

    /// What one operation in a hundred exceeds, if there are samples enough to tell.
    pub(crate) fn ns_p99(&self) -> Option<u64> {
        self.quantile(1_000, 0.99)
    }

    /// The share of samples that are longer than this.
    #[cfg(test)]
    pub(crate) fn share_above(&self, ns: u64) -> f64 {
        let up_to = self.ns.iter_recorded();
        let above = up_to.filter(|value| value.value_iterated_to() > ns);
        let above: u64 = above.map(|value| value.count_at_value()).sum();
        above as f64 / self.ns.len().max(1) as f64
    }

    fn quantile(&self, least_samples: u64, quantile: f64) -> Option<u64> {
        (self.ns.len() >= least_samples).then(|| self.ns.value_at_quantile(quantile))
    }

    /// The same counts, each in the middle of its neighbours.
    fn coarse(&self) -> Result<Histogram<u64>> {
        let mut coarse = Histogram::new_from(&self.ns);
        for value in self.ns.iter_recorded() {
            let middle = middle_ns(value.value_iterated_to());
            coarse.record_n(middle.min(LONGEST_NS), value.count_at_value())?;
        }
        Ok(coarse)
    }

    /// What is stored; nothing when nothing was timed. Percentiles that too few samples
    /// support are left out.
    pub(crate) fn store(&self, sample_every: u32, clock: LatencyClock) -> Result<Option<Latency>> {
        let Some(ns_p50) = self.ns_p50() else {
            return Ok(None);
        };
        Ok(Some(Latency {
            clock,
            sample_every,
            samples: self.ns.len(),
            ns_p50,
            ns_p99: self.ns_p99(),
            ns_p999: self.quantile(10_000, 0.999),
            ns_max: self.ns.max(),
            hist_v2_b64: histogram::encode(&self.coarse()?)?,
        }))
    }
}

/// The middle of the latencies that have the same leading bits.
fn middle_ns(ns: u64) -> u64 {
    let dropped = (u64::BITS - ns.leading_zeros()).saturating_sub(STORED_BITS);
    (ns >> dropped << dropped) + (1 << dropped) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_coarser_and_nothing_is_lost() {
        let mut latencies = Latencies::new();
        let all = || (0..26).flat_map(|octave| [513, 700, 999].map(|ns: u64| ns << octave));
        for ns in all().chain([1, 255, 511, LONGEST_NS, 2 * LONGEST_NS]) {
            latencies.record(ns);
        }
        let coarse = latencies.coarse().unwrap();
        assert_eq!(coarse.len(), latencies.count());
        for ns in all() {
            let off = middle_ns(ns).abs_diff(ns) as f64 / ns as f64;
            assert!(off <= 0.002, "{ns}");
        }
        let neighbours = [99_840, 99_900, 100_095].map(middle_ns);
        assert!(neighbours.iter().all(|ns| *ns == neighbours[0]));
        assert_eq!(
            [1, 255, 511].map(middle_ns),
            [1, 255, 511],
            "short ones as they are"
        );
    }

    #[test]
    fn nothing_timed_is_nothing_stored() {
        assert!(
            Latencies::new()
                .store(1, LatencyClock::Closed)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn few_samples_have_no_high_percentiles() {
        let mut latencies = Latencies::new();
        latencies.record_many(1_000, 998);
        latencies.record(5_000);
        let stored = latencies.store(3, LatencyClock::Closed).unwrap().unwrap();
        assert_eq!((stored.samples, stored.sample_every), (999, 3));
        assert!(stored.ns_p99.is_none() && stored.ns_p999.is_none());
        latencies.record_many(1_000, 10_000);
        let stored = latencies.store(3, LatencyClock::Closed).unwrap().unwrap();
        assert!(stored.ns_p99.is_some() && stored.ns_p999.is_some());
        assert!(stored.ns_max.abs_diff(5_000) <= 5);
    }

    #[test]
    fn the_stored_histogram_reads_back() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record_many(80_000, 7);
        b.record(LONGEST_NS * 2);
        a.merge(&b);
        let stored = a.store(1, LatencyClock::Closed).unwrap().unwrap();
        let back = histogram::decode(&stored.hist_v2_b64).unwrap();
        assert_eq!(back.len(), 8);
        assert_eq!(back.value_at_quantile(0.5), stored.ns_p50);
    }
}
