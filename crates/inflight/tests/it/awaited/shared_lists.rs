//! Cached reads into several buffers that a run loop, or the only thread of a tokio runtime, shares
//! with another thread: every list is right whoever filled it.
//!
//! Whether another thread comes is up to the scheduler and to what the library measures; each trial
//! shows it some reads all the same.

use std::future::IntoFuture;
use std::io::{ErrorKind, Result};
use std::task::Poll;

use inflight::fs::{File, ReadVectoredAt};
use inflight::{Batch, Engine, Pending};

use super::hands::{Watchdog, drained, poll_once};
use super::shared::{ENOUGH, blocks, content};
use crate::spread::lists::{holds, list};
use crate::support::{
    evict, has_several_processors, on_every_faultless_backend, open, path_in_memory, say, temp_path,
};

/// What [`list`] has room for.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = blocks(BLOCK);

/// A trial begins after some thousands of reads; there are several in so many rounds.
const ROUNDS_MAX: u64 = 400;

type Read<'f> = ReadVectoredAt<'f, Vec<u8>>;
type Begun<'f> = Vec<(u64, Pending<Read<'f>>)>;

/// Runs it in a run loop on every backend without faults, and on the only thread of a runtime that
/// serves.
fn on_each_host(name: &str, run: impl AsyncFn(&Engine)) {
    if !has_several_processors(name) {
        return;
    }
    let is_over = |engine: &Engine| {
        drained(engine);
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
        assert!(stats.plain_calls + stats.helped <= stats.operations);
    };
    on_every_faultless_backend(|engine| {
        let _watchdog = Watchdog::new();
        engine.run(run(engine)).expect("nothing is demanded");
        is_over(engine);
    });
    #[cfg(feature = "tokio")]
    if let Some(engine) = crate::support::uring_or_skip(name) {
        use super::lanes::{runtimes, served};
        let _watchdog = Watchdog::new();
        let [single, _] = runtimes();
        served(&engine, single).block_on(async {
            // It shares with tasks that are polled where its own is.
            tokio::task::yield_now().await;
            run(&engine).await;
        });
        is_over(&engine);
    }
}

/// The read of a block; every other one is to be whole.
fn read(file: &File, block: u64) -> Read<'_> {
    let offset = block * BLOCK as u64;
    match block % 2 {
        0 => file.read_vectored_at(list(), offset),
        _ => file.read_vectored_exact_at(list(), offset),
    }
}

/// Reads of each block, as far as they are not answered when they are polled first.
fn begun<'f>(file: &'f File, content: &[u8], round: u64) -> Begun<'f> {
    let mut begun = Vec::new();
    for block in (0..BLOCKS).map(|at| (at * 37 + round) % BLOCKS) {
        let mut pending = read(file, block).into_future();
        match poll_once(&mut pending) {
            Poll::Ready(result) => check(content, block, result),
            Poll::Pending => begun.push((block, pending)),
        }
    }
    begun
}

/// Whether the result is that of the read of this block, where the file has this content.
fn check(content: &[u8], block: u64, (result, bufs): (Result<usize>, Vec<Vec<u8>>)) {
    let start = BLOCK * usize::try_from(block).expect("a few");
    let there = content.get(start..).unwrap_or_default();
    let there = &there[..there.len().min(BLOCK)];
    match result {
        Ok(count) => {
            assert_eq!(count, there.len(), "block {block}");
            assert!(block.is_multiple_of(2) || count == BLOCK, "block {block}");
        }
        Err(cause) => {
            assert_eq!(cause.kind(), ErrorKind::UnexpectedEof, "block {block}");
            assert!(block % 2 == 1 && there.len() < BLOCK, "block {block}");
        }
    }
    assert!(holds(&bufs, there), "block {block}");
}

async fn answered(begun: Begun<'_>, content: &[u8]) {
    for (block, read) in begun {
        check(content, block, read.await);
    }
}

