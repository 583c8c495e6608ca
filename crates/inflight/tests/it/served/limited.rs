//! Who has a limit in time is back by then, though whoever serves the file never answers.

use std::future::{Future, IntoFuture};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use inflight::fs::{Direct, File, ReadVectoredAt};
use inflight::{AlignedBuf, AnyOp, BackendKind, Batch, Engine, Queue, TimedOut};
use rustix::thread::gettid;
use tempfile::TempDir;

use super::forget;
use crate::commit::disk::{Mounted, SECTOR, mounted_or_skip};
use crate::denied::limits::set_limit;
use crate::support::fifo::Fifo;
use crate::support::own::in_own_process;
use crate::support::{
    directory, on_every_faultless_backend_of, patience, read_write, temp_file, until,
    uring_of_depth_or_skip,
};

/// Longer than what no thread has taken waits for one.
const LIMIT: Duration = Duration::from_millis(20);

const BLOCK: usize = 4096;

/// What is answered, and from where on nothing is.
const GOOD: u64 = 0;
const HUNG: u64 = BLOCK as u64;

fn open(engine: &Engine, mounted: &Mounted, direct: Direct) -> File {
    let file = read_write(engine).direct(direct).open(mounted.path(2));
    file.expect("every number is a file")
}

fn read(file: &File, at: u64) -> ReadVectoredAt<'_, AlignedBuf> {
    let buf = AlignedBuf::new(BLOCK, BLOCK).expect("there is memory");
    file.read_vectored_at(vec![buf], at)
}

/// Reads that have taken a while: the next ones are not made where they are asked for.
fn be_slow(mounted: &Mounted, file: &File) {
    for _ in 0..8 {
        mounted.disk.hold_reads_from(0);
        thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let mut batch = Batch::new();
                (0..2).for_each(|_| batch.push(read(file, HUNG)));
                batch.wait().all(|(result, _)| result.is_ok())
            });
            (0..100).for_each(|_| thread::yield_now());
            mounted.disk.let_go();
            assert!(reads.join().expect("no panic"));
        });
    }
}

/// A read for a thread of the pool.
fn handed_over(file: &File, at: u64) -> ReadVectoredAt<'_, AlignedBuf> {
    match file.engine().backend().kind {
        // A ring may wait for such a file where it is entered.
        BackendKind::Uring => read(file, at),
        // One in a few shows whether they are still slow.
        _ => read(file, at).by_backend(),
    }
}

fn this_thread() -> u32 {
    u32::try_from(gettid().as_raw_nonzero().get()).expect("it is positive")
}

/// An engine that leaves a call to a thread of the pool, of which there are two.
fn on_every_backend(body: impl Fn(&Engine)) {
    on_every_faultless_backend_of(|builder| builder.threads(2), body);
}

#[test]
fn a_read_that_hangs_keeps_nobody_with_a_limit() {
    let Some(mounted) = mounted_or_skip("limits and reads that hang") else {
        return;
    };
    on_every_backend(|engine| {
        for direct in [Direct::Off, Direct::Required] {
            let file = open(engine, &mounted, direct);
            let other = temp_file(engine, &[7; BLOCK]);
            be_slow(&mounted, &file);
            let lent = engine.queue(8, |queue| {
                mounted.disk.hold_reads_from(BLOCK / SECTOR);
                // One after the other, so that a thread is left to what comes then.
                for hung in 1..=2 {
                    assert!(queue.push(hung, handed_over(&file, HUNG)).is_ok());
                    assert!(queue.try_next().is_none());
                    assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
                    // Both threads of the pool hang in the end.
                    let others: &[_] = if hung == 1 {
                        &[&file, &other]
                    } else {
                        &[&other]
                    };
                    for (tag, good) in (10..).zip(others) {
                        assert!(queue.push(tag, read(good, GOOD)).is_ok());
                        let came = queue.next_timeout(patience());
                        let (came, (result, _)) = came.expect("in time").expect("in flight");
                        assert_eq!((came, result.expect("it is read")), (tag, BLOCK));
                    }
                }
                // No thread comes to this one, and who waits for it without a limit makes it.
                assert!(queue.push(3, handed_over(&file, HUNG)).is_ok());
                assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
                assert_eq!(queue.len(), 3);
                mounted.disk.let_go();
                let late = std::iter::from_fn(|| queue.next());
                late.for_each(|(_, (result, _))| assert_eq!(result.expect("it is late"), BLOCK));
            });
            lent.expect("nothing is demanded");
        }
    });
}

