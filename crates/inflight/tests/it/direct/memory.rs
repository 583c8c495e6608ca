//! Direct writes to a device that is memory, with a file system and without: copies, which are
//! shared with another thread as reads are, and where one is alone it is a plain call.

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::rc::Rc;
use std::task::{Context, Waker};

use inflight::fs::{Direct, File, OpenOptions, WriteAt};
use inflight::{AlignedBuf, Awaited, Batch, Engine, Operation, Way, local};
use tempfile::TempDir;

use crate::support::zram::{Zram, given_back};
use crate::support::{has_several_processors, patience, say, skip, uring_of_depth_or_skip};

const BLOCK: usize = 4096;
/// In the file.
const BLOCKS: u64 = 2048;
/// In flight.
const DEPTH: u32 = 16;

/// The first trial is over after fewer. Twice the blocks, and more.
const WRITES: u64 = 12_000;

/// So many are made by a thread that helps if they are shared for a while: in a trial another
/// thread may come or not.
const ENOUGH: u64 = 200;

/// Whether what is written is shared is up to what has been measured, and a slow call on a busy
/// machine makes a device of memory, so one of so many attempts has to be.
const ATTEMPTS_MAX: u32 = 20;

/// As few for what would be shared in a trial else, and so made by calls all the same.
const ALONE_MAX: u32 = 5;

/// A file system, unmounted when dropped.
struct Mount(TempDir);

impl Mount {
    /// On this device.
    fn ext4(zram: &Zram) -> Option<Self> {
        let point = TempDir::new().expect("there is room");
        let node = zram.node();
        let runs = |program: &str, args: &[&str], on: &[&Path]| {
            let status = Command::new(program).args(args).args(on).status();
            status.is_ok_and(|status| status.success())
        };
        let is_mounted = runs("mkfs.ext4", &["-q"], &[&node])
            && runs("mount", &["-t", "ext4"], &[&node, point.path()]);
        is_mounted.then(|| Self(point))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounts = || {
            let status = Command::new("umount").arg("-q").arg(self.0.path()).status();
            status.is_ok_and(|status| status.success())
        };
        let is_gone = given_back(unmounts);
        assert!(std::thread::panicking() || is_gone, "a mount is left");
    }
}

/// What is written to, and what it is on: dropped in this order.
struct Site {
    engine: Engine,
    path: PathBuf,
    _mount: Option<Mount>,
    _zram: Zram,
}

impl Site {
    /// A file, or the device itself.
    fn new(name: &str, is_raw: bool) -> Option<Self> {
        let engine = uring_of_depth_or_skip(name, DEPTH)?;
        let zram = Zram::add(name, "64M")?;
        let mount = match is_raw {
            true => None,
            false => Mount::ext4(&zram),
        };
        let path = match &mount {
            Some(mount) => mount.0.path().join("file"),
            None if is_raw => zram.node(),
            None => {
                skip(name, "no file system can be made and mounted");
                return None;
            }
        };
        let site = Self {
            engine,
            path,
            _mount: mount,
            _zram: zram,
        };
        let file = site.open();
        let mut batch = Batch::on(&site.engine);
        (0..BLOCKS).for_each(|number| batch.push(file.write_at(block(&file, 0), at(number))));
        assert!(batch.wait().all(|(result, _)| is_whole(result)));
        Some(site)
    }

    /// The file, of which nothing is known yet.
    fn open(&self) -> File {
        let options = OpenOptions::new().read(true).write(true).create(true);
        let direct = options.direct(Direct::Required).engine(&self.engine);
        direct.open(&self.path).expect("it takes direct I/O")
    }

    /// The file, once its writes have shown that they meet no device.
    fn memory(&self) -> File {
        let mut known = (0..100).map(|_| {
            let file = self.open();
            (0..8).for_each(|number| assert!(is_whole(write(&file, number).wait().0)));
            file
        });
        let is_memory = |file: &File| write(file, 0).explain().batched == Way::SharedCallOrBackend;
        known.find(is_memory).expect("it is memory")
    }
}

/// The write with this number.
fn write(file: &File, number: u64) -> WriteAt<'_, AlignedBuf> {
    file.write_at(block(file, number), at(number))
}

