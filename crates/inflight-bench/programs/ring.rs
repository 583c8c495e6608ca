// One thread that keeps many reads in flight: on a ring, or by what the library has where io_uring
// is blocked.

use std::io;
use std::path::Path;

use inflight::fs::{Direct, OpenOptions};
use inflight::{Engine, Operation};

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
    let engine = Engine::builder().queue_depth(DEPTH).build()?;
    let options = OpenOptions::new().read(true).direct(DIRECT);
    let file = options.engine(&engine).open(path)?;
    let blocks = file.metadata().wait()?.len / u64::from(BLOCK_BYTES);
    let free = (0..DEPTH).map(|_| file.aligned_buf(BLOCK_BYTES as usize));
    let mut free = free.collect::<io::Result<Vec<_>>>()?;
    engine.queue(DEPTH, |queue| {
        let (mut next, mut bytes) = (0, 0);
        loop {
            while next < blocks
                && let Some(block) = free.pop()
            {
                let read = file.read_exact_at(block, next * u64::from(BLOCK_BYTES));
                let pushed = queue.push(next, read).is_ok();
                assert!(pushed, "there are as many buffers as places");
                next += 1;
            }
            let Some((_number, (result, block))) = queue.next() else {
                return Ok(bytes);
            };
            bytes += result? as u64;
            free.push(block); // the bytes of block `_number` are in it until then
        }
    })?
}