#[test]
fn a_sync_that_hangs_keeps_nobody_with_a_limit() {
    let Some(mounted) = mounted_or_skip("limits and syncs that hang") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, Direct::Off);
        let other = temp_file(engine, &[7; BLOCK]);
        let lent = engine.queue(8, |queue| {
            mounted.disk.hold();
            let sync: AnyOp<'_, Vec<u8>> = file.sync_data().into();
            assert!(queue.push(1, sync).is_ok());
            assert!(queue.try_next().is_none());
            assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
            let begun = mounted.disk.flushes();
            mounted.disk.wait_for_flushes(begun);
            // Beside it, whatever they are made by.
            let others = [
                other.read_at(vec![0; 8], 0).into(),
                other.write_at(vec![7; 8], 0).into(),
                other.sync_all().into(),
                file.read_at(vec![0; 8], 0).into(),
            ];
            let count = others.len();
            for (tag, operation) in (10..).zip(others) {
                assert!(queue.push(tag, operation).is_ok());
            }
            for _ in 0..count {
                let came = queue.next_timeout(patience());
                let (tag, (result, _)) = came.expect("in time").expect("in flight");
                result.expect("it is made");
                assert!(tag >= 10);
            }
            let later: AnyOp<'_, Vec<u8>> = file.sync_all().into();
            assert!(queue.push(2, later).is_ok());
            assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
            assert_ne!(mounted.disk.flusher(), this_thread());
            mounted.disk.let_go();
            let late = std::iter::from_fn(|| queue.next());
            let late = late.map(|(tag, (result, _))| result.map(|_| tag).expect("it is made"));
            assert_eq!(late.collect::<Vec<_>>(), [1, 2]);
        });
        lent.expect("nothing is demanded");
    });
}

/// The result of the only operation, asked for within a limit or without one.
fn next<'f>(
    queue: &mut Queue<'_, '_, AnyOp<'f, Vec<u8>>>,
    operation: AnyOp<'f, Vec<u8>>,
    limit: Option<Duration>,
) {
    assert!(queue.push(1, operation).is_ok());
    let came = match limit {
        None => queue.next(),
        Some(Duration::ZERO) => {
            let mut came = None;
            until("it is over", || {
                came = queue.try_next();
                came.is_some()
            });
            came
        }
        Some(limit) => queue.next_timeout(limit).expect("it is in time"),
    };
    let (_, (result, _)) = came.expect("it is in flight");
    result.expect("it is made");
}

#[test]
fn who_has_no_limit_any_more_makes_itself_what_it_made_before() {
    let Some(mounted) = mounted_or_skip("calls after a limit") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, Direct::Off);
        let lent = engine.queue(8, |queue| {
            for limit in [None, Some(Duration::ZERO), Some(patience()), None] {
                // On a busy machine the one that has made the flush before may still lead.
                let tries = if limit.is_none() { 100 } else { 1 };
                let is_own = (0..tries).any(|_| {
                    next(queue, file.sync_data().into(), limit);
                    mounted.disk.flusher() == this_thread()
                });
                assert_eq!(is_own, limit.is_none(), "a sync, {limit:?}");
                // For a thread, and with a ring too.
                let through = file.write_at(vec![7; 8], 0).dsync();
                next(queue, through.into(), limit);
                let is_own = mounted.disk.writer() == this_thread();
                assert_eq!(is_own, limit.is_none(), "a write, {limit:?}");
            }
        });
        lent.expect("nothing is demanded");
    });
}

#[test]
fn what_is_late_is_waited_for_at_the_end_of_the_body() {
    let Some(mounted) = mounted_or_skip("what is late at the end") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, Direct::Off);
        let flushes = mounted.disk.flushes_over();
        thread::scope(|scope| {
            mounted.disk.hold();
            let lent = engine.queue(8, |queue| {
                let sync: AnyOp<'_, Vec<u8>> = file.sync_data().into();
                assert!(queue.push(1, sync).is_ok());
                assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
                scope.spawn(|| {
                    (0..1000).for_each(|_| thread::yield_now());
                    mounted.disk.let_go();
                });
            });
            lent.expect("nothing is demanded");
        });
        assert_eq!(mounted.disk.flushes_over(), flushes + 1);
        assert_eq!(engine.stats().in_flight, 0);
    });
}

/// Waiting for several at a time, which a short limit does not change.
#[test]
fn what_is_done_is_handed_out_in_time_while_all_others_hang() {
    let name = "limits with files that hang";
    let engine = uring_of_depth_or_skip(name, 32);
    let (Some(engine), Some(mounted)) = (engine, super::Mounted::or_skip(name)) else {
        return;
    };
    let (hanging, good) = (
        mounted.open(&engine, "file"),
        temp_file(&engine, &[7; BLOCK]),
    );
    let needy = &mounted.needy;
    let left_alone = engine.queue(32, |queue| {
        needy.needs_help(true);
        (0..30).for_each(|at| assert!(queue.push(at, read(&hanging, 0).by_backend()).is_ok()));
        for at in [100, 101] {
            assert_eq!(
                queue.next_timeout(Duration::from_millis(1)).map(drop),
                Err(TimedOut)
            );
            assert!(queue.push(at, read(&good, 0).by_backend()).is_ok());
            let came = queue.next_timeout(patience()).expect("in time");
            let (first, (result, _)) = came.expect("they are in flight");
            assert_eq!((first, result.expect("it is read")), (at, BLOCK));
        }
        let left_alone = needy.lock().left_alone;
        needy.needs_help(false);
        needy.help();
        while queue.next().is_some() {}
        left_alone
    });
    assert_eq!(left_alone.expect("nothing is demanded"), 0);
}

