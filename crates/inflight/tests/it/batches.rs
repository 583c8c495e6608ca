//! Batches: a result for each operation, in the order pushed, whatever the size.

use std::fs;
use std::future::IntoFuture;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use inflight::{AnyOp, Batch, Engine, Nop};
use tempfile::TempDir;

use crate::awaited::hands::poll_once;
use crate::support::fifo::Fifo;
use crate::support::{
    chill, directory, on_every_backend, on_every_backend_of, patience, pattern, read_write,
    temp_file, temp_path, uring_of_depth_or_skip, uring_or_skip,
};

/// A permutation of `0..count`, which is a power of two.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| (n * 5 + 3) % count)
}

#[test]
fn results_come_in_the_order_pushed() {
    on_every_backend(|engine| {
        let data = pattern(64 * 8);
        let file = temp_file(engine, &data);
        chill(&file);
        let mut batch = Batch::new();
        for word in shuffled(64) {
            batch.push(file.read_at(vec![0; 8], word * 8));
        }
        assert_eq!(batch.len(), 64);
        let mut results = batch.wait();
        assert_eq!(results.len(), 64);
        for word in shuffled(64) {
            let (result, buf) = results.next().unwrap();
            assert_eq!(result.unwrap(), 8);
            let at = usize::try_from(word * 8).unwrap();
            assert_eq!(buf, data[at..at + 8]);
        }
        assert!(results.next().is_none());
    });
}

#[test]
fn batches_are_collected_and_extended() {
    on_every_backend(|engine| {
        let data = pattern(80);
        let file = temp_file(engine, &data);
        let read = |word: u64| file.read_at(vec![0; 8], word * 8);
        let mut batch: Batch<_> = (0..5).map(read).collect();
        batch.extend((5..10).map(read));
        assert_eq!(batch.len(), 10);
        let read = batch.wait().flat_map(|(result, buf)| {
            assert_eq!(result.unwrap(), 8);
            buf
        });
        assert!(read.eq(data));
    });
}

#[test]
fn vectored_reads_come_in_the_order_pushed() {
    // These go through the backend always.
    on_every_backend(|engine| {
        let data = pattern(1024 * 8);
        let file = temp_file(engine, &data);
        let mut batch = Batch::new();
        for word in shuffled(1024) {
            batch.push(
                file.read_vectored_at(vec![vec![0; 4], vec![0; 4]], word * 8)
                    .by_backend(),
            );
        }
        for (word, (result, bufs)) in shuffled(1024).zip(batch.wait()) {
            assert_eq!(result.unwrap(), 8);
            let at = usize::try_from(word * 8).unwrap();
            assert_eq!(bufs.concat(), data[at..at + 8]);
        }
    });
}

#[test]
fn a_batch_may_be_much_larger_than_the_queue() {
    const OPERATIONS: u64 = 10_000;
    let small = |builder: inflight::Builder| builder.queue_depth(8);
    on_every_backend_of(small, |engine| {
        let data = pattern(16 * 1024);
        let file = temp_file(engine, &data);
        let before = engine.stats().operations;
        let mut batch: Batch<AnyOp<'_, Vec<u8>>> = Batch::new();
        let offset = |n: u64| (n * 8) % (16 * 1024);
        (0..OPERATIONS).for_each(|n| batch.push(file.read_at(vec![0; 8], offset(n)).into()));
        let mut results = batch.wait();
        for n in 0..OPERATIONS {
            let (result, buf) = results.next().unwrap();
            assert_eq!(result.unwrap(), 8);
            let at = usize::try_from(offset(n)).unwrap();
            assert_eq!(buf.unwrap(), data[at..at + 8]);
        }
        drop(results);
        let stats = engine.stats();
        assert_eq!(stats.operations - before, OPERATIONS);
        assert_eq!((stats.in_flight, stats.strays), (0, 0));

        let mut nops = Batch::new();
        (0..1000).for_each(|_| nops.push(engine.nop()));
        assert_eq!(nops.wait().filter(Result::is_ok).count(), 1000);
        assert_eq!(engine.stats().operations - before, OPERATIONS + 1000);
    });
}

#[test]
fn a_batch_is_empty_afterwards_and_can_be_used_again() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abcdefgh");
        let mut batch = Batch::default();
        let mut buf = vec![0; 1];
        for round in 0..50 {
            batch.push(file.read_at(std::mem::take(&mut buf), round % 8));
            batch.push(file.read_at(vec![0; 1], (round + 1) % 8));
            let mut results = batch.wait();
            let (result, back) = results.next().unwrap();
            assert_eq!(result.unwrap(), 1);
            assert_eq!(u64::from(back[0] - b'a'), round % 8);
            // The second result is not asked for.
            drop(results);
            buf = back;
            assert!(batch.is_empty());
        }
    });
}

#[test]
fn an_empty_batch_has_no_results() {
    on_every_backend(|engine| {
        for mut batch in [Batch::<Nop<'_>>::new(), Batch::on(engine)] {
            assert_eq!(batch.wait().count(), 0);
        }
        assert_eq!(engine.stats().operations, 0);
    });
}

