//! Cached reads that the only thread of a tokio runtime shares with another thread: every block is
//! right whoever copied it, wherever its future goes, and all is counted.
//!
//! Whether another thread comes is up to the scheduler and to what the library measures, so these
//! tests go on until it has come, within bounds.

use std::future::IntoFuture;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use inflight::Engine;
use inflight::fs::{File, ReadAt};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use super::hands::{Watchdog, drained, poll_once, until_turned};
use super::lanes::{runtimes, served};
use super::refused::is_forked;
use super::shared::{Begun, ENOUGH, begun, blocks, check, checked, content, read_batch};
use crate::support::own::{in_forked_child, in_own_process};
use crate::support::{
    copies_are_fast, evict, given_up, has_several_processors, open, path_in_memory, pattern, say,
    temp_path, uring_or_skip,
};

/// So large that copying takes longer than all else, also where nothing is optimised.
pub(super) const BLOCK: usize = 64 << 10;
pub(super) const BLOCKS: u64 = blocks(BLOCK);

/// There are two trials in so many rounds.
const ROUNDS_MAX: u64 = 200;

/// How many blocks so many tasks read in a round, each block as often.
fn reads_of(tasks: u64) -> u64 {
    BLOCKS * (2 * tasks).div_ceil(BLOCKS)
}

/// What all tests here have: a file in the page cache, in an engine that a runtime serves.
pub(super) struct Site {
    name: &'static str,
    pub(super) engine: Engine,
    path: NamedTempFile,
    pub(super) file: Arc<File>,
    content: Arc<Vec<u8>>,
    _watchdog: Watchdog,
}

impl Site {
    /// `None` where there are no rings, or one processor.
    pub(super) fn new(name: &'static str) -> Option<Self> {
        Self::with(name, |content| Some(temp_path(content)))
    }

    /// With a file of this content.
    fn with(
        name: &'static str,
        path_of: impl FnOnce(&[u8]) -> Option<NamedTempFile>,
    ) -> Option<Self> {
        if !has_several_processors(name) {
            return None;
        }
        let engine = uring_or_skip(name)?;
        let content = Arc::new(content());
        let path = path_of(&content)?;
        let file = Arc::new(open(&engine, path.path()));
        Some(Self {
            name,
            engine,
            path,
            file,
            content,
            _watchdog: Watchdog::new(),
        })
    }

    /// A runtime of one thread that serves the engine.
    pub(super) fn single(&self) -> Runtime {
        let [single, _] = runtimes();
        served(&self.engine, single)
    }

    /// Reads every block, with so many tasks, and checks each.
    pub(super) async fn read_all(&self, tasks: u64, round: u64) {
        let next = Arc::new(AtomicU64::new(0));
        let task = |_| {
            let (file, content) = (Arc::clone(&self.file), Arc::clone(&self.content));
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                let mut buf = vec![0; BLOCK];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= reads_of(tasks) {
                        return;
                    }
                    let block = (number * 37 + round) % BLOCKS;
                    buf.fill(0);
                    let read = file.read_at(buf, block * BLOCK as u64).await;
                    buf = checked::<BLOCK>(&content, block, read);
                }
            })
        };
        let running: Vec<_> = (0..tasks).map(task).collect();
        for task in running {
            task.await.expect("no panic");
        }
    }

    /// Reads in rounds until another thread has copied enough. Returns how many there were.
    async fn until_helped(&self, tasks: u64) -> u64 {
        let before = self.engine.stats().helped;
        for round in 0..ROUNDS_MAX {
            self.read_all(tasks, round).await;
            if self.engine.stats().helped - before >= ENOUGH {
                return round + 1;
            }
        }
        let helped = self.engine.stats().helped - before;
        let name = self.name;
        say(&format!("{name}, {tasks} tasks: {helped} blocks only"));
        ROUNDS_MAX
    }

    pub(super) fn read(&self, block: u64) -> ReadAt<'_, Vec<u8>> {
        self.file.read_at(vec![0; BLOCK], block * BLOCK as u64)
    }

    /// Reads until some are shared whose answers have not been taken: there are such in each trial,
    /// whether or not another thread comes. None if a driver has taken the lane over.
    async fn shared(&self) -> Begun<'_> {
        for round in 0..ROUNDS_MAX {
            if self.is_taken_over() {
                say(&format!("{}: this machine is too busy", self.name));
                return Vec::new();
            }
            self.read_all(16, round).await;
            let reads = begun::<BLOCK>(&self.file);
            if self.engine.drain(Duration::ZERO) > 0 {
                return reads;
            }
            self.check(reads).await;
        }
        panic!("nothing is shared");
    }

    /// Whether nobody has polled the lane for a while.
    pub(super) fn is_taken_over(&self) -> bool {
        !given_up(&self.engine, "has not polled its lane").is_empty()
    }

    pub(super) async fn check(&self, reads: Begun<'_>) {
        check::<BLOCK>(reads, &self.content).await;
    }

    /// Nothing is in flight any more, and nothing was answered that was not asked for.
    pub(super) fn is_over(&self) {
        drained(&self.engine);
        let stats = self.engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    }
}

