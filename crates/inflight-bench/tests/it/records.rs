//! Commands that read records: the ones kept in `docs/measurements`, and fresh ones.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use inflight_report::Record;
use inflight_report::merged::Merged;

use crate::support::{bench, directory, inflight, stderr};

/// A record that is kept in the repository.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/measurements")
        .join(name)
}

fn old() -> PathBuf {
    kept("2026-11-20-virtio-2cpu/loop-direct.json")
}

fn new() -> PathBuf {
    kept("2026-11-21-virtio-2cpu/loop-direct.json")
}

fn run(arguments: &[&str], records: &[&Path]) -> Output {
    let mut command = inflight();
    command.args(arguments).args(records).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A copy of a record, changed.
fn changed(directory: &Path, name: &str, change: impl FnOnce(&mut Record)) -> PathBuf {
    let text = std::fs::read_to_string(old()).unwrap();
    let mut record: Record = serde_json::from_str(&text).unwrap();
    change(&mut record);
    let path = directory.join(name);
    std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
    path
}

#[test]
fn records_of_different_plans_are_compared_only_on_demand() {
    let output = run(&["compare"], &[&old(), &new()]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(
        told.contains("only in the old record") && told.contains("--anyway"),
        "{told}"
    );
    assert!(output.stdout.is_empty());
    let output = run(&["compare", "--anyway"], &[&old(), &new()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for told in [
        "Not of the same kind",
        "unpaired",
        "0 regressions beyond 5 %",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
}

#[test]
fn a_regression_ends_with_5_and_none_with_0() {
    let directory = directory();
    let slower = changed(directory.path(), "slower.json", |record| {
        let ours = record.cells.iter_mut();
        let ours = ours.filter(|cell| cell.strategy == "inflight" && cell.depth == 64);
        for round in ours.flat_map(|cell| &mut cell.rounds) {
            round.ops /= 2;
        }
    });
    let output = run(&["compare"], &[&old(), &slower]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("1 regression beyond 5 %"), "{text}");
    assert_eq!(text.matches("SLOWER").count(), 1, "{text}");
    for (arguments, code) in [
        (&["compare", "--threshold", "60"][..], 0),
        (&["compare", "--threshold", "40%"], 5),
    ] {
        let output = run(arguments, &[&old(), &slower]);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
    // Of several newer records one that is worse is enough.
    let output = run(&["compare"], &[&old(), &slower, &old()]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stdout(&output).contains("0 regressions beyond 5 %"));
}

#[test]
fn a_threshold_within_the_zone_of_no_difference_is_refused() {
    for (threshold, told) in [
        ("1", "at least 3 percent"),
        ("0", "no real difference"),
        ("2.99%", "at least 3 percent"),
        ("-4", "at least 3 percent"),
        ("100", "below 100"),
        ("NaN", "below 100"),
    ] {
        let flag = format!("--threshold={threshold}");
        let output = run(&["compare", &flag], &[&old(), &old()]);
        assert_eq!(output.status.code(), Some(2), "{threshold}");
        assert!(
            stderr(&output).contains(told),
            "{threshold}: {}",
            stderr(&output)
        );
    }
    let output = run(&["compare", "--threshold=3"], &[&old(), &old()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("0 regressions beyond 3 %"));
}

#[test]
fn two_open_loops_have_nothing_to_compare_and_the_reason_is_said() {
    let directory = directory();
    let by_clock = changed(directory.path(), "open.json", |record| {
        for cell in &mut record.cells {
            cell.rate_per_s = Some(1_000);
        }
    });
    let output = run(&["compare"], &[&by_clock, &by_clock]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let told = stderr(&output);
    let why = "has a rate that was given, not found: hold its latencies to a limit (--assert)";
    assert!(
        told.contains("no measured cell in common") && told.contains(why),
        "{told}"
    );
}

#[test]
fn the_comparison_goes_to_a_file_as_markdown_or_to_stdout() {
    let directory = directory();
    let file = directory.path().join("comment.md");
    let flag = format!("--export-markdown={}", file.display());
    let output = run(&["compare", &flag], &[&old(), &old()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("+0.0%"));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("| strategy | depth |"), "{text}");
    let output = run(&["compare", "--export-markdown", "-"], &[&old(), &old()]);
    assert_eq!(stdout(&output), text);
}

#[test]
fn limits_decide_about_one_record_or_about_the_newer_ones() {
    let check = |limit: &str, records: &[&Path]| {
        let output = run(&["compare", "--anyway", "--assert", limit], records);
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let selected = "strategy=inflight,depth=64";
    let (code, told) = check(&format!("{selected}:p99<100ms"), &[&new()]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("kept by all 1 cells"), "{told}");
    let (code, told) = check(&format!("{selected}:p99<1us"), &[&new()]);
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("NOT KEPT"), "{told}");
    // The old record would not keep it: it is not asked.
    let limit = format!("{selected}:iops>400k");
    assert_eq!(check(&limit, &[&old()]).0, Some(5));
    assert_eq!(check(&limit, &[&old(), &new()]).0, Some(0));
    for wrong in ["p99<1", "strategy=nonsense:iops>1", "p99"] {
        let (code, told) = check(wrong, &[&new()]);
        assert_eq!(code, Some(2), "{wrong}: {told}");
    }
}

#[test]
fn what_is_no_record_or_too_few_is_a_usage_error() {
    let directory = directory();
    let text = directory.path().join("text.json");
    std::fs::write(&text, "{\"schema\": 1}").unwrap();
    let output = run(&["compare"], &[&old(), &text]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("text.json"), "{}", stderr(&output));
    let output = run(&["compare"], &[&old()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--assert"), "{}", stderr(&output));
    let nothing = directory.path().join("nothing.json");
    let output = run(&["show"], &[&nothing]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot be read"));
    let output = run(&["show"], &[directory.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Is a directory"));
    let bytes = directory.path().join("bytes.json");
    std::fs::write(&bytes, [0xff; 64]).unwrap();
    let output = run(&["show"], &[&bytes]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is no record: it is not text"));
    let large = directory.path().join("large.json");
    let sparse = std::fs::File::create(&large).unwrap();
    sparse.set_len((1 << 30) + 1).unwrap();
    let output = run(&["show"], &[&large]);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(told.contains("more than 1 GiB"), "{told}");
    let cut = directory.path().join("cut.json");
    let whole = std::fs::read_to_string(old()).unwrap();
    for (written, told) in [
        (whole[..whole.len() / 2].to_owned(), "not a whole one"),
        (
            whole.replace("inflight.bench/1", "inflight.bench/2"),
            "that wrote it",
        ),
    ] {
        std::fs::write(&cut, written).unwrap();
        let output = run(&["show"], &[&cut]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[test]
fn what_is_not_read_by_a_terminal_has_the_columns_that_the_environment_tells() {
    let longest = |columns: &str| {
        let mut command = inflight();
        let shown = command
            .arg("show")
            .arg(new())
            .env("COLUMNS", columns)
            .output();
        let text = stdout(&shown.unwrap());
        text.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!(longest("80") <= 80, "{}", longest("80"));
    assert!(longest("nonsense") > 80);
}

#[test]
fn who_does_not_want_to_read_all_of_it_makes_no_error() {
    for args in [
        &["show"][..],
        &["man", "bench"],
        &["bench", "--explain"],
        &["--help"],
    ] {
        let mut command = inflight();
        command.args(args);
        if args == ["show"] {
            command.arg(new());
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = inflight()
        .arg("show")
        .arg(new())
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(
        told.contains("stdout cannot be written: No space"),
        "{told}"
    );
}

#[test]
fn a_record_is_shown_again_as_it_was() {
    let directory = directory();
    let file = directory.path().join("result.json");
    let small = ["--size", "1m", "--rounds", "1", "--cell-time", "5"];
    let cached = ["--profile", "cached-random-read", "--strategy", "pread"];
    let mut command = bench(directory.path(), &[&small[..], &cached].concat());
    let first = command.arg("--export-json").arg(&file).output().unwrap();
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let again = run(&["show"], &[&file]);
    assert_eq!(stdout(&again), stdout(&first));
    let csv = stdout(&run(&["show", "--export-csv", "-"], &[&file]));
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(csv.starts_with("profile,strategy,depth,"), "{csv}");
    let markdown = stdout(&run(&["show", "--export-markdown", "-"], &[&file]));
    assert!(markdown.contains("- **Verdict**: "), "{markdown}");
    let output = run(&["show", "--export-csv=-", "--export-json=-"], &[&file]);
    assert_eq!(output.status.code(), Some(2), "both cannot have stdout");
}

#[test]
fn a_page_holds_the_record_and_serves_as_one() {
    let directory = directory();
    let page = directory.path().join("report.html");
    let shown = run(&["show", "--report"], &[&page, &new()]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let again = run(&["show"], &[&page]);
    assert_eq!(stdout(&again), stdout(&shown));
    let compared = run(&["compare"], &[&page, &new()]);
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    let other = directory.path().join("other.html");
    std::fs::write(&other, "<html></html>").unwrap();
    let refused = run(&["show"], &[&other]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("holds no record"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn records_are_merged_in_any_order_and_shown() {
    let directory = directory();
    let second = changed(directory.path(), "second.json", |record| record.seed += 1);
    let second = format!("db2={}", second.display());
    let first = format!("db1={}", old().display());
    let (one, other) = (
        directory.path().join("1.json"),
        directory.path().join("2.json"),
    );
    let merge = |names: [&str; 2], into: &Path| {
        let into = into.to_str().unwrap();
        run(&["merge", names[0], names[1], "--export-json", into], &[])
    };
    let output = merge([&first, &second], &one);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("2 nodes, plan "),
        "{}",
        stdout(&output)
    );
    assert_eq!(merge([&second, &first], &other).status.code(), Some(0));
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap());
    assert_eq!(stdout(&run(&["show"], &[&one])), stdout(&output));
    let refused = run(&["compare"], &[&old(), &one]);
    assert!(
        stderr(&refused).contains("several machines"),
        "{}",
        stderr(&refused)
    );
    let twice = run(&["merge"], &[&one, &old()]);
    assert_eq!(twice.status.code(), Some(2), "{}", stderr(&twice));
    assert!(
        stderr(&twice).contains("are the same run"),
        "{}",
        stderr(&twice)
    );
    let plans = run(&["merge"], &[&old(), &new()]);
    assert_eq!(plans.status.code(), Some(2), "{}", stderr(&plans));
    assert!(stderr(&plans).contains("two records are called `loop-direct`"));
}

#[test]
fn a_record_is_merged_whose_file_name_is_no_text() {
    let directory = directory();
    let first = changed(directory.path(), "first.json", |_| ());
    let second = changed(directory.path(), "second.json", |record| record.seed += 1);
    let odd = |name: &[u8]| directory.path().join(OsStr::from_bytes(name));
    let (plain, named) = (odd(b"first-\xff.json"), odd(b"second-\xff.json"));
    std::fs::rename(first, &plain).unwrap();
    std::fs::rename(second, &named).unwrap();
    let mut second = OsString::from("db2=");
    second.push(&named);
    let merge = ["merge", "--export-json", "-"];
    let output = run(&merge, &[&plain, Path::new(&second)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let merged: Merged = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&String> = merged.nodes.keys().collect();
    assert_eq!(names, ["db2", "first-\u{fffd}"]);
}

#[test]
fn a_name_for_what_is_merged_already_is_refused_with_the_way_out() {
    let directory = directory();
    let merged = directory.path().join("merged.json");
    let named = format!("db1={}", old().display());
    let into = merged.to_str().unwrap();
    let output = run(&["merge", &named, "--export-json", into], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let refused = run(&["merge", &format!("db2={into}")], &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", stdout(&refused));
    let why = stderr(&refused);
    assert!(why.contains("merged already"), "{why}");
    assert!(why.contains("leave `db2=` out"), "{why}");
    let again = run(&["merge"], &[&merged]);
    assert_eq!(stdout(&again), stdout(&output), "{}", stderr(&again));
}

/// What a file violates of a schema that is published.
fn violations(schema: &str, file: &Path) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let read = |path: &Path| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let validator = jsonschema::validator_for(&read(&folder.join(schema))).unwrap();
    let stored = read(file);
    let found = validator.iter_errors(&stored);
    found.map(|error| error.to_string()).collect()
}

#[test]
fn what_is_written_obeys_the_published_schema() {
    let directory = directory();
    let file = directory.path().join("result.json");
    let small = [
        "--size",
        "1m",
        "--rounds",
        "2",
        "--cell-time",
        "5",
        "--depth",
        "1,4",
    ];
    let mut command = bench(directory.path(), &small);
    let output = command.arg("--export-json").arg(&file).output().unwrap();
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| code == 0 || code == 3)
    );
    assert_eq!(violations("inflight.bench-1.json", &file), [""; 0]);
    let merged = directory.path().join("merged.json");
    let arguments = ["merge", "--export-json", merged.to_str().unwrap()];
    let output = run(&arguments, &[&file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(violations("inflight.merged-1.json", &merged), [""; 0]);
    assert_ne!(violations("inflight.bench-1.json", &merged), [""; 0]);
}

#[test]
fn records_that_were_kept_can_still_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
    let folders = std::fs::read_dir(folder)
        .unwrap()
        .map(|folder| folder.unwrap().path());
    let folders = folders.filter(|folder| folder.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path());
    let is_record = |file: &PathBuf| {
        let is_json = file.extension().is_some_and(|kind| kind == "json");
        is_json
            && std::fs::read_to_string(file)
                .unwrap()
                .contains("\"inflight.bench/1\"")
    };
    let records = files.filter(is_record);
    let mut seen = 0;
    for record in records {
        let output = run(&["show"], &[&record]);
        let (record, told) = (record.display(), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{record}: {told}");
        seen += 1;
    }
    assert!(seen > 0);
}
