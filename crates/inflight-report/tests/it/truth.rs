//! Which cells measured what was asked.

use inflight_report::figures::device_share;
use inflight_report::record::{Access, DeviceWork, ProfileSummary, Record, Sync};
use inflight_report::truth::out_of_ranking;

use crate::builder::{cached, direct, disk, find, into_tmpfs, serve};

fn why(record: &mut Record, strategy: &str, profile: &ProfileSummary) -> Option<String> {
    let target = record.target.clone();
    let depth = if strategy == "fio" { 32 } else { 1 };
    out_of_ranking(find(record, strategy, depth), profile, &target)
}

#[test]
fn a_direct_cell_that_the_disk_served_counts() {
    let mut record = disk(2);
    assert_eq!(why(&mut record, "pread", &direct()), None);
    // Readahead may fetch more than was asked for.
    serve(&mut record, 115);
    assert_eq!(why(&mut record, "pread", &direct()), None);
    serve(&mut record, 91);
    assert_eq!(why(&mut record, "pread", &direct()), None);
}

#[test]
fn a_direct_cell_that_memory_served_does_not_count() {
    let mut record = disk(2);
    serve(&mut record, 89);
    let reason = why(&mut record, "pread", &direct()).unwrap();
    assert!(
        reason.contains("page cache") && reason.contains("sparse"),
        "{reason}"
    );
    into_tmpfs(&mut record);
    let reason = why(&mut record, "pread", &direct()).unwrap();
    assert!(
        reason.contains("this is memory, not a disk: tmpfs"),
        "{reason}"
    );
}

#[test]
fn of_few_operations_it_is_not_told_who_served_them() {
    let mut record = disk(2);
    serve(&mut record, 50);
    // At the edges of its two rounds, one in flight makes two.
    let mut of = |ops: u64| {
        let cell = find(&mut record, "pread", 1);
        cell.rounds.iter_mut().for_each(|round| round.ops = ops);
        why(&mut record, "pread", &direct()).unwrap()
    };
    assert!(of(9).starts_with("too few operations"), "{}", of(9));
    assert!(of(10).contains("page cache"), "{}", of(10));
    serve(&mut record, 100);
    assert_eq!(why(&mut record, "pread", &direct()), None);
}

#[test]
fn a_cached_cell_that_the_disk_served_does_not_count() {
    let mut record = disk(2);
    serve(&mut record, 11);
    let reason = why(&mut record, "pread", &cached()).unwrap();
    assert!(reason.contains("not in the page cache"), "{reason}");
    serve(&mut record, 9);
    assert_eq!(why(&mut record, "pread", &cached()), None);
}

#[test]
fn a_half_cached_cell_counts_if_the_disk_served_about_half() {
    let mut record = disk(2);
    let half = ProfileSummary {
        half_cached: true,
        cached: false,
        ..cached()
    };
    for (percent, fits) in [(39, false), (41, true), (69, true), (71, false)] {
        serve(&mut record, percent);
        let reason = why(&mut record, "pread", &half);
        assert_eq!(reason.is_none(), fits, "{percent}");
        let reason = reason.unwrap_or_default();
        assert!(fits || reason.contains("one block in two"), "{reason}");
    }
}

#[test]
fn a_cell_that_does_not_know_its_device_bytes_is_not_judged_by_them() {
    let mut record = disk(2);
    assert_eq!(device_share(find(&mut record, "fio", 32)), None);
    assert_eq!(why(&mut record, "fio", &direct()), None);
    into_tmpfs(&mut record);
    let reason = why(&mut record, "fio", &direct()).expect("no disk is there");
    assert!(reason.contains("this is memory"), "{reason}");
}

#[test]
fn null_is_exempt() {
    let mut record = disk(2);
    serve(&mut record, 0);
    assert_eq!(device_share(find(&mut record, "null", 1)), Some(0.0));
    assert_eq!(why(&mut record, "null", &direct()), None);
}

