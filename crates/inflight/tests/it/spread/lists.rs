//! Cached reads into several buffers that another thread may make, in batches and queues.

use std::io::{ErrorKind, Result};

use inflight::fs::{File, ReadVectoredAt};
use inflight::{Batch, Ended, Engine, Queue};

use super::{
    BATCHES_MAX, BLOCK, BLOCKS, TRIAL_BATCHES, content_file, descriptors_of, expected,
    file_in_memory, offset,
};
use crate::support::{
    evict, has_several_processors, on_every_backend, open, pattern, read_write, say, temp_file,
    temp_path,
};

type Lists = Vec<Vec<u8>>;
type Read<'f> = ReadVectoredAt<'f, Vec<u8>>;

/// Of a block, cut where nothing is aligned.
pub(crate) const LENS: [usize; 6] = [1000, 0, 4096, 1, 7191, 4096];

pub(crate) fn list() -> Lists {
    LENS.map(|len| vec![0; len]).into()
}

/// Whether these are the buffers of [`list`], and hold this and nothing behind it.
pub(crate) fn holds(bufs: &Lists, expected: &[u8]) -> bool {
    let (all, is_list) = (bufs.concat(), bufs.iter().map(Vec::len).eq(LENS));
    let (read, rest) = all.split_at(expected.len());
    is_list && read == expected && rest.iter().all(|byte| *byte == 0)
}

/// The read of a block; every other one is to be whole.
fn read(file: &File, block: u64) -> Read<'_> {
    match block % 2 {
        0 => file.read_vectored_at(list(), offset(block)),
        _ => file.read_vectored_exact_at(list(), offset(block)),
    }
}

fn content() -> Vec<u8> {
    pattern(BLOCK * usize::try_from(BLOCKS).expect("a few"))
}

fn check(content: &[u8], block: u64, (result, bufs): (Result<usize>, Lists)) {
    assert_eq!(result.expect("it is read"), BLOCK);
    assert!(holds(&bufs, expected(content, block)), "block {block}");
}

/// One batch of reads, in another order each time, of which each is checked.
fn read_batch<'f>(batch: &mut Batch<Read<'f>>, file: &'f File, content: &[u8], round: u64) {
    let block = |at: u64| (at * 37 + round) % BLOCKS;
    (0..BLOCKS).for_each(|at| batch.push(read(file, block(at))));
    let results: Vec<_> = batch.wait().collect();
    // The last one first: nobody may be at work at it any more.
    for (at, result) in results.into_iter().enumerate().rev() {
        check(content, block(at as u64), result);
    }
}

/// Reads of all blocks, as often as `rounds` says, each checked.
fn read_queue<'f>(
    queue: &mut Queue<'_, '_, Read<'f>>,
    file: &'f File,
    content: &[u8],
    rounds: u64,
) {
    for block in (0..rounds * BLOCKS).map(|number| number % BLOCKS) {
        if queue.is_full() {
            let (block, result) = queue.next().expect("some are in flight");
            check(content, block, result);
        }
        assert!(queue.push(block, read(file, block)).is_ok());
    }
    while let Some((block, result)) = queue.next() {
        check(content, block, result);
    }
}

/// Runs rounds until another thread has made enough. Returns how many there were.
fn until_helped(name: &str, engine: &Engine, mut round: impl FnMut(u64)) -> u64 {
    for number in 0..u64::from(BATCHES_MAX) {
        round(number);
        if engine.stats().helped >= 500 {
            return number + 1;
        }
    }
    let helped = engine.stats().helped;
    say(&format!("{name}: {helped} lists only"));
    u64::from(BATCHES_MAX)
}

/// Who helps has a descriptor of its own, which is opened when the first read is shown.
#[test]
fn lists_are_shown_to_who_helps() {
    let Some((named, of)) = file_in_memory("lists that are shown") else {
        return;
    };
    let content = content();
    on_every_backend(|engine| {
        let file = open(engine, named.path());
        let mut batch = Batch::on(engine);
        for round in 0..TRIAL_BATCHES {
            read_batch(&mut batch, &file, &content, round);
        }
        assert_eq!(descriptors_of(of), 3);
    });
    // On engines that have not found out whether that pays.
    on_every_backend(|engine| {
        let file = open(engine, named.path());
        let run = |queue: &mut Queue<'_, '_, _>| {
            read_queue(queue, &file, &content, TRIAL_BATCHES);
        };
        engine.queue(64, run).expect("nothing is demanded");
        assert_eq!(descriptors_of(of), 3);
    });
}

