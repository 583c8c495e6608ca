//! Operations begun by the clock: `--rate`.

use std::collections::BTreeMap;

use inflight_report::record::{Cell, LatencyClock, Record};
use inflight_report::{open, regret};

use crate::support::{directory, record, run, stderr};

const SMALL: &[&str] = &[
    "--size",
    "16m",
    "--rounds",
    "2",
    "--cell-time",
    "200",
    "--profile",
    "cached-random-read",
    "--depth",
    "1,4",
];

fn at_rate(args: &[&str]) -> (i32, Record) {
    let directory = directory();
    record(directory.path(), &[SMALL, args].concat())
}

#[test]
fn every_strategy_is_begun_by_the_clock_or_says_why_not() {
    let named = "null,pread,preadv2-nowait,threads,tokio,mmap,uring,uring-tuned,inflight,\
                 inflight-mapped,inflight-local,inflight-async,inflight-async-1";
    let (code, record) = at_rate(&["--rate", "1k", "--strategy", named]);
    assert_eq!(code, 0);
    assert!(regret::regrets(&record).is_empty() && record.regrets.is_empty());
    let profile = &record.profiles[0];
    assert!(open::is_only(&record, profile));
    let mut samples = BTreeMap::new();
    for cell in &record.cells {
        let id = &cell.id;
        assert!(id.ends_with("@1000"), "{id}");
        assert_eq!(cell.rate_per_s, Some(1_000), "{id}");
        if let Some(skipped) = &cell.skipped {
            println!("skipped: {id}: {}", skipped.reason);
            let known = skipped.reason.contains("open loop") || skipped.reason.contains("io_uring");
            assert!(known && cell.strategy.starts_with("uring"), "{id}");
            continue;
        }
        check(cell);
        samples.insert(&*cell.strategy, ());
    }
    for name in [
        "null",
        "pread",
        "threads",
        "inflight",
        "inflight-async",
        "inflight-local",
    ] {
        assert!(samples.contains_key(name), "{name}");
    }
}

/// Whatever was due has a latency, counted from then.
fn check(cell: &Cell) {
    let id = &cell.id;
    assert_eq!(cell.rounds.len(), 2, "{id}");
    let opened = cell.rounds.iter().map(|round| round.open.unwrap());
    // 200 ms of 1,000 a second; the schedule may begin in the middle of an interval.
    let due: Vec<u64> = opened.map(|open| open.due).collect();
    assert!(
        due.iter().all(|due| (200..=201).contains(due)),
        "{id}: {due:?}"
    );
    let latency = cell.latency.as_ref().unwrap();
    assert_eq!(latency.clock, LatencyClock::Intended, "{id}");
    assert_eq!(latency.samples, due.iter().sum::<u64>(), "{id}");
    for round in &cell.rounds {
        assert_eq!((round.errors, round.short, round.wrong), (0, 0, 0), "{id}");
        assert_eq!(round.bytes, round.ops * 4096, "{id}");
    }
}

#[test]
fn the_library_on_threads_is_the_same_row_whether_it_is_named_or_not() {
    let threads_at_4 = |args: &[&str]| {
        let few = ["--rate", "100", "--rounds", "1", "--cell-time", "20"];
        let directory = directory();
        let usual = ["--size", "16m", "--profile", "cached-random-read"];
        let args = [&usual[..], &few, &["--depth", "4"], args].concat();
        let (_, record) = record(directory.path(), &args);
        let library = record.cells.into_iter();
        let library =
            library.filter(|cell| cell.threads == 4 && cell.strategy.contains("inflight"));
        let rows = library.map(|cell| (cell.id, cell.skipped.map(|skipped| skipped.reason)));
        rows.filter(|(id, _)| !id.contains("mapped"))
            .collect::<Vec<_>>()
    };
    let id = "cached-random-read/inflight-threads/4x4@100".to_owned();
    let measured = vec![(id, None)];
    assert_eq!(threads_at_4(&[]), measured);
    assert_eq!(threads_at_4(&["--strategy", "inflight-threads"]), measured);
}

#[test]
fn a_rate_that_cannot_be_kept_is_called_so_and_what_was_given_up_is_counted() {
    let (code, record) = at_rate(&["--rate", "10m,100", "--strategy", "pread,uring"]);
    assert_eq!(code, 0);
    let of = |rate| {
        let mut cells = record.cells.iter();
        let wanted = |cell: &&Cell| cell.strategy == "pread" && cell.rate_per_s == Some(rate);
        cells.find(wanted).unwrap()
    };
    let kept = open::kept(of(10_000_000)).unwrap();
    assert!(kept.is_saturated() && kept.backlog > 0.0 && kept.unserved > 0);
    let round = of(10_000_000).rounds[0];
    let open = round.open.unwrap();
    assert!(
        open.unserved <= open.backlog && open.backlog < open.due,
        "{round:?}"
    );
    assert_eq!(of(100).rounds[0].open.unwrap().unserved, 0);
}

#[test]
fn the_screen_has_a_table_of_its_own_and_no_verdict() {
    let directory = directory();
    let args = ["--rate", "500", "--strategy", "pread", "--depth", "1"];
    let output = run(directory.path(), &[SMALL, &args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("open loop") && text.contains("due/s"),
        "{text}"
    );
    assert!(
        !text.contains("Verdict") && !text.contains("regret"),
        "{text}"
    );
}

#[test]
fn what_has_no_intended_start_of_its_own_says_so() {
    let args = ["--rate", "500", "--strategy", "pread,inflight"];
    let directory = directory();
    let batched = ["--profile", "cold-range-read,buffered-sequential-write"];
    let small = ["--size", "16m", "--rounds", "1", "--cell-time", "20"];
    let (code, record) = record(directory.path(), &[&small[..], &batched, &args].concat());
    assert_eq!(code, 3, "nothing was measured");
    for cell in &record.cells {
        let why = &cell.skipped.as_ref().unwrap().reason;
        assert!(why.contains("clock") || why.contains("one sync"), "{why}");
    }
}
