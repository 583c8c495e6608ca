//! Cached reads that another thread may copy: every block is right whoever copied it, every way out
//! leaves nothing behind, and all is counted.
//!
//! Whether another thread comes is up to the scheduler and to what the library measures, so these
//! tests go on until it has come, within bounds.

pub(crate) mod lists;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use inflight::fs::{File, OpenOptions, ReadAt};
use inflight::{Batch, Engine, Queue};
use tempfile::NamedTempFile;

use crate::support::overlay::Overlay;
use crate::support::{
    copies_are_fast, evict, has_several_processors, on_every_backend, open, path_in_memory,
    pattern, say, temp_file, temp_path, until,
};

/// Large enough for another thread to come in time.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 128;

/// A trial begins after some thousands of reads; there are several in so many batches.
const BATCHES_MAX: u32 = 800;

fn content_file(engine: &Engine) -> File {
    // Written a moment ago, so the page cache has it.
    temp_file(
        engine,
        &pattern(BLOCK * usize::try_from(BLOCKS).expect("a few")),
    )
}

fn offset(block: u64) -> u64 {
    block * BLOCK as u64
}

fn expected(content: &[u8], block: u64) -> &[u8] {
    &content[usize::try_from(offset(block)).expect("a small file")..][..BLOCK]
}

/// One batch of reads, in another order each time, of which each is checked.
fn read_all<'f>(
    batch: &mut Batch<ReadAt<'f, Vec<u8>>>,
    bufs: &mut Vec<Vec<u8>>,
    file: &'f File,
    content: &[u8],
    round: u64,
) {
    let block = |at: u64| (at * 37 + round) % BLOCKS;
    for (at, mut buf) in (0..).zip(bufs.drain(..)) {
        buf.fill(0);
        batch.push(file.read_at(buf, offset(block(at))));
    }
    let results: Vec<_> = batch.wait().collect();
    // The last one first: nobody may be at work at it any more.
    for (at, (result, buf)) in results.into_iter().enumerate().rev() {
        let block = block(at as u64);
        assert_eq!(result.expect("it is read"), BLOCK);
        assert!(buf == expected(content, block), "block {block}");
        bufs.push(buf);
    }
}

fn buffers() -> Vec<Vec<u8>> {
    (0..BLOCKS).map(|_| vec![0; BLOCK]).collect()
}

/// Reads batches until another thread has copied so many blocks. Returns how many there were.
fn until_helped(name: &str, engine: &Engine, file: &File, enough: u64) -> u64 {
    let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
    let (mut batch, mut bufs) = (Batch::on(engine), buffers());
    for round in 0..BATCHES_MAX {
        read_all(&mut batch, &mut bufs, file, &content, u64::from(round));
        if engine.stats().helped >= enough {
            return u64::from(round) + 1;
        }
    }
    let helped = engine.stats().helped;
    say(&format!(
        "{name}: another thread has copied {helped} blocks only"
    ));
    u64::from(BATCHES_MAX)
}

#[test]
fn every_block_of_a_batch_is_right_whoever_copied_it() {
    let name = "batches that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let file = content_file(engine);
        let batches = until_helped(name, engine, &file, 500);
        let stats = engine.stats();
        assert_eq!(stats.operations, batches * BLOCKS, "each is counted once");
        assert!(stats.plain_calls + stats.helped <= stats.operations);
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

/// More reads than can be shared at a time, so that some wait for the oldest.
#[test]
fn every_block_of_a_large_batch_is_right_whoever_copied_it() {
    let name = "large batches that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let file = content_file(engine);
        let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
        let mut batch = Batch::on(engine);
        let mut bufs: Vec<_> = (0..5 * BLOCKS).map(|_| vec![0; BLOCK]).collect();
        for round in 0..BATCHES_MAX / 5 {
            read_all(&mut batch, &mut bufs, &file, &content, u64::from(round));
            if engine.stats().helped >= 2_000 {
                return;
            }
        }
        let helped = engine.stats().helped;
        say(&format!("{name}: {helped} blocks only"));
    });
}

type Reads<'q, 's, 'f> = Queue<'q, 's, ReadAt<'f, Vec<u8>>>;
type Read = (u64, (std::io::Result<usize>, Vec<u8>));

