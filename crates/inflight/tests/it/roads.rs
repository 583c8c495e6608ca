//! Which way reads take, seen from the counts of system calls.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use inflight::fs::{Alignment, Direct, File, OpenOptions};
use inflight::{AlignedBuf, AnyOp, Batch, Durably, Engine, Operation, Stats, Way};
use tempfile::NamedTempFile;

use super::denied::limits::locked_memory_is_scarce;
use super::support::own::in_own_process;
use super::support::zram::Zram;
use super::support::{
    copies_are_fast, directory, given_up, on_every_backend, on_every_faultless_backend, open,
    pattern, read_write, skip, skip_for_want_of_a_ring, temp_path, uring_or_skip,
};

const BLOCK: usize = 4096;

/// One stretch without others on the processor, out of so many, is enough.
const STRETCHES_MAX: usize = 100;

#[test]
fn cached_reads_come_to_be_plain_calls() {
    let Some(engine) = uring_or_skip("cached reads beside a ring") else {
        return;
    };
    let content = pattern(64 * BLOCK);
    let path = temp_path(&content);
    // Written a moment ago, so the page cache has it.
    let file = open(&engine, path.path());
    let mut batch = Batch::on(&engine);
    let mut run = || {
        for (block, _) in (0..).zip(content.chunks(BLOCK)) {
            batch.push(file.read_at(vec![0; BLOCK], block * BLOCK as u64));
        }
        for ((result, buf), expected) in batch.wait().zip(content.chunks(BLOCK)) {
            assert_eq!((result.unwrap(), &buf[..]), (BLOCK, expected));
        }
        engine.stats()
    };
    // The first batches find out how the file is served best.
    run();
    let before = run();
    let after = run();
    assert_eq!(after.enters, before.enters, "no ring for what is cached");
    assert_eq!(after.plain_calls, before.plain_calls + 64);
    assert_eq!(after.operations, before.operations + 64);
}

#[test]
fn direct_reads_alone_are_plain_calls_until_a_ring_is_tried() {
    let name = "direct reads alone";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let path = temp_path(&pattern(64 * BLOCK));
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let Ok(file) = direct.engine(&engine).open(path.path()) else {
        return skip(name, "the file system has no direct I/O");
    };
    let read = |block: u64| {
        let buf = file.aligned_buf(BLOCK).expect("there is memory");
        let mut read = file.read_at(buf, block % 64 * BLOCK as u64);
        let way = read.explain().alone;
        assert_eq!(read.wait().0.unwrap(), BLOCK);
        way
    };
    read(0);
    if read(0) != Way::PlainCallOrRing {
        return skip(name, "the device is memory, or cannot be asked");
    }
    let counted = |reads: std::ops::Range<u64>| {
        let before = engine.stats();
        for block in reads {
            read(block);
        }
        let after = engine.stats();
        (
            after.enters - before.enters,
            after.plain_calls - before.plain_calls,
        )
    };
    // The last ones are the first run of a trial.
    assert_eq!(counted(1..64 + 32), (0, 95), "a thread that makes a few");
    if locked_memory_is_scarce() {
        return skip(name, "the ring may be refused for that");
    }
    // The next run is over after some looks in vain.
    let (enters, plain_calls) = counted(0..32);
    assert!(enters >= 8 && plain_calls <= 24, "{enters}, {plain_calls}");
}

/// An engine with rings, of which this thread looks in the next direct reads that it waits for.
fn uring_about_to_look_or_skip(name: &str) -> Option<Engine> {
    let engine = uring_or_skip(name)?;
    let path = temp_path(&pattern(BLOCK));
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let Ok(file) = direct.engine(&engine).open(path.path()) else {
        return Some(engine);
    };
    for _ in 0..64 + 32 + 1 {
        let buf = file.aligned_buf(BLOCK).expect("there is memory");
        assert_eq!(file.read_at(buf, 0).wait().0.expect("it is read"), BLOCK);
    }
    Some(engine)
}

/// Workers that the kernel has made for the rings of this process.
fn workers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("it is there");
    let comms = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    comms.filter(|comm| comm.starts_with("iou-wrk")).count()
}

/// Where files are tested: the test directory, and a file system in memory if there is one.
fn directories() -> Vec<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    let mut directories = vec![directory()];
    match memory.is_dir() {
        true => directories.push(memory),
        false => skip("roads on a file system in memory", "there is no /dev/shm"),
    }
    directories
}

fn block_of(byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK, BLOCK).expect("there is memory");
    buf.fill(byte);
    buf
}

