//! Findings of the doctor in the record of a benchmark, tied to the cells that they spoil.

use std::path::Path;

use inflight_report::Record;
use inflight_report::record::Severity;

use super::groups::Group;
use crate::support::{bench, directory};

const SMALL: &[&str] = &[
    "--size",
    "1m",
    "--rounds",
    "1",
    "--cell-time",
    "5",
    "--depth",
    "1",
    "--strategy",
    "pread",
    "--profile",
    "direct-random-read,cached-random-read",
];

fn record(group: &Group, target: &Path, args: &[&str]) -> Record {
    let command = bench(target, &[SMALL, args].concat());
    let output = group.enter(&command).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_limit_of_the_disk_is_tied_to_what_comes_from_the_disk() {
    let Some(group) = Group::new("bench-io", "blkio") else {
        return;
    };
    let directory = directory();
    let json = ["--export-json", "-"];
    let before = record(&group, directory.path(), &json);
    let Some(disk) = before.target.stack.first() else {
        println!("skipped: the build directory is on no block device");
        return;
    };
    let limits = |record: &Record| {
        let found = record
            .findings
            .iter()
            .find(|finding| finding.id == "cgroup-io");
        found.cloned()
    };
    assert!(limits(&before).is_none());
    let node = std::fs::read_to_string(format!("/sys/block/{}/dev", disk.name)).unwrap();
    group.set(
        "blkio.throttle.read_iops_device",
        &format!("{} 100000", node.trim()),
    );
    let after = record(&group, directory.path(), &json);
    let finding = limits(&after).unwrap();
    assert_eq!(finding.severity, Severity::Warning);
    assert!(!finding.affects.is_empty());
    let direct = |id: &String| id.starts_with("direct-random-read/");
    assert!(finding.affects.iter().all(direct), "{finding:?}");
    assert!(finding.fix.contains("sudo tee"), "{finding:?}");
}

#[test]
fn the_text_points_at_the_explanation() {
    let Some(group) = Group::new("bench-cpu", "cpu") else {
        return;
    };
    let directory = directory();
    group.set("cpu.cfs_quota_us", "90000");
    let command = bench(directory.path(), SMALL);
    let output = group.enter(&command).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert!(
        text.contains("inflight doctor --explain cgroup-cpu"),
        "{text}"
    );
}

#[test]
fn what_is_found_of_the_disk_is_tied_to_the_profiles_that_meet_it() {
    let directory = directory();
    let profiles = "direct-random-read,cached-random-read,cold-random-read,durable-append";
    let args = [
        "--size",
        "4m",
        "--rounds",
        "1",
        "--cell-time",
        "5",
        "--depth",
        "1",
    ];
    let which = ["--strategy", "pread", "--profile", profiles];
    let (_, record) = crate::support::record(directory.path(), &[&args[..], &which].concat());
    let affected = |id: &str| {
        let found = record.findings.iter().find(|finding| finding.id == id)?;
        let profile = |id: &String| id.split('/').next().unwrap().to_owned();
        Some(found.affects.iter().map(profile).collect::<Vec<_>>())
    };
    let Some(disk) = record.target.stack.first() else {
        println!("skipped: the build directory is on no block device");
        return;
    };
    match affected("write-cache") {
        Some(profiles) => assert_eq!(profiles, ["durable-append"]),
        None => assert_ne!(disk.write_cache.as_deref(), Some("write back")),
    }
    match affected("scheduler") {
        Some(profiles) => {
            let disk = ["direct-random-read", "cold-random-read", "durable-append"];
            assert_eq!(profiles, disk);
        }
        None => println!("skipped in part: {} has no scheduler that costs", disk.name),
    }
}
