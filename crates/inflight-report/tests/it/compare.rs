//! Two records against each other.

use inflight_report::compare::Comparison;
use inflight_report::markdown;
use inflight_report::record::{Record, Round};
use inflight_report::stats::Word;
use inflight_report::text::{Style, comparison};

use crate::builder::{cell, disk, find, skip};
use crate::text::assert_snapshot;

/// Takes so many percent of the rate of a cell away.
fn slow_down(record: &mut Record, strategy: &str, depth: u32, percent: u64) {
    for round in &mut find(record, strategy, depth).rounds {
        round.ops = round.ops * (100 - percent) / 100;
    }
}

fn regressed(old: &Record, new: &Record, threshold: f64) -> Vec<String> {
    let compared = Comparison::new(old, new);
    let rows = compared.regressions(threshold);
    rows.map(|row| row.new.id.clone()).collect()
}

fn drawn(old: &Record, new: &Record) -> String {
    let (width, colour) = (140, false);
    comparison(&Comparison::new(old, new), 0.05, Style { width, colour })
}

/// Rounds of all cells without what they share, which would hide a small change.
fn calm() -> Record {
    let mut record = disk(8);
    for cell in &mut record.cells {
        for (at, round) in (0..).zip(&mut cell.rounds) {
            round.ops = 1_000_000 + at * 500;
        }
    }
    record
}

#[test]
fn a_record_against_itself_has_no_regression_and_no_mismatch() {
    let record = calm();
    let compared = Comparison::new(&record, &record);
    assert!(compared.mismatches.is_empty() && compared.changes.is_empty());
    assert_eq!(compared.rows.len(), record.cells.len());
    for row in &compared.rows {
        assert_eq!(
            row.interval.word(),
            Word::NoRealDifference,
            "{}",
            row.new.id
        );
        assert!(row.interval.level >= 0.95 && row.interval.level < 1.0);
    }
    assert!(regressed(&record, &record, 0.0).is_empty());
}

#[test]
fn what_is_clearly_slower_beyond_the_threshold_is_a_regression() {
    let (mut old, mut new) = (calm(), calm());
    for record in [&mut old, &mut new] {
        record.cells.push(cell("fio-psync", 1, 12_900, 0, 8));
    }
    slow_down(&mut new, "inflight", 32, 12);
    slow_down(&mut new, "uring", 32, 4);
    slow_down(&mut new, "null", 1, 50);
    slow_down(&mut new, "fio", 32, 50);
    slow_down(&mut new, "fio-psync", 1, 50);
    let slower = "direct-random-read/inflight/32".to_owned();
    assert_eq!(regressed(&old, &new, 0.05).join(" "), slower);
    assert_eq!(regressed(&old, &new, 0.13), Vec::<String>::new());
    let also = "direct-random-read/uring/32".to_owned();
    assert_eq!(regressed(&old, &new, 0.035), [also, slower]);
    assert!(
        regressed(&new, &old, 0.05).is_empty(),
        "faster is no regression"
    );
}

#[test]
fn what_only_varies_more_is_no_regression() {
    let (mut old, mut new) = (calm(), calm());
    slow_down(&mut new, "inflight", 32, 6);
    for record in [&mut old, &mut new] {
        for (at, round) in find(record, "inflight", 32).rounds.iter_mut().enumerate() {
            round.ops = round.ops * [92, 112, 95, 109, 90, 118, 97, 106][at] / 100;
        }
    }
    assert!(regressed(&old, &new, 0.05).is_empty());
}

