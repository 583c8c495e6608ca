//! Direct reads that meet no device, as of a file system on memory: they are copies, and shared
//! like those of cached data. A hole of a sparse file is read as fast, so it stands for such a
//! device.

use std::future::IntoFuture;
use std::io;
use std::rc::Rc;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{AlignedBuf, Engine, Operation, Stats, Way, local};
use tempfile::NamedTempFile;

use super::hands::{drained, poll_once};
use crate::support::{has_several_processors, open, say, skip, temp_path, uring_of_depth_or_skip};

const BLOCK: usize = 4096;
/// In the file.
const BYTES: u64 = 16 << 20;

/// The first trial is over after so many reads, of so many bytes. Of them this many are calls at
/// least if half of a trial is made, after which it may be given up, whether or not another thread
/// comes: those that are shared, and samples, 1 in 16.
struct Reads {
    count: u64,
    bytes: usize,
    least_calls: u64,
}

const SMALL: Reads = Reads {
    count: 12_000,
    bytes: BLOCK,
    least_calls: 2_000,
};

const LARGE: Reads = Reads {
    count: 2_000,
    bytes: 64 << 10,
    least_calls: 225,
};

/// Of so many files one should be found to be memory, whatever else this machine does.
const FILES_MAX: u32 = 100;

/// See [`are_shared`].
const ATTEMPTS_MAX: u32 = 20;

/// An engine, a file of it whose direct reads have been found to meet no device by reads of so many
/// bytes, and its path.
fn memory(name: &str, bytes: usize) -> Option<(Engine, File, NamedTempFile)> {
    let engine = uring_of_depth_or_skip(name, 16)?;
    let path = temp_path(b"");
    path.as_file()
        .set_len(BYTES)
        .expect("a sparse file is made");
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let direct = direct.engine(&engine);
    for _ in 0..FILES_MAX {
        let Ok(file) = direct.open(path.path()) else {
            skip(name, "the file system has no direct I/O");
            return None;
        };
        for block in 0..8 {
            let buf = file.aligned_buf(bytes).expect("it is direct");
            let (result, _) = file.read_at(buf, block * bytes as u64).wait();
            assert_eq!(result.expect("it is read"), bytes);
        }
        if is_memory(&file, bytes) {
            return Some((engine, file, path));
        }
    }
    if bytes > BLOCK {
        let by_small = memory(name, BLOCK);
        assert!(by_small.is_none(), "small reads show it, large ones do not");
        return None;
    }
    skip(name, "holes are not read as fast as memory here");
    None
}

fn is_memory(file: &File, bytes: usize) -> bool {
    let buf = file.aligned_buf(bytes).expect("it is direct");
    file.read_at(buf, 0).explain().batched == Way::SharedCallOrBackend
}

fn dirty(file: &File, bytes: usize) -> AlignedBuf {
    let mut buf = file.aligned_buf(bytes).expect("it is direct");
    buf.fill(0xff);
    buf
}

fn check(result: io::Result<usize>, buf: &[u8]) {
    assert_eq!(result.expect("it is read"), buf.len());
    assert!(buf.iter().all(|byte| *byte == 0), "a hole is zeros");
}

/// Reads made by plain calls, by this thread or another.
fn calls(stats: &Stats) -> u64 {
    stats.plain_calls + stats.helped
}

/// Has these reads made, beside others, which are calls. On a busy machine a device may be taken
/// for memory and the other way round at any time, so one attempt of some has to be shared.
fn are_shared(name: &str, reads: &Reads, others: u64, read: impl Fn(&Engine, File)) {
    for _ in 0..ATTEMPTS_MAX {
        let memory = memory(name, reads.bytes).filter(|_| has_several_processors(name));
        let Some((engine, file, _path)) = memory else {
            return;
        };
        let before = engine.stats();
        read(&engine, file);
        drained(&engine);
        let after = engine.stats();
        assert_eq!(after.operations - before.operations, reads.count + others);
        let calls = calls(&after) - calls(&before) - others;
        say(&format!("{name}: {calls} of {} by calls", reads.count));
        if calls > reads.least_calls {
            return;
        }
    }
    panic!("{name}: none of {ATTEMPTS_MAX} attempts was shared");
}