#[test]
fn reads_writes_and_syncs_go_together() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(4096));
        for durable in [false, true] {
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            let mut batch: Batch<AnyOp<'_, Vec<u8>>> = Batch::new();
            for n in 0_u8..60 {
                let offset = u64::from(n);
                batch.push(match n % 3 {
                    0 => file.read_at(vec![0; 64], 64 * offset).into(),
                    1 => file.write_at(vec![n; 10], 8192 + 10 * offset).into(),
                    _ => file.sync_data().into(),
                });
            }
            let data = pattern(4096);
            for (n, (result, buf)) in batch.wait().enumerate() {
                let expected = match n % 3 {
                    0 => (64, Some(data[64 * n..64 * n + 64].to_vec())),
                    1 => (10, Some(vec![u8::try_from(n).unwrap(); 10])),
                    _ => (0, None),
                };
                assert_eq!((result.unwrap(), buf), expected, "operation {n}");
            }
            let content = fs::read(path.path()).unwrap();
            for n in (1_u8..60).step_by(3) {
                let at = 8192 + 10 * usize::from(n);
                assert_eq!(content[at..at + 10], [n; 10]);
            }
        }
    });
}

#[test]
fn one_that_fails_does_not_keep_the_others_from_being_run() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true);
        let file = options.open(path.path()).unwrap();
        let mut batch = Batch::new();
        for n in 0_u8..40 {
            let offset = if n % 4 == 2 { u64::MAX } else { u64::from(n) };
            batch.push(file.write_all_at(vec![n], offset));
        }
        for (n, (result, buf)) in (0_u8..).zip(batch.wait()) {
            assert_eq!((result.is_err(), buf), (n % 4 == 2, vec![n]));
        }
        let content = fs::read(path.path()).unwrap();
        for (n, byte) in (0_u8..).zip(content) {
            assert_eq!(byte, if n % 4 == 2 { 0 } else { n });
        }
    });
}

#[test]
fn several_files_are_served_by_one_batch() {
    on_every_backend(|engine| {
        let contents: Vec<Vec<u8>> = (1..=8).map(|n| pattern(n * 512)).collect();
        let files: Vec<_> = contents.iter().map(|c| temp_file(engine, c)).collect();
        files.iter().for_each(chill);
        let mut batch = Batch::new();
        for (file, content) in files.iter().zip(&contents) {
            batch.push(file.read_at(vec![0; content.len() + 1], 0));
        }
        for ((result, mut buf), content) in batch.wait().zip(&contents) {
            buf.truncate(result.unwrap());
            assert_eq!(&buf, content);
        }
    });
}

#[test]
fn a_file_with_the_number_of_a_closed_one_is_not_taken_for_it() {
    // In batches that are much longer than the queue, a ring may know files by places of its own.
    let small = |builder: inflight::Builder| builder.queue_depth(8);
    on_every_backend_of(small, |engine| {
        for round in 0..40_u8 {
            let files: Vec<_> = (0..4).map(|n| temp_file(engine, &[round, n, 77])).collect();
            let mut batch = Batch::new();
            for n in 0..600 {
                batch.push(
                    files[n % 4]
                        .read_vectored_exact_at(vec![vec![0; 3]], 0)
                        .by_backend(),
                );
            }
            for (n, (result, bufs)) in (0..4).cycle().zip(batch.wait()) {
                assert_eq!((result.unwrap(), &bufs[0][..]), (3, &[round, n, 77][..]));
            }
        }
    });
}

#[test]
fn more_files_than_a_ring_has_places_for_are_served() {
    let small = |builder: inflight::Builder| builder.queue_depth(8);
    on_every_backend_of(small, |engine| {
        let files: Vec<_> = (0..200_u8).map(|n| temp_file(engine, &[n; 9])).collect();
        let mut batch = Batch::new();
        for n in 0..1000 {
            batch.push(
                files[n * 7 % 200]
                    .read_vectored_exact_at(vec![vec![0; 9]], 0)
                    .by_backend(),
            );
        }
        for (n, (result, bufs)) in batch.wait().enumerate() {
            let expected = u8::try_from(n * 7 % 200).unwrap();
            assert_eq!((result.unwrap(), &bufs[0][..]), (9, &[expected; 9][..]));
        }
    });
}

#[test]
fn the_engine_of_the_first_operation_runs_the_batch_if_none_is_named() {
    on_every_backend(|first| {
        let second = Engine::new().unwrap();
        let third = Engine::new().unwrap();
        let files = [temp_file(first, b"first"), temp_file(&second, b"second")];
        for named in [false, true] {
            let before = [first, &second, &third].map(|engine| engine.stats().operations);
            let mut batch = if named {
                Batch::on(&third)
            } else {
                Batch::new()
            };
            for file in files.iter().chain(&files) {
                batch.push(file.read_vectored_at(vec![vec![0; 8]], 0).by_backend());
            }
            let read: Vec<_> = batch.wait().map(|(result, _)| result.unwrap()).collect();
            assert_eq!(read, [5, 6, 5, 6]);
            let after = [first, &second, &third].map(|engine| engine.stats().operations);
            let expected = if named { [0, 0, 4] } else { [4, 0, 0] };
            let done: Vec<_> = after.iter().zip(before).map(|(a, b)| a - b).collect();
            assert_eq!(done, expected);
        }
    });
}

