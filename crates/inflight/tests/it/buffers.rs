//! Every kind of buffer; pools of registered ones are in [`pools`], those that grow in [`spare`].

mod pools;
mod spare;

use std::fs;
use std::ops::DerefMut;

use inflight::fs::File;
use inflight::{AlignedBuf, Batch, BufPool, Direct, Engine, IoBufMut, Operation};
use tempfile::NamedTempFile;

use crate::support::{on_every_backend, pattern, read_write, temp_path};

const BLOCK: usize = 4096;

/// A file whose transfers go through the backend where that is possible: writes are durable, and
/// reads that fit go past the page cache.
fn file_past_the_cache(engine: &Engine) -> (NamedTempFile, File) {
    let path = temp_path(b"");
    let options = read_write(engine).direct(Direct::Auto).durable_writes(true);
    let file = options.open(path.path()).expect("the file is there");
    (path, file)
}

/// Writes one block from each buffer and reads it into another one.
fn assert_carried<B: IoBufMut + DerefMut<Target = [u8]>>(engine: &Engine, mut bufs: Vec<B>) {
    let (path, file) = file_past_the_cache(engine);
    let data = pattern(BLOCK * bufs.len());
    let mut writes = Batch::new();
    for (n, mut buf) in (0_u64..).zip(bufs.drain(..)) {
        let at = usize::try_from(n).expect("a few") * BLOCK;
        buf.copy_from_slice(&data[at..at + BLOCK]);
        writes.push(file.write_all_at(buf, n * BLOCK as u64));
    }
    let mut back = Vec::new();
    for (result, buf) in writes.wait() {
        assert_eq!(result.expect("it is written"), BLOCK);
        back.push(buf);
    }
    drop(writes);
    assert!(fs::read(path.path()).expect("the file is there") == data);
    let mut reads = Batch::new();
    // From the last to the first: another block than the one that it had.
    for (n, mut buf) in (0_u64..).zip(back.into_iter().rev()) {
        buf.fill(0);
        reads.push(file.read_exact_at(buf, n * BLOCK as u64));
    }
    for (block, (result, buf)) in data.chunks(BLOCK).zip(reads.wait()) {
        assert_eq!(result.expect("it is read"), BLOCK);
        assert!(buf[..] == *block);
    }
}

#[test]
fn every_kind_of_buffer_carries_data() {
    on_every_backend(|engine| {
        assert_carried(engine, vec![vec![0; BLOCK]; 8]);
        assert_carried(engine, vec![vec![0; BLOCK].into_boxed_slice(); 8]);
        let aligned = || AlignedBuf::new(BLOCK, BLOCK).unwrap();
        assert_carried(engine, (0..8).map(|_| aligned()).collect());
        let pool = BufPool::new(8, BLOCK).unwrap();
        assert_carried(engine, (0..8).map(|_| pool.take().unwrap()).collect());
        assert_eq!(pool.available(), 8);
        let mut whole = AlignedBuf::new(8 * BLOCK, BLOCK).unwrap();
        assert_carried(engine, whole.chunks_mut(BLOCK).collect());
    });
}

#[test]
fn shared_slices_are_written() {
    on_every_backend(|engine| {
        let (path, file) = file_past_the_cache(engine);
        let data = pattern(BLOCK);
        let shared = &data[..];
        // One slice, in several operations at once.
        let mut batch = Batch::new();
        (0..4).for_each(|n| batch.push(file.write_all_at(shared, n * BLOCK as u64)));
        assert!(
            batch
                .wait()
                .all(|(result, back)| result.unwrap() == BLOCK && back == shared)
        );
        assert!(fs::read(path.path()).unwrap() == data.repeat(4));
    });
}

#[test]
fn an_aligned_buffer_may_be_empty() {
    on_every_backend(|engine| {
        let (_path, file) = file_past_the_cache(engine);
        let (result, buf) = file.read_at(file.aligned_buf(0).unwrap(), 0).wait();
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
        let mut batch = Batch::new();
        (0..4).for_each(|_| batch.push(file.write_at(file.aligned_buf(0).unwrap(), 0)));
        assert!(batch.wait().all(|(result, _)| result.unwrap() == 0));
    });
}
