//! Awaited from smol, and a whole batch at once: one hand-over, one wake-up.
//!
//! `cargo run --release -p inflight --example smol -- FILE`

use std::io;

use inflight::Batch;
use inflight::fs::OpenOptions;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| io::Error::other("give a file to read"))?;
    smol::block_on(async {
        let file = OpenOptions::new().read(true).opening(path).await?;
        let mut batch = Batch::new();
        for block in 0..64 {
            batch.push(file.read_at(vec![0; 4096], block * 4096));
        }
        let mut bytes = 0;
        for (result, _buf) in batch.await {
            bytes += result?;
        }
        println!("{bytes} bytes");
        Ok(())
    })
}