#[test]
fn a_batch_of_one_takes_a_plain_call() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        let before = engine.stats();
        let mut batch = Batch::new();
        batch.push(file.read_vectored_at(vec![vec![0; 3]], 0).by_backend());
        assert_eq!(batch.wait().next().unwrap().0.unwrap(), 3);
        let after = engine.stats();
        assert_eq!(after.plain_calls - before.plain_calls, 1);
        assert_eq!(after.enters, before.enters);
        assert_eq!(after.operations - before.operations, 1);
    });
}

#[test]
fn one_enter_serves_a_queue_full_of_operations() {
    let Some(engine) = uring_of_depth_or_skip("one enter for a full queue", 8) else {
        return;
    };
    let before = engine.stats();
    let mut batch = Batch::new();
    (0..800).for_each(|_| batch.push(engine.nop()));
    batch.wait().for_each(|result| result.unwrap());
    let after = engine.stats();
    let enters = after.enters - before.enters;
    assert_eq!(after.operations - before.operations, 800);
    assert!(
        enters <= 200,
        "{enters} enters for 800 operations, 8 at a time"
    );
}

#[test]
fn no_enter_is_made_for_nothing() {
    let Some(engine) = uring_or_skip("enters of reads that go through the ring") else {
        return;
    };
    let file = temp_file(&engine, &pattern(8 * 800));
    let before = engine.stats().enters;
    let mut batch = Batch::new();
    (0..800).for_each(|n| batch.push(file.read_vectored_at(vec![vec![0; 8]], n * 8).by_backend()));
    assert!(batch.wait().all(|(result, _)| result.unwrap() == 8));
    let enters = engine.stats().enters - before;
    // Cached reads complete while they are handed over.
    assert!(
        (1..=400).contains(&enters),
        "{enters} enters for 800 operations"
    );
}

/// Reads that wait for the disk between writes, which this thread does itself: what is queued is
/// handed over before each of them, and what is done by then is not waited for again.
fn reads_between_writes(engine: &Engine) {
    let data = pattern(64 << 10);
    let cold = temp_file(engine, &data);
    let path = temp_path(&data);
    let written = read_write(engine).open(path.path()).expect("it is ours");
    for _ in 0..8 {
        chill(&cold);
        let mut batch: Batch<AnyOp<'_, Vec<u8>>> = Batch::on(engine);
        for n in 0..64 {
            batch.push(cold.read_at(vec![0; 1024], 1024 * n).into());
            batch.push(written.write_at(vec![7; 4096], 0).into());
        }
        let mut results = batch.wait();
        for part in data.chunks(1024) {
            let (read, buf) = results.next().expect("a result for each");
            assert_eq!(read.expect("it is read"), 1024);
            assert_eq!(buf.as_deref(), Some(part));
            let (wrote, _) = results.next().expect("a result for each");
            assert_eq!(wrote.expect("it is written"), 4096);
        }
    }
}

#[test]
fn what_is_done_while_others_are_handed_over_is_waited_for_once() {
    let (done, told) = channel();
    let work = thread::spawn(move || {
        on_every_backend(reads_between_writes);
        done.send(()).expect("somebody waits");
    });
    let answer = told.recv_timeout(2 * patience());
    assert_ne!(
        answer,
        Err(RecvTimeoutError::Timeout),
        "a batch waits for ever"
    );
    work.join().expect("no assertion fails there");
}

/// What no thread of the pool has taken for a while is made by who waits for it, whatever this
/// thread did before.
#[test]
fn what_a_pool_that_hangs_does_not_take_is_made_by_who_waits() {
    on_every_backend_of(
        |builder| builder.threads(1),
        |engine| {
            let folder = TempDir::new_in(directory()).expect("the test directory can be written");
            let fifo = &Fifo::new(folder.path());
            let file = temp_file(engine, &pattern(1024));
            let mut opening = fifo.opening(engine).into_future();
            assert!(poll_once(&mut opening).is_pending());
            let (say, over) = channel::<()>();
            let made = thread::scope(|scope| {
                let waited = scope.spawn(move || {
                    let ended = over.recv_timeout(patience());
                    fifo.release();
                    ended != Err(RecvTimeoutError::Timeout)
                });
                for _ in 0..2 {
                    let mut batch = Batch::on(engine);
                    (0..2).for_each(|n| {
                        batch.push(file.write_at(vec![1; 512], n * 512).then_sync());
                    });
                    assert!(batch.wait().all(|(result, _)| result.is_ok()));
                    engine.run(async {}).expect("a loop can be had");
                }
                drop(say);
                waited.join().expect("it does not panic")
            });
            assert!(made, "the pool had to make it");
            pollster::block_on(opening).expect("somebody has opened the other end");
        },
    );
}
