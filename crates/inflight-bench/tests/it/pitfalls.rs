//! Data that passes for a disk's and is none: staged, and seen to be caught.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use inflight_report::record::Record;
use inflight_report::truth::out_of_ranking;
use seccompiler::SeccompAction;

use crate::doctor::can_mount;
use crate::doctor::refused::filtered;
use crate::support::{bench, directory, hold_in_memory, limited, record, run};

const BYTES: u64 = 8 << 20;
const DIRECT: &[&str] = &[
    "--profile",
    "direct-random-read",
    "--strategy",
    "pread",
    "--depth",
    "1",
    "--rounds",
    "2",
    "--cell-time",
    "100",
];

const APPEND: &[&str] = &[
    "--profile",
    "durable-append",
    "--strategy",
    "pread",
    "--depth",
    "1",
    "--rounds",
    "2",
    "--cell-time",
    "500",
];

/// Measures direct reads of a file that is there; nothing where they are refused.
fn measured(file: &Path) -> Option<(i32, Record)> {
    let (code, record) = record(file, DIRECT);
    let cell = &record.cells[0];
    if let Some(skipped) = &cell.skipped {
        println!("skipped: {}", skipped.reason);
        return None;
    }
    Some((code, record))
}

fn is_caught(file: &Path) {
    let Some((code, record)) = measured(file) else {
        return;
    };
    let out = out_of_ranking(&record.cells[0], &record.profiles[0], &record.target);
    let why = out.expect("no device has read anything");
    assert!(
        why.contains("unwritten or sparse data") || why.contains("memory"),
        "{why}"
    );
    assert_eq!(code, 3);
}

#[test]
fn a_sparse_file_is_not_taken_for_a_disk() {
    let directory = directory();
    let path = directory.path().join("sparse");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    is_caught(&path);
}

#[test]
fn space_that_was_reserved_and_never_written_is_not_taken_for_a_disk() {
    let directory = directory();
    let path = directory.path().join("unwritten");
    let status = Command::new("fallocate")
        .args(["--length", &BYTES.to_string()])
        .arg(&path)
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: fallocate is missing here, or refused");
        return;
    }
    is_caught(&path);
}

#[test]
fn test_data_can_neither_be_compressed_nor_shared() {
    let directory = directory();
    let args = [DIRECT, &["--size", "8m", "--keep-file"]].concat();
    let output = run(directory.path(), &args);
    let entries = std::fs::read_dir(directory.path()).unwrap();
    let path = entries.map(|entry| entry.unwrap().path()).next();
    let path = path.unwrap_or_else(|| panic!("{output:?}"));
    let data = std::fs::read(&path).unwrap();
    assert_eq!(data.len() as u64, BYTES);
    // A block with the bytes of another one would be stored once.
    let mut blocks: Vec<&[u8]> = data.chunks(4096).collect();
    let count = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), count);
    let packed = Command::new("gzip").args(["-1", "-c"]).arg(&path).output();
    let Ok(packed) = packed.map(|output| output.stdout.len()) else {
        println!("skipped in part: gzip is not installed");
        return;
    };
    assert!(packed > data.len() / 100 * 97, "packed to {packed} bytes");
}

#[test]
fn a_sync_that_brings_nothing_to_the_device_is_not_taken_for_one() {
    let directory = directory();
    let args = [
        "--size",
        "16m",
        "--rounds",
        "2",
        "--cell-time",
        "50",
        "--depth",
        "1",
    ];
    let which = ["--profile", "durable-append", "--strategy", "pread"];
    let mut command = bench(directory.path(), &[&args[..], &which].concat());
    command.args(["--export-json", "-"]);
    // The kernel answers that all is well, and does nothing.
    let output = filtered(
        &mut command,
        &[libc::SYS_fdatasync],
        SeccompAction::Errno(0),
    );
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let cell = &record.cells[0];
    if cell.rounds.iter().any(|round| round.device.is_none()) {
        println!("skipped: the build directory is on no block device");
        return;
    }
    assert!(cell.rounds.iter().all(|round| round.ops > 0), "{cell:?}");
    let out = out_of_ranking(cell, &record.profiles[0], &record.target);
    let why = out.expect("the device has taken next to nothing");
    assert!(why.contains("did not get further than a cache"), "{why}");
}

#[test]
fn data_that_stays_in_memory_is_not_called_cold() {
    let directory = directory();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    let held = hold_in_memory(&file, 1 << 20);
    let args = ["--profile", "cold-random-read", "--strategy", "pread"];
    let small = ["--depth", "1", "--rounds", "1", "--cell-time", "5"];
    let Some(_held) = held else {
        println!("skipped: memory cannot be locked here");
        return;
    };
    let (code, record) = record(&path, &[&args[..], &small].concat());
    assert_eq!(code, 3);
    let why = &record.cells[0].skipped.as_ref().unwrap().reason;
    assert!(why.contains("cannot be emptied"), "{why}");
}

#[test]
fn a_small_disk_is_not_filled() {
    if !can_mount("a_small_disk_is_not_filled") {
        return;
    }
    let directory = directory();
    let path = directory.path();
    let inner = bench(path, &[APPEND, &["--size", "7800k"]].concat());
    let mount = format!("mount -t tmpfs -o size=8m tmpfs '{}'", path.display());
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(format!("{mount}\nexec \"$0\" \"$@\""))
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn writes_that_find_no_room_are_counted_and_their_rate_is_not() {
    let directory = directory();
    let json = ["--export-json", "-"];
    let inner = bench(
        directory.path(),
        &[APPEND, &json, &["--size", "16m"]].concat(),
    );
    // Files end at 32 KiB, which stands for a disk that is full: others cannot be made so small.
    let output = limited("-f 64", &inner);
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let cell = &record.cells[0];
    assert!(cell.rounds.iter().any(|round| round.errors > 0), "{cell:?}");
    let out = out_of_ranking(cell, &record.profiles[0], &record.target);
    let out = out.unwrap();
    assert!(out.contains("failed (File too large"), "{out}");
}
