//! Plain threads, one file: write a few blocks, make them durable, and read them back, one by one
//! and then all at once.
//!
//! ```text
//! cargo run --example blocking -p inflight
//! ```

use std::error::Error;

use inflight::fs::OpenOptions;
use inflight::{Batch, Operation};

const BLOCK: usize = 4096;
const BLOCKS: u8 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = OpenOptions::new().read(true).write(true).create_new(true);
    let file = options.open(folder.path().join("blocks"))?;
    println!("runs on {}", file.engine().backend().kind);

    // One operation is a value; `wait` runs it on this thread and gives the buffer back.
    let mut buf = vec![0; BLOCK];
    for number in 0..BLOCKS {
        buf.fill(number);
        let (result, back) = file.write_all_at(buf, at(number)).wait();
        result?;
        buf = back;
    }
    file.sync_data().wait()?;

    // A read may be short; one that is exact is not.
    let (result, buf) = file.read_exact_at(buf, at(7)).wait();
    assert_eq!(result?, BLOCK);
    assert_eq!(buf, [7; BLOCK]);

    // Many operations, handed over together, with a result for each in the order pushed.
    let mut batch = Batch::new();
    for number in 0..BLOCKS {
        batch.push(file.read_exact_at(vec![0; BLOCK], at(number)));
    }
    for (number, (result, block)) in (0..BLOCKS).zip(batch.wait()) {
        result?;
        assert_eq!(block, [number; BLOCK]);
    }
    println!("{BLOCKS} blocks were written, made durable and read back");
    Ok(())
}

/// Where a block begins.
fn at(number: u8) -> u64 {
    u64::from(number) * BLOCK as u64
}
