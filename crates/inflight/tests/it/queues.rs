//! Queues: a bounded number in flight, results in the order of completion, and no way out of the
//! body that leaves something in flight.

mod limited;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::future::join_all;
use inflight::fs::File;
use inflight::{AlignedBuf, AnyOp, Batch, Engine, Operation};

use rustix::fs::{Advice, fadvise};

use crate::support::{
    chill, direct_file_or_skip, on_every_backend, on_every_backend_of, open, pattern, read_write,
    skip, temp_file, temp_path, uring_or_skip,
};
use crate::wishes::cache::evict_within;

#[test]
fn every_tag_comes_back_once_with_its_result() {
    on_every_backend(|engine| {
        let data = pattern(8 * 500);
        let file = temp_file(engine, &data);
        chill(&file);
        let check = |tag: u64, result: std::io::Result<usize>, bufs: Vec<Vec<u8>>| {
            let at = usize::try_from(tag).unwrap() * 8;
            assert_eq!(result.unwrap(), 8);
            assert_eq!(bufs.concat(), data[at..at + 8]);
        };
        let seen = engine.queue(6, |queue| {
            let mut seen = BTreeSet::new();
            for tag in 0..500 {
                let mut read = file
                    .read_vectored_at(vec![vec![0; 8]], tag * 8)
                    .by_backend();
                while let Err(back) = queue.push(tag, read) {
                    assert!(queue.is_full());
                    read = back;
                    let (tag, (result, bufs)) = queue.next().unwrap();
                    check(tag, result, bufs);
                    assert!(seen.insert(tag), "{tag} came twice");
                }
            }
            while let Some((tag, (result, bufs))) = queue.next() {
                check(tag, result, bufs);
                assert!(seen.insert(tag), "{tag} came twice");
            }
            seen
        });
        assert_eq!(seen.unwrap(), (0..500).collect());
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

#[test]
fn a_queue_tells_how_deep_it_is() {
    let engine = Engine::builder().queue_depth(8).build().unwrap();
    for (asked, depth) in [(0, 1), (1, 1), (5, 5), (8, 8), (1000, 8)] {
        let told = engine.queue(asked, |queue| {
            let mut pushed = 0;
            while queue.push(0, engine.nop()).is_ok() {
                pushed += 1;
            }
            assert_eq!(queue.depth(), pushed);
            queue.depth()
        });
        assert_eq!(told.unwrap(), depth, "asked for {asked}");
    }
}

#[test]
fn a_full_queue_gives_the_operation_back() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true);
        let file = options.open(path.path()).unwrap();
        let pushed = engine.queue(4, |queue| {
            assert!(queue.is_empty() && !queue.is_full());
            for n in 0..4_u8 {
                assert_eq!(queue.len(), usize::from(n));
                assert!(
                    queue
                        .push(u64::from(n), file.write_at(vec![n], n.into()))
                        .is_ok()
                );
            }
            assert!(queue.is_full() && !queue.is_empty());
            let buf = vec![9];
            let address = buf.as_ptr();
            let back = queue.push(9, file.write_at(buf, 9)).unwrap_err();
            // It was not begun, and can be run elsewhere.
            let (result, buf) = back.wait();
            assert_eq!((result.unwrap(), buf.as_ptr()), (1, address));
            queue.len()
        });
        assert_eq!(pushed.unwrap(), 4);
        assert_eq!(
            fs::read(path.path()).unwrap(),
            [0, 1, 2, 3, 0, 0, 0, 0, 0, 9]
        );
    });
}

#[test]
fn a_queue_takes_as_many_as_it_was_asked_for_whatever_they_are_split_into() {
    // Each takes several requests of a device, which takes a megabyte at most.
    const LARGE: usize = 3 << 20;
    let content = pattern(8 * LARGE);
    let name = "reads of a full queue that are split";
    on_every_backend_of(
        |builder| builder.queue_depth(4),
        |engine| {
            let Some(file) = direct_file_or_skip(name, engine, &content) else {
                return;
            };
            let read = |number: u64, bytes| {
                let buf = file.aligned_buf(bytes).expect("there is memory");
                file.read_at(buf, number * LARGE as u64)
            };
            let check = |(number, (result, buf)): (u64, (std::io::Result<usize>, AlignedBuf))| {
                assert_eq!(result.expect("it can be read"), buf.len());
                let at = usize::try_from(number).expect("a few") * LARGE;
                assert!(buf[..] == content[at..at + buf.len()], "read {number}");
            };
            let seen = engine.queue(4, |queue| {
                let mut seen = 0;
                for number in 0..8 {
                    // Small ones come behind what waits for room.
                    let bytes = if number % 4 == 3 { 4096 } else { LARGE };
                    if queue.is_full() {
                        check(queue.next().expect("4 are in flight"));
                        seen += 1;
                    }
                    let pushed = queue.push(number, read(number, bytes));
                    assert!(pushed.is_ok(), "{number} with {} in flight", queue.len());
                }
                assert_eq!(queue.len(), queue.depth());
                while let Some(result) = queue.next() {
                    check(result);
                    seen += 1;
                }
                seen
            });
            assert_eq!(seen.expect("nothing is demanded"), 8);
            // What nobody asks for is made all the same.
            let before = engine.stats().operations;
            let left = engine.queue(4, |queue| {
                (0..4).for_each(|number| assert!(queue.push(number, read(number, LARGE)).is_ok()));
            });
            left.expect("nothing is demanded");
            let after = engine.stats();
            assert!(after.operations - before >= 4);
            assert_eq!((after.in_flight, after.strays), (0, 0));
        },
    );
}

