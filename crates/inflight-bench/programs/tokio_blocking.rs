// tokio without io_uring: many tasks, each read runs on one of tokio's threads for blocking work.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inflight::fs::{Direct, File, OpenOptions};
use inflight::Operation;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, spawn_blocking};

const BLOCK_BYTES: u32 = 4096;
const DIRECT: Direct = Direct::Off;
const DEPTH: u32 = 32;

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
    let runtime = Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let (file, next) = (Arc::new(file), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..DEPTH {
            tasks.spawn(read_some(Arc::clone(&file), Arc::clone(&next), blocks));
        }
        tasks.join_all().await.into_iter().sum()
    })
}

/// Takes the next block that nobody has taken, until there is none.
async fn read_some(file: Arc<File>, next: Arc<AtomicU64>, blocks: u64) -> io::Result<u64> {
    let mut block = file.aligned_buf(BLOCK_BYTES as usize)?;
    let mut bytes = 0;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= blocks {
            return Ok(bytes);
        }
        let offset = number * u64::from(BLOCK_BYTES);
        let file = Arc::clone(&file);
        let reading = spawn_blocking(move || file.read_exact_at(block, offset).wait());
        let (result, back) = reading.await.map_err(io::Error::other)?;
        bytes += result? as u64;
        block = back; // with the bytes of this block in it
    }
}
