//! Limits that figures have to keep.

use hdrhistogram::Histogram;
use inflight_report::compare::limit::Limit;
use inflight_report::figures::percentile;
use inflight_report::histogram::encode;
use inflight_report::markdown;
use inflight_report::record::{Access, DeviceWork, Latency, LatencyClock, Record};
use inflight_report::regret::regrets;
use inflight_report::text::{Style, limits};

use crate::builder::{cell, disk, find, serve, skip};

/// Ids of the cells that do not keep a limit.
fn broken_by(record: &Record, limit: &str) -> Vec<String> {
    let limit = Limit::parse(limit).expect(limit);
    let held = limit.check(record).expect("cells are selected");
    let broken = held.checked.iter().filter(|checked| !checked.kept);
    broken.map(|checked| checked.cell.id.clone()).collect()
}

/// So many samples from 1 us on, 1 us apart.
pub(crate) fn latency(samples: u64) -> Latency {
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds");
    for at in 1..=samples {
        histogram.record(at * 1_000).expect("within bounds");
    }
    let from =
        |least: u64, quantile| (samples >= least).then(|| histogram.value_at_quantile(quantile));
    Latency {
        clock: LatencyClock::Closed,
        samples,
        ns_p50: histogram.value_at_quantile(0.5),
        ns_p99: from(1_000, 0.99),
        ns_p999: from(10_000, 0.999),
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
fn a_limit_that_is_kept_always_or_never_is_refused() {
    let refused = |limit: &str| Limit::parse(limit).expect_err(limit);
    let none_below = "no such figure is below 0 ns, so that it is kept always or never; name a";
    for limit in ["p99<-5us", "p99<0us", "p99>=0us", "max>-1ns", "cpu<=-0.1us"] {
        let why = refused(limit);
        assert!(
            why.starts_with(&format!("`{limit}`: {none_below}")),
            "{why}"
        );
    }
    for limit in ["iops>=-1", "errors<0", "bandwidth>=0MiB/s", "regret<-101%"] {
        let why = refused(limit);
        assert!(why.contains("no such figure is below "), "{why}");
    }
    for limit in ["p99<1e9s", "iops>1e999", "errors<99999999999999999"] {
        let why = refused(limit);
        assert!(why.contains("no such figure is above "), "{why}");
    }
    for limit in [
        "errors<=0",
        "calls<=0",
        "iops>0",
        "regret<-5%",
        "max<86400s",
    ] {
        assert!(Limit::parse(limit).is_ok(), "{limit}");
    }
}

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
        ("errors>0", false),
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
fn a_regret_is_limited_by_its_bad_end() {
    let record = disk(8);
    for regret in regrets(&record) {
        let at_worst = regret.percent_at_worst();
        assert!(at_worst > regret.percent(), "{regret:?}");
        for (limit, broken) in [(at_worst + 0.01, 0), (at_worst - 0.01, 1)] {
            let limit = format!("strategy=inflight,depth={}:regret<={limit}%", regret.depth);
            assert_eq!(broken_by(&record, &limit).len(), broken, "{limit}");
        }
    }
}

#[test]
fn a_regret_of_no_strategy_is_that_of_the_better_blocking_calls() {
    let mut record = disk(8);
    for strategy in ["inflight-threads", "inflight-async"] {
        let slow = cell(strategy, 32, 100_000, 2_000, 8);
        record.cells.push(slow);
    }
    assert!(broken_by(&record, "regret<=30%").is_empty());
    for strategy in ["inflight-threads", "inflight-async"] {
        let broken = broken_by(&record, &format!("strategy={strategy}:regret<=30%"));
        assert_eq!(broken, [format!("direct-random-read/{strategy}/32")]);
    }
}

#[test]
fn a_regret_that_is_not_known_does_not_pass() {
    let limit = "regret<=1000%";
    let library = [
        "direct-random-read/inflight/1",
        "direct-random-read/inflight/32",
    ];
    assert_eq!(broken_by(&disk(3), limit), library, "too few rounds");
    let mut alone = disk(8);
    alone.cells.retain(|cell| cell.strategy == "inflight");
    assert_eq!(broken_by(&alone, limit), library, "nobody to be behind");
    // Others have none.
    let pread = broken_by(&disk(8), &format!("strategy=pread:{limit}"));
    assert_eq!(pread, ["direct-random-read/pread/1"]);
}

#[test]
fn a_regret_of_rounds_that_scatter_too_much_does_not_pass() {
    let mut record = disk(8);
    for (at, round) in find(&mut record, "inflight", 1)
        .rounds
        .iter_mut()
        .enumerate()
    {
        round.ops = round.ops * [10, 900, 20, 300, 15, 700, 12, 500][at] / 100;
    }
    let all = regrets(&record);
    let unknown = all.iter().find(|regret| !regret.is_known());
    let unknown = unknown.expect("one is a `?` of the table");
    // The end of the interval itself would keep it.
    let limit = format!("regret<={:.0}%", unknown.percent_at_worst() + 1.0);
    let limit = Limit::parse(&limit).expect("it is well formed");
    let held = limit.check(&record).expect("cells are selected");
    let broken: Vec<_> = held.checked.iter().filter(|cell| !cell.kept).collect();
    assert_eq!(broken.len(), 1, "the other one is known");
    assert_eq!(broken[0].cell.id, unknown.cell);
    assert!(
        broken[0]
            .figure
            .starts_with("not known: the rounds scatter")
    );
}

#[test]
fn half_of_the_operations_failed_and_the_limit_of_errors_is_not_kept() {
    let mut record = disk(8);
    for round in &mut find(&mut record, "inflight", 32).rounds {
        round.errors = round.ops;
    }
    let id = ["direct-random-read/inflight/32"];
    assert_eq!(broken_by(&record, "errors<=0"), id);
    assert_eq!(broken_by(&record, &format!("{OURS}:errors<=0")), id);
    assert!(broken_by(&record, "errors<=1000000000").is_empty());
    // Its rate means little, so it keeps no limit of rates, be it as high as it may.
    assert_eq!(broken_by(&record, "iops>1"), id);
    let limit = Limit::parse("iops>1").expect("it is well formed");
    let held = limit.check(&record).expect("cells are selected");
    let broken = held.checked.iter().find(|checked| !checked.kept);
    let figure = &broken.expect("one is").figure;
    assert!(figure.contains("does not count: "), "{figure}");
}

#[test]
fn what_was_served_from_memory_does_not_keep_a_limit_of_the_disk() {
    let mut record = disk(8);
    assert!(broken_by(&record, "disk>=90%").is_empty());
    serve(&mut record, 0);
    let judged = record.cells.len() - 2;
    let measured = |limit| broken_by(&record, limit).len();
    assert_eq!(measured("disk>=90%"), judged, "all but `null`, and fio");
    assert_eq!(measured("iops>1"), judged, "such rates are not of a disk");
    assert_eq!(measured("disk<=10%"), 0, "its own figure is what is asked");
}

#[test]
fn other_bytes_than_were_written_are_errors() {
    let mut record = disk(8);
    find(&mut record, "inflight", 32).rounds[3].wrong = 2;
    let id = ["direct-random-read/inflight/32"];
    assert_eq!(broken_by(&record, "errors<=1"), id);
}

#[test]
fn the_disk_of_writes_is_what_it_took() {
    let mut record = disk(8);
    record.profiles[0].access = Access::RandomWrite;
    for cell in &mut record.cells {
        for round in &mut cell.rounds {
            round.device_bytes = Some(0);
            round.device = Some(DeviceWork {
                written_bytes: round.bytes,
                ..DeviceWork::default()
            });
        }
    }
    assert!(broken_by(&record, "disk>=90%").is_empty());
}

#[test]
fn only_cells_without_a_round_are_left_out_and_are_told() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "no registered buffers");
    find(&mut record, "threads", 16).rounds.clear();
    let limit = Limit::parse("errors<=0").expect("it is well formed");
    let held = limit.check(&record).expect("cells are selected");
    assert!(held.is_kept());
    assert_eq!(held.left_out.len(), 2);
    let all = [(&limit, held)];
    let (width, colour) = (140, false);
    let text = limits(&all, &record.profiles, Style { width, colour });
    let told = markdown::limits(&all);
    let part = "kept by all 8 cells that were measured; 2 were not";
    assert!(text.contains(part) && told.contains(part), "{text}{told}");
    for part in [
        "1 without a round: io_uring, tuned (depth 32) of direct-random-read: no registered",
        "1 without a round: pread, 16 threads of direct-random-read: no round was completed",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(told.contains("direct-random-read/uring-tuned/32: direct-random-read: no reg"));
    // Whoever names it wants to know of it.
    let named = "strategy=threads,depth=16:errors<=0";
    assert_eq!(broken_by(&record, named).len(), 1);
    // Whoever names what many rows have does not ask for those that could not run.
    for named in ["depth=32:errors<=0", "profile=direct-random-read:errors<=0"] {
        assert!(broken_by(&record, named).is_empty(), "{named}");
    }
}

#[test]
fn percentiles_need_ten_samples_beyond_them() {
    let known = |samples, quantile| percentile(&latency(samples), quantile).is_some();
    assert!(!known(999, 0.99) && known(1_000, 0.99));
    assert!(!known(9_999, 0.999) && known(10_000, 0.999));
    assert!(!known(99_999, 0.9999) && known(100_000, 0.9999));
    let mut latency = latency(10_000);
    let at = |latency: &_, quantile| percentile(latency, quantile).expect("it is known");
    for (quantile, ns) in [(0.9, 9_000_000), (0.99, 9_900_000)] {
        assert!(at(&latency, quantile).abs_diff(ns) < 10_000);
    }
    // What the record tells was taken from a finer histogram than the one that it has.
    latency.ns_p99 = Some(9_876_543);
    assert_eq!(at(&latency, 0.99), 9_876_543);
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
    for (limit, told) in [
        (
            "strategy=inflihgt:iops>1",
            "no row has the strategy `inflihgt`; known are pread, threads, uring, uring-tuned, \
             inflight, mmap",
        ),
        (
            "strategy=uring,depth=3:iops>1",
            "no row has the depth `3`; known are 1, 4, 16, 32, 64",
        ),
        (
            "profile=direct:iops>1",
            "no row has the profile `direct`; known are direct-random-read",
        ),
        ("rate=2k:p99<2ms", "no row has a rate"),
        // Both values are known, but not together.
        ("strategy=pread,depth=32:iops>1", "selects no measured cell"),
    ] {
        let limit = Limit::parse(limit).expect(limit);
        let error = limit.check(&record).expect_err("nothing is selected");
        assert!(error.ends_with(told), "{error}");
    }
}