#[test]
fn a_result_can_decide_what_is_asked_next() {
    on_every_backend(|engine| {
        // Each byte tells where the next one is.
        let chain: Vec<u8> = (0..=255_u8)
            .map(|n| n.wrapping_mul(5).wrapping_add(1))
            .collect();
        let file = temp_file(engine, &chain);
        let visited = engine.queue(2, |queue| {
            let mut visited = BTreeSet::new();
            let mut at = 0;
            while visited.insert(at) {
                let read = file.read_vectored_at(vec![vec![0; 1]], at).by_backend();
                assert!(queue.push(at, read).is_ok());
                let (tag, (result, bufs)) = queue.next().unwrap();
                assert_eq!((tag, result.unwrap()), (at, 1));
                at = u64::from(bufs[0][0]);
                assert!(queue.next().is_none(), "a queue goes on after it was empty");
            }
            visited.len()
        });
        assert_eq!(visited.unwrap(), 256);
    });
}

#[test]
fn results_that_are_there_at_once_are_handed_out_too() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"");
        let done = engine.queue(8, |queue| {
            // Writes into the page cache are plain calls.
            for n in 0..8_u8 {
                assert!(
                    queue
                        .push(n.into(), file.write_at(vec![n; 4], 4 * u64::from(n)))
                        .is_ok()
                );
            }
            assert!(queue.is_full());
            std::iter::from_fn(|| queue.next())
                .map(|(tag, (result, buf))| (tag, result.unwrap(), buf))
                .filter(|(tag, moved, buf)| *moved == 4 && u64::from(buf[0]) == *tag)
                .count()
        });
        assert_eq!(done.unwrap(), 8);
    });
}

/// So many results of other operations may come before one that takes a while.
const PATIENCE: u32 = 1_000_000;

/// Whoever always has something that is answered at once gets the rest all the same.
#[test]
fn results_that_are_there_at_once_do_not_keep_others_waiting_for_ever() {
    on_every_backend(|engine| {
        let (cached, cold) = (temp_file(engine, b""), temp_file(engine, &pattern(4096)));
        let durable = read_write(engine).durable_writes(true);
        let path = temp_path(b"");
        let durable = durable.open(path.path()).unwrap();
        for kind in 0..3 {
            chill(&cold);
            let slow: AnyOp<'_, Vec<u8>> = match kind {
                0 => cached.sync_data().into(),
                1 => durable.write_at(vec![1; 512], 0).into(),
                _ => cold.read_at(vec![0; 512], 0).into(),
            };
            let came = engine.queue(8, |queue| {
                assert!(queue.push(1, slow).is_ok());
                for _ in 0..PATIENCE {
                    while !queue.is_full() {
                        // Writes into the page cache are plain calls.
                        assert!(queue.push(0, cached.write_at(vec![7], 0).into()).is_ok());
                    }
                    let (tag, (result, _)) = queue.next().unwrap();
                    result.unwrap();
                    if tag == 1 {
                        return true;
                    }
                }
                false
            });
            assert!(came.unwrap(), "slow operation {kind}");
        }
    });
}

/// The content of a file to which `leave` has begun durable writes of 4096 bytes `1..=8` in a
/// queue, and has left it early.
fn written_by(engine: &Engine, leave: impl FnOnce(&Engine, &File)) -> Vec<u8> {
    let path = temp_path(b"");
    let options = read_write(engine).durable_writes(true);
    let file = options.open(path.path()).expect("the file is there");
    leave(engine, &file);
    let stats = engine.stats();
    assert_eq!((stats.in_flight, stats.strays), (0, 0));
    fs::read(path.path()).expect("the file is there")
}

/// As above, what is there when all of them have been done.
fn eight_blocks() -> Vec<u8> {
    (1..=8_u8).flat_map(|n| [n; 4096]).collect()
}

