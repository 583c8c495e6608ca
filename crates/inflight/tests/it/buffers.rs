//! Every kind of buffer; parts of them are in [`parts`], pools of registered ones in [`pools`],
//! those that grow in [`spare`], and where the memory comes from in [`huge`].

mod huge;
mod parts;
mod pools;
mod spare;

use std::cell::Cell;
use std::fs;
use std::ops::DerefMut;
use std::sync::Arc;

use inflight::fs::{Direct, File};
use inflight::{AlignedBuf, Batch, BufPool, Engine, IoBuf, IoBufMut, Operation};
use tempfile::NamedTempFile;

use crate::support::{on_every_backend, pattern, read_write, temp_path};
use crate::wishes::by_every_host;

const BLOCK: usize = 4096;

/// A file whose transfers go through the backend where that is possible: writes are durable, and
/// reads that fit go past the page cache. Those that do not fit have to wish for it.
fn file_past_the_cache(engine: &Engine) -> (NamedTempFile, File) {
    let path = temp_path(b"");
    let options = read_write(engine).direct(Direct::Auto).durable_writes(true);
    let file = options.open(path.path()).expect("the file is there");
    (path, file)
}

/// One block after the other, for writes that are in flight together.
///
/// Memory of the allocator is aligned by chance, so that some pass the page cache and some do not.
/// Where two of them meet, the kernel takes the one for damage to the other, and tells a durable
/// write so (EIO; `dio_warn_stale_pagecache`, `fs/iomap/direct-io.c`).
fn places() -> impl Fn() -> u64 {
    let next = Cell::new(0);
    move || next.replace(next.get() + BLOCK as u64)
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
        reads.push(file.read_exact_at(buf, n * BLOCK as u64).by_backend());
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
fn arrays_are_filled_and_written_boxed_or_borrowed() {
    on_every_backend(|engine| {
        let (path, file) = file_past_the_cache(engine);
        let data = pattern(BLOCK);
        let boxed: Box<[u8; BLOCK]> = data.clone().try_into().unwrap();
        let next = places();
        let outputs = by_every_host!(engine, file.write_all_at(boxed.clone(), next()));
        let count = outputs.len();
        for (result, back) in outputs {
            assert!(result.unwrap() == BLOCK && back == boxed);
        }
        assert!(fs::read(path.path()).unwrap() == data.repeat(count));
        let empty = || Box::new([0; BLOCK]);
        for (result, back) in by_every_host!(engine, file.read_exact_at(empty(), 0).by_backend()) {
            assert!(result.unwrap() == BLOCK && back == boxed);
        }
        let (mut one, mut other) = ([0; 10], [0; 10]);
        let mut batch = Batch::new();
        batch.push(file.read_exact_at(&mut one, 0).by_backend());
        batch.push(file.read_exact_at(&mut other, 10).by_backend());
        assert!(batch.wait().all(|(result, _)| result.unwrap() == 10));
        drop(batch);
        assert_eq!([one, other].concat(), data[..20]);
    });
}

/// Writes the buffer by every host, and gives it back each time.
fn assert_written<B: IoBuf + Send + 'static + Clone>(engine: &Engine, buf: B, expected: &[u8]) {
    let (path, file) = file_past_the_cache(engine);
    for (result, back) in by_every_host!(engine, file.write_all_at(buf.clone(), 0)) {
        let written = result.expect("it is written");
        assert_eq!((written, back.len()), (expected.len(), buf.len()));
    }
    let content = fs::read(path.path()).expect("the file is there");
    assert_eq!(content, expected);
}

#[test]
fn constants_text_and_shared_bytes_are_written() {
    on_every_backend(|engine| {
        assert_written(engine, b"array", b"array");
        assert_written(engine, "text", b"text");
        assert_written(engine, "owned text".to_owned(), b"owned text");
        assert_written(engine, Arc::<[u8]>::from(*b"shared"), b"shared");
        assert_written(
            engine,
            Arc::new(b"shared vector".to_vec()),
            b"shared vector",
        );
        assert_written(engine, String::new(), b"");
    });
}

#[test]
fn the_first_bytes_of_an_aligned_buffer_are_written_past_the_cache() {
    on_every_backend(|engine| {
        let (path, file) = file_past_the_cache(engine);
        let mut buf = file.aligned_buf(8 * BLOCK).unwrap();
        let data = pattern(buf.len());
        buf.copy_from_slice(&data);
        for blocks in [3, 1, 8] {
            buf.set_len(blocks * BLOCK);
            let (result, back) = file.write_all_at(buf, 0).wait();
            assert_eq!(result.unwrap(), blocks * BLOCK);
            buf = back;
            let written = fs::read(path.path()).unwrap();
            assert!(written == data[..written.len()] && written.len() >= blocks * BLOCK);
        }
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