/// Writes and reads every block of a file in each way there is, and checks what was read.
fn use_every_way(engine: &Engine, file: &File) {
    const COUNT: u8 = 64;
    let at = |n: u8| u64::from(n) * BLOCK as u64;
    let check = |n: u8, (result, buf): (std::io::Result<usize>, AlignedBuf), add: u8| {
        assert_eq!(result.expect("it is done"), BLOCK);
        assert!(buf.iter().all(|byte| *byte == n + add), "block {n}");
    };
    let mut writes = Batch::on(engine);
    (0..COUNT).for_each(|n| writes.push(file.write_all_at(block_of(n), at(n))));
    (0..)
        .zip(writes.wait())
        .for_each(|(n, done)| check(n, done, 0));
    let mut reads = Batch::on(engine);
    (0..COUNT).for_each(|n| reads.push(file.read_exact_at(block_of(0), at(n))));
    (0..)
        .zip(reads.wait())
        .for_each(|(n, done)| check(n, done, 0));
    let all = async || {
        for n in 0..COUNT {
            let written = file.write_all_at(block_of(n + 1), at(n)).await;
            check(n, written, 1);
        }
        let mut writes = Batch::on(engine);
        (0..COUNT).for_each(|n| writes.push(file.write_at(block_of(n + 2), at(n))));
        (0..)
            .zip(writes.await)
            .for_each(|(n, done)| check(n, done, 2));
        for n in 0..COUNT {
            check(n, file.read_at(block_of(0), at(n)).await, 2);
        }
    };
    engine.run(all()).expect("there is a loop");
    pollster::block_on(all());
    let queue = engine.queue(8, |queue| {
        let mut next = 0;
        let mut read = 0;
        while read < COUNT {
            while next < COUNT && !queue.is_full() {
                let op = file.read_at(block_of(0), at(next));
                queue.push(u64::from(next), op).expect("it is not full");
                next += 1;
            }
            let (n, done) = queue.next().expect("it is not empty");
            check(u8::try_from(n).expect("a block"), done, 2);
            read += 1;
        }
    });
    queue.expect("nothing is demanded");
}

#[test]
fn nothing_through_the_page_cache_or_in_memory_needs_a_worker_of_the_kernel() {
    let name = "workers of the kernel";
    let test = "nothing_through_the_page_cache_or_in_memory_needs_a_worker_of_the_kernel";
    in_own_process(module_path!(), test, || {
        let Some(engine) = uring_or_skip(name) else {
            return;
        };
        for directory in directories() {
            let in_memory = directory.starts_with("/dev");
            for (direct, durable) in [(false, false), (false, true), (true, false), (true, true)] {
                if direct && !in_memory {
                    continue; // What a device needs workers for is not ours to say.
                }
                let path = NamedTempFile::new_in(&directory).expect("it can be written");
                let file = read_write(&engine)
                    .durable_writes(durable)
                    .direct(if direct { Direct::Auto } else { Direct::Off })
                    .open(path.path())
                    .expect("the file is there");
                use_every_way(&engine, &file);
                let what = format!("{directory:?}, direct: {direct}, durable: {durable}");
                assert_eq!(workers(), 0, "{what}");
            }
        }
        let pool_calls = engine.stats().pool_calls;
        assert!(
            pool_calls >= 128,
            "{pool_calls}: durable copies are for the pool"
        );
    });
}

#[test]
fn a_raw_device_that_cannot_be_asked_needs_no_worker_of_the_kernel() {
    let name = "raw devices in memory";
    let test = "a_raw_device_that_cannot_be_asked_needs_no_worker_of_the_kernel";
    in_own_process(module_path!(), test, || {
        let Some(engine) = uring_or_skip(name) else {
            return;
        };
        let open = OpenOptions::new().read(true).direct(Direct::Required);
        let Some(zram) = Zram::add(name, "1M") else {
            return;
        };
        let device = open.engine(&engine).open(zram.node());
        let device = device.expect("it takes direct I/O");
        let read = async || {
            for n in 0..64 {
                let (result, _) = device.read_at(block_of(0), n * BLOCK as u64).await;
                assert_eq!(result.expect("it is read"), BLOCK);
            }
        };
        engine.run(read()).expect("there is a loop");
        pollster::block_on(read());
        let mut batch = Batch::on(&engine);
        (0..64).for_each(|n| batch.push(device.read_at(block_of(0), n * BLOCK as u64)));
        assert!(batch.wait().all(|(result, _)| result.is_ok()));
        assert_eq!(workers(), 0);
    });
}

