//! What wishes do to the page cache, as cachestat(2) tells it.
#![allow(unsafe_code)]

use std::fs::File as StdFile;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::File;
use inflight::{Batch, Engine, Operation};

use super::by_every_host;
use crate::support::{on_every_backend, patience, pattern, read_write, skip, temp_path};

const PAGE: usize = 4096;

/// `struct cachestat`, cachestat(2): counts of pages.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// `struct cachestat_range`; a length of 0 is to the end of the file.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// What the page cache has of a file.
fn pages(file: &impl AsRawFd) -> io::Result<Pages> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = Range { offset: 0, len: 0 };
    let mut pages = Pages::default();
    let fd = i64::from(file.as_raw_fd());
    // SAFETY: both structures are ours and have the form that the kernel expects.
    let answer =
        unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut pages, 0_i64) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages)
}

/// Has the page cache forget a file. False if it does not, as for a moment after it was written.
fn evict(file: &StdFile) -> bool {
    file.sync_all().expect("it can be synced");
    // SAFETY: no memory is involved.
    let answer = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    answer == 0 && pages(file).is_ok_and(|pages| pages.cached == 0)
}

/// The same until it does, but not for longer than this: what is just being read or written is not
/// forgotten.
pub(crate) fn evict_within(at_most: Duration, file: &StdFile) -> bool {
    let late = Instant::now() + at_most;
    while !evict(file) {
        if Instant::now() >= late {
            return false;
        }
        thread::yield_now();
    }
    true
}

/// Where the page cache can be asked, and forgets when it is told to.
fn cached_file(
    name: &str,
    engine: &Engine,
    data: &[u8],
) -> Option<(tempfile::NamedTempFile, File)> {
    let path = temp_path(data);
    if let Err(refusal) = pages(path.as_file()) {
        skip(name, &format!("the page cache cannot be asked: {refusal}"));
        return None;
    }
    if !evict(path.as_file()) {
        skip(name, "the page cache does not forget this file");
        return None;
    }
    let file = read_write(engine).open(path.path()).expect("it is there");
    Some((path, file))
}

#[test]
fn a_durable_write_leaves_nothing_to_be_written() {
    on_every_backend(|engine| {
        let name = "durable writes";
        let Some((path, file)) = cached_file(name, engine, &pattern(8 * PAGE)) else {
            return;
        };
        let data = vec![7; PAGE];
        let pieces = || vec![vec![1; 100], vec![2; PAGE]];
        let clean = |result: io::Result<usize>, expected: usize, what: &str| {
            assert_eq!(result.unwrap(), expected);
            let pages = pages(path.as_file()).unwrap();
            assert_eq!((pages.dirty, pages.writeback), (0, 0), "{what}");
        };
        let write = || file.write_at(data.clone(), PAGE as u64);
        for (result, _) in by_every_host!(engine, write().dsync()) {
            clean(result, PAGE, "dsync");
        }
        for (result, _) in by_every_host!(engine, file.write_vectored_at(pieces(), 0).dsync()) {
            clean(result, PAGE + 100, "dsync of several");
        }
        let other = || {
            file.write_at(vec![9; 10], 5 * PAGE as u64)
                .wait()
                .0
                .unwrap()
        };
        // What was written by others before is made durable too.
        for (result, _) in by_every_host!(engine, {
            other();
            write().then_sync()
        }) {
            clean(result, PAGE, "then_sync");
        }
        for (result, _) in by_every_host!(engine, {
            other();
            file.write_vectored_at(pieces(), 0).then_sync()
        }) {
            clean(result, PAGE + 100, "then_sync of several");
        }
        for (result, _) in by_every_host!(engine, {
            other();
            file.write_at(Vec::new(), 0).then_sync()
        }) {
            clean(result, 0, "then_sync of nothing");
        }
    });
}

#[test]
fn what_is_read_without_caching_is_not_cached() {
    on_every_backend(|engine| {
        let name = "reads that are not cached";
        let data = pattern(64 * PAGE);
        let Some((path, file)) = cached_file(name, engine, &data) else {
            return;
        };
        let read = || {
            assert!(evict_within(patience(), path.as_file()));
            file.read_exact_at(vec![0; 16 * PAGE], 8 * PAGE as u64)
        };
        let (result, _) = read().dont_cache().wait();
        assert_eq!(result.unwrap(), 16 * PAGE);
        if engine.stats().hints_unheard > 0 {
            return skip(name, "the file system refuses it");
        }
        for (result, buf) in by_every_host!(engine, read().dont_cache()) {
            assert_eq!(result.unwrap(), buf.len());
            assert!(buf == data[8 * PAGE..24 * PAGE]);
        }
        // Three of a batch were all read before this looks.
        let uncached = |batch: &mut Batch<_>| {
            batch.push(read().dont_cache());
            batch.wait().for_each(|(result, _)| assert!(result.is_ok()));
            pages(path.as_file()).unwrap().cached
        };
        assert_eq!(uncached(&mut Batch::new()), 0);
        pollster::block_on(async { read().dont_cache().await })
            .0
            .unwrap();
        assert_eq!(pages(path.as_file()).unwrap().cached, 0);
        // The other way round: the same read as any other.
        read().wait().0.unwrap();
        assert!(pages(path.as_file()).unwrap().cached >= 16);
        assert_eq!(engine.stats().hints_unheard, 0);
    });
}

#[test]
fn what_would_wait_says_so_instead() {
    on_every_backend(|engine| {
        let name = "reads that would wait";
        let data = pattern(64 * PAGE);
        let Some((path, file)) = cached_file(name, engine, &data) else {
            return;
        };
        let read = || {
            assert!(evict_within(patience(), path.as_file()));
            file.read_at(vec![0; PAGE], 40 * PAGE as u64).no_wait()
        };
        let batched = || {
            let mut batch = Batch::new();
            batch.push(read());
            batch.push(file.read_at(Vec::new(), 0).no_wait());
            let first = batch.wait().next();
            first.expect("two were pushed")
        };
        // A fast device may have answered before the kernel looks, and each one has to be met
        // once while it is busy.
        let hosts: [&dyn Fn() -> (io::Result<usize>, Vec<u8>); 4] = [
            &|| read().wait(),
            &batched,
            &|| pollster::block_on(async { read().await }),
            &|| {
                engine
                    .run(async { read().await })
                    .expect("nothing is demanded")
            },
        ];
        for (number, host) in hosts.into_iter().enumerate() {
            let would_wait = (0..500).any(|_| match host() {
                (Ok(moved), buf) => {
                    assert_eq!((moved, &buf[..]), (PAGE, &data[40 * PAGE..41 * PAGE]));
                    false
                }
                (Err(error), buf) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    assert_eq!(buf.len(), PAGE);
                    true
                }
            });
            if !would_wait {
                skip(
                    name,
                    &format!("host {number}: the device always answers at once"),
                );
            }
        }
        // What is there is read, short where it ends.
        file.read_at(vec![0; 64 * PAGE], 0).wait().0.unwrap();
        let there = || file.read_at(vec![0; PAGE], 64 * PAGE as u64 - 10).no_wait();
        for (result, buf) in by_every_host!(engine, there()) {
            assert_eq!((result.unwrap(), &buf[..10]), (10, &data[64 * PAGE - 10..]));
        }
    });
}
