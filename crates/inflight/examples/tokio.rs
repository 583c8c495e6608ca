//! Awaited from tokio: a task for each block, as a server would have one for each request. The
//! runtime's own threads do the work (`Engine::serve_on_tokio`); if they cannot, threads of the
//! library do.
//!
//! `cargo run --release -p inflight --features tokio --example tokio -- FILE`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use inflight::fs::OpenOptions;
use inflight::{Awaited, Engine};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give a file to read")?;
    // Once for each runtime, from within it. It is no error of the program's if it cannot be had.
    if let Err(refusal) = Engine::global()?.serve_on_tokio() {
        eprintln!("threads of the library do the work: {refusal}");
    }
    let file = Arc::new(OpenOptions::new().read(true).opening(path).await?);
    let blocks = file.metadata().await?.len.div_ceil(4096).min(10_000);

    let mut tasks = JoinSet::new();
    for block in 0..blocks {
        let file = Arc::clone(&file);
        tasks.spawn(async move {
            let read = file.read_at(vec![0; 4096], block * 4096);
            match read.timeout(Duration::from_secs(5)).await {
                Ok((result, _buf)) => result,
                // The read goes on, and its buffer is left to it.
                Err(late) => Err(late.into()),
            }
        });
    }
    let mut bytes = 0;
    while let Some(task) = tasks.join_next().await {
        bytes += task??;
    }
    println!("{bytes} bytes in {blocks} reads");
    println!("{:#?}", file.engine().stats());
    Ok(())
}