#[test]
fn a_queue_shares_direct_reads_that_meet_no_device() {
    are_shared(
        "direct reads of memory in a queue",
        &SMALL,
        0,
        |engine, file| {
            read_in_queue(engine, |_| &file, BLOCK, SMALL.count);
        },
    );
}

#[test]
fn a_queue_shares_large_direct_reads_that_meet_no_device() {
    let name = "large direct reads of memory in a queue";
    are_shared(name, &LARGE, 0, |engine, file| {
        read_in_queue(engine, |_| &file, LARGE.bytes, LARGE.count);
    });
}

/// Makes so many reads of so many zeros, 16 at a time, each from the file that is named for it.
fn read_in_queue<'f>(engine: &Engine, file: impl Fn(u64) -> &'f File, bytes: usize, reads: u64) {
    let queue = engine.queue(16, |queue| {
        let (mut next, mut taken) = (0, 0);
        let mut bufs: Vec<_> = (0..16).map(|_| dirty(file(0), bytes)).collect();
        while taken < reads {
            while next < reads
                && let Some(buf) = bufs.pop()
            {
                let offset = next * bytes as u64 % BYTES;
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
    let path = temp_path(&vec![0; usize::try_from(BYTES).expect("a few")]);
    let others = SMALL.count.div_ceil(63);
    let name = "direct reads of memory beside cached ones";
    are_shared(name, &SMALL, others, |engine, file| {
        let cached = open(engine, path.path());
        let by_turns = |number: u64| match number.is_multiple_of(64) {
            true => &cached,
            false => &file,
        };
        read_in_queue(engine, by_turns, BLOCK, SMALL.count + others);
    });
}

#[test]
fn a_loop_shares_direct_reads_that_meet_no_device() {
    are_shared(
        "direct reads of memory in a loop",
        &SMALL,
        0,
        |engine, file| {
            let file = Rc::new(file);
            let run = engine.run(async {
                let task = |number| {
                    let file = Rc::clone(&file);
                    local::spawn(async move {
                        for at in 0..SMALL.count / 16 {
                            let offset = (at * 16 + number) * BLOCK as u64 % BYTES;
                            let buf = dirty(&file, BLOCK);
                            let (result, buf) = file.read_at(buf, offset).await;
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
        },
    );
}

#[test]
fn without_a_loop_they_are_read_where_they_are_polled() {
    let name = "direct reads of memory on no runtime";
    let Some((engine, file, _path)) = memory(name, BLOCK) else {
        return;
    };
    let before = engine.stats();
    let mut read = file.read_at(dirty(&file, BLOCK), 0).into_future();
    assert!(poll_once(&mut read).is_ready());
    assert_eq!(calls(&engine.stats()) - calls(&before), 1);
    let before = engine.stats();
    let (result, buf) = file.read_at(dirty(&file, BLOCK), 0).wait();
    check(result, &buf);
    assert_eq!(calls(&engine.stats()) - calls(&before), 1);
    // What takes long is not made where it is polled, but by the pool as long as the file is known
    // for memory: on a busy machine a call may just have been slow.
    let bytes = 8 * LARGE.bytes;
    let by_the_pool = u64::from(is_memory(&file, bytes));
    let before = engine.stats();
    let mut read = file.read_at(dirty(&file, bytes), 0).into_future();
    let mut polled = poll_once(&mut read);
    assert!(polled.is_pending());
    while polled.is_pending() {
        std::thread::yield_now();
        polled = poll_once(&mut read);
    }
    assert_eq!(engine.stats().pool_calls - before.pool_calls, by_the_pool);
}