#[test]
fn every_list_of_a_batch_is_right_whoever_filled_it() {
    let name = "batches of lists that are shared";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let (file, content) = (content_file(engine), content());
        let mut batch = Batch::on(engine);
        let rounds = until_helped(name, engine, |round| {
            read_batch(&mut batch, &file, &content, round);
        });
        let stats = engine.stats();
        assert_eq!(stats.operations, rounds * BLOCKS, "each is counted once");
        assert!(stats.plain_calls + stats.helped <= stats.operations);
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

#[test]
fn every_list_of_a_queue_is_right_whoever_filled_it() {
    let name = "queues of lists that are shared";
    if !has_several_processors(name) {
        return;
    }
    for depth in [4, 64] {
        on_every_backend(|engine| {
            let (file, content) = (content_file(engine), content());
            let rounds = until_helped(name, engine, |_| {
                let run = |queue: &mut Queue<'_, '_, _>| read_queue(queue, &file, &content, 4);
                engine.queue(depth, run).expect("nothing is demanded");
            });
            let operations = engine.stats().operations;
            assert_eq!(operations, 4 * rounds * BLOCKS, "each is counted once");
        });
    }
}

/// What the page cache has not is read by the backend, from the beginning of the list on.
#[test]
fn lists_that_the_page_cache_has_not_are_filled_all_the_same() {
    let name = "shared lists of what is not cached";
    if !has_several_processors(name) {
        return;
    }
    on_every_backend(|engine| {
        let content = content();
        let path = temp_path(&content);
        let warm = open(engine, path.path());
        let mut batch = Batch::on(engine);
        let rounds = until_helped(name, engine, |round| {
            read_batch(&mut batch, &warm, &content, round);
        });
        for round in 0..64 {
            // Of a new file nothing is known, so it is asked.
            let file = open(engine, path.path());
            evict(path.as_file());
            // Every other round finds some of it, and lists of which it has a part.
            for at in (0..content.len()).step_by(3 * BLOCK / 2) {
                let mut byte = [0];
                let read = std::os::unix::fs::FileExt::read_at;
                if round % 2 == 1 {
                    read(path.as_file(), &mut byte, at as u64).expect("it is there");
                }
            }
            match round % 4 {
                0 | 1 => read_batch(&mut Batch::on(engine), &file, &content, round),
                _ => {
                    let run = |queue: &mut Queue<'_, '_, _>| read_queue(queue, &file, &content, 1);
                    engine.queue(64, run).expect("nothing is demanded");
                }
            }
        }
        let stats = engine.stats();
        let operations = (rounds + 64) * BLOCKS;
        assert_eq!(stats.operations, operations, "each is counted once");
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

#[test]
fn the_end_of_a_file_is_told_of_lists_whoever_comes_to_it() {
    let name = "lists at the end of a file that are shared";
    if !has_several_processors(name) {
        return;
    }
    // In the third buffer of its list.
    const TAIL: usize = 1100;
    on_every_backend(|engine| {
        let content = pattern(BLOCK * 4 + TAIL);
        let file = temp_file(engine, &content);
        let mut batch = Batch::on(engine);
        // A short one does not say that the page cache had all of it, so the first are whole.
        (0..BLOCKS).for_each(|_| batch.push(read(&file, 0)));
        batch.wait().for_each(drop);
        // Whole blocks, the rest of one, and nothing: twice, as each block is always read alike.
        let starts: Vec<_> = (0..96)
            .map(|at| (at % 6 * BLOCK, at / 6 % 2 == 0))
            .collect();
        until_helped(name, engine, |_| {
            for &(start, is_exact) in &starts {
                batch.push(match is_exact {
                    true => file.read_vectored_exact_at(list(), start as u64),
                    false => file.read_vectored_at(list(), start as u64),
                });
            }
            for (&(start, is_exact), (result, bufs)) in starts.iter().zip(batch.wait()) {
                let there = content.get(start..).unwrap_or_default();
                let there = &there[..there.len().min(BLOCK)];
                match result {
                    Ok(count) => {
                        assert_eq!(count, there.len(), "at {start}");
                        assert!(!is_exact || count == BLOCK, "at {start}");
                    }
                    Err(cause) => {
                        assert_eq!(cause.kind(), ErrorKind::UnexpectedEof);
                        assert!(is_exact && there.len() < BLOCK, "at {start}");
                        let ended = cause.get_ref().and_then(|cause| cause.downcast_ref());
                        let expected = Ended {
                            done_bytes: there.len(),
                            asked_bytes: BLOCK,
                            is_write: false,
                        };
                        assert_eq!(ended, Some(&expected));
                    }
                }
                assert!(holds(&bufs, there), "at {start}");
            }
        });
    });
}

/// As many as the kernel takes, more, and none.
#[test]
fn lists_of_any_length_are_shared() {
    let name = "long lists that are shared";
    if !has_several_processors(name) {
        return;
    }
    const LEN: usize = 16;
    const MOST: usize = 1024;
    on_every_backend(|engine| {
        let content = pattern(1500 * LEN);
        let path = temp_path(&content);
        let file = read_write(engine).open(path.path()).expect("it is there");
        let mut batch = Batch::on(engine);
        let counts = [1, MOST, 0, 1500, 7];
        until_helped(name, engine, |_| {
            for count in counts.into_iter().cycle().take(60) {
                batch.push(file.read_vectored_at(vec![vec![0; LEN]; count], 0));
            }
            for (count, (result, bufs)) in counts.into_iter().cycle().zip(batch.wait()) {
                let used = count.min(MOST);
                assert_eq!(result.expect("it is read"), used * LEN);
                assert!(bufs[..used].concat() == content[..used * LEN]);
                assert_eq!(bufs.len(), count);
                assert!(bufs[used..].iter().all(|buf| *buf == [0; LEN]));
            }
        });
    });
}
