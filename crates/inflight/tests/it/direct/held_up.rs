//! Writes that wait, beside what a thread has in flight: they are for the pool.

use inflight::{AnyOp, Batch, Engine, fs::File};

use super::required;
use crate::support::{pattern, skip, temp_path, uring_or_skip};

const BLOCK: usize = 4096;
const READS: usize = 4;

fn block(file: &File, byte: u8) -> inflight::AlignedBuf {
    let mut block = file.aligned_buf(BLOCK).expect("there is memory");
    block.fill(byte);
    block
}

/// So many calls on this thread and by the pool it takes to run something.
fn calls(engine: &Engine, run: impl FnOnce()) -> (u64, u64) {
    let before = engine.stats();
    run();
    let after = engine.stats();
    (
        after.plain_calls - before.plain_calls,
        after.pool_calls - before.pool_calls,
    )
}

/// Reads blocks of one file and writes one behind the end of another, which is empty, by a queue.
fn read_and_append(engine: &Engine, read: &File, appended: Option<&File>) {
    let ran = engine.queue(8, |queue| {
        for at in 0..READS {
            let op: AnyOp<_> = read.read_at(block(read, 0), (at * BLOCK) as u64).into();
            assert!(queue.push(at as u64, op).is_ok());
        }
        if let Some(file) = appended {
            let op = file.write_at(block(file, 7), 0).into();
            assert!(queue.push(READS as u64, op).is_ok());
        }
        while let Some((_, (result, _))) = queue.next() {
            assert_eq!(result.expect("it is made"), BLOCK);
        }
    });
    ran.expect("there is a queue");
}

#[test]
fn a_write_that_makes_a_file_grow_is_for_the_pool_while_others_are_in_flight() {
    let name = "a_write_that_makes_a_file_grow_is_for_the_pool_while_others_are_in_flight";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let (path, empty) = (temp_path(&pattern(READS * BLOCK)), temp_path(b""));
    let Some(read) = required(name, &engine, path.path()) else {
        return;
    };
    let appended = required(name, &engine, empty.path()).expect("as the other one");
    let learns =
        (0..100).any(|_| calls(&engine, || read_and_append(&engine, &read, None)) == (0, 0));
    if !learns {
        return skip(name, "direct reads are not for the ring here");
    }
    for grows in [true, false] {
        let made = calls(&engine, || read_and_append(&engine, &read, Some(&appended)));
        // What a file that is not made longer is asked first is a call here.
        let expected = if grows { (0, 1) } else { (made.0, 0) };
        assert_eq!(made, expected, "grows: {grows}");
    }
    assert_eq!(
        std::fs::read(empty.path()).expect("it is there"),
        [7; BLOCK]
    );
}

#[test]
fn writes_that_make_several_files_grow_run_side_by_side() {
    let name = "writes_that_make_several_files_grow_run_side_by_side";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let paths = [(); 2].map(|()| temp_path(b""));
    let files = paths
        .each_ref()
        .map(|path| required(name, &engine, path.path()));
    let [Some(one), Some(other)] = files else {
        return;
    };
    // Each of the next blocks of these.
    let append = |files: [&File; 8], ends: &mut [u64; 2]| {
        let mut batch = Batch::on(&engine);
        for file in files {
            let end = &mut ends[usize::from(std::ptr::eq(file, &other))];
            batch.push(file.write_at(block(file, 7), *end));
            *end += BLOCK as u64;
        }
        assert!(batch.wait().all(|(result, _)| result.is_ok()));
    };
    let ends = &mut [0; 2];
    let by_turns = std::array::from_fn(|at| if at % 2 == 0 { &one } else { &other });
    assert_eq!(calls(&engine, || append(by_turns, ends)), (1, 7));
    assert_eq!(calls(&engine, || append([&one; 8], ends)), (4, 4));
    assert_eq!(calls(&engine, || append([&one; 8], ends)), (8, 0));
    for (path, end) in paths.iter().zip(*ends) {
        let content = std::fs::read(path.path()).expect("it is there");
        assert!(content.len() as u64 == end && content.iter().all(|byte| *byte == 7));
    }
}
