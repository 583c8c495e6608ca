// One read after the other, on one thread: each is a plain `pread`.

use std::io;
use std::path::Path;

use inflight::fs::{Direct, OpenOptions};
use inflight::Operation;

const BLOCK_BYTES: u32 = 4096;
const DIRECT: Direct = Direct::Off;

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
    let mut block = file.aligned_buf(BLOCK_BYTES as usize)?;
    let mut bytes = 0;
    for number in 0..blocks {
        let offset = number * u64::from(BLOCK_BYTES);
        let (result, back) = file.read_exact_at(block, offset).wait();
        bytes += result? as u64;
        block = back; // with the bytes of this block in it
    }
    Ok(bytes)
}