#[test]
fn a_cell_that_failed_does_not_count_and_one_error_in_many_does_not_matter() {
    let mut record = disk(2);
    find(&mut record, "pread", 1).rounds[0].errors = 1;
    assert_eq!(why(&mut record, "pread", &direct()), None);
    find(&mut record, "pread", 1).rounds[0].short = 500;
    let reason = why(&mut record, "pread", &direct()).unwrap();
    assert!(reason.contains("1 failed and 500 were short"), "{reason}");
}

#[test]
fn a_cell_without_bytes_has_no_share() {
    let mut record = disk(2);
    find(&mut record, "pread", 1).rounds.clear();
    assert_eq!(device_share(find(&mut record, "pread", 1)), None);
    assert_eq!(why(&mut record, "pread", &direct()), None);
}

#[test]
fn a_sync_after_which_the_device_has_little_does_not_count() {
    let mut record = disk(2);
    let profile = ProfileSummary {
        access: Access::RandomWrite,
        sync: Sync::Each,
        direct: false,
        ..direct()
    };
    let mut after = |percent: u64| {
        for round in &mut find(&mut record, "pread", 1).rounds {
            round.device = Some(DeviceWork {
                written_bytes: round.bytes / 100 * percent,
                ..DeviceWork::default()
            });
        }
        why(&mut record, "pread", &profile)
    };
    assert_eq!(after(100), None);
    assert!(after(40).unwrap().contains("less than half"));
}

/// A mixed profile that reads so many of a hundred operations; `None` in an old record.
fn mixed(read_percent: Option<u32>) -> ProfileSummary {
    ProfileSummary {
        access: Access::Mixed,
        read_percent,
        ..direct()
    }
}

#[test]
fn of_mixed_operations_the_reads_alone_are_held_against_the_device() {
    let mut record = disk(8);
    let mut served = |percent, asked| {
        serve(&mut record, percent);
        why(&mut record, "pread", &mixed(Some(asked)))
    };
    // All that was read came from the disk.
    for percent in [5, 20, 30, 44, 45, 70, 95, 100] {
        assert_eq!(served(u64::from(percent), percent), None, "{percent} %");
    }
    assert_eq!(served(0, 0), None, "nothing was read");
    // A third of what was read came from memory; all of it did.
    for (percent, asked) in [(46, 70), (20, 30), (0, 30), (0, 5)] {
        let reason = served(percent, asked).unwrap();
        let told = "less than 90 % of the bytes that were read: the page cache";
        assert!(reason.contains(told), "{reason}");
    }
}

#[test]
fn a_mixed_profile_of_an_old_record_is_judged_as_it_was() {
    let mut record = disk(8);
    for (percent, counts) in [(46, true), (44, false)] {
        serve(&mut record, percent);
        let found = why(&mut record, "pread", &mixed(None));
        assert_eq!(found.is_none(), counts, "{percent} %: {found:?}");
    }
}

#[test]
fn few_mixed_operations_may_read_less_than_was_asked_for_by_chance() {
    let mut record = disk(1);
    let profile = mixed(Some(30));
    let round = &mut find(&mut record, "pread", 1).rounds[0];
    (round.ops, round.bytes) = (100, 100 * 4096);
    for (reads, counts) in [(22, true), (10, false)] {
        find(&mut record, "pread", 1).rounds[0].device_bytes = Some(reads * 4096);
        let found = why(&mut record, "pread", &profile);
        assert_eq!(found.is_none(), counts, "{reads}: {found:?}");
    }
}

#[test]
fn mixed_operations_in_memory_may_fetch_a_tenth_of_what_is_read() {
    let mut record = disk(8);
    let profile = ProfileSummary {
        access: Access::Mixed,
        read_percent: Some(30),
        ..cached()
    };
    serve(&mut record, 2);
    assert_eq!(why(&mut record, "pread", &profile), None);
    serve(&mut record, 5);
    assert!(why(&mut record, "pread", &profile).is_some());
}