#[test]
fn cached_reads_into_several_buffers_are_plain_calls_as_others_are() {
    let content = pattern(64 * BLOCK);
    let path = temp_path(&content);
    on_every_backend(|engine| {
        let file = open(engine, path.path());
        let halves = || vec![vec![0; 1000], vec![0; BLOCK - 1000]];
        let check = |at: usize, (result, bufs): (std::io::Result<usize>, Vec<Vec<u8>>)| {
            assert_eq!(result.expect("it is read"), BLOCK);
            assert_eq!(bufs.concat(), content[at * BLOCK..][..BLOCK]);
        };
        let read = |at: usize| file.read_vectored_exact_at(halves(), (at * BLOCK) as u64);
        let awaited = async || {
            for at in 0..64 {
                check(at, read(at).await);
            }
        };
        let before = engine.stats();
        pollster::block_on(awaited());
        engine.run(awaited()).expect("there is a loop");
        let mut batch = Batch::on(engine);
        (0..64).for_each(|at| batch.push(read(at)));
        (0..)
            .zip(batch.wait())
            .for_each(|(at, read)| check(at, read));
        (0..64).for_each(|at| check(at, read(at).wait()));
        let after = engine.stats();
        assert_eq!(after.pool_calls, before.pool_calls);
        let enters = after.enters - before.enters;
        // A page that the kernel has taken away meanwhile is waited for.
        assert!(
            enters < 32,
            "{enters} enters for 256 reads of what is cached"
        );
    });
}

/// What the first ones have shown is known of the others: none of them goes to the pool.
#[test]
fn files_in_memory_that_are_read_once_need_no_thread_of_the_pool() {
    let Some(memory) = directories().into_iter().nth(1) else {
        return;
    };
    let path = NamedTempFile::new_in(&memory).expect("there is room");
    fs::write(path.path(), pattern(BLOCK)).expect("there is room");
    if !copies_are_fast("files in memory that are read once", path.path(), BLOCK) {
        return;
    }
    on_every_backend(|engine| {
        let mut path = NamedTempFile::new_in(&memory).expect("there is room");
        path.write_all(&pattern(BLOCK)).expect("there is room");
        let options = OpenOptions::new().read(true).engine(engine);
        let read = async |files: u64| {
            let before = engine.stats().pool_calls;
            for _ in 0..files {
                let file = options.open(path.path()).expect("it is there");
                let (result, buf) = file.read_at(vec![0; BLOCK], 0).await;
                assert_eq!(result.expect("it is read"), BLOCK);
                assert_eq!(buf, pattern(BLOCK));
            }
            engine.stats().pool_calls - before
        };
        // One whose call was slow, on a busy machine, has the next four asked again: one stretch
        // in which few were is enough.
        let mut seen = Vec::new();
        let are_few = (0..STRETCHES_MAX).any(|_| {
            let mut pooled = pollster::block_on(read(100));
            pooled += engine.run(read(100)).expect("there is a loop");
            seen.push(pooled);
            pooled <= 50
        });
        assert!(are_few, "{seen:?} of 200 went to the pool");
    });
}

#[test]
fn what_is_in_the_ring_and_in_the_pool_comes_back_alike() {
    let name = "a ring and the pool at the same time";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let (path, log) = (temp_path(&pattern(64 * BLOCK)), temp_path(b""));
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let Ok(file) = direct.engine(&engine).open(path.path()) else {
        return skip(name, "the file system has no direct I/O");
    };
    let log = read_write(&engine).durable_writes(true).open(log.path());
    let log = log.expect("the file is there");
    let content = pattern(64 * BLOCK);
    let filled = || {
        let mut batch = Batch::on(&engine);
        for n in 0..32 {
            let buf = || block_of(7);
            batch.push(AnyOp::from(file.read_exact_at(buf(), n * BLOCK as u64)));
            batch.push(AnyOp::from(log.write_all_at(buf(), n * BLOCK as u64)));
        }
        batch
    };
    let check = |outputs: Vec<(std::io::Result<usize>, Option<AlignedBuf>)>| {
        assert_eq!(outputs.len(), 64);
        for (at, (result, buf)) in outputs.into_iter().enumerate() {
            assert_eq!(result.expect("it is done"), BLOCK);
            let (block, buf) = (at / 2 * BLOCK, buf.expect("it has one"));
            match at % 2 {
                0 => assert!(buf[..] == content[block..block + BLOCK]),
                _ => assert!(buf.iter().all(|byte| *byte == 7)),
            }
        }
    };
    let before = engine.stats();
    for _ in 0..4 {
        check(filled().wait().collect());
    }
    let awaited = async || {
        for _ in 0..4 {
            check(filled().await);
        }
    };
    engine.run(awaited()).expect("there is a loop");
    pollster::block_on(awaited());
    let after = engine.stats();
    assert_eq!((after.in_flight, after.strays), (0, 0));
    if !given_up(&engine, "a thread has no ring").is_empty() {
        return skip_for_want_of_a_ring(name, "one of the hosts found no memory for it");
    }
    assert_eq!(after.pool_calls - before.pool_calls, 3 * 4 * 32);
    assert!(after.enters > before.enters);
}

