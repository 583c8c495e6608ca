//! First reads of direct files: they show what the device is, so they are waited for, but those of
//! a few files are enough for all on it.

use std::rc::Rc;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{AlignedBuf, BackendKind, Engine, Operation, Way, local};
use tempfile::NamedTempFile;

use crate::support::{pattern, skip, temp_path, uring_of_depth_or_skip, uring_or_skip};

const BLOCK: usize = 4096;
const FILES: usize = 96;

/// The most that are waited for: each is worth a sixteenth of what has to be known at least.
const ASKED_MAX: u64 = 16;

/// Direct files of one block each, of which nothing is known.
fn files(name: &str, engine: &Engine) -> Option<(Vec<File>, Vec<NamedTempFile>)> {
    let direct = OpenOptions::new().read(true).direct(Direct::Required);
    let direct = direct.engine(engine);
    let (mut files, mut paths) = (Vec::new(), Vec::new());
    for block in pattern(FILES * BLOCK).chunks(BLOCK) {
        let path = temp_path(block);
        // What is read is to come from the device.
        path.as_file().sync_all().expect("it is written");
        let Ok(file) = direct.open(path.path()) else {
            skip(name, "the file system has no direct I/O");
            return None;
        };
        files.push(file);
        paths.push(path);
    }
    Some((files, paths))
}

fn buf(file: &File) -> AlignedBuf {
    file.aligned_buf(BLOCK).expect("there is memory")
}

/// Checks that no more were waited for than has to be, where there is a device to wait for.
fn few_were_waited_for(name: &str, engine: &Engine, files: &[File]) {
    let way = |file: &File| file.read_at(buf(file), 0).explain().batched;
    if !files.iter().all(|file| way(file) == Way::Backend) {
        return skip(name, "the device is memory, or cannot be asked");
    }
    let asked = engine.stats().plain_calls;
    assert!((1..=ASKED_MAX).contains(&asked), "{asked} were waited for");
}

#[test]
fn a_queue_waits_for_the_first_reads_of_a_few_files() {
    let name = "a queue of direct files";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    let Some((files, _paths)) = files(name, &engine) else {
        return;
    };
    let content = pattern(FILES * BLOCK);
    let run = engine.queue(32, |queue| {
        let check = |(tag, (result, buf)): (u64, (std::io::Result<usize>, AlignedBuf))| {
            assert_eq!(result.expect("it is read"), BLOCK);
            let at = usize::try_from(tag).expect("a few");
            assert!(buf[..] == content[at * BLOCK..][..BLOCK], "file {at}");
        };
        for (tag, file) in (0..).zip(&files) {
            if queue.is_full() {
                check(queue.next().expect("some are in flight"));
            }
            assert!(queue.push(tag, file.read_at(buf(file), 0)).is_ok());
        }
        while let Some(read) = queue.next() {
            check(read);
        }
    });
    run.expect("nothing is demanded");
    few_were_waited_for(name, &engine, &files);
}

#[test]
fn a_loop_waits_for_the_first_reads_of_a_few_files() {
    let name = "a loop with direct files";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    let Some((files, _paths)) = files(name, &engine) else {
        return;
    };
    let (files, content) = (Rc::new(files), Rc::new(pattern(FILES * BLOCK)));
    let run = engine.run(async {
        let read = |at: usize| {
            let (files, content) = (Rc::clone(&files), Rc::clone(&content));
            local::spawn(async move {
                let (result, buf) = files[at].read_at(buf(&files[at]), 0).await;
                assert_eq!(result.expect("it is read"), BLOCK);
                assert!(buf[..] == content[at * BLOCK..][..BLOCK], "file {at}");
            })
        };
        let running: Vec<_> = (0..FILES).map(read).collect();
        for task in running {
            task.await;
        }
    });
    run.expect("nothing is demanded");
    few_were_waited_for(name, &engine, &files);
}

#[test]
fn a_ring_is_named_for_one_read_where_there_is_one() {
    let name = "the way of one direct read";
    let Some(with_rings) = uring_or_skip(name) else {
        return;
    };
    let path = temp_path(&pattern(BLOCK));
    let way = |engine: &Engine| {
        let direct = OpenOptions::new().read(true).direct(Direct::Required);
        let file = direct.engine(engine).open(path.path()).ok()?;
        let read = || file.read_at(file.aligned_buf(BLOCK).expect("there is memory"), 0);
        (0..2).for_each(|_| assert_eq!(read().wait().0.unwrap(), BLOCK));
        Some(read().explain().alone)
    };
    if way(&with_rings) != Some(Way::PlainCallOrRing) {
        return skip(
            name,
            "there is no direct I/O, or the device is memory, or cannot be asked",
        );
    }
    for kind in [BackendKind::Threads, BackendKind::Aio] {
        match Engine::builder().backend(kind).build() {
            Ok(engine) => assert_eq!(way(&engine), Some(Way::PlainCall), "{kind}"),
            Err(why) => skip(name, &why.to_string()),
        }
    }
}
