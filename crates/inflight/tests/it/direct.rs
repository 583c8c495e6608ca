//! Direct I/O: transfers that fit it; those that do not are in [`misaligned`] and [`any_range`].

mod again;
mod any_range;
mod asynchronous;
mod first;
mod growing;
mod held_up;
mod longer;
mod memory;
mod misaligned;
mod older;
mod panicking;
mod unaligned;

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use inflight::fs::{Alignment, Direct, File};
use inflight::{AlignedBuf, Batch, Engine, Operation};
use tempfile::NamedTempFile;

use crate::support::{
    alone_and_batched, directory, on_every_backend, pattern, read_write, skip, temp_path,
    uring_or_skip,
};

/// Opens past the page cache; `None`, with the reason said, where the file system cannot.
fn required(name: &str, engine: &Engine, path: impl AsRef<Path>) -> Option<File> {
    match read_write(engine).direct(Direct::Required).open(path) {
        Ok(file) => Some(file),
        Err(refusal) if refusal.kind() == io::ErrorKind::Unsupported => {
            let place = directory();
            skip(
                name,
                &format!("{} has no direct I/O: {refusal}", place.display()),
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn filled(file: &File, data: &[u8]) -> AlignedBuf {
    let mut buf = file.aligned_buf(data.len()).expect("memory for it");
    buf.copy_from_slice(data);
    buf
}

#[test]
fn off_means_through_the_page_cache() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        for options in [read_write(engine), read_write(engine).direct(Direct::Off)] {
            assert!(!options.open(path.path()).unwrap().is_direct());
        }
    });
}

#[test]
fn aligned_blocks_are_written_and_read_past_the_page_cache() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let Some(file) = required("aligned blocks", engine, path.path()) else {
            return;
        };
        assert!(file.is_direct());
        let data = pattern(64 * 4096);
        let mut batch = Batch::new();
        for (n, block) in data.chunks(4096).enumerate().rev() {
            batch.push(file.write_all_at(filled(&file, block), 4096 * n as u64));
        }
        assert!(batch.wait().all(|(result, _)| result.unwrap() == 4096));
        assert!(fs::read(path.path()).unwrap() == data);

        let mut batch = Batch::new();
        for n in 0..64 {
            batch.push(file.read_exact_at(file.aligned_buf(4096).unwrap(), 4096 * n));
        }
        for (block, (result, buf)) in data.chunks(4096).zip(batch.wait()) {
            assert_eq!((result.unwrap(), &buf[..]), (4096, block));
        }
    });
}

