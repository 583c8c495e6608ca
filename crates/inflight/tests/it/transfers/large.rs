//! Transfers of more than one system call can move.

use std::fs;
use std::os::unix::fs::FileExt;

use inflight::{Batch, Engine, Operation};
use tempfile::NamedTempFile;

use crate::support::{chill, open, skip, temp_path};

/// What the machine can give without being slow, from proc_meminfo(5).
fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

const LEN: usize = (1 << 31) + 8192;
const HEAD: &[u8] = b"first bytes";
const TAIL: &[u8] = b"the last bytes";

/// Whether there is memory for [`LEN`] bytes; a skip is said.
fn has_memory(name: &str) -> bool {
    let has = available_kib() >= 5 << 20;
    if !has {
        skip(name, "less than 5 GiB of memory are available");
    }
    has
}

/// Makes a file of [`LEN`] bytes with a hole in the middle.
fn hollow(file: NamedTempFile) -> NamedTempFile {
    let sparse = file.as_file();
    let len = u64::try_from(LEN).expect("it has 64 bits");
    sparse.set_len(len).expect("holes take no room");
    sparse.write_all_at(HEAD, 0).expect("there is room");
    let at = len - TAIL.len() as u64;
    sparse.write_all_at(TAIL, at).expect("there is room");
    file
}

fn is_whole(buf: &[u8]) -> bool {
    buf.len() == LEN && buf.starts_with(HEAD) && buf.ends_with(TAIL)
}

#[test]
fn more_than_one_call_moves_is_read_whole_alone() {
    if !has_memory("a read of 2 GiB alone") {
        return;
    }
    // Holes of a file in memory take no memory, and are read fast.
    let in_memory = NamedTempFile::new_in("/dev/shm");
    let path = hollow(in_memory.unwrap_or_else(|_| temp_path(b"")));
    let file = open(&Engine::new().unwrap(), path.path());
    let (result, buf) = file.read_at(vec![0; LEN], 0).wait();
    assert!(result.unwrap() == LEN && is_whole(&buf));
}

#[test]
fn more_than_one_call_moves_is_read_whole_in_a_batch() {
    if !has_memory("a read of 2 GiB in a batch") {
        return;
    }
    let path = hollow(temp_path(b""));
    let file = open(&Engine::new().unwrap(), path.path());
    chill(&file);
    let mut batch = Batch::new();
    batch.push(file.read_at(vec![0; LEN], 0));
    batch.push(file.read_at(vec![0; 11], 0));
    let mut results = batch.wait();
    let (result, buf) = results.next().unwrap();
    assert!(result.unwrap() == LEN && is_whole(&buf));
    assert_eq!(results.next().unwrap().1, HEAD);
}
