// The library's run loop: many tasks on this thread, each awaits one read after the other.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::local;

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
    local::run(async {
        let file = OpenOptions::new().read(true).direct(DIRECT).open(path)?;
        let blocks = file.metadata().await?.len / u64::from(BLOCK_BYTES);
        let (file, next) = (Rc::new(file), Rc::new(Cell::new(0)));
        let reading = |_| local::spawn(read_some(Rc::clone(&file), Rc::clone(&next), blocks));
        let tasks: Vec<_> = (0..DEPTH).map(reading).collect();
        let mut bytes = 0;
        for task in tasks {
            bytes += task.await?;
        }
        Ok(bytes)
    })?
}

/// Takes the next block that nobody has taken, until there is none.
async fn read_some(file: Rc<File>, next: Rc<Cell<u64>>, blocks: u64) -> io::Result<u64> {
    let mut block = file.aligned_buf(BLOCK_BYTES as usize)?;
    let mut bytes = 0;
    while next.get() < blocks {
        let offset = next.replace(next.get() + 1) * u64::from(BLOCK_BYTES);
        let (result, back) = file.read_exact_at(block, offset).await;
        bytes += result? as u64;
        block = back; // with the bytes of this block in it
    }
    Ok(bytes)
}
