//! Stored histograms, also those that another implementation wrote.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;
use inflight_report::histogram::{HistogramError, decode, encode, merge};

fn fixture() -> serde_json::Value {
    serde_json::from_str(include_str!("../fixtures/histogram.json")).expect("the fixture is JSON")
}

fn of(values: &[u64], digits: u8) -> Histogram<u64> {
    let mut histogram = Histogram::new(digits).expect("0 to 5 digits");
    values
        .iter()
        .for_each(|value| histogram.record(*value).expect("it resizes"));
    histogram
}

#[test]
fn halves_written_by_another_program_merge_into_the_whole() {
    let fixture = fixture();
    let halves: Vec<&str> = fixture["halves"]
        .as_array()
        .unwrap()
        .iter()
        .map(|half| half.as_str().unwrap())
        .collect();
    let backwards = merge(halves.iter().rev().copied()).unwrap().unwrap();
    let whole = merge(halves).unwrap().unwrap();
    assert_eq!(whole, backwards);
    assert_eq!(whole.len(), fixture["count"].as_u64().unwrap());
    let percentiles = fixture["percentiles"].as_object().unwrap();
    assert_eq!(percentiles.len(), 4);
    for (percent, value) in percentiles {
        let found = whole.value_at_percentile(percent.parse().unwrap());
        assert_eq!(found, value.as_u64().unwrap(), "p{percent}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let histogram = of(&[80, 75_000, 2_000_000_000], 3);
    assert_eq!(decode(&encode(&histogram).unwrap()).unwrap(), histogram);
}

#[test]
fn a_histogram_that_reaches_further_still_merges() {
    let mut small = Histogram::<u64>::new_with_bounds(1, 1000, 3).unwrap();
    small.record(900).unwrap();
    let large = encode(&of(&[5_000_000_000], 3)).unwrap();
    let small = encode(&small).unwrap();
    let merged = merge([small.as_str(), large.as_str()]).unwrap().unwrap();
    assert_eq!((merged.len(), merged.value_at_percentile(50.0)), (2, 900));
    assert!(merged.max() >= 5_000_000_000);
}

#[test]
fn merging_nothing_gives_nothing() {
    assert_eq!(merge([]).unwrap(), None);
}

#[test]
fn text_that_is_no_histogram_is_refused_with_the_reason() {
    assert!(matches!(
        decode("not base64!"),
        Err(HistogramError::NotBase64(_))
    ));
    let error = decode("aGVsbG8gaGVsbG8=").unwrap_err();
    assert!(matches!(error, HistogramError::NotHistogram(_)));
    assert!(
        error
            .to_string()
            .starts_with("the stored histogram is not HdrHistogram V2")
    );
    let whole = encode(&of(&[1, 2, 3], 3)).unwrap();
    assert!(decode(&whole[..whole.len() / 2 / 4 * 4]).is_err());
}

#[test]
fn different_precision_does_not_merge() {
    let (fine, coarse) = (encode(&of(&[1], 3)).unwrap(), encode(&of(&[1], 2)).unwrap());
    let error = merge([fine.as_str(), coarse.as_str()]).unwrap_err();
    assert_eq!(
        error,
        HistogramError::DifferentPrecision { have: 3, got: 2 }
    );
}

/// Whoever reads it would make room for as much as it says.
#[test]
fn a_histogram_that_lies_about_its_length_is_not_read() {
    let deflated = |payload_len: u32, bytes: usize| {
        let mut plain = vec![0; bytes];
        plain[..4].copy_from_slice(&0x1c84_9313_u32.to_be_bytes());
        plain[4..8].copy_from_slice(&payload_len.to_be_bytes());
        plain[12..16].copy_from_slice(&3_u32.to_be_bytes());
        plain[16..24].copy_from_slice(&1_u64.to_be_bytes());
        plain[24..32].copy_from_slice(&1_000_u64.to_be_bytes());
        plain[32..40].copy_from_slice(&1_f64.to_be_bytes());
        let mut stored = 0x1c84_9314_u32.to_be_bytes().to_vec();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&plain).expect("memory takes everything");
        let zlib = zlib.finish().expect("memory takes everything");
        stored.extend(
            u32::try_from(zlib.len())
                .expect("it is small")
                .to_be_bytes(),
        );
        stored.extend(zlib);
        STANDARD.encode(stored)
    };
    assert_eq!(decode(&deflated(1, 41)).map(|found| found.len()), Ok(0));
    let refused = [
        deflated(u32::MAX, 41),
        deflated(1, 40),
        // As large as it says, and larger than any that is stored.
        deflated((16 << 20) - 40, 16 << 20),
        STANDARD.encode([0; 7]),
    ];
    for stored in refused {
        let error = decode(&stored).expect_err("it is refused");
        assert!(matches!(error, HistogramError::NotHistogram(_)), "{error}");
    }
}
