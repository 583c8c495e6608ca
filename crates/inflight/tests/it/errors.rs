//! The error table, row by row, on the test backend: what the kernel says, what the library does
//! about it, and what the caller sees.
#![cfg(feature = "faulty")]

mod broken;
mod everywhere;
mod refusals;
mod syncs;
mod tries;

use std::fs;
use std::io;

use inflight::fs::{Alignment, Direct, File};
use inflight::{AnyOp, Batch, Engine, Faults, Operation, Partial, errno_of};
use tempfile::NamedTempFile;

use crate::support::{Named, chill, pattern, read_write, seeds, skip, temp_file, temp_path};

/// Runs `body` with the faults of every seed that `configure` adds to.
fn with_faults(configure: impl Fn(Faults) -> Faults, body: impl Fn(&Engine)) {
    for seed in seeds() {
        let _named = Named(format!("seed {seed}"));
        let engine = Engine::builder().faults(configure(Faults::new(seed)));
        body(&engine.build().expect("nothing is demanded"));
    }
}

/// An empty file whose writes go through the backend.
fn durable_file(engine: &Engine) -> (NamedTempFile, File) {
    let path = temp_path(b"");
    let options = read_write(engine).durable_writes(true);
    let file = options.open(path.path()).expect("the file is there");
    (path, file)
}

const LEN: usize = 1000;

/// Writes `count` pieces of [`LEN`] bytes, `0`, `1`, .. in one batch.
fn write_pieces(file: &File, count: u8, all: bool) -> Vec<io::Result<usize>> {
    let mut batch = Batch::new();
    for n in 0..count {
        let (buf, offset) = (vec![n; LEN], u64::from(n) * LEN as u64);
        batch.push(match all {
            true => file.write_all_at(buf, offset),
            false => file.write_at(buf, offset),
        });
    }
    let results = (0..count).zip(batch.wait());
    let checked = results.map(|(n, (result, buf))| {
        assert!(
            buf.len() == LEN && buf.iter().all(|byte| *byte == n),
            "another buffer"
        );
        result
    });
    checked.collect()
}

/// Whether piece `n` of the file is there up to `len` bytes.
fn has_piece(content: &[u8], n: usize, len: usize) -> bool {
    content[n * LEN..n * LEN + len]
        .iter()
        .all(|byte| usize::from(*byte) == n)
}

#[test]
fn short_transfers_are_reported_by_plain_ones() {
    with_faults(
        |faults| faults.short_transfers(500),
        |engine| {
            let (path, file) = durable_file(engine);
            let results = write_pieces(&file, 64, false);
            let content = fs::read(path.path()).unwrap();
            let mut short = 0;
            for (n, result) in results.into_iter().enumerate() {
                let moved = result.unwrap();
                assert!((1..=LEN).contains(&moved) && has_piece(&content, n, moved));
                short += u64::from(moved < LEN);
            }
            assert!((1..64).contains(&short));
            assert_eq!(engine.stats().short_transfers, short);
        },
    );
}

#[test]
fn short_transfers_are_resumed_by_whole_ones() {
    with_faults(
        |faults| faults.short_transfers(700),
        |engine| {
            let (path, file) = durable_file(engine);
            for result in write_pieces(&file, 64, true) {
                assert_eq!(result.unwrap(), LEN);
            }
            let content = fs::read(path.path()).unwrap();
            assert!((0..64).all(|n| has_piece(&content, n, LEN)));
            let written = engine.stats().short_transfers;
            assert!(written > 0);

            chill(&file);
            let mut batch = Batch::new();
            (0..64).for_each(|n| batch.push(file.read_exact_at(vec![0; LEN], n * LEN as u64)));
            for (n, (result, buf)) in (0_u8..).zip(batch.wait()) {
                assert_eq!((result.unwrap(), buf), (LEN, vec![n; LEN]));
            }
            let stats = engine.stats();
            assert!(
                stats.short_transfers > written,
                "no read went through the backend"
            );
            assert_eq!((stats.in_flight, stats.strays), (0, 0));
        },
    );
}

#[test]
fn the_end_of_the_file_is_found_behind_short_reads() {
    with_faults(
        |faults| faults.short_transfers(700),
        |engine| {
            let data = pattern(20_000);
            let file = temp_file(engine, &data);
            chill(&file);
            let mut batch = Batch::new();
            (0..16).for_each(|_| batch.push(file.read_exact_at(vec![0; 20_001], 0)));
            for (result, buf) in batch.wait() {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
                assert!(buf[..20_000] == data);
            }
        },
    );
}