#[test]
fn operations_in_flight_run_to_their_end_when_the_body_returns() {
    on_every_backend(|engine| {
        for taken in [0, 1, 5] {
            let content = written_by(engine, |engine, file| {
                let left = engine.queue(8, |queue| {
                    for n in 1..=8_u8 {
                        let write = file.write_all_at(vec![n; 4096], 4096 * u64::from(n - 1));
                        assert!(queue.push(n.into(), write).is_ok());
                    }
                    (0..taken).for_each(|_| assert!(queue.next().is_some()));
                    queue.len()
                });
                assert_eq!(left.unwrap(), 8 - taken);
            });
            assert!(content == eight_blocks(), "after {taken} results");
        }
    });
}

#[test]
fn a_panic_in_the_body_drains_and_leaves_the_engine_usable() {
    on_every_backend(|engine| {
        let content = written_by(engine, |engine, file| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                engine.queue(8, |queue| {
                    for n in 1..=8_u8 {
                        let write = file.write_all_at(vec![n; 4096], 4096 * u64::from(n - 1));
                        assert!(queue.push(n.into(), write).is_ok());
                    }
                    assert!(queue.next().is_some());
                    std::panic::resume_unwind(Box::new("a panic that was planned"));
                })
            }));
            let payload = panicked.map(drop).unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&"a panic that was planned"));
        });
        assert!(content == eight_blocks());

        let mut batch = Batch::on(engine);
        (0..100).for_each(|_| batch.push(engine.nop()));
        assert!(batch.wait().all(|result| result.is_ok()));
    });
}

