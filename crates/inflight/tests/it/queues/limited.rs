//! Queues whose results are waited for no longer than so long, or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use inflight::fs::File;
use inflight::{AlignedBuf, AnyOp, Operation, Queue, TimedOut};

use super::{eight_blocks, written_by};
use crate::denied::refuse_threads;
use crate::support::{
    chill, direct_file_or_skip, on_every_backend, on_every_backend_of, pattern, read_write,
    temp_file, temp_path, until, uring_of_depth_or_skip,
};

const BLOCK: usize = 4096;

/// How a queue is asked for a result.
#[derive(Clone, Copy, Debug)]
enum Way {
    Try,
    Within(Duration),
}

/// Those that have to be back soon, and one that has not.
const WAYS: [Way; 4] = [
    Way::Try,
    Way::Within(Duration::ZERO),
    Way::Within(Duration::from_millis(1)),
    Way::Within(Duration::MAX),
];

/// Asks until everything has come.
fn take_all<O: Operation>(
    queue: &mut Queue<'_, '_, O>,
    way: Way,
    mut each: impl FnMut(u64, O::Output),
) {
    until("all that is in flight is over", || {
        let came = match way {
            Way::Try => queue.try_next(),
            Way::Within(limit) => match queue.next_timeout(limit) {
                Ok(came) => came,
                Err(TimedOut) => {
                    assert!(limit < Duration::MAX && !queue.is_empty());
                    None
                }
            },
        };
        if let Some((tag, output)) = came {
            each(tag, output);
        }
        queue.is_empty()
    });
}

#[test]
fn nothing_in_flight_is_told_from_nothing_in_time() {
    on_every_backend(|engine| {
        let told = engine.queue(4, |queue| {
            for round in 0..3 {
                assert!(queue.try_next().is_none());
                for limit in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
                    assert!(matches!(queue.next_timeout(limit), Ok(None)), "{limit:?}");
                }
                assert!(queue.push(round, engine.nop()).is_ok());
                take_all(queue, Way::Try, |_, result| result.unwrap());
            }
        });
        told.expect("nothing is demanded");
        let error = io::Error::from(TimedOut);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    });
}

/// From the backend, the pool, this thread and group commit, and with another step.
fn of_every_kind<'f>(file: &'f File, durable: &'f File) -> Vec<AnyOp<'f, Vec<u8>>> {
    vec![
        file.read_at(vec![0; BLOCK], 0).into(),
        file.write_at(vec![1; BLOCK], 4 * BLOCK as u64).into(),
        file.sync_data().into(),
        durable.write_at(vec![2; BLOCK], BLOCK as u64).into(),
        file.write_at(vec![3; BLOCK], 5 * BLOCK as u64)
            .dsync()
            .into(),
        durable.sync_all().into(),
        file.write_at(vec![4; BLOCK], 6 * BLOCK as u64)
            .then_sync()
            .into(),
        file.sync_all().into(),
    ]
}

#[test]
fn results_of_every_kind_come_however_they_are_asked_for() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(8 * BLOCK));
        let file = read_write(engine).open(path.path()).expect("it is there");
        let options = read_write(engine).durable_writes(true);
        let durable = options.open(path.path()).expect("it is there");
        chill(&file);
        for way in WAYS {
            let seen = engine.queue(8, |queue| {
                let mut seen = BTreeSet::new();
                for (tag, operation) in (0..).zip(of_every_kind(&file, &durable)) {
                    assert!(queue.push(tag, operation).is_ok());
                }
                take_all(queue, way, |tag, (result, _)| {
                    result.unwrap_or_else(|error| panic!("{tag}: {error}"));
                    assert!(seen.insert(tag), "{tag} came twice");
                });
                seen
            });
            assert_eq!(seen.expect("nothing is demanded").len(), 8);
        }
        let content = fs::read(path.path()).expect("it is there");
        for (block, byte) in [(1, 2), (4, 1), (5, 3), (6, 4)] {
            assert!(content[block * BLOCK..][..BLOCK] == [byte; BLOCK]);
        }
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn a_queue_may_be_asked_so_in_a_run_loop() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(BLOCK));
        let seen = engine.run(async {
            let read = || file.read_vectored_at(vec![vec![0; 8]], 0).by_backend();
            let awaited = read().into_future();
            let mut seen = 0;
            for way in WAYS {
                let lent = engine.queue(4, |queue| {
                    (0..4).for_each(|tag| assert!(queue.push(tag, read()).is_ok()));
                    take_all(queue, way, |_, (result, _)| {
                        seen += result.expect("it is read");
                    });
                });
                lent.expect("nothing is demanded");
            }
            seen + awaited.await.0.expect("it is read")
        });
        assert_eq!(seen.expect("there is a loop"), 8 * (4 * 4 + 1));
    });
}

