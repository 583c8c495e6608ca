//! What a run loop that has nothing else to do makes itself, and what it leaves to the pool.

use std::fs;
use std::future::IntoFuture;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::File;
use inflight::{BackendKind, Engine, Priority, local};

use super::hands::poll_once;
use crate::support::own::in_own_process;
use crate::support::{
    direct_file_or_skip, on_every_faultless_backend, open, pattern, skip, temp_path, until,
};

const BLOCK: usize = 4096;
const LARGE: usize = 260 << 10;
const READS: u64 = 8;

/// A loop is away for so long at most.
const LOOP_WAIT: Duration = Duration::from_millis(1);

/// How often threads of pools have gone to sleep.
fn sleeps() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs is there");
    let sleeps = |status: String| {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_pool = field("Name:").is_some_and(|name| name.trim() == "inflight-pool");
        let count = field("voluntary_ctxt_switches:").filter(|_| is_pool);
        count.map_or(0, |count| count.trim().parse().expect("it is a number"))
    };
    let statuses = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses.map(sleeps).sum()
}

/// How a loop reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// With nothing else to do.
    Free,
    /// With a timer that is due while it waits.
    WithTimer,
    /// As the device is to serve it after others.
    WithWish,
    /// Within another loop.
    Nested,
}

/// Reads one after the other.
fn read(engine: &Engine, file: &File, bytes: usize, how: How) {
    let reads = async {
        for at in 0..READS {
            let begin = || local::sleep(LOOP_WAIT / 2).expect("this is a loop");
            let mut timer = begin();
            // On a busy machine one may be over before it is looked at.
            while how == How::WithTimer && poll_once(&mut timer).is_ready() {
                timer = begin();
            }
            let buf = file.aligned_buf(bytes).expect("there is memory");
            let mut read = file.read_at(buf, at * BLOCK as u64);
            if how == How::WithWish {
                read = read.priority(Priority::Throughput);
            }
            let (result, _) = read.await;
            assert_eq!(result.expect("it is there"), bytes);
        }
    };
    let run = match how {
        How::Nested => engine.run(async { engine.run(reads).expect("a loop can run in another") }),
        How::Free | How::WithTimer | How::WithWish => engine.run(reads),
    };
    run.expect("a loop can run");
}

/// The pool makes some reads, between which its threads sleep, unless they are so slow that they
/// find the next one before.
fn is_for_the_pool(what: &str, read: impl Fn()) {
    until(what, || {
        let before = sleeps();
        read();
        sleeps() >= before + READS / 2
    });
}

#[test]
fn a_loop_that_waits_for_a_short_read_makes_it_and_leaves_others_to_the_pool() {
    let name = "a_loop_that_waits_for_a_short_read_makes_it_and_leaves_others_to_the_pool";
    in_own_process(module_path!(), name, || {
        let builder = Engine::builder().backend(BackendKind::Threads).threads(1);
        let engine = builder.build().expect("nothing is demanded");
        let content = pattern(LARGE + 8 * BLOCK);
        let Some(file) = direct_file_or_skip(name, &engine, &content) else {
            return;
        };
        // The first ones show how long they take.
        read(&engine, &file, BLOCK, How::Free);
        let before = engine.stats();
        read(&engine, &file, BLOCK, How::Free);
        let after = engine.stats();
        if after.plain_calls - before.plain_calls == READS {
            return skip(name, "the file is in memory, and read where that is polled");
        }
        // Where other programs keep the disk busy one may take long.
        let mut fastest = Duration::MAX;
        let is_woken = (0..200).all(|_| {
            let (before, begun) = (sleeps(), Instant::now());
            read(&engine, &file, BLOCK, How::Free);
            fastest = fastest.min(begun.elapsed());
            sleeps() != before
        });
        if is_woken && fastest > Duration::from_millis(READS) {
            return skip(name, "the disk takes more than a millisecond");
        }
        assert!(!is_woken, "the pool makes them");
        is_for_the_pool("the pool makes large ones", || {
            read(&engine, &file, LARGE, How::Free);
        });
        for how in [How::WithTimer, How::WithWish, How::Nested] {
            let what = format!("the pool makes those {how:?}");
            is_for_the_pool(&what, || read(&engine, &file, BLOCK, how));
        }
    });
}

#[test]
fn a_cached_file_that_is_smaller_than_the_buffer_is_read_where_that_is_awaited() {
    const LEN: usize = 1000;
    let reads = |engine: &Engine| {
        let content = pattern(LEN);
        let path = temp_path(&content);
        let file = open(engine, path.path());
        // More than would show that the page cache does not have it, and fewer than a thread does
        // before it yields.
        for _ in 0..40 {
            for (offset, left) in [(0, LEN), (900, 100), (LEN, 0)] {
                let mut read = file.read_at(vec![0; BLOCK], offset as u64).into_future();
                let Poll::Ready((moved, buf)) = poll_once(&mut read) else {
                    panic!("it was written a moment ago");
                };
                assert_eq!(moved.expect("it is there"), left);
                assert_eq!(buf[..left], content[LEN - left..]);
            }
        }
    };
    on_every_faultless_backend(|engine| {
        thread::scope(|scope| scope.spawn(|| reads(engine)).join()).expect("no panic");
    });
}