#[test]
fn the_body_may_run_batches_and_queues_of_the_same_engine() {
    on_every_backend(|engine| {
        let data = pattern(64);
        let file = temp_file(engine, &data);
        chill(&file);
        let read = |at: u64| file.read_vectored_at(vec![vec![0; 8]], at).by_backend();
        let inner = engine.queue(4, |outer| {
            assert!(outer.push(0, read(0)).is_ok());
            assert!(outer.push(8, read(8)).is_ok());
            let mut batch = Batch::on(engine);
            (0..20).for_each(|n| batch.push(read(n % 8)));
            assert!(batch.wait().all(|(result, _)| result.unwrap() == 8));
            let inner = engine.queue(4, |inner| {
                assert!(inner.push(16, read(16)).is_ok());
                let (tag, (_, bufs)) = outer.next().unwrap();
                let at = usize::try_from(tag).unwrap();
                assert_eq!(bufs.concat(), data[at..at + 8]);
                assert!(outer.push(24, read(24)).is_ok());
                let (tag, (_, bufs)) = inner.next().unwrap();
                (tag, bufs.concat())
            });
            assert!(read(32).wait().0.is_ok());
            let left = std::iter::from_fn(|| outer.next());
            assert_eq!(left.filter(|(_, (result, _))| result.is_ok()).count(), 2);
            inner.unwrap()
        });
        assert_eq!(inner.unwrap(), (16, data[16..24].to_vec()));
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn the_depth_is_clamped_to_what_one_thread_can_have() {
    let narrow = |builder: inflight::Builder| builder.queue_depth(16);
    on_every_backend_of(narrow, |engine| {
        assert_eq!(engine.queue_depth(), 16);
        for (asked, at_most) in [(0, 1), (1, 1), (7, 7), (16, 16), (17, 16), (u32::MAX, 16)] {
            let pushed = engine.queue(asked, |queue| {
                (0..)
                    .take_while(|tag| queue.push(*tag, engine.nop()).is_ok())
                    .count()
            });
            let pushed = pushed.unwrap();
            // With little locked memory, a ring has 8 places.
            assert!(
                pushed == at_most || pushed == 8.min(at_most),
                "{pushed} for {asked}"
            );
        }
    });
    for (asked, got) in [(0, 1), (u32::MAX, 32_768)] {
        let engine = Engine::builder().queue_depth(asked).build().unwrap();
        assert_eq!(engine.queue_depth(), got);
    }
}

#[cfg(feature = "faulty")]
#[test]
fn results_come_in_the_order_of_completion() {
    // The test backend completes in an order of its own; which one, the seed decides.
    let reordered = crate::support::seeds().into_iter().filter(|seed| {
        let faults = inflight::Faults::new(*seed);
        let engine = Engine::builder().faults(faults).build().unwrap();
        let tags: Vec<u64> = engine
            .queue(32, |queue| {
                (0..32).for_each(|tag| assert!(queue.push(tag, engine.nop()).is_ok()));
                std::iter::from_fn(|| queue.next())
                    .map(|(tag, _)| tag)
                    .collect()
            })
            .unwrap();
        let sorted: BTreeSet<u64> = tags.iter().copied().collect();
        assert_eq!(sorted, (0..32).collect(), "seed {seed}");
        !tags.is_sorted()
    });
    assert!(reordered.count() > 0);
}

/// Of a file that is read once by a queue, each block.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 << 10;

/// Leaves every other block in the page cache. False if it does not forget the others.
fn every_other_is_cached(file: &fs::File) -> bool {
    if !evict_within(Duration::from_secs(10), file) {
        return false;
    }
    // Nor is more read than is asked for.
    fadvise(file, 0, None, Advice::Random).expect("it can be advised");
    let mut buf = [0; BLOCK];
    for block in (0..BLOCKS).filter(|block| block % 2 == 0) {
        let offset = block * BLOCK as u64;
        file.read_exact_at(&mut buf, offset).expect("it is there");
    }
    true
}

/// Reads each block once, with 32 in flight, and says how many calls asked for one.
fn each_block_once(engine: &Engine, file: &File, content: &[u8]) -> u64 {
    let before = engine.stats();
    let read = engine.queue(32, |queue| {
        // None is read twice, and those that are there do not come by turns.
        let mut blocks = (0..BLOCKS).map(|number| number * 1237 % BLOCKS);
        let mut read = 0;
        loop {
            while !queue.is_full()
                && let Some(block) = blocks.next()
            {
                let asks = file.read_at(vec![0; BLOCK], block * BLOCK as u64);
                assert!(queue.push(block, asks).is_ok());
            }
            let Some((block, (moved, buf))) = queue.next() else {
                return read;
            };
            let at = usize::try_from(block).expect("it is small") * BLOCK;
            let expected = (BLOCK, &content[at..][..BLOCK]);
            assert_eq!((moved.expect("it is read"), &buf[..]), expected);
            read += 1;
        }
    });
    assert_eq!(read.expect("there is a queue"), BLOCKS);
    engine.stats().plain_calls - before.plain_calls
}

/// The same by tasks of a run loop.
fn each_block_once_by_tasks(engine: &Engine, file: &File, content: &[u8]) -> u64 {
    let before = engine.stats();
    let read = Cell::new(0);
    let blocks = RefCell::new((0..BLOCKS).map(|number| number * 1237 % BLOCKS));
    let next = || blocks.borrow_mut().next();
    let task = async || {
        while let Some(block) = next() {
            let buf = vec![0; BLOCK];
            let (moved, buf) = file.read_at(buf, block * BLOCK as u64).await;
            let at = usize::try_from(block).expect("it is small") * BLOCK;
            let expected = (BLOCK, &content[at..][..BLOCK]);
            assert_eq!((moved.expect("it is read"), &buf[..]), expected);
            read.set(read.get() + 1);
        }
    };
    let tasks = (0..32).map(|_| task());
    let run = engine.run(join_all(tasks));
    run.expect("there is a loop");
    assert_eq!(read.get(), BLOCKS);
    // Of those that are asked for it counts the half that is there.
    let after = engine.stats();
    2 * (after.plain_calls + after.helped - before.plain_calls - before.helped)
}

#[test]
fn reads_of_which_half_are_missing_are_tried_both_ways() {
    are_tried_both_ways(
        "reads of a queue of which half are missing",
        each_block_once,
    );
}

#[test]
fn reads_of_tasks_of_which_half_are_missing_are_tried_both_ways() {
    let name = "reads of tasks of which half are missing";
    are_tried_both_ways(name, each_block_once_by_tasks);
}

/// `each_block_once` says how many of the blocks it has asked for.
fn are_tried_both_ways(name: &str, each_block_once: impl Fn(&Engine, &File, &[u8]) -> u64) {
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let blocks = usize::try_from(BLOCKS).expect("it is small");
    let content = pattern(BLOCK * blocks);
    let path = temp_path(&content);
    let file = open(&engine, path.path());
    fadvise(&file, 0, None, Advice::Random).expect("it can be advised");
    let mut seen = Vec::new();
    // Only reads with others in flight count for a trial: of a thread that has to wait for a
    // processor, all are over when it goes on. So there may have to be more than the first pass.
    let is_tried = (0..16).any(|_| {
        if !every_other_is_cached(path.as_file()) {
            return false;
        }
        let asked = each_block_once(&engine, &file, &content);
        seen.push((asked, BLOCKS.saturating_sub(asked)));
        let [asked, given] = seen.iter().fold([0; 2], |all, (asked, given)| {
            [all[0] + asked, all[1] + given]
        });
        // Of a run of 4,096 by the ring one in 64 is asked for.
        asked > 4096 && given > 3500
    });
    if seen.is_empty() {
        return skip(name, "the page cache does not forget");
    }
    assert!(
        is_tried,
        "{seen:?} were asked for, and given to the ring at once"
    );
}
