// A fixed number of threads, each with one plain `pread` after the other.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::Operation;

const BLOCK_BYTES: u32 = 4096;
const DIRECT: Direct = Direct::Off;
const THREADS: u32 = 16;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| io::Error::other("give a file to read"))?;
    println!("{} bytes", read_blocks(path.as_ref())?);
    Ok(())
}

/// Reads every whole block and counts the bytes.
fn read_blocks(path: &Path) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).direct(DIRECT).open(path)?;
    let blocks = file.metadata().wait()?.len / u64::from(BLOCK_BYTES);
    let next = AtomicU64::new(0);
    let reading = || read_some(&file, &next, blocks);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(reading)).collect();
        let counts = threads.into_iter().map(|thread| thread.join());
        counts
            .map(|bytes| bytes.expect("reading does not panic"))
            .sum()
    })
}

/// Takes the next block that nobody has taken, until there is none.
fn read_some(file: &File, next: &AtomicU64, blocks: u64) -> io::Result<u64> {
    let mut block = file.aligned_buf(BLOCK_BYTES as usize)?;
    let mut bytes = 0;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= blocks {
            return Ok(bytes);
        }
        let offset = number * u64::from(BLOCK_BYTES);
        let (result, back) = file.read_exact_at(block, offset).wait();
        bytes += result? as u64;
        block = back; // with the bytes of this block in it
    }
}
