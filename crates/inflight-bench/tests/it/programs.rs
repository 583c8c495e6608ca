//! The programs that `inflight show --code rust` prints: each compiles here, and reads a file.

use std::path::Path;

use crate::support::{directory, inflight, stderr};

macro_rules! program {
    ($name:ident, $file:literal) => {
        #[allow(dead_code, reason = "its `main` is for those who copy it")]
        mod $name {
            include!(concat!("../../programs/", $file));

            #[test]
            fn reads_every_block() {
                let directory = crate::support::directory();
                let path = directory.path().join("data");
                std::fs::write(&path, vec![7; 100 * 4096 + 5]).unwrap();
                assert_eq!(read_blocks(&path).unwrap(), 100 * 4096);
                assert!(read_blocks(&directory.path().join("nothing")).is_err());
            }
        }
    };
}

program!(one_loop, "one_loop.rs");
program!(threads, "threads.rs");
program!(ring, "ring.rs");
program!(run_loop, "run_loop.rs");
program!(tokio_tasks, "tokio_tasks.rs");
program!(tokio_blocking, "tokio_blocking.rs");

/// What is printed for a record, and where that differs from a program of the list.
fn printed(record: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = inflight();
    command.args(["show", "--code", "rust"]).args(arguments);
    let output = command.arg(record).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output.status.code(), text + &stderr(&output))
}

/// A kept record with only these strategies, so that one of them is recommended.
fn only(directory: &Path, strategies: &[&str], depth: u32) -> std::path::PathBuf {
    let kept = "../../docs/measurements/2026-11-21-virtio-2cpu/disk-futures.json";
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(kept);
    let text = std::fs::read_to_string(kept).unwrap();
    let mut record: inflight_report::Record = serde_json::from_str(&text).unwrap();
    let wanted = |cell: &inflight_report::record::Cell| {
        strategies.contains(&&*cell.strategy) && cell.depth == depth
    };
    record.cells.retain(wanted);
    assert_eq!(record.cells.len(), strategies.len());
    let path = directory.join("record.json");
    std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
    path
}

#[test]
fn the_verdict_decides_which_program_is_printed_with_its_figures() {
    let directory = directory();
    for (strategy, depth, file) in [
        ("pread", 1, "one_loop.rs"),
        ("tokio", 32, "tokio_blocking.rs"),
        ("uring-tuned", 128, "ring.rs"),
        ("inflight", 1, "one_loop.rs"),
        ("inflight", 128, "ring.rs"),
        ("inflight-local", 32, "run_loop.rs"),
        ("inflight-async", 128, "tokio_tasks.rs"),
        ("inflight-async-1", 32, "tokio_tasks.rs"),
    ] {
        let (code, text) = printed(&only(directory.path(), &[strategy], depth), &[]);
        assert_eq!(code, Some(0), "{strategy}: {text}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let program = std::fs::read_to_string(path.join(file)).unwrap();
        let (head, body) = text.split_once("\n\n").unwrap();
        assert!(head.lines().all(|line| line.starts_with("// ")), "{head}");
        assert!(head.contains("Needs inflight = { path ="), "{head}");
        let is_another = head.contains("It is not `uring-tuned` itself, but the library");
        assert_eq!(is_another, strategy == "uring-tuned", "{head}");
        assert_eq!(body.lines().count(), program.lines().count(), "{strategy}");
        let changed = body.lines().zip(program.lines()).filter(|(a, b)| a != b);
        for (line, was) in changed {
            let start = was.split('=').next().unwrap();
            assert!(
                was.starts_with("const ") && line.starts_with(start),
                "{was}: {line}"
            );
        }
        assert!(
            body.contains("const DIRECT: Direct = Direct::Required;"),
            "{body}"
        );
        if program.contains("const DEPTH") {
            let depth = format!("const DEPTH: u32 = {depth};");
            assert!(body.contains(&depth), "{strategy}: {body}");
        }
    }
}

#[test]
fn a_profile_that_is_not_there_or_has_no_verdict_has_no_program() {
    let directory = directory();
    let path = only(directory.path(), &["pread"], 1);
    let (code, told) = printed(&path, &["--profile", "nonsense"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("it has direct-random-read"), "{told}");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut record: inflight_report::Record = serde_json::from_str(&text).unwrap();
    record.cells.clear();
    std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
    let (code, told) = printed(&path, &[]);
    assert_eq!(code, Some(3), "{told}");
    let output = inflight()
        .args(["show", "--code", "rust"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("// Nothing was measured"), "{text}");
}

#[test]
fn nothing_of_a_record_but_numbers_becomes_code_and_nothing_controls_the_terminal() {
    let directory = directory();
    let path = only(directory.path(), &["inflight-async"], 128);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut record: inflight_report::Record = serde_json::from_str(&text).unwrap();
    let told = |workers: &str, record: &mut inflight_report::Record| {
        let effective = &mut record.cells[0].effective;
        effective.insert("worker-threads".to_owned(), workers.to_owned());
        std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
        let (code, text) = printed(&path, &[]);
        assert_eq!(code, Some(0), "{text}");
        text
    };
    assert!(told("7", &mut record).contains("const WORKERS: u32 = 7;"));
    let own = format!("const WORKERS: u32 = {};", record.cells[0].threads);
    for hostile in ["1;\nfn evil() {}\nconst X: u32 = 1", "1 + evil()", "", "0"] {
        let text = told(hostile, &mut record);
        assert!(text.contains(&own) && !text.contains("evil"), "{text}");
    }
    let profile = record.cells[0].profile.clone();
    for summary in &mut record.profiles {
        summary.title = "reads\x1b[2J\u{9b}31m\rfn evil() {}".to_owned();
    }
    let text = told("1", &mut record);
    let controls = |letter: char| letter.is_control() && letter != '\n';
    assert!(!text.contains(controls), "{text:?}");
    assert!(text.starts_with("// reads [2J 31m fn evil() {}"), "{text}");
    // Nor by way of an error.
    record.profiles.retain(|summary| summary.name == profile);
    record.profiles[0].name += "\x1b[2J";
    std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
    let (code, text) = printed(&path, &["--profile", "nonsense"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(!text.contains(controls), "{text:?}");
}

#[test]
fn a_program_is_not_asked_for_together_with_a_file() {
    let directory = directory();
    let path = only(directory.path(), &["pread"], 1);
    for flag in [
        "--export-json",
        "--export-csv",
        "--export-markdown",
        "--report",
    ] {
        let file = directory.path().join("file");
        let (code, told) = printed(&path, &[flag, file.to_str().unwrap()]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--code") && told.contains(flag), "{told}");
        assert!(!file.exists());
    }
}
