//! Which way reads take, seen from the counts of system calls.

use inflight::fs::OpenOptions;
use inflight::{Batch, Direct, Operation};

use super::support::{open, pattern, skip, temp_path, uring_or_skip};

const BLOCK: usize = 4096;

#[test]
fn cached_reads_come_to_be_plain_calls() {
    let Some(engine) = uring_or_skip("cached reads beside a ring") else {
        return;
    };
    let content = pattern(64 * BLOCK);
    let path = temp_path(&content);
    // Written a moment ago, so the page cache has it.
    let file = open(&engine, path.path());
    let mut batch = Batch::on(&engine);
    let mut run = || {
        for (block, _) in (0..).zip(content.chunks(BLOCK)) {
            batch.push(file.read_at(vec![0; BLOCK], block * BLOCK as u64));
        }
        for ((result, buf), expected) in batch.wait().zip(content.chunks(BLOCK)) {
            assert_eq!((result.unwrap(), &buf[..]), (BLOCK, expected));
        }
        engine.stats()
    };
    // The first batches find out how the file is served best.
    run();
    let before = run();
    let after = run();
    assert_eq!(after.enters, before.enters, "no ring for what is cached");
    assert_eq!(after.plain_calls, before.plain_calls + 64);
    assert_eq!(after.operations, before.operations + 64);
}

#[test]
fn direct_reads_alone_go_by_the_ring_once_the_file_is_known() {
    let name = "direct reads alone";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let path = temp_path(&pattern(64 * BLOCK));
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let Ok(file) = direct.engine(&engine).open(path.path()) else {
        return skip(name, "the file system has no direct I/O");
    };
    let read = |block: u64| {
        let buf = file.aligned_buf(BLOCK).expect("there is memory");
        let (result, _buf) = file.read_at(buf, block * BLOCK as u64).wait();
        assert_eq!(result.unwrap(), BLOCK);
    };
    read(0);
    let before = engine.stats();
    (1..9).for_each(read);
    let after = engine.stats();
    let (enters, plain) = (
        after.enters - before.enters,
        after.plain_calls - before.plain_calls,
    );
    if plain == 8 {
        return skip(name, "the file system refuses reads that do not wait");
    }
    assert_eq!((enters, plain), (8, 0));
}
