//! The steady state: what one operation costs when everything is warm, and what is left when
//! threads have ended. Counts only.

pub(crate) mod allocations;
mod threads;

use std::time::Duration;

use inflight::fs::{Alignment, Direct, File};
use inflight::{BackendKind, Batch, BufPool, Engine, Operation, Queue, ReadInto, read_many};

use crate::support::own::in_own_process;
use crate::support::{
    chill, direct_file_or_skip, pattern, read_write, skip, temp_file, temp_path,
    uring_of_depth_or_skip,
};
use allocations::allocations_in;

const BLOCK: usize = 4096;

/// One quiet stretch out of so many is enough.
const STRETCHES_MAX: usize = 20;

/// Engines whose steady state is looked at: on a ring that takes 64 at a time, if there is one,
/// and on threads.
fn engines(name: &str) -> Vec<Engine> {
    let threads = Engine::builder()
        .backend(BackendKind::Threads)
        .threads(2)
        .queue_depth(64);
    let threads = threads.build().expect("nothing is demanded");
    uring_of_depth_or_skip(name, 64)
        .into_iter()
        .chain([threads])
        .collect()
}

/// Runs `round` until it is warm and then as often again, which must not allocate.
///
/// Pools that other tests drop meanwhile make a ring look through those it knows, which may cost
/// it an allocation; so one quiet stretch out of several is enough.
fn assert_allocates_nothing(what: &str, engine: &Engine, mut round: impl FnMut()) {
    (0..50).for_each(|_| round());
    let stretches = (0..6).map(|_| allocations_in(|| (0..10).for_each(|_| round())));
    let least = stretches.min();
    let kind = engine.backend().kind;
    assert_eq!(least, Some(0), "allocations of {what} on {kind}");
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations_in(|| ()), 0);
    assert_eq!(
        allocations_in(|| drop(std::hint::black_box(vec![1, 2, 3]))),
        1
    );
}

#[test]
fn batches_of_no_ops_allocate_nothing() {
    for engine in engines("allocations of no-ops") {
        for count in [2, 32, 64, 500] {
            let mut batch = Batch::on(&engine);
            assert_allocates_nothing("no-ops", &engine, || {
                (0..count).for_each(|_| batch.push(engine.nop()));
                batch.wait().for_each(|result| result.unwrap());
            });
        }
    }
}

/// One batch of reads that use their buffers again.
fn read_again<'f>(
    batch: &mut Batch<inflight::fs::ReadAt<'f, inflight::AlignedBuf>>,
    file: &'f File,
    bufs: &mut Vec<inflight::AlignedBuf>,
) {
    for (n, buf) in (0..).zip(bufs.drain(..)) {
        batch.push(file.read_exact_at(buf, (n % 64) * BLOCK as u64));
    }
    for (result, buf) in batch.wait() {
        assert_eq!(result.expect("it is read"), BLOCK);
        bufs.push(buf);
    }
}

#[test]
fn batches_of_reads_allocate_nothing() {
    let path = temp_path(&pattern(64 * BLOCK));
    for engine in engines("allocations of reads") {
        for direct in [Direct::Off, Direct::Auto] {
            let file = read_write(&engine)
                .direct(direct)
                .open(path.path())
                .unwrap();
            for count in [32, 64, 200] {
                let mut bufs: Vec<_> = (0..count)
                    .map(|_| file.aligned_buf(BLOCK).unwrap())
                    .collect();
                let mut batch = Batch::new();
                assert_allocates_nothing("reads", &engine, || {
                    read_again(&mut batch, &file, &mut bufs);
                });
            }
        }
    }
}

/// Not beside tests that drop pools: a ring looks through those it knows then, which may cost it an
/// allocation.
#[test]
fn reads_into_registered_buffers_allocate_nothing() {
    let test = "reads_into_registered_buffers_allocate_nothing";
    in_own_process(module_path!(), test, || {
        let path = temp_path(&pattern(64 * BLOCK));
        for engine in engines("allocations of registered buffers") {
            let file = read_write(&engine)
                .direct(Direct::Auto)
                .open(path.path())
                .unwrap();
            let pool = BufPool::new(64, BLOCK).unwrap();
            let mut batch = Batch::new();
            assert_allocates_nothing("reads into registered buffers", &engine, || {
                for n in 0..64 {
                    let buf = pool.take().expect("all have come back");
                    batch.push(file.read_exact_at(buf, n * BLOCK as u64));
                }
                assert!(batch.wait().all(|(result, _)| result.is_ok()));
            });
        }
    });
}