/// How a queue is asked for the next result: by who waits for it, and by who does not.
const ASKS: [fn(&mut Reads<'_, '_, '_>) -> Option<Read>; 3] = [
    |queue| queue.next(),
    |queue| queue.try_next(),
    |queue| queue.next_timeout(Duration::from_millis(1)).ok().flatten(),
];

/// Pushes a read of each block as often as `rounds` says, and checks each of the results.
fn read_queue<'f>(
    queue: &mut Reads<'_, '_, 'f>,
    file: &'f File,
    content: &[u8],
    (depth, rounds): (u32, u64),
    ask: fn(&mut Reads<'_, '_, '_>) -> Option<Read>,
) {
    let next = |queue: &mut Reads<'_, '_, 'f>| {
        let mut next = None;
        until("there is a result", || {
            next = ask(queue);
            next.is_some()
        });
        next.expect("it is there")
    };
    let mut bufs: Vec<_> = (0..depth).map(|_| vec![0; BLOCK]).collect();
    let mut seen = vec![0; content.len() / BLOCK];
    let mut take = |tag: u64, (result, buf): (std::io::Result<usize>, Vec<u8>)| {
        assert_eq!(result.expect("it is read"), BLOCK);
        assert!(buf == expected(content, tag), "block {tag}");
        seen[usize::try_from(tag).expect("a block")] += 1;
        buf
    };
    for number in 0..rounds * BLOCKS {
        // With little locked memory, a ring has fewer places than there are buffers.
        if bufs.is_empty() || queue.is_full() {
            let (tag, output) = next(queue);
            bufs.push(take(tag, output));
        }
        let mut buf = bufs.pop().expect("one has come back");
        buf.fill(0);
        let tag = number % BLOCKS;
        assert!(queue.push(tag, file.read_at(buf, offset(tag))).is_ok());
    }
    while !queue.is_empty() {
        let (tag, output) = next(queue);
        take(tag, output);
    }
    assert!(seen.iter().all(|times| *times == rounds));
}

#[test]
fn every_block_of_a_queue_is_right_whoever_copied_it() {
    let name = "queues that are shared";
    if !has_several_processors(name) {
        return;
    }
    // A few in flight are enough: the other thread takes what is pushed while this one copies.
    for depth in [4, 64] {
        on_every_backend(|engine| {
            let file = content_file(engine);
            let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
            let mut rounds = 0;
            while engine.stats().helped < 500 && rounds < u64::from(BATCHES_MAX) {
                let ask = ASKS[usize::try_from(rounds / 16).expect("a few") % ASKS.len()];
                let run = |queue: &mut Queue<'_, '_, _>| {
                    read_queue(queue, &file, &content, (depth, 16), ask);
                };
                engine.queue(depth, run).expect("nothing is demanded");
                rounds += 16;
            }
            let stats = engine.stats();
            assert_eq!(stats.operations, rounds * BLOCKS, "each is counted once");
            if stats.helped < 500 {
                let helped = stats.helped;
                say(&format!("{name}, {depth} in flight: {helped} blocks only"));
            }
        });
    }
}

