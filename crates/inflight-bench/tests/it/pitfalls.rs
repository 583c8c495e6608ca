//! Data that passes for a disk's and is none: staged, and seen to be caught.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use inflight_report::record::Record;
use inflight_report::truth::out_of_ranking;

use crate::support::{directory, record, run};

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
    "20",
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