#[test]
fn durable_writes_allocate_nothing() {
    for engine in engines("allocations of writes") {
        let path = temp_path(b"");
        let file = read_write(&engine)
            .durable_writes(true)
            .open(path.path())
            .unwrap();
        let data = [7; 512];
        let mut batch = Batch::new();
        let mut round = || {
            (0..32).for_each(|n| batch.push(file.write_all_at(&data[..], n * 512)));
            assert!(batch.wait().all(|(result, _)| result.is_ok()));
        };
        (0..5).for_each(|_| round());
        let stretches = (0..5).map(|_| allocations_in(&mut round));
        assert_eq!(stretches.min(), Some(0));
    }
}

#[test]
fn a_queue_allocates_nothing_for_each_operation() {
    allocates_nothing(|queue| queue.next());
}

#[test]
fn a_queue_allocates_nothing_for_results_that_are_in_time_either() {
    // Not `patience`: where it is asked for, that allocates.
    allocates_nothing(|queue| queue.next_timeout(Duration::MAX).expect("it is in time"));
}

type BorrowedReads<'q, 's, 'f, 'b> = Queue<'q, 's, inflight::fs::ReadAt<'f, &'b mut [u8]>>;
type BorrowedRead<'b> = (u64, (std::io::Result<usize>, &'b mut [u8]));

fn allocates_nothing(
    next: for<'b> fn(&mut BorrowedReads<'_, '_, '_, 'b>) -> Option<BorrowedRead<'b>>,
) {
    for engine in engines("allocations of queues") {
        let file = temp_file(&engine, &pattern(64 * BLOCK));
        chill(&file);
        let mut buf = vec![0; 32 * BLOCK];
        let mut bufs: Vec<&mut [u8]> = buf.chunks_mut(BLOCK).collect();
        let count = engine.queue(32, |queue| {
            let mut round = || {
                for n in 0..512 {
                    while queue.is_full() {
                        let (_, (result, buf)) = next(queue).expect("it is full");
                        assert_eq!(result.expect("it is read"), BLOCK);
                        bufs.push(buf);
                    }
                    let buf = bufs.pop().expect("as many as there are places");
                    assert!(
                        queue
                            .push(n, file.read_at(buf, (n % 64) * BLOCK as u64))
                            .is_ok()
                    );
                }
            };
            (0..5).for_each(|_| round());
            let stretches = (0..6).map(|_| allocations_in(&mut round));
            stretches.min()
        });
        let count = count.expect("nothing is demanded");
        assert_eq!(count, Some(0), "on {}", engine.backend().kind);
    }
}

/// With room for four at a time, they have been handed over when the last one is pushed.
#[test]
fn what_has_completed_is_handed_out_without_a_system_call() {
    const READS: usize = 32;
    let Some(engine) = uring_of_depth_or_skip("system calls of a queue", 64) else {
        return;
    };
    let file = temp_file(&engine, &pattern(READS * BLOCK));
    let mut seen = Vec::new();
    let round = || {
        let lent = engine.queue(64, |queue| {
            for n in 0..READS as u64 {
                let read = file.read_at(vec![0; BLOCK], n * BLOCK as u64).by_backend();
                assert!(queue.push(n, read).is_ok());
            }
            let before = engine.stats().enters;
            let came = (0..READS).map_while(|_| queue.try_next()).count();
            let enters = engine.stats().enters - before;
            // Now there is nothing to be asked for.
            assert!(came < READS || queue.try_next().is_none());
            while queue.next().is_some() {}
            (came, enters)
        });
        lent.expect("nothing is demanded")
    };
    // What the page cache has lost meanwhile comes later.
    let found = (0..STRETCHES_MAX)
        .map(|_| round())
        .inspect(|it| seen.push(*it))
        .any(|it| it == (READS, 0));
    assert!(found, "{seen:?} results and enters");
}

#[test]
fn operations_alone_allocate_nothing() {
    for engine in engines("allocations of operations alone") {
        let file = temp_file(&engine, &pattern(64 * BLOCK));
        let mut buf = vec![0; BLOCK];
        assert_allocates_nothing("reads alone", &engine, || {
            let (result, _) = file.read_exact_at(&mut buf[..], 0).wait();
            result.unwrap();
        });
        assert_allocates_nothing("no-ops alone", &engine, || engine.nop().wait().unwrap());
    }
}

#[test]
fn many_borrowed_reads_allocate_for_the_list_of_answers_only() {
    for engine in engines("allocations of read_many") {
        let file = temp_file(&engine, &pattern(64 * BLOCK));
        let mut buf = vec![0; 64 * 512];
        let parts = buf.chunks_mut(512).enumerate();
        let mut reads: Vec<_> = parts
            .map(|(n, part)| ReadInto::new(&file, 512 * n as u64, part))
            .collect();
        read_many(&mut reads).unwrap();
        let count = allocations_in(|| (0..10).for_each(|_| read_many(&mut reads).unwrap()));
        assert!(count <= 10, "{count} allocations in 10 calls of 64 reads");
    }
}

