//! Transfers of more than one system call can move.

use std::fs;
use std::os::unix::fs::FileExt;

use inflight::{Batch, Engine, Operation};
use tempfile::NamedTempFile;

use crate::support::{chill, read_write, skip, temp_path};

/// What the machine can give without being slow, from proc_meminfo(5).
fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn more_than_one_call_moves_is_read_whole() {
    const LEN: usize = (1 << 31) + 8192;
    const TAIL: &[u8] = b"the last bytes";
    if available_kib() < 4 << 20 {
        return skip("a read of 2 GiB", "less than 4 GiB of memory are available");
    }
    // Holes of a file in memory take no memory, and are read fast.
    let in_memory = NamedTempFile::new_in("/dev/shm");
    let path = in_memory.unwrap_or_else(|_| temp_path(b""));
    let sparse = path.as_file();
    sparse.set_len(u64::try_from(LEN).unwrap()).unwrap();
    sparse.write_all_at(b"first bytes", 0).unwrap();
    let at = u64::try_from(LEN - TAIL.len()).unwrap();
    sparse.write_all_at(TAIL, at).unwrap();
    let file = read_write(&Engine::new().unwrap());
    let file = file.open(path.path()).unwrap();
    chill(&file);
    let mut batch = Batch::new();
    batch.push(file.read_at(vec![0; LEN], 0));
    batch.push(file.read_at(vec![0; 11], 0));
    let mut results = batch.wait();
    let (result, mut buf) = results.next().unwrap();
    assert_eq!(result.unwrap(), LEN);
    assert!(buf.starts_with(b"first bytes") && buf.ends_with(TAIL));
    assert_eq!(results.next().unwrap().1, b"first bytes");
    drop(results);
    buf[LEN - TAIL.len()..].fill(0);
    buf[..11].fill(0);
    let (result, buf) = file.read_at(buf, 0).wait();
    assert_eq!(result.unwrap(), LEN);
    assert!(buf.starts_with(b"first bytes") && buf.ends_with(TAIL));
}
