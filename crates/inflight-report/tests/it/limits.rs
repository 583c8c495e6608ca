//! Limits that figures have to keep.

use hdrhistogram::Histogram;
use inflight_report::compare::limit::Limit;
use inflight_report::figures::percentile;
use inflight_report::histogram::encode;
use inflight_report::record::{Latency, LatencyClock, Record};

use crate::builder::{disk, find, skip};

/// Ids of the cells that do not keep a limit.
fn broken_by(record: &Record, limit: &str) -> Vec<String> {
    let limit = Limit::parse(limit).expect(limit);
    let checked = limit.check(record).expect("cells are selected");
    let broken = checked.iter().filter(|checked| !checked.kept);
    broken.map(|checked| checked.cell.id.clone()).collect()
}

/// So many samples from 1 us on, 1 us apart.
pub(crate) fn latency(samples: u64) -> Latency {
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds");
    for at in 1..=samples {
        histogram.record(at * 1_000).expect("within bounds");
    }
    Latency {
        clock: LatencyClock::Closed,
        samples,
        hist_v2_b64: encode(&histogram).expect("it fits"),
        ..disk(8).cells[0].latency.clone().expect("it has one")
    }
}

/// A record in which one cell has real percentiles.
fn timed() -> Record {
    let mut record = disk(8);
    find(&mut record, "inflight", 32).latency = Some(latency(20_000));
    record
}

const OURS: &str = "strategy=inflight,depth=32";

#[test]
fn a_limit_holds_or_does_not() {
    let record = timed();
    let id = ["direct-random-read/inflight/32".to_owned()];
    for (limit, kept) in [
        ("p50<10.1ms", true),
        ("p50<9.9ms", false),
        ("p99<=19820us", true),
        ("p99.9>19.9ms", true),
        ("max>1s", false),
        ("iops>=500k", true),
        ("iops>0.6M", false),
        ("bandwidth>2GiB/s", true),
        ("cpu<1.5us", true),
        ("cpu<1us", false),
        ("calls<0.1", true),
        ("disk>99%", true),
        ("errors<=0", true),
        ("errors<0", false),
    ] {
        let broken = broken_by(&record, &format!("{OURS}:{limit}"));
        assert_eq!(broken, if kept { &[][..] } else { &id }, "{limit}");
    }
}

#[test]
fn without_selectors_every_cell_that_counts_is_held_to_it() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "no registered buffers");
    let slow = broken_by(&record, "iops>100k");
    assert!(slow.contains(&"direct-random-read/pread/1".to_owned()));
    assert!(
        !slow
            .iter()
            .any(|id| id.contains("uring-tuned") || id.contains("/32"))
    );
    // The harness and the other program are no strategies of a program.
    assert!(broken_by(&record, "iops<1").len() == record.cells.len() - 3);
}

#[test]
fn what_is_not_known_or_does_not_count_does_not_pass() {
    let mut record = timed();
    assert_eq!(broken_by(&record, &format!("{OURS}:p99.99<1s")).len(), 1);
    skip(&mut record, &["inflight"], "no");
    assert_eq!(broken_by(&record, &format!("{OURS}:iops>1")).len(), 1);
}

#[test]
fn percentiles_need_ten_samples_beyond_them() {
    let known = |samples, quantile| percentile(&latency(samples), quantile).is_some();
    assert!(!known(999, 0.99) && known(1_000, 0.99));
    assert!(!known(9_999, 0.999) && known(10_000, 0.999));
    assert!(!known(99_999, 0.9999) && known(100_000, 0.9999));
    let found = percentile(&latency(10_000), 0.99).expect("it is known");
    assert!(found.abs_diff(9_900_000) < 10_000, "{found}");
}

#[test]
fn nonsense_is_refused_with_what_is_known() {
    for (limit, told) in [
        ("p99", "has none of <, <=, >, >="),
        ("p98<1us", "known are p50, p90, p99"),
        ("p99<200", "needs a unit: ns, us, µs, ms, s"),
        ("p99<200kg", "use ns, us, µs, ms, s"),
        ("p99<us", "no number"),
        ("errors<1k", "this figure has no unit"),
        ("iops>5x", "use k, M"),
        ("disk>0.9", "needs a unit: %"),
        ("inflight:p99<1us", "strategy=inflight"),
        ("strategy=:p99<1us", "selects nothing"),
        (
            "size=3:p99<1us",
            "profile, strategy, depth, threads or rate",
        ),
    ] {
        let error = Limit::parse(limit).expect_err(limit);
        assert!(error.contains(told), "{limit}: {error}");
    }
}

#[test]
fn a_limit_that_selects_nothing_is_an_error() {
    let record = disk(8);
    let limit = Limit::parse("strategy=inflihgt:iops>1").expect("it is well formed");
    let error = limit.check(&record).expect_err("nothing is selected");
    assert!(error.contains("selects no measured cell"), "{error}");
}