/// Enters and operations of `rounds` rounds, after as many to get warm.
fn counted(engine: &Engine, rounds: u32, mut round: impl FnMut()) -> (u64, u64, u64) {
    (0..rounds).for_each(|_| round());
    let before = engine.stats();
    (0..rounds).for_each(|_| round());
    let after = engine.stats();
    (
        after.enters - before.enters,
        after.operations - before.operations,
        after.plain_calls - before.plain_calls,
    )
}

#[test]
fn one_enter_serves_24_no_ops_or_more() {
    let Some(engine) = uring_of_depth_or_skip("enters of no-ops", 64) else {
        return;
    };
    for count in [32, 64] {
        let mut batch = Batch::on(&engine);
        let (enters, operations, plain_calls) = counted(&engine, 100, || {
            (0..count).for_each(|_| batch.push(engine.nop()));
            batch.wait().for_each(|result| result.unwrap());
        });
        assert_eq!((operations, plain_calls), (100 * count, 0));
        assert!(
            enters > 0 && enters <= operations / 24,
            "{enters} for {operations}"
        );
    }
}

#[test]
fn one_enter_serves_24_direct_reads_or_more() {
    let name = "enters of direct reads";
    let Some(engine) = uring_of_depth_or_skip(name, 64) else {
        return;
    };
    let path = temp_path(&pattern(64 * BLOCK));
    let Ok(file) = read_write(&engine)
        .direct(Direct::Required)
        .open(path.path())
    else {
        return skip(name, "there is no direct I/O");
    };
    if file.alignment() == Alignment::Unknown {
        return skip(name, "the file system has no device");
    }
    for count in [32, 64] {
        let mut bufs: Vec<_> = (0..count)
            .map(|_| file.aligned_buf(BLOCK).unwrap())
            .collect();
        let mut batch = Batch::new();
        let stretches = (0..STRETCHES_MAX).map(|_| {
            let (enters, operations, plain_calls) =
                counted(&engine, 100, || read_again(&mut batch, &file, &mut bufs));
            assert_eq!(operations, 100 * count);
            assert!(enters > 0);
            // Files that cannot be asked without waiting are sampled now and then.
            (enters, enters + plain_calls)
        });
        // Who looks for completions in vain enters twice, as beside others on a slow device.
        let is_enough =
            |&(enters, calls): &_| enters <= 100 * count / 24 && calls <= 100 * count / 8;
        let mut seen = Vec::new();
        let found = stretches
            .inspect(|it| seen.push(*it))
            .any(|it| is_enough(&it));
        assert!(found, "{seen:?} enters and calls for {} reads", 100 * count);
    }
}

#[test]
fn a_queue_hands_direct_reads_over_a_few_at_a_time_unless_very_many_are_in_flight() {
    let name = "enters of a queue of direct reads";
    let Some(engine) = uring_of_depth_or_skip(name, 128) else {
        return;
    };
    let content = pattern(64 * BLOCK);
    let Some(file) = direct_file_or_skip(name, &engine, &content) else {
        return;
    };
    let read = |n: u64, buf| file.read_at(buf, n % 64 * BLOCK as u64);
    for (depth, between) in [(32, 1..=5), (128, 6..=4096)] {
        let operations = 4_096;
        let before = engine.stats();
        let all_are_right = engine.queue(depth, |queue| {
            let mut next = 0;
            let mut all_are_right = true;
            while next < u64::from(depth) {
                let buf = file.aligned_buf(BLOCK).unwrap();
                assert!(queue.push(next, read(next, buf)).is_ok());
                next += 1;
            }
            while let Some((n, (result, buf))) = queue.next() {
                let from = usize::try_from(n % 64).unwrap() * BLOCK;
                all_are_right &= result.unwrap() == BLOCK && buf[..] == content[from..][..BLOCK];
                if next < operations {
                    assert!(queue.push(next, read(next, buf)).is_ok());
                    next += 1;
                }
            }
            all_are_right
        });
        assert!(all_are_right.unwrap());
        let after = engine.stats();
        if after.plain_calls - before.plain_calls > operations / 16 {
            return skip(name, "the file does not accept reads that do not wait");
        }
        let enters = after.enters - before.enters;
        let served = operations / enters;
        assert!(
            between.contains(&served),
            "{depth} in flight: {enters} enters for {operations} reads"
        );
    }
}