#[test]
fn large_transfers_are_split_and_whole() {
    const LEN: usize = 8 << 20;
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let Some(file) = required("8 MiB at once", engine, path.path()) else {
            return;
        };
        let data = pattern(LEN);
        for (result, _) in alone_and_batched!(file.write_at(filled(&file, &data), 4096)) {
            assert_eq!(result.unwrap(), LEN);
        }
        assert!(fs::read(path.path()).unwrap()[4096..] == data);
        for (result, buf) in alone_and_batched!(file.read_at(file.aligned_buf(LEN).unwrap(), 4096))
        {
            assert_eq!(result.unwrap(), LEN);
            assert!(buf[..] == data);
        }
        // The file ends in the middle of a later part.
        let from = u64::try_from(LEN / 2).unwrap();
        for (result, buf) in alone_and_batched!(file.read_at(file.aligned_buf(LEN).unwrap(), from))
        {
            assert_eq!(result.unwrap(), LEN / 2 + 4096);
            assert!(buf[..LEN / 2 + 4096] == data[LEN / 2 - 4096..]);
        }
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn more_parts_than_the_queue_has_places_are_read_whole() {
    let narrow = |builder: inflight::Builder| builder.queue_depth(2);
    crate::support::on_every_backend_of(narrow, |engine| {
        let data = pattern(6 << 20);
        let path = temp_path(&data);
        let Some(file) = required("more parts than places", engine, path.path()) else {
            return;
        };
        let mut batch = Batch::new();
        for offset in [0, 4096, 8192] {
            batch.push(file.read_at(file.aligned_buf(data.len()).unwrap(), offset));
        }
        for (skipped, (result, buf)) in [0, 4096, 8192].into_iter().zip(batch.wait()) {
            let read = result.unwrap();
            assert_eq!(read, data.len() - skipped);
            assert!(buf[..read] == data[skipped..]);
        }
    });
}

#[test]
fn the_end_of_the_file_need_not_be_aligned() {
    on_every_backend(|engine| {
        let data = pattern(4096 + 100);
        let path = temp_path(&data);
        let Some(file) = required("an end that is not aligned", engine, path.path()) else {
            return;
        };
        for (result, buf) in alone_and_batched!(file.read_at(file.aligned_buf(8192).unwrap(), 0)) {
            assert_eq!(result.unwrap(), 4196);
            assert!(buf[..4196] == data);
        }
        for (result, _) in alone_and_batched!(file.read_at(file.aligned_buf(4096).unwrap(), 8192)) {
            assert_eq!(result.unwrap(), 0);
        }
        for (result, _) in
            alone_and_batched!(file.read_exact_at(file.aligned_buf(8192).unwrap(), 0))
        {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    });
}

/// A file in memory, where direct I/O is taken without an alignment or not at all.
fn in_memory(content: &[u8]) -> Option<NamedTempFile> {
    let file = NamedTempFile::new_in(PathBuf::from("/dev/shm")).ok()?;
    file.as_file().write_all_at(content, 0).ok()?;
    Some(file)
}

#[test]
fn files_in_memory_can_be_asked_for_direct_io() {
    on_every_backend(|engine| {
        let data = pattern(3 << 20);
        let Some(path) = in_memory(&data) else {
            return skip("direct I/O in memory", "/dev/shm cannot be written");
        };
        let auto = read_write(engine)
            .direct(Direct::Auto)
            .open(path.path())
            .unwrap();
        let files = [
            Some(auto),
            required("direct I/O in memory", engine, path.path()),
        ];
        for file in files.into_iter().flatten() {
            for (result, buf) in alone_and_batched!(file.read_at(vec![0; data.len()], 0)) {
                assert_eq!(result.unwrap(), data.len());
                assert!(buf == data);
            }
            for (result, buf) in alone_and_batched!(file.read_at(vec![0; 100], 33)) {
                assert_eq!((result.unwrap(), &buf[..]), (100, &data[33..133]));
            }
        }
    });
}

#[test]
fn direct_reads_go_through_the_ring() {
    let Some(engine) = uring_or_skip("direct reads through the ring") else {
        return;
    };
    let path = temp_path(&pattern(4096 * 8));
    let Some(file) = required("direct reads through the ring", &engine, path.path()) else {
        return;
    };
    if file.alignment() == Alignment::Unknown {
        return skip(
            "direct reads through the ring",
            "the file system has no device",
        );
    }
    let round = || {
        let mut batch = Batch::new();
        for n in 0..8 {
            batch.push(file.read_at(file.aligned_buf(4096).unwrap(), 4096 * n));
        }
        let before = engine.stats();
        assert!(batch.wait().all(|(result, _)| result.unwrap() == 4096));
        let after = engine.stats();
        (
            after.enters - before.enters,
            after.plain_calls - before.plain_calls,
        )
    };
    // What the file is like is found out by the first reads.
    let rounds: Vec<_> = (0..64).map(|_| round()).collect();
    assert!(
        rounds
            .iter()
            .any(|(enters, plain)| *enters > 0 && *plain == 0),
        "{rounds:?}"
    );
}

#[test]
fn what_is_not_aligned_is_explained_as_what_it_is() {
    let Some(engine) = uring_or_skip("explained ranges") else {
        return;
    };
    let path = temp_path(&pattern(1 << 16));
    for (direct, why) in [(Direct::Auto, "page cache"), (Direct::Required, "refused")] {
        let Ok(file) = read_write(&engine).direct(direct).open(path.path()) else {
            return skip("explained ranges", "there is no direct I/O");
        };
        if !file.is_direct() {
            return skip("explained ranges", "there is no direct I/O");
        }
        let mut odd = file.read_at(vec![0; 1000], 77);
        let explained = odd.explain();
        assert!(explained.why.contains(why), "{explained}");
        assert_eq!(explained.direct, direct == Direct::Required, "{explained}");
        let (result, _) = odd.wait();
        assert_eq!(result.is_ok(), direct == Direct::Auto);
        let aligned = file.read_at(file.aligned_buf(4096).unwrap(), 0).explain();
        assert!(aligned.direct && !aligned.why.contains(why), "{aligned}");
    }
}

/// Such calls wait for transfers of the file that are in flight (`inode_dio_wait`), and these may
/// be this very thread's own.
#[test]
fn a_call_that_waits_for_transfers_of_its_own_thread_ends() {
    const BLOCKS: u64 = 64;
    on_every_backend(|engine| {
        let path = temp_path(&pattern(4096 * 64));
        let Some(file) = required("calls beside transfers", engine, path.path()) else {
            return;
        };
        let block = || filled(&file, &pattern(4096));
        let ended = engine.queue(16, |queue| {
            for round in 0..30 {
                for at in 0..16 {
                    let offset = (at * 3 + round) % BLOCKS * 4096;
                    if queue.push(at, file.write_at(block(), offset)).is_err() {
                        // Little memory may be locked, so the queue is a short one.
                        break;
                    }
                }
                assert!(!queue.is_empty());
                let grown = (BLOCKS + 2) * 4096;
                match round % 3 {
                    0 => file.truncate(grown).wait().unwrap(),
                    1 => file.truncate(BLOCKS * 4096).wait().unwrap(),
                    _ => {
                        let beyond = file.write_at(block(), grown + round * 4096);
                        assert_eq!(beyond.wait().0.unwrap(), 4096);
                    }
                }
                while let Some((_, (result, _))) = queue.next() {
                    assert_eq!(result.unwrap(), 4096);
                }
            }
        });
        ended.unwrap();
    });
}