/// Reads that another thread may make are of what the page cache is taken to have, or asked first;
/// what it has not is read by the backend, which has fewer places than there are reads.
#[test]
fn what_the_page_cache_has_not_is_read_all_the_same() {
    let name = "shared reads of what is not cached";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
        let path = temp_path(&content);
        let warm = open(engine, path.path());
        let mut rounds = until_helped(name, engine, &warm, 64);
        let mut bufs = buffers();
        for round in 0..64 {
            // Of a new file nothing is known, so it is asked.
            let file = open(engine, path.path());
            // All but one in 32 are cached, or none.
            evict(path.as_file());
            let cached = (0..BLOCKS).filter(|block| round >= 4 && !block.is_multiple_of(32));
            for block in cached {
                let read = path.as_file().read_at(&mut bufs[0], offset(block));
                assert_eq!(read.expect("it is there"), BLOCK);
            }
            match usize::try_from(round % 4).expect("it is small") {
                0 => read_all(&mut Batch::on(engine), &mut bufs, &file, &content, round),
                way => {
                    let run = |queue: &mut Queue<'_, '_, _>| {
                        read_queue(queue, &file, &content, (64, 1), ASKS[way - 1]);
                    };
                    engine.queue(64, run).expect("nothing is demanded");
                }
            }
            rounds += 1;
        }
        let stats = engine.stats();
        assert_eq!(stats.operations, rounds * BLOCKS, "each is counted once");
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

/// Of a file of which nothing is known it is not known either that it cannot be asked not to wait.
#[test]
fn new_files_that_cannot_be_asked_need_no_thread_of_the_pool() {
    let name = "new files that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
        let Some(path) = path_in_memory(name, &content) else {
            return;
        };
        let warm = open(engine, path.path());
        // Then reads are shared, or about to be.
        until_helped(name, engine, &warm, 500);
        let before = engine.stats().pool_calls;
        for round in 0..8 {
            let files: Vec<File> = (0..BLOCKS).map(|_| open(engine, path.path())).collect();
            let mut batch = Batch::on(engine);
            for (block, file) in (0..).zip(&files) {
                batch.push(file.read_at(vec![0; BLOCK], offset(block)));
            }
            for (block, (result, buf)) in (0..).zip(batch.wait()) {
                assert_eq!(result.expect("it is read"), BLOCK);
                assert!(buf == expected(&content, block), "{block}, round {round}");
            }
        }
        let pooled = engine.stats().pool_calls - before;
        assert_eq!(pooled, 0, "they are read where they are asked");
    });
}

/// In so many batches the first trial has begun and ended.
const TRIAL_BATCHES: u64 = 64;

/// How many descriptors of this process are of the file with this device and number.
fn descriptors_of(file: (u64, u64)) -> usize {
    let open = fs::read_dir("/proc/self/fd").expect("it is there");
    let names = open.filter_map(|entry| fs::metadata(entry.ok()?.path()).ok());
    names.filter(|of| (of.dev(), of.ino()) == file).count()
}

/// A file in memory, which is opened by the library, and its device and number. None where reads of
/// it are for the pool.
fn file_in_memory(name: &str) -> Option<(NamedTempFile, (u64, u64))> {
    let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
    let named = path_in_memory(name, &content)?;
    let of = named.as_file().metadata().expect("it is open");
    let is_shared = has_several_processors(name) && copies_are_fast(name, named.path(), BLOCK);
    is_shared.then_some((named, (of.dev(), of.ino())))
}

/// Reads for so long that the first trial has begun and ended: it shows some reads to another
/// thread, whether or not one comes.
fn read_for_a_trial(engine: &Engine, file: &File) {
    let content = pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"));
    let (mut batch, mut bufs) = (Batch::on(engine), buffers());
    for round in 0..TRIAL_BATCHES {
        read_all(&mut batch, &mut bufs, file, &content, round);
    }
}

#[test]
fn the_descriptor_for_who_helps_is_closed_with_the_file() {
    let Some((named, of)) = file_in_memory("descriptors of files that are shared") else {
        return;
    };
    let closings: [fn(File); 2] = [drop, |file| file.close().wait().expect("it is closed")];
    for close in closings {
        on_every_backend(|engine| {
            let options = OpenOptions::new().read(true).engine(engine);
            let file = options.open(named.path()).expect("it is there");
            assert_eq!(descriptors_of(of), 2);
            read_for_a_trial(engine, &file);
            assert_eq!(descriptors_of(of), 3);
            close(file);
            assert_eq!(descriptors_of(of), 1, "that of this test");
        });
    }
}

#[test]
fn a_file_that_was_opened_elsewhere_is_not_opened_again() {
    let Some((named, of)) = file_in_memory("files that are opened elsewhere") else {
        return;
    };
    on_every_backend(|engine| {
        let other = named.as_file().try_clone().expect("a descriptor");
        let file = File::from_std(engine, other).expect("it has positions");
        read_for_a_trial(engine, &file);
        assert_eq!(descriptors_of(of), 2);
    });
}

/// Of so many reads by another thread enough are taken to be fast for it to have a descriptor of
/// its own, also on a busy machine.
const READS_BY_ANOTHER: u32 = 8192;

