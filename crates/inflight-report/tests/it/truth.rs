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
fn a_cached_cell_that_the_disk_served_does_not_count() {
    let mut record = disk(2);
    serve(&mut record, 11);
    let reason = why(&mut record, "pread", &cached()).unwrap();
    assert!(reason.contains("not in the page cache"), "{reason}");
    serve(&mut record, 9);
    assert_eq!(why(&mut record, "pread", &cached()), None);
}

#[test]
fn a_cell_that_does_not_know_its_device_bytes_is_not_judged() {
    let mut record = disk(2);
    into_tmpfs(&mut record);
    assert_eq!(device_share(find(&mut record, "fio", 32)), None);
    assert_eq!(why(&mut record, "fio", &direct()), None);
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
    assert!(
        reason.contains("1 operations failed and 500 were short"),
        "{reason}"
    );
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