#[test]
fn every_block_of_a_lane_is_right_whoever_copied_it() {
    // A few in flight are enough: the other thread takes what is shown while this one copies. Of
    // the last number, more are in flight than there are places.
    for tasks in [4, 64, 600] {
        let Some(site) = Site::new("lanes that share") else {
            return;
        };
        let before = site.engine.stats().operations;
        let rounds = site.single().block_on(site.until_helped(tasks));
        site.is_over();
        let stats = site.engine.stats();
        let operations = stats.operations - before;
        let reads = rounds * reads_of(tasks);
        assert_eq!(operations, reads, "each is counted once");
        assert!(stats.plain_calls + stats.helped <= stats.operations);
        assert!(stats.lane_operations >= stats.helped);
    }
}

#[test]
fn what_cannot_be_asked_not_to_wait_is_shared_as_well() {
    let name = "reads of memory that a lane shares";
    let path = |content: &[u8]| {
        let path = path_in_memory(name, content)?;
        copies_are_fast(name, path.path(), BLOCK).then_some(path)
    };
    let Some(site) = Site::with(name, path) else {
        return;
    };
    let are_shared = site.single().block_on(async {
        for _ in 0..ROUNDS_MAX {
            let pooled = site.engine.stats().pool_calls;
            let reads = site.shared().await;
            let in_flight = site.engine.drain(Duration::ZERO) as u64;
            site.check(reads).await;
            // What was slow has gone to the pool.
            if in_flight > site.engine.stats().pool_calls - pooled || site.is_taken_over() {
                return true;
            }
        }
        false
    });
    assert!(are_shared, "nothing is shared");
    site.is_over();
}

/// Its task is woken for each of them, so nobody has to take it over. On a busy machine that may
/// happen all the same, now and then.
#[test]
fn a_lane_looks_after_what_it_shares() {
    let was_left = || {
        let site = Site::new("a lane that looks after what it shares")?;
        let single = site.single();
        single.block_on(async {
            for _ in 0..8 {
                site.check(site.shared().await).await;
            }
            // So few that it often has to wait for the other thread.
            site.until_helped(2).await;
        });
        site.is_over();
        Some(site.is_taken_over())
    };
    assert!(!(0..5).all(|_| was_left().unwrap_or(false)), "always");
}

/// Its workers copy side by side as it is.
#[test]
fn a_runtime_of_several_threads_shares_nothing() {
    let Some(site) = Site::new("lanes of several threads") else {
        return;
    };
    let [_, multi] = runtimes();
    let multi = served(&site.engine, multi);
    multi.block_on(async {
        for round in 0..40 {
            site.read_all(16, round).await;
        }
    });
    site.is_over();
    assert_eq!(site.engine.stats().helped, 0);
}

/// Its reads could be told of by nobody for a while, if no task of the runtime has its turn.
#[test]
fn who_does_not_serve_a_lane_reads_at_once() {
    let Some(site) = Site::new("a thread beside a lane") else {
        return;
    };
    let single = site.single();
    single.block_on(async { site.check(site.shared().await).await });
    let before = site.engine.stats().lane_operations;
    let beside = || {
        let _entered = single.enter();
        for block in (0..BLOCKS).chain(0..BLOCKS / 2) {
            let buf = vec![0; BLOCK];
            let read = site.file.read_at(buf, block * BLOCK as u64).into_future();
            pollster::block_on(site.check(vec![(block, read)]));
        }
    };
    thread::scope(|scope| scope.spawn(beside).join().expect("no panic"));
    assert_eq!(site.engine.stats().lane_operations, before);
    site.is_over();
}

/// The lane's task has no turn before the run loop has ended.
#[test]
fn a_run_loop_on_the_thread_of_a_lane_shares_nothing_with_it() {
    let Some(site) = Site::new("a run loop within a runtime that serves") else {
        return;
    };
    let single = site.single();
    let run = || {
        let before = site.engine.stats().lane_operations;
        let read = async {
            for _ in 0..2 {
                site.check(begun::<BLOCK>(&site.file)).await;
            }
        };
        site.engine.run(read).expect("a loop can be had");
        assert_eq!(site.engine.stats().lane_operations, before);
    };
    single.block_on(async {
        site.check(site.shared().await).await;
        run();
        site.check(site.shared().await).await;
    });
    run();
    site.is_over();
}

#[test]
fn what_is_shared_outlives_its_runtime() {
    let Some(site) = Site::new("shared reads of a runtime that ends") else {
        return;
    };
    for round in 0..10 {
        let single = site.single();
        let mut reads = single.block_on(async {
            let reads = site.shared().await;
            if round % 2 == 1 {
                tokio::task::yield_now().await;
            }
            reads
        });
        let (dropped, forgotten) = (reads.len() / 4, reads.len() / 8);
        drop(reads.split_off(reads.len() - dropped));
        mem::forget(reads.split_off(reads.len() - forgotten));
        let late = reads.split_off(reads.len() / 2);
        drop(single);
        drop(late);
        pollster::block_on(site.check(reads));
        site.is_over();
    }
}