#[test]
fn another_plan_disk_size_or_processor_is_a_mismatch_and_another_kernel_is_not() {
    let old = disk(8);
    let mismatches = |change: fn(&mut Record)| {
        let mut new = disk(8);
        change(&mut new);
        let compared = Comparison::new(&old, &new);
        (compared.mismatches.join("; "), compared.changes.join("; "))
    };
    let of = |change| mismatches(change).0;
    let smaller = of(|new| new.target.size_bytes >>= 1);
    assert_eq!(smaller, "size of the test data: 4.00 GiB, now 2.00 GiB");
    let disk = of(|new| new.target.stack[0].name = "sda".to_owned());
    assert_eq!(disk, "device: nvme0n1, now sda");
    assert!(of(|new| new.target.fs = "xfs".to_owned()).contains("file system"));
    assert!(of(|new| new.machine.cpus = 2).contains("processor"));
    let kernel = mismatches(|new| new.machine.kernel = "6.19.0".to_owned());
    let told = "kernel 6.18.0, now 6.19.0".to_owned();
    assert_eq!(kernel, (String::new(), told));
}

#[test]
fn what_differs_between_two_plans_is_told_in_words() {
    let old = disk(8);
    let of = |change: fn(&mut Record)| {
        let mut new = disk(8);
        new.plan_hash = "1".to_owned();
        change(&mut new);
        Comparison::new(&old, &new).mismatches.join("; ")
    };
    let shorter = of(|new| new.cell_duration_ns /= 2);
    assert_eq!(shorter, "time of a cell in a round: 500 ms, now 250 ms");
    let fewer = of(|new| {
        new.cells
            .retain(|cell| cell.strategy != "uring" && cell.depth != 4);
    });
    let told = "strategies: uring only in the old record; in flight: 4, 64 only in the old record";
    assert_eq!(fewer, told);
    let renamed = of(|new| {
        new.profiles[0].name = "mine".to_owned();
        new.cells.clear();
    });
    let told = "profiles: direct-random-read of 4.00 KiB only in the old record and mine of \
                4.00 KiB only in the new record";
    assert_eq!(renamed, told);
    assert!(of(|_| {}).contains("something that the records do not hold"));
}

#[test]
fn a_cell_that_does_not_count_any_more_is_left_out_and_told() {
    let (old, mut new) = (disk(8), disk(8));
    skip(&mut new, &["uring-tuned"], "no registered buffers");
    new.cells.retain(|cell| cell.strategy != "threads");
    find(&mut new, "inflight", 32)
        .rounds
        .iter_mut()
        .for_each(|round| {
            round.device_bytes = Some(0);
        });
    let text = drawn(&old, &new);
    for told in [
        "io_uring, tuned (depth 32) of direct-random-read: does not count: no registered buffers",
        "pread, 4 threads; pread, 16 threads of direct-random-read: is only in the old record",
        "inflight (depth 32) of direct-random-read: does not count: the disk served less than",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
}

#[test]
fn the_screen_and_the_markdown_of_a_comparison() {
    let (old, mut new) = (calm(), calm());
    slow_down(&mut new, "inflight", 32, 12);
    slow_down(&mut new, "pread", 1, 10);
    new.machine.kernel = "6.19.0".to_owned();
    assert_snapshot("compared", &drawn(&old, &new));
    let compared = Comparison::new(&old, &new);
    assert_snapshot("compared-markdown", &markdown::comparison(&compared, 0.05));
}

#[test]
fn a_record_can_not_drive_the_page_it_is_shown_on() {
    let (old, mut new) = (disk(8), disk(8));
    new.profiles[0].title = "a | b\n# <script>".to_owned();
    new.machine.kernel = "[x](http://example.invalid)".to_owned();
    let text = markdown::comparison(&Comparison::new(&old, &new), 0.05);
    assert!(text.contains("a \\| b \\# \\<script>"), "{text}");
    assert!(text.contains("\\[x](http"), "{text}");
}

/// They come later, one after the other, and another run has others.
#[test]
fn fresh_rounds_of_one_of_two_records_do_not_count() {
    let old = calm();
    let mut new = calm();
    for cell in &mut new.cells {
        let fresh = (100..110).map(|block| Round {
            block,
            ops: 500_000,
            confirms: true,
            ..cell.rounds[0]
        });
        let fresh: Vec<_> = fresh.collect();
        cell.rounds.extend(fresh);
    }
    assert!(regressed(&old, &new, 0.0).is_empty());
    assert!(regressed(&new, &old, 0.0).is_empty());
}