#[test]
fn direct_writes_that_make_a_file_grow_are_plain_calls_and_others_are_not() {
    let name = "direct writes";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let path = temp_path(b"");
    let direct = read_write(&engine).direct(Direct::Required);
    let Ok(file) = direct.open(path.path()) else {
        return skip(name, "the file system has no direct I/O");
    };
    if file.alignment() == Alignment::Unknown {
        return skip(name, "the file system has no device");
    }
    let run = || {
        let before = engine.stats();
        let mut batch = Batch::on(&engine);
        (0..8).for_each(|n| batch.push(file.write_all_at(block_of(1), n * BLOCK as u64)));
        assert!(batch.wait().all(|(result, _)| result.is_ok()));
        let after = engine.stats();
        (
            after.enters - before.enters,
            after.plain_calls - before.plain_calls,
        )
    };
    assert_eq!(run(), (0, 8), "the file grows");
    // The first one asks whether the file can be written without waiting.
    run();
    let (enters, plain_calls) = run();
    assert!(
        enters > 0 || plain_calls == 8,
        "neither by the ring, nor refused"
    );
    file.truncate(0).wait().expect("it can be cut");
    assert_eq!(run(), (0, 8), "it grows again");
}

#[test]
fn what_is_explained_is_what_happens() {
    let Some(engine) = uring_or_skip("explained roads") else {
        return;
    };
    for directory in directories() {
        let path = NamedTempFile::new_in(&directory).expect("it can be written");
        for durable in [false, true] {
            let file = read_write(&engine).durable_writes(durable);
            let file = file.open(path.path()).expect("the file is there");
            for _ in 0..8 {
                let mut write = file.write_at(block_of(3), 0);
                let explained = write.explain();
                assert!(explained.file_system.is_some(), "{explained}");
                let before = engine.stats();
                // One alone would be run as such.
                let mut batch = Batch::on(&engine);
                batch.push(write);
                batch.push(file.write_at(block_of(3), 0));
                assert!(batch.wait().all(|(result, _)| result.is_ok()));
                let after = engine.stats();
                let plain_calls = after.plain_calls - before.plain_calls;
                let pool_calls = after.pool_calls - before.pool_calls;
                let expected = match explained.batched {
                    Way::PlainCall => (2, 0),
                    Way::Pool => (0, 2),
                    way => panic!("{way} for a write through the page cache: {explained}"),
                };
                assert_eq!((plain_calls, pool_calls), expected, "{explained}");
            }
        }
        let file = open(&engine, path.path());
        let mut read = file.read_at(vec![0; 512], 0);
        assert_eq!(read.explain().takes_nowait, None);
        assert_eq!(read.explain().batched, Way::TryThenBackend);
        let mut ask = || {
            let mut batch = Batch::on(&engine);
            (0..200).for_each(|_| batch.push(file.read_at(vec![0; 512], 0)));
            assert!(batch.wait().all(|(result, _)| result.is_ok()));
            read.explain()
        };
        let mut explained = ask();
        // On a busy machine one of the last may have seemed to wait.
        for _ in 0..50 {
            if explained.batched == Way::SharedCall {
                break;
            }
            explained = ask();
        }
        assert!(explained.takes_nowait.is_some(), "{explained}");
        assert_eq!(explained.batched, Way::SharedCall, "{explained}");
        let text = explained.to_string();
        assert!(
            text.contains("file system") && text.contains(explained.why),
            "{text}"
        );
    }
}

/// Checks a way against what has been counted for one operation.
fn is_that_way(way: Way, before: &Stats, after: &Stats) -> bool {
    let plain_calls = after.plain_calls - before.plain_calls;
    let pool_calls = after.pool_calls - before.pool_calls;
    let entered = after.enters > before.enters;
    match way {
        Way::PlainCall | Way::SharedCall => (plain_calls, pool_calls) == (1, 0),
        Way::TryThenPool => plain_calls + pool_calls == 1,
        Way::TryThenBackend => pool_calls == 0 && (plain_calls == 1 || entered),
        Way::PlainCallOrRing => pool_calls == 0 && (plain_calls == 1) != entered,
        Way::Backend => (plain_calls, pool_calls) == (0, 0) && entered,
        Way::Pool => (plain_calls, pool_calls) == (0, 1),
        _ => plain_calls + pool_calls == 0 && !entered,
    }
}