/// Reads in rounds until another thread has made enough. Returns how many were not
/// answered when they were polled first, at most.
async fn until_helped(name: &str, engine: &Engine, file: &File, content: &[u8]) -> usize {
    let (before, mut most) = (engine.stats().helped, 0);
    for round in 0..ROUNDS_MAX {
        let begun = begun(file, content, round);
        most = most.max(begun.len());
        answered(begun, content).await;
        if engine.stats().helped - before >= ENOUGH {
            return most;
        }
    }
    let helped = engine.stats().helped - before;
    say(&format!("{name}: {helped} lists only"));
    most
}

#[test]
fn every_list_is_right_whoever_filled_it() {
    let name = "lists that are awaited and shared";
    on_each_host(name, async |engine| {
        let content = content();
        let path = temp_path(&content);
        let file = open(engine, path.path());
        let most = until_helped(name, engine, &file, &content).await;
        // Some let others have their turn, and a few may be missed in the page cache.
        assert!(most > 64, "nothing is shared");
    });
}

#[test]
fn lists_of_what_cannot_be_asked_not_to_wait_are_shared_as_well() {
    let name = "lists of memory that are awaited and shared";
    on_each_host(name, async |engine| {
        let content = content();
        let Some(path) = path_in_memory(name, &content) else {
            return;
        };
        let file = open(engine, path.path());
        let pooled = engine.stats().pool_calls;
        let most = until_helped(name, engine, &file, &content).await;
        // What was slow has gone to the pool.
        let pooled = engine.stats().pool_calls - pooled;
        assert!(most > 64 || pooled > 64, "nothing is shared");
    });
}

/// A batch begins its reads before anybody is to be told of them.
#[test]
fn every_list_of_an_awaited_batch_is_right_whoever_filled_it() {
    let name = "awaited batches of lists that are shared";
    on_each_host(name, async |engine| {
        let content = content();
        let path = temp_path(&content);
        let file = open(engine, path.path());
        let operations = engine.stats().operations;
        for round in 1..=ROUNDS_MAX {
            let mut batch = Batch::on(engine);
            (0..BLOCKS).for_each(|block| batch.push(read(&file, block)));
            for (block, result) in (0..).zip(batch.await) {
                check(&content, block, result);
            }
            let stats = engine.stats();
            if stats.helped >= ENOUGH {
                assert_eq!(stats.operations - operations, round * BLOCKS);
                return;
            }
        }
        let helped = engine.stats().helped;
        say(&format!("{name}: {helped} lists only"));
    });
}

/// What is shared is what the page cache is taken to have; what it has not is read by the backend,
/// from the beginning of the list on.
#[test]
fn lists_that_the_page_cache_has_lost_are_filled_all_the_same() {
    let name = "awaited lists of what is no longer cached";
    on_each_host(name, async |engine| {
        let content = content();
        let path = temp_path(&content);
        let file = open(engine, path.path());
        until_helped(name, engine, &file, &content).await;
        for round in 0..32 {
            evict(path.as_file());
            // The first of them miss, and what is read then is cached for the next round.
            for round in [round, round + 1] {
                answered(begun(&file, &content, round), &content).await;
            }
        }
    });
}

/// What the file ends in is short without waiting, which may mean anything, and is read once more.
#[test]
fn the_end_of_a_file_is_told_of_lists_whoever_comes_to_it() {
    let name = "awaited lists at the end of a file";
    on_each_host(name, async |engine| {
        let content = content();
        let path = temp_path(&content);
        let file = open(engine, path.path());
        until_helped(name, engine, &file, &content).await;
        // In the fifth buffer of a list, between two, in the third, and where a list begins.
        for tail in [6000, 5096, 1100, 0] {
            let len = content.len() / 2 + tail;
            let set = path.as_file().set_len(len as u64);
            set.expect("it can be cut");
            for round in 0..32 {
                answered(begun(&file, &content[..len], round), &content[..len]).await;
            }
        }
    });
}