#[test]
fn what_is_shared_is_answered_though_its_runtime_is_left_or_blocked() {
    let name = "shared reads of a runtime that is left";
    for blocks in [false, true] {
        let Some(site) = Site::new(name) else {
            return;
        };
        let single = site.single();
        let left = single.block_on(async {
            let reads = site.shared().await;
            if blocks {
                pollster::block_on(site.check(reads));
                return Vec::new();
            }
            reads
        });
        mem::forget(single);
        pollster::block_on(site.check(left));
        site.is_over();
        assert!(site.is_taken_over(), "who has polled it?");
    }
}

#[test]
fn an_engine_may_go_with_its_reads_shared() {
    for _ in 0..5 {
        let Some(site) = Site::new("the end of an engine that shares") else {
            return;
        };
        let single = site.single();
        single.block_on(async {
            drop(site.shared().await);
            // What is left of it is not waited for.
            drop(site);
        });
    }
}

#[test]
fn a_forked_child_leaves_what_its_parent_shares_alone() {
    let this = "a_forked_child_leaves_what_its_parent_shares_alone";
    in_own_process(module_path!(), this, || {
        let Some(site) = Site::new("a fork beside shared reads") else {
            return;
        };
        let single = site.single();
        let mut reads = single.block_on(site.shared());
        in_forked_child(|| {
            for (_, read) in reads.iter_mut().take(10) {
                assert!(is_forked(poll_once(read).map(|(result, _)| result)));
            }
            drop(mem::take(&mut reads));
            let _entered = single.enter();
            let read = site.file.read_at(vec![0; BLOCK], 0);
            let answer = poll_once(&mut read.into_future());
            assert!(is_forked(answer.map(|(result, _)| result)));
        });
        single.block_on(site.check(reads));
        site.is_over();
    });
}

/// A batch begins its reads before anybody is to be told of them.
#[test]
fn every_block_of_an_awaited_batch_is_right_whoever_copied_it() {
    let Some(site) = Site::new("awaited batches that a lane shares") else {
        return;
    };
    let before = site.engine.stats().operations;
    let rounds = site.single().block_on(async {
        // It shares with tasks that are polled where its own is.
        tokio::task::yield_now().await;
        for round in 0..ROUNDS_MAX {
            read_batch::<BLOCK>(&site.engine, &site.file, &site.content, round).await;
            if site.engine.stats().helped >= ENOUGH {
                return round + 1;
            }
        }
        let helped = site.engine.stats().helped;
        say(&format!("{}: {helped} blocks only", site.name));
        ROUNDS_MAX
    });
    site.is_over();
    assert_eq!(site.engine.stats().operations - before, rounds * BLOCKS);
}

/// What is shared is what the page cache is taken to have; it may have lost it meanwhile.
#[test]
fn what_the_page_cache_has_lost_is_read_all_the_same() {
    let Some(site) = Site::new("what a lane shares and is no longer cached") else {
        return;
    };
    site.single().block_on(async {
        site.until_helped(64).await;
        for round in 0..32 {
            evict(site.path.as_file());
            // The first of them miss, and what is read then is cached for the next round.
            site.read_all(64, round).await;
            site.read_all(64, round).await;
        }
    });
    site.is_over();
}

/// A lane that always has shared reads to take hands over what comes beside them, and its thread
/// hears from others.
#[test]
fn a_lane_that_shares_hears_of_everything_else() {
    let Some(site) = Site::new("a lane that shares and is woken from elsewhere") else {
        return;
    };
    let site = Arc::new(site);
    site.single().block_on(async {
        site.until_helped(16).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, reading) = (Arc::clone(&is_over), Arc::clone(&site));
        let reads = tokio::spawn(async move {
            for round in 0..100 * ROUNDS_MAX {
                reading.read_all(16, round).await;
                if over.load(Ordering::Relaxed) {
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
            site.engine.nop().await.expect("there are no faults");
        }
        is_over.store(true, Ordering::Relaxed);
        reads.await.expect("no panic");
        let nothing_is_left = || site.engine.stats().in_flight == 0;
        until_turned("nothing is left", nothing_is_left).await;
    });
    site.is_over();
}

/// A read of nothing does not show that a file can be asked not to wait, and what is refused on a
/// lane is answered all the same.
#[test]
fn files_that_cannot_be_asked_are_read_after_a_read_of_nothing() {
    let Some(site) = Site::new("reads of nothing in memory") else {
        return;
    };
    let content = pattern(BLOCK);
    site.single().block_on(async {
        for _ in 0..8 {
            // Then reads are shared, or about to be.
            site.until_helped(16).await;
            let Some(path) = path_in_memory(site.name, &content) else {
                return;
            };
            let file = open(&site.engine, path.path());
            let (result, _) = file.read_at(Vec::new(), 0).await;
            assert_eq!(result.expect("it is nothing"), 0);
            let (result, buf) = file.read_at(vec![0; BLOCK], 0).await;
            assert_eq!(result.expect("it is read"), BLOCK);
            assert!(buf == content);
        }
    });
    site.is_over();
}
