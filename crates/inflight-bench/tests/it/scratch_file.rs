//! The test file disappears on every way out, and a killed run is noticed by the next one.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Running, bench, directory, run, scratch_files, stderr};

const SMALL: &[&str] = &[
    "--size",
    "8m",
    "--rounds",
    "1",
    "--cell-time",
    "5",
    "--depth",
    "1",
];
/// Long enough to be interrupted, whatever the machine.
const LONG: &[&str] = &[
    "--size",
    "8m",
    "--rounds",
    "1000",
    "--cell-time",
    "30",
    "--depth",
    "1",
    "--strategy",
    "pread,threads",
    "--profile",
    "cached-random-read",
];

fn long(directory: &Path) -> Command {
    bench(directory, LONG)
}

#[test]
fn the_test_file_is_removed_at_the_end() {
    let directory = directory();
    let output = run(
        directory.path(),
        &[SMALL, &["--strategy", "null,pread"]].concat(),
    );
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| [0, 3].contains(&code))
    );
    assert!(stderr(&output).contains("removed afterwards"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_test_file_is_kept_on_demand_and_not_offered_for_removal() {
    let directory = directory();
    let keep = ["--strategy", "null", "--profile", "cached-random-read"];
    let args = [SMALL, &keep, &["--keep-file"]].concat();
    let output = run(directory.path(), &args);
    let files = scratch_files(directory.path());
    assert_eq!(files.len(), 1, "{}", stderr(&output));
    assert_eq!(std::fs::metadata(&files[0]).unwrap().len(), 8 << 20);
    assert!(stderr(&output).contains(files[0].to_str().unwrap()));
    let next = run(directory.path(), &[SMALL, &["--strategy", "null"]].concat());
    assert!(!stderr(&next).contains("left over"), "{}", stderr(&next));
    assert_eq!(scratch_files(directory.path()), files);
}

#[test]
fn the_first_signal_keeps_partial_results() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let directory = directory();
        let mut running = Running::start(long(directory.path()).args(["--export-json", "-"]));
        running.wait_for("round 2/1000");
        assert_eq!(scratch_files(directory.path()).len(), 1);
        running.signal(signal);
        let output = running.end();
        assert_eq!(output.status.code(), Some(128 + signal));
        let record: inflight_report::Record = serde_json::from_slice(&output.stdout).unwrap();
        assert!(record.interrupted);
        assert!(
            record
                .cells
                .iter()
                .all(|cell| (2..1000).contains(&cell.rounds.len()))
        );
        assert!(
            scratch_files(directory.path()).is_empty(),
            "signal {signal}"
        );
    }
}

#[test]
fn the_second_signal_ends_at_once_and_removes_the_file() {
    let directory = directory();
    // The next cell lasts long enough for two signals to fall into it, and keeps a processor busy.
    let args = [
        "--size",
        "8m",
        "--strategy",
        "null",
        "--profile",
        "cached-random-read",
    ];
    let long = ["--rounds", "10", "--cell-time", "5000"];
    let mut running = Running::start(&mut bench(directory.path(), &[&args[..], &long].concat()));
    running.wait_for("round 1/10");
    running.wait_for_work();
    running.signal(libc::SIGINT);
    running.wait_for("finishing the current cell");
    running.signal(libc::SIGINT);
    let output = running.end();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn a_signal_while_writing_removes_the_file() {
    let directory = directory();
    let args = [
        "--size",
        "2g",
        "--strategy",
        "null",
        "--rounds",
        "1",
        "--cell-time",
        "5",
    ];
    let mut running = Running::start(&mut bench(directory.path(), &args));
    running.wait_for("writing");
    running.signal(libc::SIGTERM);
    let output = running.end();
    assert_eq!(output.status.code(), Some(143));
    assert!(output.stdout.is_empty());
    assert!(scratch_files(directory.path()).is_empty());
}

/// A directory, and the file that a run has left there which was killed.
fn left_by_a_killed_run() -> (TempDir, PathBuf) {
    let directory = directory();
    let mut running = Running::start(&mut long(directory.path()));
    running.wait_for("round 1/1000");
    running.signal(libc::SIGKILL);
    running.end();
    let mut files = scratch_files(directory.path());
    assert_eq!(files.len(), 1);
    (directory, files.remove(0))
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_one() {
    let (directory, left) = left_by_a_killed_run();
    let next = run(directory.path(), &[SMALL, &["--strategy", "null"]].concat());
    let told = stderr(&next);
    assert!(told.contains("left over"), "{told}");
    assert!(
        told.contains(&format!("{} (", left.display())) && told.contains(", removed"),
        "{told}"
    );
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn what_a_killed_run_left_is_removed_whoever_has_its_number_now() {
    let (directory, left) = left_by_a_killed_run();
    // The first process is always there, and in a container it is the next run.
    std::fs::rename(left, directory.path().join("inflight-1-7.inflight-scratch")).unwrap();
    let next = run(directory.path(), &[SMALL, &["--strategy", "null"]].concat());
    let told = stderr(&next);
    assert!(told.contains("left over"), "{told}");
    assert!(!told.contains("another run"), "{told}");
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn a_run_in_progress_is_left_alone() {
    let directory = directory();
    let mut running = Running::start(&mut long(directory.path()));
    running.wait_for("round 1/1000");
    let other = run(directory.path(), &[SMALL, &["--strategy", "null"]].concat());
    assert!(!stderr(&other).contains("left over"), "{}", stderr(&other));
    assert!(
        stderr(&other).contains("another run works"),
        "{}",
        stderr(&other)
    );
    running.signal(libc::SIGINT);
    assert_eq!(running.end().status.code(), Some(130));
    assert!(scratch_files(directory.path()).is_empty());
}
