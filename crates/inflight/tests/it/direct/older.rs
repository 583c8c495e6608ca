//! Direct transfers where no ring can be had: by Linux AIO.

use std::fs;
use std::rc::Rc;

use inflight::fs::File;
use inflight::{AlignedBuf, BackendKind, Batch, Engine, Operation, local};

use super::{filled, required};
#[cfg(feature = "tokio")]
use crate::awaited::lanes::runtimes;
#[cfg(feature = "tokio")]
use crate::support::given_up;
use crate::support::{aio_or_skip, evict, open, pattern, skip, temp_path};

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;
const IN_FLIGHT: u32 = 16;

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

fn check(content: &[u8], block: usize, read: &[u8]) {
    assert!(read == &content[block * BLOCK..][..BLOCK], "block {block}");
}

/// An engine with few threads, and a direct file that can be asked not to wait, of which that is
/// known.
fn direct_file(name: &str, content: &[u8]) -> Option<(Engine, File, tempfile::NamedTempFile)> {
    aio_or_skip(name)?;
    let builder = Engine::builder().backend(BackendKind::Aio).threads(2);
    let engine = builder.build().expect("it could be had before");
    let path = temp_path(content);
    // What the page cache has would make direct transfers wait.
    evict(path.as_file());
    let file = required(name, &engine, path.path())?;
    for _ in 0..4 {
        let read = file.read_at(file.aligned_buf(BLOCK).expect("there is memory"), 0);
        read.wait().0.expect("it is read");
    }
    let explained = file.read_at(AlignedBuf::new(BLOCK, BLOCK).expect("memory"), 0);
    if { explained }.explain().takes_nowait != Some(true) {
        skip(name, "the file cannot be asked not to wait");
        return None;
    }
    Some((engine, file, path))
}

fn read_in_a_queue(engine: &Engine, file: &File, content: &[u8]) {
    let run = engine.queue(IN_FLIGHT, |queue| {
        let take = |(block, (result, read)): (u64, (std::io::Result<usize>, AlignedBuf))| {
            assert_eq!(result.expect("it is read"), BLOCK);
            check(content, usize::try_from(block).expect("a few"), &read);
        };
        for block in 0..BLOCKS {
            if queue.is_full() {
                take(queue.next().expect("some are in flight"));
            }
            let buf = file.aligned_buf(BLOCK).expect("there is memory");
            assert!(
                queue
                    .push(block as u64, file.read_at(buf, at(block)))
                    .is_ok()
            );
        }
        while let Some(read) = queue.next() {
            take(read);
        }
    });
    run.expect("nothing is demanded");
}

/// Writes all blocks of a file, several at a time.
async fn write_together(file: &File, content: &[u8]) {
    for first in (0..BLOCKS).step_by(usize::try_from(IN_FLIGHT).expect("a few")) {
        let mut batch = Batch::new();
        for block in first..(first + 16).min(BLOCKS) {
            let data = filled(file, &content[block * BLOCK..][..BLOCK]);
            batch.push(file.write_all_at(data, at(block)));
        }
        for (result, _) in batch.await {
            assert_eq!(result.expect("it is written"), BLOCK);
        }
    }
}

#[test]
fn they_take_no_thread_for_each() {
    let content = pattern(BLOCKS * BLOCK);
    let Some((engine, file, path)) = direct_file("direct transfers", &content) else {
        return;
    };
    let before = engine.stats();
    read_in_a_queue(&engine, &file, &content);
    let mut batch = Batch::on(&engine);
    for block in 0..BLOCKS {
        let buf = file.aligned_buf(BLOCK).expect("there is memory");
        batch.push(file.read_exact_at(buf, at(block)));
    }
    for (block, (result, read)) in batch.wait().enumerate() {
        assert_eq!(result.expect("it is read"), BLOCK);
        check(&content, block, &read);
    }
    let after = engine.stats();
    let pooled = after.pool_calls - before.pool_calls;
    let enters = after.enters - before.enters;
    // A device that has no room refuses some.
    assert!(pooled <= BLOCKS as u64 / 8, "{after:?}");
    assert!(
        enters > 0 && enters < 3 * BLOCKS as u64,
        "{enters} {after:?}"
    );
    // Linux 6.1 was seen to find that most such writes would wait.
    engine
        .run(write_together(&file, &content))
        .expect("nothing is demanded");
    assert!(fs::read(path.path()).expect("it is there") == content);
}

