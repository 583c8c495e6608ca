// Awaited from tokio: many tasks, each awaits one read after the other. tokio's threads hand the
// reads to the kernel and take the results, as long as that is the fastest way.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inflight::fs::{Direct, File, OpenOptions};
use inflight::Engine;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

const BLOCK_BYTES: u32 = 4096;
const DIRECT: Direct = Direct::Off;
const DEPTH: u32 = 32;
const WORKERS: u32 = 1;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| io::Error::other("give a file to read"))?;
    println!("{} bytes", read_blocks(path.as_ref())?);
    Ok(())
}

/// Reads every whole block and counts the bytes.
fn read_blocks(path: &Path) -> io::Result<u64> {
    let mut builder = match WORKERS {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(WORKERS as usize).enable_io().build()?;
    runtime.block_on(async {
        if let Err(refusal) = Engine::global()?.serve_on_tokio() {
            eprintln!("threads of the library do it: {refusal}");
        }
        let file = OpenOptions::new().read(true).direct(DIRECT).open(path)?;
        let blocks = file.metadata().await?.len / u64::from(BLOCK_BYTES);
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
        let (result, back) = file.read_exact_at(block, offset).await;
        bytes += result? as u64;
        block = back; // with the bytes of this block in it
    }
}
