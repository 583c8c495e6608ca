//! Cached reads that a run loop shares with another thread: every block is right whoever copied it,
//! and all is counted.
//!
//! Whether another thread comes is up to the scheduler and to what the library measures, so these
//! tests go on until it has come, within bounds.

use std::cell::Cell;
use std::future::IntoFuture;
use std::io;
use std::rc::Rc;
use std::thread;

use inflight::fs::{File, ReadAt};
use inflight::{Batch, Engine, Pending, local};

use super::hands::{Watchdog, drained, poll_once, until_turned};
use crate::support::{
    copies_are_fast, evict, has_several_processors, on_every_faultless_backend, open,
    path_in_memory, pattern, say, temp_path, uring_or_skip,
};

/// Large enough for another thread to come in time.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = blocks(BLOCK);

/// A trial begins after some thousands of reads; there are several in so many rounds.
const ROUNDS_MAX: u64 = 400;

/// Blocks that another thread has copied when it has been seen enough of.
pub(super) const ENOUGH: u64 = 500;

const CONTENT: usize = 4 << 20;

/// What is in the files of these tests, of those on lanes and of those of lists.
pub(super) fn content() -> Vec<u8> {
    pattern(CONTENT)
}

/// How many blocks of this length that is.
pub(super) const fn blocks(len: usize) -> u64 {
    (CONTENT / len) as u64
}

/// Checks what was read of a block, and hands its buffer back.
pub(super) fn checked<const LEN: usize>(
    content: &[u8],
    block: u64,
    (result, buf): (io::Result<usize>, Vec<u8>),
) -> Vec<u8> {
    assert_eq!(result.expect("it is read"), LEN);
    let start = LEN * usize::try_from(block).expect("a few");
    assert!(buf == content[start..][..LEN], "block {block}");
    buf
}

/// How many blocks so many tasks read in a round, each block as often.
fn reads_of(tasks: u64) -> u64 {
    BLOCKS * (4 * tasks).div_ceil(BLOCKS)
}

/// Reads every block, with so many tasks, and checks each.
async fn read_all(file: &Rc<File>, content: &Rc<Vec<u8>>, tasks: u64, round: u64) {
    let next = Rc::new(Cell::new(0));
    let task = |_| {
        let (file, content, next) = (Rc::clone(file), Rc::clone(content), Rc::clone(&next));
        local::spawn(async move {
            let mut buf = vec![0; BLOCK];
            while next.get() < reads_of(tasks) {
                let block = (next.replace(next.get() + 1) * 37 + round) % BLOCKS;
                buf.fill(0);
                let read = file.read_at(buf, block * BLOCK as u64).await;
                buf = checked::<BLOCK>(&content, block, read);
            }
        })
    };
    let running: Vec<_> = (0..tasks).map(task).collect();
    for task in running {
        task.await;
    }
}

/// Reads of blocks that have begun.
pub(super) type Begun<'f> = Vec<(u64, Pending<ReadAt<'f, Vec<u8>>>)>;

/// Reads of every block, as far as they are not answered when they are polled first.
pub(super) fn begun<const LEN: usize>(file: &File) -> Begun<'_> {
    let read = |block| {
        let buf = vec![0; LEN];
        file.read_at(buf, block * LEN as u64).into_future()
    };
    let mut reads: Begun<'_> = (0..blocks(LEN)).map(|block| (block, read(block))).collect();
    reads.retain_mut(|(_, read)| poll_once(read).is_pending());
    reads
}

pub(super) async fn check<const LEN: usize>(reads: Begun<'_>, content: &[u8]) {
    for (block, read) in reads {
        checked::<LEN>(content, block, read.await);
    }
}

