//! Direct reads that meet no device, as of a file system on memory: they are copies, and shared
//! like those of cached data. A hole of a sparse file is read as fast, so it stands for such a
//! device.

use std::future::IntoFuture;
use std::io;
use std::rc::Rc;

use inflight::fs::{File, OpenOptions};
use inflight::{AlignedBuf, Direct, Engine, Operation, Stats, Way, local};
use tempfile::NamedTempFile;

use super::hands::{drained, poll_once};
use crate::support::{has_several_processors, open, say, skip, temp_path, uring_of_depth_or_skip};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

/// The first trial is over after so many reads.
const READS: u64 = 12_000;

/// Of so many files one should be found to be memory, whatever else this machine does.
const FILES_MAX: u32 = 100;

/// See [`are_shared`].
const ATTEMPTS_MAX: u32 = 20;

/// An engine, a file of it whose direct reads have been found to meet no device, and its path.
fn memory(name: &str) -> Option<(Engine, File, NamedTempFile)> {
    let engine = uring_of_depth_or_skip(name, 16)?;
    let path = temp_path(b"");
    let bytes = BLOCKS * BLOCK as u64;
    path.as_file()
        .set_len(bytes)
        .expect("a sparse file is made");
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let direct = direct.engine(&engine);
    for _ in 0..FILES_MAX {
        let Ok(file) = direct.open(path.path()) else {
            skip(name, "the file system has no direct I/O");
            return None;
        };
        for block in 0..8 {
            let buf = file.aligned_buf(BLOCK).expect("it is direct");
            let (result, _) = file.read_at(buf, block * BLOCK as u64).wait();
            assert_eq!(result.expect("it is read"), BLOCK);
        }
        if is_memory(&file) {
            return Some((engine, file, path));
        }
    }
    skip(name, "holes are not read as fast as memory here");
    None
}

fn is_memory(file: &File) -> bool {
    let buf = file.aligned_buf(BLOCK).expect("it is direct");
    file.read_at(buf, 0).explain().batched == Way::SharedCallOrBackend
}

fn dirty(file: &File) -> AlignedBuf {
    let mut buf = file.aligned_buf(BLOCK).expect("it is direct");
    buf.fill(0xff);
    buf
}

fn check(result: io::Result<usize>, buf: &[u8]) {
    assert_eq!(result.expect("it is read"), BLOCK);
    assert!(buf.iter().all(|byte| *byte == 0), "a hole is zeros");
}

/// Reads made by plain calls, by this thread or another.
fn calls(stats: &Stats) -> u64 {
    stats.plain_calls + stats.helped_reads
}

/// Has so many blocks read, beside others, which are calls: in half of a trial, after which it may
/// be given up, nearly two thousand are shared, whether or not another thread comes; samples are 1
/// in 16. On a busy machine a device may be taken for memory and the other way round at any time,
/// so one attempt of some has to be shared.
fn are_shared(name: &str, others: u64, read: impl Fn(&Engine, File)) {
    for _ in 0..ATTEMPTS_MAX {
        let memory = memory(name).filter(|_| has_several_processors(name));
        let Some((engine, file, _path)) = memory else {
            return;
        };
        let before = engine.stats();
        read(&engine, file);
        drained(&engine);
        let after = engine.stats();
        assert_eq!(after.operations - before.operations, READS + others);
        let calls = calls(&after) - calls(&before) - others;
        say(&format!("{name}: {calls} of {READS} by calls"));
        if calls > READS / 6 {
            return;
        }
    }
    panic!("{name}: none of {ATTEMPTS_MAX} attempts was shared");
}

#[test]
fn a_queue_shares_direct_reads_that_meet_no_device() {
    are_shared("direct reads of memory in a queue", 0, |engine, file| {
        read_in_queue(engine, |_| &file, READS);
    });
}

/// Reads so many blocks of zeros, 16 at a time, each from the file that is named for it.
fn read_in_queue<'f>(engine: &Engine, file: impl Fn(u64) -> &'f File, reads: u64) {
    let queue = engine.queue(16, |queue| {
        let (mut next, mut taken) = (0, 0);
        let mut bufs: Vec<_> = (0..16).map(|_| dirty(file(0))).collect();
        while taken < reads {
            while next < reads
                && let Some(buf) = bufs.pop()
            {
                let offset = next % BLOCKS * BLOCK as u64;
                queue
                    .push(next, file(next).read_at(buf, offset))
                    .expect("there is room");
                next += 1;
            }
            let (_, (result, mut buf)) = queue.next().expect("some are in flight");
            check(result, &buf);
            buf.fill(0xff);
            bufs.push(buf);
            taken += 1;
        }
    });
    queue.expect("there is a ring");
}

#[test]
fn what_is_found_out_of_them_outlives_cached_reads_in_between() {
    let path = temp_path(&vec![0; BLOCK * usize::try_from(BLOCKS).expect("a few")]);
    let others = READS.div_ceil(63);
    let name = "direct reads of memory beside cached ones";
    are_shared(name, others, |engine, file| {
        let cached = open(engine, path.path());
        let by_turns = |number: u64| match number.is_multiple_of(64) {
            true => &cached,
            false => &file,
        };
        read_in_queue(engine, by_turns, READS + others);
    });
}

#[test]
fn a_loop_shares_direct_reads_that_meet_no_device() {
    are_shared("direct reads of memory in a loop", 0, |engine, file| {
        let file = Rc::new(file);
        let run = engine.run(async {
            let task = |number| {
                let file = Rc::clone(&file);
                local::spawn(async move {
                    for at in 0..READS / 16 {
                        let block = (at * 16 + number) % BLOCKS;
                        let buf = dirty(&file);
                        let (result, buf) = file.read_at(buf, block * BLOCK as u64).await;
                        check(result, &buf);
                    }
                })
            };
            let tasks: Vec<_> = (0..16).map(task).collect();
            for task in tasks {
                task.await;
            }
        });
        run.expect("there is a loop");
    });
}

#[test]
fn without_a_loop_they_are_read_where_they_are_polled() {
    let name = "direct reads of memory on no runtime";
    let Some((engine, file, _path)) = memory(name) else {
        return;
    };
    let before = engine.stats();
    let mut read = file.read_at(dirty(&file), 0).into_future();
    assert!(poll_once(&mut read).is_ready());
    assert_eq!(calls(&engine.stats()) - calls(&before), 1);
    let before = engine.stats();
    let (result, buf) = file.read_at(dirty(&file), 0).wait();
    check(result, &buf);
    assert_eq!(calls(&engine.stats()) - calls(&before), 1);
}