/// Of large ones the proactor has as many parts as it has places; the others wait here.
#[test]
fn what_waits_for_room_comes_however_it_is_asked_for() {
    const LARGE: usize = 3 << 20;
    let content = pattern(4 * LARGE);
    let name = "limits of a queue of reads that are split";
    on_every_backend_of(
        |builder| builder.queue_depth(4),
        |engine| {
            let Some(file) = direct_file_or_skip(name, engine, &content) else {
                return;
            };
            for way in WAYS {
                let mut seen = 0;
                let lent = engine.queue(4, |queue| {
                    for number in 0..4 {
                        let buf = file.aligned_buf(LARGE).expect("there is memory");
                        let read = file.read_at(buf, number * LARGE as u64);
                        assert!(queue.push(number, read).is_ok());
                    }
                    let each = |number, (result, buf): (io::Result<usize>, AlignedBuf)| {
                        assert_eq!(result.expect("it can be read"), LARGE);
                        let at = usize::try_from(number).expect("a few") * LARGE;
                        assert!(buf[..] == content[at..][..LARGE], "read {number}");
                        seen += 1;
                    };
                    take_all(queue, way, each);
                });
                lent.expect("nothing is demanded");
                assert_eq!(seen, 4);
            }
        },
    );
}

/// A copy for which there was no room is a plain call for who has no limit, and may wait.
#[test]
fn what_has_waited_for_room_is_for_the_pool() {
    const LARGE: usize = 8 << 20;
    let name = "writes behind a read that is split";
    let Some(engine) = uring_of_depth_or_skip(name, 8) else {
        return;
    };
    // As many parts as there are places at least, and one more.
    let content = pattern(LARGE + BLOCK);
    let Some(file) = direct_file_or_skip(name, &engine, &content) else {
        return;
    };
    let copied = temp_file(&engine, b"");
    let run = |way: Option<Way>| {
        let before = engine.stats().pool_calls;
        let lent = engine.queue(4, |queue| {
            let buf = file.aligned_buf(LARGE + BLOCK).expect("there is memory");
            let read: AnyOp<'_, AlignedBuf> = file.read_at(buf, 0).into();
            assert!(queue.push(1, read).is_ok());
            let buf = AlignedBuf::new(BLOCK, BLOCK).expect("there is memory");
            assert!(queue.push(2, copied.write_at(buf, 0).into()).is_ok());
            let each = |_, (result, _): (io::Result<usize>, _)| {
                result.expect("it is made");
            };
            match way {
                Some(way) => take_all(queue, way, each),
                None => {
                    while let Some((tag, output)) = queue.next() {
                        each(tag, output);
                    }
                }
            }
        });
        lent.expect("nothing is demanded");
        engine.stats().pool_calls - before
    };
    assert_eq!(run(None), 0);
    for way in WAYS {
        assert_eq!(run(Some(way)), 1, "{way:?}");
    }
    assert_eq!(run(None), 0, "as before");
}

