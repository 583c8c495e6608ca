//! Direct files that cannot be asked not to wait: which of them the ring serves best shows itself.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fuser::Errno;
use inflight::fs::{Direct, File, OpenOptions};
use inflight::{AlignedBuf, BackendKind, Engine, Way, local};

use super::required;
use crate::support::fuse::Served;
use crate::support::overlay::Overlay;
#[cfg(feature = "tokio")]
use crate::support::threads_named;
use crate::support::{
    FuseMount, aio_or_skip, copies_are_fast, pattern, skip, temp_path, until,
    uring_of_depth_or_skip,
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const IN_FLIGHT: usize = 8;

/// Reads, and writes, after which it has to be known; one in 64 shows it.
const SHOWN_AFTER: usize = 64 * 50;

fn buf(file: &File) -> AlignedBuf {
    file.aligned_buf(BLOCK).expect("there is memory")
}

fn check(content: &[u8], at: usize, read: &[u8]) {
    assert!(read == &content[at * BLOCK..][..BLOCK], "block {at}");
}

/// Reads so many blocks in a queue, one after the other over and over.
fn read_in_a_queue(engine: &Engine, file: &File, content: &[u8], reads: usize) {
    let run = engine.queue(u32::try_from(IN_FLIGHT).expect("a few"), |queue| {
        let take = |(tag, (result, read)): (u64, (std::io::Result<usize>, AlignedBuf))| {
            assert_eq!(result.expect("it is read"), BLOCK);
            check(content, usize::try_from(tag).expect("a few"), &read);
        };
        for at in (0..BLOCKS).cycle().take(reads) {
            if queue.is_full() {
                take(queue.next().expect("some are in flight"));
            }
            let read = file.read_at(buf(file), (at * BLOCK) as u64);
            assert!(queue.push(at as u64, read).is_ok());
        }
        while let Some(read) = queue.next() {
            take(read);
        }
    });
    run.expect("nothing is demanded");
}

/// Writes all blocks anew, several at a time, by tasks of a run loop.
fn write_in_a_loop(engine: &Engine, file: &Rc<File>, content: &Rc<Vec<u8>>, writes: usize) {
    let run = engine.run(async {
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|first| {
                let (file, content) = (Rc::clone(file), Rc::clone(content));
                local::spawn(async move {
                    let places = (first..BLOCKS).step_by(IN_FLIGHT).cycle();
                    for at in places.take(writes / IN_FLIGHT) {
                        let mut block = buf(&file);
                        block.copy_from_slice(&content[at * BLOCK..][..BLOCK]);
                        let (result, _) = file.write_at(block, (at * BLOCK) as u64).await;
                        assert_eq!(result.expect("it is written"), BLOCK);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    run.expect("nothing is demanded");
}

/// Reads all blocks in a run loop that has nothing else to do.
fn read_one_by_one_in_a_loop(engine: &Engine, file: &File, content: &[u8]) {
    let run = engine.run(async {
        for at in 0..BLOCKS {
            let (result, read) = file.read_at(buf(file), (at * BLOCK) as u64).await;
            assert_eq!(result.expect("it is read"), BLOCK);
            check(content, at, &read);
        }
    });
    run.expect("nothing is demanded");
}

/// Where reads of the file go, and writes.
fn ways(file: &File) -> [(Way, Way); 2] {
    let (read, write) = (
        file.read_at(buf(file), 0).explain(),
        file.write_at(buf(file), 0).explain(),
    );
    [(read.batched, read.awaited), (write.batched, write.awaited)]
}

#[test]
fn what_is_only_started_by_a_call_is_left_to_the_ring() {
    let name = "a direct file of an overlay";
    if let Some(engine) = uring_of_depth_or_skip(name, 32) {
        is_left_to_the_backend(name, &engine);
    }
}

#[test]
fn what_is_only_started_by_a_call_is_left_to_older_calls() {
    let name = "a direct file of an overlay, by Linux AIO";
    if let Some(engine) = aio_or_skip(name) {
        is_left_to_the_backend(name, &engine);
    }
}

/// Whether a ring has handed something of this thread to a worker of the kernel in the last
/// seconds: those are named after it (`io_wq_worker` in `io_uring/io-wq.c`).
#[cfg(feature = "tokio")]
fn has_kernel_workers() -> bool {
    let this = std::fs::read_link("/proc/thread-self").expect("it is there");
    let number = this
        .file_name()
        .and_then(|name| name.to_str())
        .expect("it ends with a number");
    threads_named(&format!("iou-wrk-{number}")) > 0
}

/// Reads all blocks on tokio, several at a time, on the only thread of a runtime that serves the
/// engine. The reason why it cannot, if that is so.
#[cfg(feature = "tokio")]
fn read_on_tokio(engine: &Engine, file: &Arc<File>, content: &Arc<Vec<u8>>) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("threads are left").block_on(async {
        if let Err(why) = engine.serve_on_tokio() {
            return Some(why.to_string());
        }
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|first| {
                let (file, content) = (Arc::clone(file), Arc::clone(content));
                tokio::spawn(async move {
                    for at in (first..BLOCKS).step_by(IN_FLIGHT) {
                        let (result, read) = file.read_at(buf(&file), (at * BLOCK) as u64).await;
                        assert_eq!(result.expect("it is read"), BLOCK);
                        check(&content, at, &read);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic");
        }
        None
    })
}

#[cfg(feature = "tokio")]
#[test]
fn what_is_only_started_by_a_call_needs_no_worker_of_the_kernel_on_tokio() {
    let name = "a direct file of an overlay, on tokio";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    if aio_or_skip(name).is_none()
        || !copies_are_fast(name, temp_path(&pattern(BLOCK)).path(), BLOCK)
    {
        return;
    }
    let Some(overlay) = Overlay::over(name, b"") else {
        return;
    };
    let content = Arc::new(pattern(BLOCKS * BLOCK));
    let Some(file) = required(name, &engine, overlay.file(&content)) else {
        return;
    };
    let file = Arc::new(file);
    for _ in 0..SHOWN_AFTER / 64 {
        read_in_a_queue(&engine, &file, &content, 64);
        if ways(&file)[0] == (Way::Backend, Way::Backend) {
            break;
        }
    }
    let read = file.read_at(buf(&file), 0).explain();
    if read.takes_nowait == Some(true) || read.batched == Way::SharedCall {
        return skip(name, "the file can be asked, or its device is memory");
    }
    let reads = thread::spawn(move || {
        if let Some(why) = read_on_tokio(&engine, &file, &content) {
            skip(name, &why);
            return false;
        }
        let by_lanes = engine.stats().lane_operations;
        assert!(by_lanes >= BLOCKS as u64 / 2, "{:?}", engine.stats());
        has_kernel_workers()
    });
    assert!(!reads.join().expect("it does not panic"), "{read}");
}

fn is_left_to_the_backend(name: &str, engine: &Engine) {
    // Else what only starts a transfer is taken for a call that has waited.
    if !copies_are_fast(name, temp_path(&pattern(BLOCK)).path(), BLOCK) {
        return;
    }
    let Some(overlay) = Overlay::over(name, b"") else {
        return;
    };
    let content = Rc::new(pattern(BLOCKS * BLOCK));
    let Some(file) = required(name, engine, overlay.file(&content)) else {
        return;
    };
    let file = Rc::new(file);
    for _ in 0..SHOWN_AFTER / 64 {
        read_in_a_queue(engine, &file, &content, 64);
        write_in_a_loop(engine, &file, &content, 64);
        if ways(&file) == [(Way::Backend, Way::Backend); 2] {
            break;
        }
    }
    let read = file.read_at(buf(&file), 0).explain();
    if read.takes_nowait == Some(true) || read.batched == Way::SharedCall {
        return skip(name, "the file can be asked, or its device is memory");
    }
    assert_eq!(ways(&file), [(Way::Backend, Way::Backend); 2], "{read}");
    // Whatever is read and written from now on goes there, but for one that shows it again.
    let elsewhere = |work: &dyn Fn()| {
        let made = || engine.stats().pool_calls + engine.stats().plain_calls;
        let before = made();
        work();
        made() - before
    };
    let queued = elsewhere(&|| read_in_a_queue(engine, &file, &content, 512));
    assert!(queued <= 2, "{queued} of 512");
    // The last task is alone in the end.
    let awaited = elsewhere(&|| write_in_a_loop(engine, &file, &content, 512));
    assert!(awaited <= 64, "{awaited} of 512");
    // A loop makes the only one that it waits for itself, unless the last one was slow.
    until("a loop makes reads one at a time", || {
        let enters = engine.stats().enters;
        let made = elsewhere(&|| read_one_by_one_in_a_loop(engine, &file, &content));
        let enters = engine.stats().enters - enters;
        made >= BLOCKS as u64 / 2 && enters <= BLOCKS as u64 / 2
    });
    let written = std::fs::read(overlay.path("file"));
    assert!(written.expect("it is there") == *content);
}

/// A file system of one file, which takes its time within each call.
struct Sluggish {
    content: Vec<u8>,
    gate: Arc<Gate>,
}

/// Reads of the first block wait here while it is closed.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, is_closed: bool) {
        *self.is_closed.lock().expect("nobody panics with it") = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let is_closed = self.is_closed.lock().expect("nobody panics with it");
        // Not for ever, so that a failed test ends.
        let passed = self
            .changed
            .wait_timeout_while(is_closed, HELD_MAX, |is_closed| *is_closed);
        drop(passed.expect("nobody panics with it"));
    }
}

/// How long a read waits for the gate.
const HELD_MAX: Duration = Duration::from_secs(3);

impl Served for Sluggish {
    fn len(&self) -> u64 {
        self.content.len() as u64
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
        thread::sleep(Duration::from_micros(50));
        if offset == 0 {
            self.gate.pass();
        }
        let bytes = self.content.get(offset..).unwrap_or_default();
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }
}

/// A file of that file system, until this is dropped.
struct Mounted {
    gate: Arc<Gate>,
    mount: FuseMount,
}

impl Mounted {
    /// `None`, with the reason said, if this is not allowed.
    fn new(name: &str, content: &[u8]) -> Option<Self> {
        let gate = Arc::new(Gate::default());
        let sluggish = Sluggish {
            content: content.to_vec(),
            gate: Arc::clone(&gate),
        };
        let mount = FuseMount::or_skip(name, sluggish)?;
        Some(Self { gate, mount })
    }

    fn path(&self) -> PathBuf {
        self.mount.path("file")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.gate.close(false);
    }
}

#[test]
fn what_a_call_waits_for_is_left_to_the_pool() {
    let name = "a direct file of FUSE";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    let content = pattern(BLOCKS * BLOCK);
    let Some(mounted) = Mounted::new(name, &content) else {
        return;
    };
    let options = OpenOptions::new().read(true).direct(Direct::Required);
    let file = options
        .engine(&engine)
        .open(mounted.path())
        .expect("FUSE has direct I/O");
    // Often enough that several have been made to show it.
    for _ in 0..8 {
        read_in_a_queue(&engine, &file, &content, 64);
        let read = file.read_at(buf(&file), 0).explain();
        assert_eq!(
            (read.batched, read.awaited),
            (Way::Pool, Way::Pool),
            "{read}"
        );
    }
    assert!(engine.stats().pool_calls >= 4 * 64, "{:?}", engine.stats());
}

#[test]
fn a_read_that_does_not_end_keeps_no_other_one_of_a_queue_waiting() {
    let name = "a queue with a read that does not end";
    let content = pattern(BLOCKS * BLOCK);
    let Some(mounted) = Mounted::new(name, &content) else {
        return;
    };
    for builder in [
        Engine::builder(),
        Engine::builder().backend(BackendKind::Threads),
    ] {
        let engine = builder.threads(3).build().expect("nothing is demanded");
        let options = OpenOptions::new().read(true).direct(Direct::Required);
        let file = options.engine(&engine).open(mounted.path());
        let file = file.expect("FUSE has direct I/O");
        // It is known now how its reads are made.
        read_in_a_queue(&engine, &file, &content, 32);
        // The thread of the queue does what no thread has taken for a while, which may be the one
        // that does not end if all processors are busy with something else: so six in a row, of
        // which one may, and again where the machine was busy.
        let in_time = || {
            let tries = (0..6).map(|_| is_read_past_the_first(&engine, &file, &mounted.gate));
            tries.filter(|is_read| *is_read).count()
        };
        let counts: Vec<usize> = (0..3)
            .map(|_| in_time())
            .take_while(|all| *all < 5)
            .collect();
        assert!(
            counts.len() < 3,
            "so many of 6 did not wait for the one: {counts:?}"
        );
    }
}

/// Reads some blocks in a queue of which the first does not end, and more than the pool has
/// threads. Whether the others came meanwhile.
fn is_read_past_the_first(engine: &Engine, file: &File, gate: &Gate) -> bool {
    gate.close(true);
    let run = engine.queue(8, |queue| {
        let begun = Instant::now();
        for at in [0, 1, 2, 3, 4_u64] {
            let read = file.read_at(buf(file), at * BLOCK as u64);
            assert!(queue.push(at, read).is_ok());
        }
        let mut next = || queue.next().expect("it ends").0;
        let mut came: Vec<u64> = (0..4).map(|_| next()).collect();
        let is_in_time = begun.elapsed() < HELD_MAX;
        gate.close(false);
        came.push(next());
        let first = came.pop().filter(|_| is_in_time);
        came.sort_unstable();
        assert!(first.is_none_or(|first| first == 0 && came == [1, 2, 3, 4]));
        is_in_time
    });
    run.expect("nothing is demanded")
}