/// A direct file of all blocks that has none of the disk yet.
fn hole(name: &str, engine: &Engine) -> (tempfile::NamedTempFile, File) {
    let path = temp_path(b"");
    fs::File::options()
        .write(true)
        .open(path.path())
        .and_then(|file| file.set_len(at(BLOCKS)))
        .expect("a hole takes no room");
    let file = required(name, engine, path.path()).expect("it could be opened before");
    (path, file)
}

/// What would wait where it is submitted, as a write that needs blocks of the disk may, is for the
/// pool.
#[test]
fn what_would_wait_is_done_all_the_same() {
    let name = "direct writes into a hole";
    let content = pattern(BLOCKS * BLOCK);
    let Some((engine, _, _)) = direct_file(name, &content) else {
        return;
    };
    let before = engine.stats();
    let (path, file) = hole(name, &engine);
    engine
        .run(write_together(&file, &content))
        .expect("nothing is demanded");
    assert!(fs::read(path.path()).expect("it is there") == content);
    if engine.stats().retries == before.retries {
        skip(name, "this file system does not wait for that");
    }
}

/// In a lane nobody waits for what the pool does, so it has to be announced: else the lane is taken
/// over half a second later.
#[cfg(feature = "tokio")]
#[test]
fn what_would_wait_is_announced_to_a_lane() {
    let name = "direct writes into a hole, in a lane";
    let content = pattern(BLOCKS * BLOCK);
    let Some((engine, _, _)) = direct_file(name, &content) else {
        return;
    };
    let before = engine.stats();
    for runtime in runtimes() {
        let (path, file) = hole(name, &engine);
        runtime.block_on(async {
            engine
                .serve_on_tokio()
                .expect("there are asynchronous calls");
            write_together(&file, &content).await;
        });
        assert!(fs::read(path.path()).expect("it is there") == content);
    }
    let after = engine.stats();
    assert!(after.lane_operations >= 2 * BLOCKS as u64, "{after:?}");
    assert_eq!(given_up(&engine, "has not polled"), [], "{after:?}");
    if after.retries == before.retries {
        skip(name, "this file system does not wait for that");
    }
}

/// Loops and tasks that mix what is asynchronous there with what is not.
#[test]
fn they_go_together_with_what_is_for_the_pool() {
    let content = pattern(BLOCKS * BLOCK);
    let Some((engine, file, path)) = direct_file("direct and others", &content) else {
        return;
    };
    let (file, content) = (Rc::new(file), Rc::new(content));
    let cached = Rc::new(open(&engine, path.path()));
    let path = path.path().to_owned();
    let run = engine.run(async {
        let tasks: Vec<_> = (0..8)
            .map(|first| {
                let (file, cached) = (Rc::clone(&file), Rc::clone(&cached));
                let (content, path) = (Rc::clone(&content), path.clone());
                local::spawn(async move {
                    for block in (first..BLOCKS).step_by(8) {
                        let buf = file.aligned_buf(BLOCK).expect("there is memory");
                        let (result, read) = file.read_at(buf, at(block)).await;
                        assert_eq!(result.expect("it is read"), BLOCK);
                        check(&content, block, &read);
                        evict(&fs::File::open(&path).expect("it is there"));
                        let read = cached.read_at(vec![0; BLOCK], at(block));
                        let (result, read) = read.await;
                        assert_eq!(result.expect("it is read"), BLOCK);
                        check(&content, block, &read);
                        cached.metadata().await.expect("it is there");
                        if block % 16 == first {
                            file.sync_data().await.expect("it is synced");
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    run.expect("nothing is demanded");
    let stats = engine.stats();
    assert_eq!((stats.in_flight, stats.strays), (0, 0), "{stats:?}");
    assert!(stats.pool_calls > 0 && stats.enters > 0, "{stats:?}");
}
