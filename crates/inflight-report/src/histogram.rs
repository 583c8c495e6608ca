//! Latency histograms as they are stored: HdrHistogram V2, deflated, in base64.
//!
//! Merging adds counts, so it may be done in any order and over any number of machines.
//! Percentiles are never averaged. The fields are in [`crate::record::Latency`].

use std::fmt;
use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Bytes of a histogram that is read: some hundred times those of one that is written.
const MOST_BYTES: u64 = 4 << 20;

/// What comes before the counts, uncompressed: what it is, how long they are, and what they count
/// (`HdrHistogram V2`).
const HEADER_BYTES: usize = 40;

/// The same of what is deflated.
const DEFLATED_HEADER_BYTES: usize = 8;

/// Why a stored histogram could not be read, written or merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistogramError {
    /// The text is not base64.
    NotBase64(String),
    /// The bytes are not a HdrHistogram in the V2 format.
    NotHistogram(String),
    /// Two histograms keep a different number of significant digits.
    DifferentPrecision {
        /// Digits of those merged so far.
        have: u8,
        /// Digits of the one to be added.
        got: u8,
    },
    /// The counts do not fit into one histogram.
    TooLarge(String),
}

impl fmt::Display for HistogramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBase64(why) => write!(f, "the stored histogram is not base64: {why}"),
            Self::NotHistogram(why) => {
                write!(f, "the stored histogram is not HdrHistogram V2: {why}")
            }
            Self::DifferentPrecision { have, got } => write!(
                f,
                "histograms of {have} and of {got} significant digits cannot be merged"
            ),
            Self::TooLarge(why) => write!(f, "the histogram is too large: {why}"),
        }
    }
}

impl std::error::Error for HistogramError {}

/// Writes a histogram of nanoseconds in the stored form.
///
/// # Errors
/// [`HistogramError::TooLarge`] when a count does not fit into the format.
pub fn encode(histogram: &Histogram<u64>) -> Result<String, HistogramError> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .map_err(|why| HistogramError::TooLarge(why.to_string()))?;
    Ok(STANDARD.encode(bytes))
}

/// Reads a stored histogram.
///
/// # Errors
/// [`HistogramError::NotBase64`] or [`HistogramError::NotHistogram`], by how far it got.
pub fn decode(stored: &str) -> Result<Histogram<u64>, HistogramError> {
    let bytes = STANDARD
        .decode(stored.trim())
        .map_err(|why| HistogramError::NotBase64(why.to_string()))?;
    let bytes = inflated(&bytes).map_err(HistogramError::NotHistogram)?;
    Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|why| HistogramError::NotHistogram(why.to_string()))
}

/// The bytes that a stored histogram was deflated from. Whoever reads them believes what they say
/// of their length, so that is looked at here.
fn inflated(deflated: &[u8]) -> Result<Vec<u8>, String> {
    let deflated = deflated
        .get(DEFLATED_HEADER_BYTES..)
        .ok_or("it is cut off")?;
    let mut bytes = Vec::new();
    let mut reader = flate2::read::ZlibDecoder::new(deflated).take(MOST_BYTES);
    reader
        .read_to_end(&mut bytes)
        .map_err(|why| why.to_string())?;
    let told = bytes.get(4..8).and_then(|told| told.try_into().ok());
    let told = told
        .map(u32::from_be_bytes)
        .and_then(|told| usize::try_from(told).ok());
    match told == bytes.len().checked_sub(HEADER_BYTES) {
        true => Ok(bytes),
        false => Err("it is not as long as it says".to_owned()),
    }
}

/// Adds up stored histograms; `None` of nothing.
///
/// # Errors
/// The first error of reading one, or [`HistogramError::DifferentPrecision`]: a sum would
/// claim more than the coarser one knows.
pub fn merge<'a>(
    stored: impl IntoIterator<Item = &'a str>,
) -> Result<Option<Histogram<u64>>, HistogramError> {
    let mut sum: Option<Histogram<u64>> = None;
    for one in stored {
        let next = decode(one)?;
        match &mut sum {
            None => sum = Some(next),
            Some(sum) => add(sum, &next)?,
        }
    }
    Ok(sum)
}

fn add(sum: &mut Histogram<u64>, next: &Histogram<u64>) -> Result<(), HistogramError> {
    if sum.sigfig() != next.sigfig() {
        return Err(HistogramError::DifferentPrecision {
            have: sum.sigfig(),
            got: next.sigfig(),
        });
    }
    // A histogram that was read has the range it was written with; the next may reach further.
    sum.auto(true);
    sum.add(next)
        .map_err(|why| HistogramError::TooLarge(why.to_string()))
}