/// Reads every block in a batch, and checks each.
pub(super) async fn read_batch<const LEN: usize>(
    engine: &Engine,
    file: &File,
    content: &[u8],
    round: u64,
) {
    let block = |at: u64| (at * 37 + round) % blocks(LEN);
    let mut batch = Batch::on(engine);
    for at in 0..blocks(LEN) {
        batch.push(file.read_at(vec![0; LEN], block(at) * LEN as u64));
    }
    for (at, read) in (0..).zip(batch.await) {
        checked::<LEN>(content, block(at), read);
    }
}

/// Reads in rounds until another thread has copied enough. Returns how many there were.
async fn until_helped(name: &str, engine: &Engine, file: &Rc<File>, tasks: u64) -> u64 {
    let content = Rc::new(content());
    for round in 0..ROUNDS_MAX {
        read_all(file, &content, tasks, round).await;
        if engine.stats().helped >= ENOUGH {
            return round + 1;
        }
    }
    let helped = engine.stats().helped;
    say(&format!("{name}, {tasks} tasks: {helped} blocks only"));
    ROUNDS_MAX
}

#[test]
fn every_block_of_a_loop_is_right_whoever_copied_it() {
    let name = "loops that share";
    if !has_several_processors(name) {
        return;
    }
    // A few in flight are enough: the other thread takes what is shown while this one copies. Of
    // the last number, more are in flight than there are places.
    for tasks in [4, 64, 600] {
        on_every_faultless_backend(|engine| {
            let path = temp_path(&content());
            let file = Rc::new(open(engine, path.path()));
            let run = engine.run(until_helped(name, engine, &file, tasks));
            let rounds = run.expect("nothing is demanded");
            drained(engine);
            let stats = engine.stats();
            let reads = rounds * reads_of(tasks);
            assert_eq!(stats.operations, reads, "each is counted once");
            assert!(stats.plain_calls + stats.helped <= stats.operations);
            assert_eq!((stats.in_flight, stats.strays), (0, 0));
        });
    }
}

/// Whether the reads are shared at that moment is up to what has been measured; mostly they are.
#[test]
fn what_is_shared_by_an_outer_loop_is_answered_in_an_inner_one() {
    let name = "what an outer loop shares";
    if !has_several_processors(name) {
        return;
    }
    let _watchdog = Watchdog::new();
    on_every_faultless_backend(|engine| {
        let content = Rc::new(content());
        let path = temp_path(&content);
        let file = Rc::new(open(engine, path.path()));
        let mut pending = 0;
        let run = engine.run(async {
            for round in 0..40 {
                read_all(&file, &content, 4, round).await;
                let reads = begun::<BLOCK>(&file);
                pending += reads.len();
                let inner = engine.run(check::<BLOCK>(reads, &content));
                inner.expect("nothing is demanded");
            }
        });
        run.expect("nothing is demanded");
        let helped = engine.stats().helped;
        say(&format!("{name}: {pending} reads awaited, {helped} helped"));
        assert_eq!(engine.stats().in_flight, 0);
    });
}

/// A loop shows such reads in each trial, whether or not another thread comes.
#[test]
fn what_cannot_be_asked_not_to_wait_is_shared_as_well() {
    let name = "reads of memory that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_faultless_backend(|engine| {
        let content = Rc::new(content());
        let Some(path) = path_in_memory(name, &content) else {
            return;
        };
        if !copies_are_fast(name, path.path(), BLOCK) {
            return;
        }
        let file = Rc::new(open(engine, path.path()));
        let run = engine.run(async {
            for round in 0..ROUNDS_MAX {
                read_all(&file, &content, 16, round).await;
                let pooled = engine.stats().pool_calls;
                let reads = begun::<BLOCK>(&file);
                let pending = reads.len() as u64;
                check::<BLOCK>(reads, &content).await;
                // What was slow has gone to the pool, and one in 128 lets others have their turn.
                let others = engine.stats().pool_calls - pooled + BLOCKS / 64;
                if pending > others {
                    return true;
                }
            }
            false
        });
        assert!(run.expect("nothing is demanded"), "nothing is shared");
        drained(engine);
        assert_eq!((engine.stats().in_flight, engine.stats().strays), (0, 0));
    });
}