#[test]
fn a_file_of_an_overlay_reads_the_same_by_both_descriptors_when_it_is_first_written() {
    let (before, after) = (pattern(BLOCK), vec![7; BLOCK]);
    let name = "files of overlays by two descriptors";
    let Some(overlay) = Overlay::over(name, &before) else {
        return;
    };
    let engine = Engine::new().expect("there is a backend");
    let path = overlay.path("below");
    let options = OpenOptions::new().read(true).engine(&engine);
    let file = options.open(&path).expect("it is there");
    let named = fs::metadata(&path).expect("it is there");
    let read = |times: u32| {
        let mut buf = vec![0; BLOCK];
        for _ in 0..times {
            buf.fill(0);
            buf = pollster::block_on(file.read_at(buf, 0)).1;
        }
        buf
    };
    let by_both = || {
        let ours = read(16);
        thread::scope(|scope| [ours, scope.spawn(|| read(READS_BY_ANOTHER)).join().unwrap()])
    };
    assert_eq!(by_both(), [before.clone(), before]);
    if copies_are_fast(name, &path, BLOCK) {
        assert_eq!(descriptors_of((named.dev(), named.ino())), 2);
    }
    // The kernel copies it to the upper layer first.
    let written = fs::OpenOptions::new().write(true).open(&path);
    let written = written.and_then(|written| written.write_all_at(&after, 0));
    written.expect("there is room");
    assert_eq!(by_both(), [after.clone(), after]);
}

/// Reads that take long enough for one of two threads to be at work when the other is done.
#[test]
fn a_batch_is_over_when_all_who_copied_are_done() {
    let name = "large reads that are shared";
    if !has_several_processors(name) {
        return;
    }
    const LARGE: usize = 4 << 20;
    on_every_backend(|engine| {
        let content = pattern(LARGE);
        let (large, small) = (temp_file(engine, &content), content_file(engine));
        let mut bufs: Vec<_> = (0..3).map(|_| vec![0; LARGE]).collect();
        // Then the first trial has begun, and the next batches are shared too.
        until_helped(name, engine, &small, 1);
        for round in 0..12 {
            let mut batch = Batch::on(engine);
            for mut buf in bufs.drain(..) {
                buf.fill(0);
                batch.push(large.read_at(buf, 0));
            }
            let results: Vec<_> = batch.wait().collect();
            for (result, buf) in results.into_iter().rev() {
                assert_eq!(result.expect("it is read"), LARGE);
                assert!(buf == content, "round {round}");
                bufs.push(buf);
            }
        }
    });
}

/// The end of a file is where it is for whoever reads, and each result is that of its own read.
#[test]
fn the_end_of_a_file_is_told_whoever_comes_to_it() {
    let name = "reads at the end of a file that are shared";
    if !has_several_processors(name) {
        return;
    }
    const TAIL: usize = 100;
    on_every_backend(|engine| {
        let content = pattern(BLOCK * 4 + TAIL);
        let file = temp_file(engine, &content);
        let there = |start: usize| content.get(start..).unwrap_or_default();
        // Whole blocks, the rest of one, and nothing.
        let starts = (0..96).map(|at| at % 6 * BLOCK);
        let starts: Vec<usize> = starts.collect();
        let mut batch = Batch::on(engine);
        // A short one does not say that the page cache had all of it, so the first are whole.
        (0..BLOCKS).for_each(|_| batch.push(file.read_at(vec![0; BLOCK], 0)));
        batch.wait().for_each(drop);
        for _ in 0..BATCHES_MAX {
            for start in &starts {
                let (buf, offset) = (vec![0; BLOCK], *start as u64);
                batch.push(match start / BLOCK {
                    at if at % 2 == 0 => file.read_at(buf, offset),
                    _ => file.read_exact_at(buf, offset),
                });
            }
            for (start, (result, buf)) in starts.iter().zip(batch.wait()) {
                let there = there(*start);
                let expected = &there[..there.len().min(BLOCK)];
                match result {
                    Ok(count) => assert_eq!(count, expected.len(), "at {start}"),
                    Err(cause) => {
                        assert_eq!(cause.kind(), ErrorKind::UnexpectedEof);
                        assert_eq!(start / BLOCK % 2, 1, "it was not to be whole");
                        assert!(expected.len() < BLOCK, "at {start}");
                    }
                }
                assert!(buf[..expected.len()] == *expected, "at {start}");
            }
            if engine.stats().helped >= 500 {
                return;
            }
        }
        let helped = engine.stats().helped;
        say(&format!("{name}: {helped} blocks only"));
    });
}
