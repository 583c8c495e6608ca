//! Latencies over time as they are stored: for each round a few slices, for each slice the number
//! of operations in every band of latency.
//!
//! Bands are coarse, four in a factor of two: enough to see a stall, and small enough to be kept
//! for every round. Percentiles come from [`crate::histogram`], never from bands.
//!
//! The text of a round has its slices in order of time, separated by `;`. A slice is the number
//! of its lowest band, `:`, and the counts from there on, separated by `,`; a count of zero may be
//! left out, and a slice in which nothing was timed is empty. So `62:5,,17;;62:4,198` are three
//! slices, the second idle.

use std::fmt;

/// Bands that are told apart: from 1 ns to 68 s, four in a factor of two.
pub const BANDS: usize = 144;

/// More slices than any round is cut into; a longer text was not written by this format.
const MOST_SLICES: usize = 4096;

/// The band of a latency in nanoseconds; the last one also has everything that is longer.
#[must_use]
#[inline]
pub fn band(ns: u64) -> usize {
    let ns = ns.max(1);
    let octave = ns.ilog2();
    // The two bits below the highest one.
    let quarter = if octave >= 2 {
        ns >> (octave - 2)
    } else {
        ns << (2 - octave)
    } & 3;
    let octave = usize::try_from(octave).unwrap_or(BANDS);
    let quarter = usize::try_from(quarter).unwrap_or(0);
    (octave * 4 + quarter).min(BANDS - 1)
}

/// The shortest latency of a band, in nanoseconds; of the band after the last, where that ends.
#[must_use]
pub fn lower_edge_ns(band: usize) -> f64 {
    let octave = i32::try_from(band / 4).unwrap_or(i32::MAX);
    2f64.powi(octave) * (1.0 + (band % 4) as f64 / 4.0)
}

/// What was timed in one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The lowest band with a count.
    pub first_band: usize,
    /// Operations in that band and in those above it; empty when nothing was timed.
    pub counts: Vec<u64>,
}

/// Why a stored round could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatError(String);

impl fmt::Display for HeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stored latencies over time are broken: {}", self.0)
    }
}

impl std::error::Error for HeatError {}

/// Writes a round: for each slice the counts of all bands, from the lowest on.
#[must_use]
pub fn encode<'a>(slices: impl IntoIterator<Item = &'a [u32]>) -> String {
    let texts: Vec<String> = slices.into_iter().map(encode_slice).collect();
    texts.join(";")
}

fn encode_slice(counts: &[u32]) -> String {
    let Some(first) = counts.iter().position(|count| *count > 0) else {
        return String::new();
    };
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
    let write = |count: &u32| match count {
        0 => String::new(),
        count => count.to_string(),
    };
    let counts: Vec<String> = counts[first..=last].iter().map(write).collect();
    format!("{first}:{}", counts.join(","))
}

/// Reads a round.
///
/// # Errors
/// [`HeatError`] when it is not in this form, or has bands or slices that do not exist.
pub fn decode(round: &str) -> Result<Vec<Slice>, HeatError> {
    let slices: Vec<&str> = round.split(';').take(MOST_SLICES + 1).collect();
    if slices.len() > MOST_SLICES {
        return Err(HeatError(format!("more than {MOST_SLICES} slices")));
    }
    slices.into_iter().map(decode_slice).collect()
}

fn decode_slice(text: &str) -> Result<Slice, HeatError> {
    if text.is_empty() {
        return Ok(Slice::default());
    }
    let broken = |what: &str| HeatError(format!("{what} in `{}`", shortened(text)));
    let (first, counts) = text.split_once(':').ok_or_else(|| broken("no band"))?;
    let first_band: usize = first.parse().map_err(|_| broken("no band"))?;
    let read = |count: &str| match count {
        "" => Ok(0),
        count => count.parse(),
    };
    let counts: Result<Vec<u64>, _> = counts.split(',').map(read).collect();
    let counts = counts.map_err(|_| broken("no count"))?;
    if first_band >= BANDS || counts.len() > BANDS - first_band {
        return Err(broken("a band that does not exist"));
    }
    Ok(Slice { first_band, counts })
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_between_the_edges_of_its_band() {
        let mut ns = 1u64;
        while ns < 70_000_000_000 {
            let at = band(ns);
            assert!(lower_edge_ns(at) <= ns as f64, "{ns} in band {at}");
            assert!(
                at + 1 == BANDS || (ns as f64) < lower_edge_ns(at + 1),
                "{ns} in band {at}"
            );
            ns += 1 + ns / 9;
        }
        assert_eq!((band(0), band(u64::MAX)), (0, BANDS - 1));
    }

    #[test]
    fn a_round_reads_back() {
        let mut slow = vec![0; BANDS];
        (slow[62], slow[64]) = (5, 17);
        let idle = vec![0; BANDS];
        let text = encode([slow.as_slice(), &idle, &slow]);
        assert_eq!(text, "62:5,,17;;62:5,,17");
        assert_eq!(decode("62:5,0,17;;62:5,,17"), decode(&text));
        let slices = decode(&text).unwrap();
        let counts = vec![5, 0, 17];
        let read = Slice {
            first_band: 62,
            counts,
        };
        assert_eq!(slices, [read.clone(), Slice::default(), read]);
    }

    #[test]
    fn what_was_not_written_here_is_refused() {
        for text in ["5", "x:1", "5:1,x,2", "144:1", "143:1,2", "5:-1"] {
            assert!(decode(text).is_err(), "{text}");
        }
        assert!(decode(&";".repeat(5_000)).is_err());
    }
}