fn at(number: u64) -> u64 {
    number % BLOCKS * BLOCK as u64
}

fn is_whole(result: std::io::Result<usize>) -> bool {
    result.expect("it is written") == BLOCK
}

/// What is written last at the place of this number, or before that.
fn block(file: &File, number: u64) -> AlignedBuf {
    let mut buf = file.aligned_buf(BLOCK).expect("there is memory");
    fill(&mut buf, number);
    buf
}

fn fill(buf: &mut [u8], number: u64) {
    for (word, at) in buf.chunks_exact_mut(8).zip(0_u64..) {
        word.copy_from_slice(&(number << 16 | at).to_le_bytes());
    }
}

/// Reads all back: what was written at each place is one of the whole blocks written there.
fn check(site: &Site) {
    let bytes = std::fs::read(&site.path).expect("it is read");
    let mut expected = vec![0; BLOCK];
    for (place, found) in (0..BLOCKS).zip(bytes.chunks(BLOCK)) {
        let mut numbers = (0..WRITES).filter(|number| number % BLOCKS == place);
        let is_one = numbers.any(|number| {
            fill(&mut expected, number);
            found == expected
        });
        assert!(is_one, "place {place}");
    }
}

/// Has the writes made, which another thread is to help with in one of some attempts.
fn are_shared(name: &str, is_raw: bool, write_all: impl Fn(&Engine, Rc<File>) + Sync) {
    let Some(site) = Site::new(name, is_raw).filter(|_| has_several_processors(name)) else {
        return;
    };
    for _ in 0..ATTEMPTS_MAX {
        let file = match is_raw {
            true => site.open(),
            false => site.memory(),
        };
        let before = site.engine.stats();
        // Of a thread of its own nothing has been found out.
        std::thread::scope(|scope| {
            let run = scope.spawn(|| write_all(&site.engine, Rc::new(file)));
            run.join().expect("no panic");
        });
        assert_eq!(site.engine.drain(patience()), 0);
        let after = site.engine.stats();
        assert_eq!(after.operations - before.operations, WRITES);
        check(&site);
        let helped = after.helped - before.helped;
        say(&format!("{name}: {helped} of {WRITES} by another thread"));
        if helped >= ENOUGH {
            return;
        }
    }
    panic!("{name}: none of {ATTEMPTS_MAX} attempts was shared");
}

fn write_in_queue(engine: &Engine, file: Rc<File>) {
    let queue = engine.queue(DEPTH, |queue| {
        let (mut next, mut taken) = (0, 0);
        while taken < WRITES {
            while next < WRITES && !queue.is_full() {
                let pushed = queue.push(next, write(&file, next));
                assert!(pushed.is_ok(), "there is room");
                next += 1;
            }
            let (number, (result, mut buf)) = queue.next().expect("some are in flight");
            assert!(is_whole(result));
            let written = buf.to_vec();
            fill(&mut buf, number);
            assert!(*buf == *written, "it was not changed");
            taken += 1;
        }
    });
    queue.expect("there is a ring");
}

#[test]
fn a_queue_shares_direct_writes_that_meet_no_device() {
    are_shared("direct writes to memory in a queue", false, write_in_queue);
}

#[test]
fn a_queue_shares_direct_writes_to_a_device_that_cannot_be_asked() {
    are_shared("writes to a raw device in memory", true, write_in_queue);
}

#[test]
fn a_loop_shares_direct_writes_that_meet_no_device() {
    are_shared(
        "direct writes to memory in a loop",
        false,
        |engine, file| {
            let run = engine.run(async {
                let task = |number| {
                    let file = Rc::clone(&file);
                    local::spawn(async move {
                        for round in 0..WRITES / u64::from(DEPTH) {
                            let number = round * u64::from(DEPTH) + number;
                            assert!(is_whole(write(&file, number).await.0));
                        }
                    })
                };
                let tasks: Vec<_> = (0..u64::from(DEPTH)).map(task).collect();
                for task in tasks {
                    task.await;
                }
            });
            run.expect("there is a loop");
        },
    );
}

