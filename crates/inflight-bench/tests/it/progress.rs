//! What is told on stderr while a measurement runs.

use std::path::Path;

use serde_json::Value;

use crate::support::{Running, bench, directory, run, scratch_files};

const SMALL: &[&str] = &["--size", "8m", "--cell-time", "5", "--depth", "1"];

fn events(stderr: &[u8]) -> Vec<Value> {
    let text = String::from_utf8(stderr.to_vec()).unwrap();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
    text.lines().map(parse).collect()
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["event"] == kind)
        .collect()
}

fn json(directory: &Path, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = run(directory, &[SMALL, args, &["--progress", "json"]].concat());
    (output.status.code(), events(&output.stderr))
}

#[test]
fn what_quick_leaves_out_is_said_once() {
    let directory = directory();
    let quick = ["--quick", "--rounds", "1", "--strategy", "uring,threads"];
    let profiles = ["--profile", "cached-random-read,cold-random-read"];
    let small = ["--size", "1m", "--cell-time", "5"];
    let args = [&quick[..], &profiles, &small].concat();
    let told =
        "--quick leaves out depths in between (4, 16, 64) and pools of 4, 16, 64, 128 threads";
    let output = run(directory.path(), &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.matches(told).count(), 1, "{stderr}");
    let output = run(directory.path(), &[&args[..], &["--dry-run"]].concat());
    let plan = String::from_utf8(output.stdout).unwrap();
    assert_eq!(plan.matches(&format!("\n; {told}\n")).count(), 1, "{plan}");
}

#[test]
fn every_line_of_the_stream_is_an_event_and_every_cell_is_told() {
    let directory = directory();
    let args = ["--rounds", "3", "--strategy", "null,pread,uring"];
    let cached = ["--profile", "cached-random-read"];
    let (code, events) = json(directory.path(), &[&args[..], &cached].concat());
    let start = &events[0];
    assert_eq!(start["event"], "start");
    assert_eq!(start["schema"], "inflight.progress/1");
    let mut planned: Vec<&str> = start["cells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["id"].as_str().unwrap())
        .collect();
    planned.sort_unstable();
    for round in 1..=3 {
        let cells = of(&events, "cell").into_iter();
        let cells = cells.filter(|cell| cell["round"] == round);
        let mut told: Vec<&str> = cells.map(|cell| cell["id"].as_str().unwrap()).collect();
        told.sort_unstable();
        let all_run = of(&events, "cell")
            .iter()
            .all(|cell| cell.get("skipped").is_none());
        assert!(told == planned || !all_run, "{told:?}");
    }
    let rounds = of(&events, "round");
    assert_eq!(rounds.len(), 3);
    assert_eq!(rounds[2]["left_ns"], 0);
    let end = events.last().unwrap();
    assert_eq!(
        (&end["event"], end["exit_code"].as_i64()),
        (&"end".into(), code.map(i64::from))
    );
}

#[test]
fn an_error_is_told_in_the_stream_too() {
    let missing = directory().path().join("missing");
    let (code, events) = json(&missing, &[]);
    let end = events.last().unwrap();
    assert_eq!((code, end["exit_code"].as_i64()), (Some(2), Some(2)));
    assert!(
        end["error"]
            .as_str()
            .unwrap()
            .contains("cannot be examined")
    );
}

#[test]
fn an_interruption_is_told_before_the_end() {
    let directory = directory();
    let args = [
        "--rounds",
        "1000",
        "--strategy",
        "null",
        "--progress",
        "json",
    ];
    let mut running = Running::start(&mut bench(directory.path(), &[SMALL, &args].concat()));
    running.wait_for("\"round\":2");
    running.signal(libc::SIGINT);
    running.wait_for("\"interrupted\"");
    running.wait_for("\"exit_code\":130");
    let output = running.end();
    assert_eq!(output.status.code(), Some(130));
    assert!(!output.stdout.is_empty());
    assert!(scratch_files(directory.path()).is_empty());
}

/// The names of all fields of an event, its own and those inside.
fn fields(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                names.push(name.clone());
                fields(value, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

#[test]
fn every_event_and_every_field_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/progress.md");
    let page = std::fs::read_to_string(page).unwrap();
    let directory = directory();
    let (_, events) = json(directory.path(), &["--rounds", "2", "--strategy", "pread"]);
    let mut names = Vec::new();
    events.iter().for_each(|event| fields(event, &mut names));
    names.extend(
        events
            .iter()
            .map(|event| event["event"].as_str().unwrap().to_owned()),
    );
    assert!(names.contains(&"ns_p50".to_owned()), "{names:?}");
    names.sort_unstable();
    names.dedup();
    for name in names {
        assert!(
            page.contains(&format!("`{name}`")),
            "`{name}` is not in docs/progress.md"
        );
    }
}

#[cfg(feature = "live")]
#[test]
fn a_full_screen_is_refused_where_there_is_none() {
    let directory = directory();
    let args = ["--rounds", "1", "--strategy", "null", "--live"];
    let output = run(directory.path(), &[SMALL, &args].concat());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("no full screen: stderr is not a terminal"),
        "{told}"
    );
    assert!(told.contains("round 1/1"), "{told}");
}