#[test]
fn what_is_explained_of_one_is_what_happens_to_it() {
    let Some(engine) = uring_about_to_look_or_skip("explained roads of one") else {
        return;
    };
    /// Explains one operation and runs it, alone and awaited.
    macro_rules! check {
        ($operation:expr) => {{
            let mut operation = $operation;
            let explained = operation.explain();
            let before = engine.stats();
            let alone = operation.wait();
            let after = engine.stats();
            assert!(
                is_that_way(explained.alone, &before, &after),
                "alone: {explained}\n{before:?}\n{after:?}"
            );
            let mut operation = $operation;
            let explained = operation.explain();
            let before = engine.stats();
            let awaited = engine.run(async { operation.await });
            let after = engine.stats();
            // The one that finds out that it cannot be asked goes to the pool.
            let finds_out = explained.takes_nowait.is_none()
                && $operation.explain().takes_nowait == Some(false)
                && is_that_way(Way::Pool, &before, &after);
            assert!(
                finds_out || is_that_way(explained.awaited, &before, &after),
                "awaited: {explained}\n{before:?}\n{after:?}"
            );
            (alone, awaited.expect("nothing is demanded"), explained)
        }};
    }
    for directory in directories() {
        for direct in [Direct::Off, Direct::Required] {
            let path = NamedTempFile::new_in(&directory).expect("it can be written");
            fs::write(path.path(), pattern(16 * BLOCK)).expect("it can be written");
            let options = read_write(&engine).direct(direct);
            let Ok(file) = options.open(path.path()) else {
                skip("explained direct roads", &format!("{directory:?}"));
                continue;
            };
            let buf = || file.aligned_buf(BLOCK).expect("there is memory");
            let halves = || vec![buf(), buf()];
            // Each one learns from the one before.
            for _ in 0..8 {
                let (alone, awaited, _) = check!(file.read_at(buf(), 0));
                assert_eq!((alone.0.unwrap(), awaited.0.unwrap()), (BLOCK, BLOCK));
                let (alone, awaited, _) = check!(file.write_at(buf(), 0));
                assert_eq!((alone.0.unwrap(), awaited.0.unwrap()), (BLOCK, BLOCK));
                // It makes the file grow.
                let (alone, _, _) = check!(file.write_at(buf(), 17 * BLOCK as u64));
                assert_eq!(alone.0.unwrap(), BLOCK);
                file.truncate(16 * BLOCK as u64).wait().unwrap();
                let (alone, _, _) = check!(file.read_vectored_at(halves(), 0));
                assert_eq!(alone.0.unwrap(), 2 * BLOCK);
                let (alone, _, _) = check!(file.write_vectored_at(halves(), 0));
                assert_eq!(alone.0.unwrap(), 2 * BLOCK);
                let (alone, _, explained) = check!(file.write_at(buf(), 0).dsync());
                assert_eq!(alone.0.unwrap(), BLOCK);
                assert_eq!(explained.durably, Some(Durably::Alone), "{explained}");
            }
            let mut sync = file.sync_data();
            let explained = sync.explain();
            let before = engine.stats();
            sync.wait().unwrap();
            let after = engine.stats();
            assert!(is_that_way(explained.alone, &before, &after), "{explained}");
        }
    }
}

/// Whether so many new files are written where that is awaited: their first writes, and the others.
/// A busy machine may have made some of them slow.
async fn written_here(engine: &Engine, files: u32) -> (u32, u32) {
    let (mut first, mut others) = (0, 0);
    for _ in 0..files {
        let path = temp_path(&[]);
        let file = open(engine, path.path());
        for block in 0..3 {
            let before = engine.stats().plain_calls;
            let (result, _) = file.write_at(vec![1; BLOCK], block * BLOCK as u64).await;
            assert_eq!(result.expect("there is room"), BLOCK);
            let here = u32::from(engine.stats().plain_calls > before);
            *if block == 0 { &mut first } else { &mut others } += here;
        }
    }
    (first, others)
}

#[test]
fn new_files_are_written_where_that_is_awaited() {
    on_every_faultless_backend(|engine| {
        let run = engine.run(written_here(engine, 100));
        let (first, others) = run.expect("nothing is demanded");
        assert!(first > 0 && others > 0, "{first} and {others}");
    });
}