/// Has this runtime serve the engine: its lane is known for that of this thread once its task has
/// had its turn.
#[cfg(feature = "tokio")]
async fn serve(engine: &Engine) {
    engine.serve_on_tokio().expect("there is a ring");
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// A ring is dearer than a call where it cannot have several at a time.
#[test]
fn what_is_alone_is_a_plain_call_wherever_it_is_awaited() {
    let name = "a direct transfer of memory alone";
    let Some(site) = Site::new(name, false) else {
        return;
    };
    let made = |how: &str, run: &dyn Fn(&File)| {
        for _ in 0..ALONE_MAX {
            let file = site.memory();
            let before = site.engine.stats();
            run(&file);
            let after = site.engine.stats();
            let calls = after.plain_calls - before.plain_calls;
            let all = after.operations - before.operations;
            say(&format!("{name}, {how}: {calls} of {all} by plain calls"));
            if 100 * calls >= 98 * all {
                return;
            }
        }
        panic!("{name}, {how}: none of {ALONE_MAX} attempts was");
    };
    let one_by_one = async |file: &File| {
        for number in 0..100 {
            assert!(is_whole(write(file, number).await.0));
        }
    };
    made("in a loop", &|file| {
        site.engine.run(one_by_one(file)).expect("there is a loop");
    });
    made("on no runtime", &|file| {
        let mut write = write(file, 0).into_future();
        let polled = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
    });
    // But nothing that may stall, as a file system that is frozen, holds up what has a time limit.
    let file = site.memory();
    let mut timely = Box::pin(write(&file, 0).timeout(patience()));
    let polled = timely
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert!(is_whole(pollster::block_on(timely).expect("in time").0));
    #[cfg(feature = "tokio")]
    made("in a runtime of one thread", &|file| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("it can be made").block_on(async {
            serve(&site.engine).await;
            one_by_one(file).await;
        });
    });
}

/// A batch that is awaited is begun in one poll: all of it by plain calls would keep the others of
/// its thread waiting.
#[cfg(feature = "tokio")]
#[test]
fn a_batch_in_a_runtime_of_one_thread_goes_to_its_lane() {
    let name = "a batch of direct writes to memory";
    let Some(site) = Site::new(name, false) else {
        return;
    };
    let file = site.memory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("it can be made").block_on(async {
        serve(&site.engine).await;
        let before = site.engine.stats();
        let mut batch = Batch::on(&site.engine);
        (0..64).for_each(|number| batch.push(write(&file, number)));
        assert!(batch.await.into_iter().all(|(result, _)| is_whole(result)));
        let after = site.engine.stats();
        let in_lane = after.lane_operations - before.lane_operations;
        assert!(in_lane >= 60, "{in_lane} of 64 in the lane");
    });
}

/// zram says that it takes memory aligned to 512 bytes, and moves the pages around it then.
#[test]
fn memory_beside_a_buffer_is_left_alone() {
    let name = "memory beside a buffer";
    for is_raw in [true, false] {
        let Some(site) = Site::new(name, is_raw) else {
            return;
        };
        let file = site.open();
        // Behind the beginning of a page, as far as the file system says that it may be.
        let mut memory = vec![b'x'; 4 * BLOCK];
        let aside = memory.as_ptr().align_offset(BLOCK) + 512;
        let (before, rest) = memory.split_at_mut(aside);
        let (buf, behind) = rest.split_at_mut(BLOCK);
        let (result, _) = file.read_at(&mut *buf, at(1)).wait();
        let refused = result.expect_err("it is strict").kind();
        assert_eq!(refused, std::io::ErrorKind::InvalidInput);
        assert!(before.iter().chain(&*behind).all(|byte| *byte == b'x'));
        let lenient = OpenOptions::new().read(true).direct(Direct::Auto);
        let lenient = lenient.engine(&site.engine).open(&site.path);
        let (result, buf) = lenient.expect("it is there").read_at(buf, at(1)).wait();
        assert!(is_whole(result));
        let mut expected = [0; BLOCK];
        fill(&mut expected, 0);
        assert!(buf == expected);
        assert!(before.iter().chain(&*behind).all(|byte| *byte == b'x'));
    }
}