#[test]
fn what_is_late_runs_to_its_end_when_the_body_returns() {
    on_every_backend(|engine| {
        let content = written_by(engine, |engine, file| {
            let left = engine.queue(8, |queue| {
                for n in 1..=8_u8 {
                    let write = file.write_all_at(vec![n; BLOCK], BLOCK as u64 * u64::from(n - 1));
                    assert!(queue.push(n.into(), write).is_ok());
                }
                let came = u64::from(queue.try_next().is_some());
                came + u64::from(matches!(queue.next_timeout(Duration::ZERO), Ok(Some(_))))
            });
            assert!(left.expect("nothing is demanded") <= 2);
        });
        assert!(content == eight_blocks());
    });
}

/// Where no thread can be had, somebody has to make what is for one.
#[test]
fn without_threads_everything_is_made_all_the_same() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(BLOCK));
        let options = read_write(engine).durable_writes(true);
        let path = temp_path(b"");
        let durable = options.open(path.path()).expect("it is there");
        let run = || {
            refuse_threads();
            for way in WAYS {
                let lent = engine.queue(8, |queue| {
                    for (tag, operation) in (0..).zip(of_every_kind(&file, &durable)) {
                        assert!(queue.push(tag, operation).is_ok());
                    }
                    take_all(queue, way, |tag, (result, _)| {
                        result.unwrap_or_else(|error| panic!("{tag}: {error}"));
                    });
                });
                lent.expect("nothing is demanded");
            }
        };
        thread::scope(|scope| scope.spawn(run).join().expect("no failure"));
    });
}

/// A device that does not answer.
#[cfg(feature = "faulty")]
mod held {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use inflight::Engine;
    use inflight::fs::ReadVectoredAt;

    use super::*;

    fn read<'f>(file: &'f File) -> ReadVectoredAt<'f, Vec<u8>> {
        file.read_vectored_at(vec![vec![0; 8]], 0).by_backend()
    }

    fn with_held(body: impl FnOnce(&Engine, &File, &AtomicBool)) {
        let held = Arc::new(AtomicBool::new(true));
        let faults = inflight::Faults::new(crate::support::seed()).hold_while(&held);
        let engine = Engine::builder().faults(faults).build();
        let engine = engine.expect("nothing is demanded");
        let file = temp_file(&engine, &pattern(BLOCK));
        body(&engine, &file, &held);
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    }

    #[test]
    fn what_is_late_stays_in_flight_and_comes_from_a_later_call() {
        with_held(|engine, file, held| {
            // Waited for one by one, and several at a time.
            for depth in [4, 64] {
                held.store(true, Ordering::Release);
                let lent = engine.queue(depth, |queue| {
                    (0..u64::from(depth))
                        .for_each(|tag| assert!(queue.push(tag, read(file)).is_ok()));
                    let places = queue.len();
                    for limit in [Duration::ZERO, Duration::from_millis(2)] {
                        assert!(queue.try_next().is_none());
                        let late = queue.next_timeout(limit).map(drop);
                        assert_eq!(late, Err(TimedOut), "{limit:?}");
                        assert_eq!(queue.len(), places);
                    }
                    held.store(false, Ordering::Release);
                    assert!(matches!(queue.next_timeout(Duration::MAX), Ok(Some(_))));
                    let rest = std::iter::from_fn(|| queue.next());
                    assert_eq!(rest.count(), places - 1);
                });
                lent.expect("nothing is demanded");
            }
        });
    }

    #[test]
    fn a_limit_that_is_far_waits_as_if_there_were_none() {
        with_held(|engine, file, held| {
            let lent = engine.queue(4, |queue| {
                assert!(queue.push(7, read(file)).is_ok());
                thread::scope(|scope| {
                    scope.spawn(|| {
                        (0..1000).for_each(|_| thread::yield_now());
                        held.store(false, Ordering::Release);
                    });
                    for_ever(queue)
                })
            });
            assert_eq!(lent.expect("nothing is demanded"), 7);
        });
    }

    fn for_ever<O: Operation>(queue: &mut Queue<'_, '_, O>) -> u64 {
        let came = queue.next_timeout(Duration::MAX).expect("it never is over");
        came.expect("one is in flight").0
    }
}