/// The errno of the first of two no-ops.
fn first_nop(engine: &Engine) -> Option<i32> {
    let mut batch = Batch::on(engine);
    (0..2).for_each(|_| batch.push(engine.nop()));
    let first = batch.wait().next().expect("there are two");
    first.err().and_then(|error| error.raw_os_error())
}

#[test]
fn errors_of_the_device_pass_with_their_errno() {
    for errno in [
        libc::EIO,
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EFBIG,
        libc::ENOMEM,
    ] {
        with_faults(
            |faults| faults.refuse("write", errno),
            |engine| {
                let (path, file) = durable_file(engine);
                for all in [false, true] {
                    for result in write_pieces(&file, 8, all) {
                        let error = result.unwrap_err();
                        assert_eq!(error.raw_os_error(), Some(errno));
                        assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
                    }
                }
                assert_eq!(fs::read(path.path()).unwrap(), b"", "it was tried again");
                let stats = engine.stats();
                assert_eq!(
                    (stats.retries, stats.plain_calls, stats.in_flight),
                    (0, 0, 0)
                );
                assert!(stats.fallbacks.is_empty());
            },
        );
    }
}

fn partial(error: &io::Error) -> Partial {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<Partial>());
    *cause.expect("the cause is typed")
}

#[test]
fn an_error_behind_moved_bytes_tells_of_both() {
    for errno in [libc::EIO, libc::ENOSPC] {
        // The write is short, the sync is the second, and what is left of the write fails.
        let faults = |faults: Faults| faults.short_transfers(1000).fail_nth(2, errno);
        with_faults(faults, |engine| {
            let (path, file) = durable_file(engine);
            let mut batch: Batch<AnyOp<'_, Vec<u8>>> = Batch::new();
            batch.push(file.write_all_at(pattern(LEN), 0).into());
            batch.push(file.sync_data().into());
            let mut results = batch.wait();
            let (result, buf) = results.next().unwrap();
            assert_eq!(buf.unwrap(), pattern(LEN));
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
            let Partial {
                done_bytes,
                errno: told,
            } = partial(&error);
            assert!((1..LEN).contains(&done_bytes));
            assert_eq!((told, errno_of(&error)), (errno, Some(errno)));
            assert_eq!(fs::read(path.path()).unwrap(), pattern(LEN)[..done_bytes]);
            // What the device says of a durable write is remembered, what the file system refuses
            // is not: see `a_sync_that_ends_before_a_durable_write_fails_..`.
            let synced = results.next().unwrap().0;
            assert_eq!(synced.is_ok(), errno == libc::ENOSPC, "{synced:?}");
        });
    }
}

#[test]
fn an_error_in_a_later_part_leaves_what_comes_before_it() {
    const LARGE: usize = 8 << 20;
    let content = pattern(LARGE);
    for [all, durable] in [[false; 2], [true, false], [false, true], [true; 2]] {
        with_faults(
            |faults| faults.fail_nth(4, libc::EIO),
            |engine| {
                let path = temp_path(b"");
                // What makes the file grow would be a plain call.
                path.as_file().set_len(LARGE as u64).unwrap();
                let options = read_write(engine).direct(Direct::Required);
                let Ok(file) = options.durable_writes(durable).open(path.path()) else {
                    return skip("an error in a later part", "there is no direct I/O");
                };
                if file.alignment() == Alignment::Unknown {
                    return skip("an error in a later part", "the file system has no device");
                }
                // The first one asks whether the file can be written without waiting.
                let asked = file.write_at(file.aligned_buf(4096).unwrap(), 0).wait();
                assert_eq!(asked.0.unwrap(), 4096);
                let mut buf = file.aligned_buf(LARGE).unwrap();
                buf.copy_from_slice(&content);
                let mut batch = Batch::new();
                batch.push(match all {
                    true => file.write_all_at(buf, 0),
                    false => file.write_at(buf, 0),
                });
                batch.push(file.write_at(file.aligned_buf(0).unwrap(), 0));
                let (result, buf) = batch.wait().next().unwrap();
                assert!(buf[..] == content);
                let done = match result {
                    Ok(moved) => moved,
                    Err(error) => partial(&error).done_bytes,
                };
                assert!((1..LARGE).contains(&done), "{done} of {LARGE} bytes");
                assert!(fs::read(path.path()).unwrap()[..done] == content[..done]);
                // The kernel has told it, and may not do so again.
                let synced = file.sync_data().wait();
                assert_eq!(synced.is_err(), durable, "{synced:?}");
            },
        );
    }
}
