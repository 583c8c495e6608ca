//! Each peer is measured, or says why not; nothing stays behind.

use std::path::Path;
use std::process::{Command, Stdio};

use inflight_report::Record;
use inflight_report::record::Cell;
use tempfile::TempDir;

const PEERS: &str = "compio,monoio,tokio-uring,glommio,uring-file";

/// A directory on the file system of the build, where direct I/O is likely to work.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the build writes there too")
}

fn record(directory: &Path, profile: &str, environment: &[(&str, &str)]) -> Record {
    let output = Command::new(env!("CARGO_BIN_EXE_inflight-peers"))
        .args(["bench", "--profile", profile, "--strategy", PEERS])
        .args(["--depth", "1,3,64", "--size", "16m", "--rounds", "2"])
        .args(["--cell-time", "20", "--export-json", "-"])
        .arg(directory)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the program was built for this test");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let left: Vec<_> = std::fs::read_dir(directory).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

fn check(cell: &Cell) {
    let id = &cell.id;
    if let Some(skipped) = &cell.skipped {
        println!("skipped: {id}: {}", skipped.reason);
        assert!(cell.rounds.is_empty() && !skipped.reason.is_empty(), "{id}");
        return;
    }
    assert_eq!(cell.rounds.len(), 2, "{id}");
    for round in &cell.rounds {
        assert!(round.ops > 0, "{id}");
        assert_eq!(round.bytes, round.ops * 4096, "{id}");
        assert_eq!((round.errors, round.short), (0, 0), "{id}");
        assert_eq!(round.syscalls, None, "{id}");
    }
    let latency = cell.latency.as_ref().expect("some reads are timed");
    assert!(latency.samples > 0, "{id}");
}

#[test]
fn every_peer_reads_what_was_asked_or_says_why_not() {
    for profile in ["direct-random-read", "cached-random-read"] {
        let record = record(directory().path(), profile, &[]);
        assert_eq!(record.cells.len(), PEERS.split(',').count() * 3);
        record.cells.iter().for_each(check);
    }
}

#[test]
fn without_io_uring_every_peer_is_skipped_and_no_ring_is_tried() {
    let forbidden = [("INFLIGHT_BACKEND", "threads")];
    let record = record(directory().path(), "direct-random-read", &forbidden);
    assert_eq!(record.cells.len(), PEERS.split(',').count() * 3);
    for cell in &record.cells {
        let skipped = cell.skipped.as_ref().expect("it cannot run");
        assert!(skipped.reason.contains("INFLIGHT_BACKEND"), "{}", cell.id);
    }
}
