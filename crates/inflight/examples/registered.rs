//! A scan past the page cache: registered buffers, and a queue that is kept full.
//!
//! ```text
//! cargo run --example registered -p inflight
//! ```

use std::{error::Error, fs};

use inflight::BufPool;
use inflight::fs::{Direct, OpenOptions};

const CHUNK: usize = 64 << 10;
const CHUNKS: u64 = 256;
const DEPTH: u32 = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data");
    let content: Vec<u8> = (0..CHUNKS).flat_map(chunk).collect();
    fs::write(&path, &content)?;

    // Direct where the file system can, else through the page cache; the buffers fit both.
    let options = OpenOptions::new().read(true).direct(Direct::Auto);
    let file = options.open(&path)?;
    let pool = BufPool::new(DEPTH, CHUNK)?;

    let sum = file.engine().queue(DEPTH, |queue| {
        let (mut next, mut sum) = (0, 0_u64);
        loop {
            // Keep it full: what is pushed goes to the kernel with the next call of `next`.
            while next < CHUNKS && !queue.is_full() {
                let buf = pool.take().expect("as many buffers as places");
                let read = file.read_exact_at(buf, next * CHUNK as u64);
                queue.push(next, read).expect("it is not full");
                next += 1;
            }
            // Results come as they complete; the tag says which one it is.
            let Some((number, (result, buf))) = queue.next() else {
                return std::io::Result::Ok(sum);
            };
            assert!(result? == CHUNK && buf.starts_with(&number.to_le_bytes()));
            sum += buf.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
    })??;

    assert_eq!(sum, content.iter().map(|byte| u64::from(*byte)).sum());
    println!(
        "{CHUNKS} chunks read; past the page cache: {}",
        file.is_direct()
    );
    Ok(())
}

/// A chunk that begins with its number.
fn chunk(number: u64) -> impl Iterator<Item = u8> {
    let words = (0..CHUNK as u64 / 8).map(move |word| number.wrapping_add(word << 20));
    words.flat_map(u64::to_le_bytes)
}