/// It is made by a thread of the pool, which does not ring for who waits without a limit.
#[test]
fn a_sync_is_handed_out_while_reads_in_the_ring_hang() {
    let name = "a queue with a sync beside files that hang";
    let engine = uring_of_depth_or_skip(name, 32);
    let (Some(engine), Some(mounted)) = (engine, super::Mounted::or_skip(name)) else {
        return;
    };
    let (hanging, good) = (
        mounted.open(&engine, "file"),
        temp_file(&engine, &[7; BLOCK]),
    );
    let needy = &mounted.needy;
    // Waited for one by one, and several at a time.
    for reads in [2, 30] {
        forget(&hanging);
        let left_alone = engine.queue(32, |queue: &mut Queue<'_, '_, AnyOp<'_, Vec<u8>>>| {
            needy.needs_help(true);
            for tag in 1..=reads {
                let read = hanging.read_at(vec![0], 0).by_backend();
                assert!(queue.push(tag, read.into()).is_ok());
            }
            assert!(queue.push(0, good.sync_data().into()).is_ok());
            let (tag, (result, _)) = queue.next().expect("they are in flight");
            assert_eq!((tag, result.expect("it is synced")), (0, 0));
            let left_alone = needy.lock().left_alone;
            needy.needs_help(false);
            needy.help();
            while queue.next().is_some() {}
            left_alone
        });
        assert_eq!(left_alone.expect("nothing is demanded"), 0, "{reads} reads");
    }
}

/// Threads ring an alarm that needs one, for who waits in a ring.
#[test]
fn a_limit_holds_without_descriptors() {
    let test = "a_limit_holds_without_descriptors";
    if uring_of_depth_or_skip(test, 8).is_none() {
        return;
    }
    in_own_process(module_path!(), test, || {
        let Some(mounted) = mounted_or_skip(test) else {
            return;
        };
        let engine = Engine::builder().threads(2).queue_depth(8).build();
        let engine = engine.expect("nothing is demanded");
        let file = open(&engine, &mounted, Direct::Off);
        be_slow(&mounted, &file);
        let lent = engine.queue(8, |queue| {
            // The lowest that is free: everything below is taken.
            let free = File::open("/proc/self/exe")
                .expect("it is there")
                .as_raw_fd();
            set_limit(libc::RLIMIT_NOFILE, u64::try_from(free).expect("it is one"));
            mounted.disk.hold();
            mounted.disk.hold_reads_from(0);
            let sync: AnyOp<'_, AlignedBuf> = file.sync_data().into();
            assert!(queue.push(0, sync).is_ok());
            assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
            // No thread comes to the second one.
            for tag in 1..=2 {
                let buf = AlignedBuf::new(BLOCK, BLOCK).expect("there is memory");
                assert!(queue.push(tag, file.read_at(buf, GOOD).into()).is_ok());
                assert_eq!(queue.next_timeout(LIMIT).map(drop), Err(TimedOut));
            }
            mounted.disk.let_go();
            for _ in 0..3 {
                let came = queue.next_timeout(patience()).expect("in time");
                let (_, (result, _)) = came.expect("they are in flight");
                result.expect("it is made");
            }
        });
        lent.expect("nothing is demanded");
    });
}

/// As for syncs that were not waited for before: one flush serves all of them.
#[test]
fn syncs_that_are_late_are_those_of_one_thread_again() {
    let Some(mounted) = mounted_or_skip("syncs that are late") else {
        return;
    };
    on_every_faultless_backend_of(
        |builder| builder.threads(1),
        |engine| {
            let file = open(engine, &mounted, Direct::Off);
            // The only thread of the pool is away.
            let folder = TempDir::new_in(directory()).expect("it can be written");
            let fifo = Fifo::new(folder.path());
            let mut opens = fifo.opening(engine).into_future();
            let mut context = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut opens).poll(&mut context).is_pending());
            let before = mounted.disk.flushes();
            let synced = engine.queue(4, |queue| {
                (0..3).for_each(|tag| assert!(queue.push(tag, file.sync_data()).is_ok()));
                let late = queue.next_timeout(LIMIT).map(drop);
                let synced = std::iter::from_fn(|| queue.next());
                (late, synced.filter(|(_, result)| result.is_ok()).count())
            });
            // Else a test that fails does not end either.
            fifo.release();
            pollster::block_on(opens).expect("it is open");
            let synced = synced.expect("nothing is demanded");
            assert_eq!(synced, (Err(TimedOut), 3));
            assert_eq!(mounted.disk.flushes() - before, 1);
        },
    );
}
