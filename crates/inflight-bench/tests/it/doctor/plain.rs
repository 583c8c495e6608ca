//! What holds on every machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use inflight_report::Record;
use inflight_report::doctor::{SCHEMA, Status};
use inflight_report::record::Severity;

use super::{doctor, examine, line};
use crate::support::{bench, directory, inflight, stderr};

#[test]
fn the_exit_code_tells_whether_there_is_a_problem() {
    let directory = directory();
    let (code, examination) = examine(&mut doctor(directory.path()));
    assert_eq!(examination.schema, SCHEMA);
    let problems = examination.count(Status::Problem);
    assert_eq!(code, if problems == 0 { 0 } else { 3 }, "{examination:?}");
    assert!(!examination.tool.backend.is_empty());
}

#[test]
fn nothing_is_left_behind_and_nothing_is_changed() {
    let directory = directory();
    let file = directory.path().join("data");
    fs::write(&file, vec![7; 1 << 16]).unwrap();
    let times = || {
        let of = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let read = fs::metadata(&file).unwrap().accessed().unwrap();
        (of(directory.path()), of(&file), read)
    };
    let before = times();
    examine(&mut doctor(directory.path()));
    examine(&mut doctor(&file));
    assert_eq!(times(), before);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 16]);
}

#[test]
fn a_file_with_a_hole_is_not_taken_for_a_disk() {
    let directory = directory();
    let (full, hole) = (directory.path().join("full"), directory.path().join("hole"));
    fs::write(&full, vec![7; 1 << 16]).unwrap();
    fs::File::open(&full).unwrap().sync_all().unwrap();
    fs::File::create(&hole).unwrap().set_len(1 << 16).unwrap();
    let direct = |path: &Path| {
        let (_, examination) = examine(&mut doctor(path));
        line(&examination, "direct-io").clone()
    };
    if direct(&full).status != Status::Ok {
        println!("skipped: the build directory has no direct I/O from a disk");
        return;
    }
    let hole = direct(&hole);
    assert_eq!(hole.status, Status::Warning);
    assert!(hole.finding.contains("took 0 bytes"), "{hole:?}");
}

#[test]
fn every_line_can_be_explained_and_every_bad_one_says_what_follows() {
    let directory = directory();
    let (_, examination) = examine(&mut doctor(directory.path()));
    let ids: BTreeSet<&str> = examination
        .lines
        .iter()
        .map(|line| line.id.as_str())
        .collect();
    for id in ids {
        let output = inflight()
            .args(["doctor", "--explain", id])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{id}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(id) && text.len() > 150, "{text}");
    }
    for line in &examination.lines {
        let bad = matches!(line.status, Status::Warning | Status::Problem);
        assert!(!bad || !line.consequence.is_empty(), "{line:?}");
    }
}

#[test]
fn a_backend_that_is_none_is_a_problem_because_no_file_can_be_opened() {
    let directory = directory();
    let mut command = doctor(directory.path());
    let (code, examination) = examine(command.env("INFLIGHT_BACKEND", "bogus"));
    assert_eq!(code, 3);
    let found = line(&examination, "backend");
    assert_eq!(found.status, Status::Problem);
    let told = "no file can be opened: INFLIGHT_BACKEND=\"bogus\" is not a backend";
    assert!(found.finding.starts_with(told), "{found:?}");
    assert_eq!(found.fix, "unset INFLIGHT_BACKEND");
    // The benchmark says the same of its rows, and nothing of io_uring, which was measured.
    let args = "--size 1m --rounds 1 --cell-time 5 --depth 1 --profile cached-random-read \
                --strategy pread,uring,inflight,inflight-local --export-json -";
    let args: Vec<&str> = args.split_whitespace().collect();
    let mut command = bench(directory.path(), &args);
    let output = command.env("INFLIGHT_BACKEND", "bogus").output().unwrap();
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let mut findings = record.findings.iter();
    let finding = findings.find(|finding| finding.id == "backend").unwrap();
    assert_eq!(finding.severity, Severity::Blocker);
    assert_eq!((&finding.what, &finding.fix), (&found.finding, &found.fix));
    let rows = [
        "cached-random-read/inflight/1",
        "cached-random-read/inflight-local/1",
    ];
    assert_eq!(finding.affects, rows);
    // A machine without rings has its own finding of the row that needs one.
    let mut others = record.findings.iter();
    let blocked = others.find(|other| other.id == "io-uring-blocked");
    let blocked = blocked.map_or(&[][..], |blocked| &blocked.affects);
    assert!(
        !blocked.iter().any(|id| rows.contains(&id.as_str())),
        "{blocked:?}"
    );
}

#[test]
fn what_cannot_be_examined_is_a_usage_error() {
    let directory = directory();
    let missing = directory.path().join("missing");
    for (target, told) in [
        (missing.as_path(), "cannot be examined"),
        (Path::new("/dev/null"), "device"),
    ] {
        let output = doctor(target).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
    let output = inflight()
        .args(["doctor", "--explain", "nonsense"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("tmpfs-target"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_text_has_a_line_for_each_check() {
    let directory = directory();
    let output = inflight()
        .arg("doctor")
        .arg(directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, examination) = examine(&mut doctor(directory.path()));
    for line in examination.lines {
        assert!(
            text.contains(&format!("[{}]", line.id)),
            "{}: {text}",
            line.id
        );
    }
}