/// Too much to be copied where it is polled, so it was never asked whether the file can be asked.
#[test]
fn large_first_reads_of_what_cannot_be_asked_go_to_the_pool() {
    const LARGE: usize = 3 << 20;
    let name = "large reads of memory";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let content = pattern(LARGE);
    let Some(path) = path_in_memory(name, &content) else {
        return;
    };
    let run = engine.run(async {
        for _ in 0..4 {
            let file = open(&engine, path.path());
            let (result, buf) = file.read_at(vec![0; LARGE], 0).await;
            assert_eq!(result.expect("it is read"), LARGE);
            assert!(buf == content);
        }
    });
    run.expect("nothing is demanded");
    drained(&engine);
    assert_eq!(engine.stats().pool_calls, 4);
}

/// A batch begins its reads before anybody is to be told of them.
#[test]
fn every_block_of_an_awaited_batch_is_right_whoever_copied_it() {
    let name = "awaited batches that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_faultless_backend(|engine| {
        let content = content();
        let path = temp_path(&content);
        let file = open(engine, path.path());
        let run = engine.run(async {
            for round in 0..ROUNDS_MAX {
                read_batch::<BLOCK>(engine, &file, &content, round).await;
                if engine.stats().helped >= ENOUGH {
                    return round + 1;
                }
            }
            let helped = engine.stats().helped;
            say(&format!("{name}: {helped} blocks only"));
            ROUNDS_MAX
        });
        let rounds = run.expect("nothing is demanded");
        drained(engine);
        assert_eq!(engine.stats().operations, rounds * BLOCKS);
    });
}

/// What is shared is what the page cache is taken to have; it may have lost it meanwhile.
#[test]
fn what_the_page_cache_has_lost_is_read_all_the_same() {
    let name = "shared reads of what is no longer cached";
    if !has_several_processors(name) {
        return;
    }
    on_every_faultless_backend(|engine| {
        let path = temp_path(&content());
        let file = Rc::new(open(engine, path.path()));
        let run = engine.run(async {
            until_helped(name, engine, &file, 64).await;
            let content = Rc::new(content());
            for round in 0..32 {
                evict(path.as_file());
                // The first of them miss, and what is read then is cached for the next round.
                read_all(&file, &content, 64, round).await;
                read_all(&file, &content, 64, round).await;
            }
        });
        run.expect("nothing is demanded");
        drained(engine);
        assert_eq!((engine.stats().in_flight, engine.stats().strays), (0, 0));
    });
}

/// A loop that always has shared reads to take hears of everything else all the same.
#[test]
fn a_loop_that_shares_hears_from_other_threads() {
    let name = "a loop that shares and is woken from elsewhere";
    if !has_several_processors(name) {
        return;
    }
    on_every_faultless_backend(|engine| {
        let path = temp_path(&content());
        let file = Rc::new(open(engine, path.path()));
        let run = engine.run(async {
            until_helped(name, engine, &file, 16).await;
            let is_over = Rc::new(Cell::new(false));
            let (content, over, read) = (Rc::new(content()), Rc::clone(&is_over), Rc::clone(&file));
            let reads = local::spawn(async move {
                for round in 0..100 * ROUNDS_MAX {
                    read_all(&read, &content, 16, round).await;
                    if over.get() {
                        return;
                    }
                }
                panic!("nothing else was heard of while reads were shared");
            });
            for _ in 0..20 {
                let (say, heard) = tokio::sync::oneshot::channel();
                let thread = thread::spawn(move || say.send(()));
                heard.await.expect("it is said");
                thread.join().expect("no panic").expect("it is heard");
                engine.nop().await.expect("there are no faults");
            }
            is_over.set(true);
            reads.await;
            until_turned("nothing is left", || {
                engine.drain(std::time::Duration::ZERO) == 0
            })
            .await;
        });
        run.expect("nothing is demanded");
    });
}
