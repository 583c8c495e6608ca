//! Reads of what was in the page cache until now, in a run loop: one that has nothing else to do
//! makes them by calls that may wait, and nobody else is kept waiting.

use std::cell::Cell;
use std::fs;
use std::future::{Future, IntoFuture, poll_fn};
use std::io::{self, IoSliceMut};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use inflight::fs::{File, OpenOptions};
use inflight::{Awaited, Batch, Engine, local};
use rustix::io::{ReadWriteFlags, preadv2};
use tempfile::NamedTempFile;

use crate::support::{on_every_faultless_backend, patience, pattern, skip, temp_path};
use crate::wishes::cache::evict_within;

const BLOCK: usize = 4096;

/// After so many reads from the page cache the next one is taken to be another.
const WARM: u64 = 200;

/// Reads of blocks that are not there any more; of those that are taken to be, one in 16 is asked
/// about, and a busy machine asks about more.
const TRIES: u64 = 24;

/// How often all of that is tried: on a busy machine the disk may have brought a block before the
/// kernel looks whether it is there.
const ATTEMPTS: u64 = 64;

/// Where a block is that is read often, and those that are read once.
const WARM_BLOCK: u64 = 0;
const COLD_BLOCKS: u64 = 64;

/// Files in memory are not forgotten.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

/// What a loop has beside the read, or how the read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Task,
    Timer,
    Request,
    Sync,
    OuterLoop,
    Limit,
    Batch,
}

fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| pattern(BLOCK * 256))
}

fn open(engine: &Engine, path: &NamedTempFile) -> File {
    let options = OpenOptions::new().read(true).write(true).engine(engine);
    options.open(path.path()).expect("the file is there")
}

fn check(read: (io::Result<usize>, Vec<u8>), block: u64) {
    assert_eq!(read.0.expect("it is there"), BLOCK);
    let at = BLOCK * usize::try_from(block).expect("a few");
    assert!(read.1 == content()[at..][..BLOCK], "block {block}");
}

/// Reads a block of a file, made as is said.
async fn read(file: &File, block: u64, how: Beside) {
    let read = file.read_at(vec![0; BLOCK], block * BLOCK as u64);
    match how {
        Beside::Limit => {
            let in_time = read.timeout(LONG).await;
            check(in_time.expect("that is long"), block);
        }
        Beside::Batch => {
            let mut batch = Batch::new();
            batch.push(read);
            let mut results = batch.await;
            check(results.pop().expect("there is one"), block);
        }
        _ => check(read.await, block),
    }
}

/// Whether it is ready when it is first polled, by this task.
async fn is_ready_at_once(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    let at_once = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
    if !at_once {
        future.await;
    }
    at_once
}

/// How many of such reads of new files are in flight when they have been polled.
fn in_flight(engine: &Engine, path: &NamedTempFile, beside: Beside) -> u64 {
    let counted = Cell::new(0);
    for number in 0..TRIES {
        assert!(evict_within(patience(), path.as_file()));
        let (file, other) = (open(engine, path), open(engine, path));
        let tried = async {
            for _ in 0..WARM + number {
                read(&file, WARM_BLOCK, Beside::Nothing).await;
            }
            local::yield_now().await;
            let cold = COLD_BLOCKS + 2 * number;
            // Of a file of which nothing is known, so it is asked about and handed over.
            let offset = (cold + 1) * BLOCK as u64;
            let mut request = other.read_at(vec![0; BLOCK], offset).into_future();
            let mut sync = other.sync_data().into_future();
            let mut timer = local::sleep(LONG).expect("this is a loop");
            poll_fn(|context| {
                match beside {
                    Beside::Task => drop(local::spawn(async {})),
                    Beside::Timer => drop(pin!(&mut timer).poll(context)),
                    Beside::Request => drop(pin!(&mut request).poll(context)),
                    Beside::Sync => drop(pin!(&mut sync).poll(context)),
                    _ => {}
                }
                Poll::Ready(())
            })
            .await;
            if !is_ready_at_once(read(&file, cold, beside)).await {
                counted.set(counted.get() + 1);
            }
        };
        let run = match beside {
            Beside::OuterLoop => {
                engine.run(async { engine.run(tried).expect("a loop can run in another") })
            }
            _ => engine.run(tried),
        };
        run.expect("a loop can run");
    }
    counted.get()
}

/// Whether the page cache forgets the file, and the kernel says then that a read would wait: each
/// time, because some start it all the same, and a disk in memory may be done before they look.
fn can_be_asked(path: &NamedTempFile) -> bool {
    let file = fs::File::open(path.path()).expect("the file is there");
    (0..TRIES).all(|number| {
        let offset = (COLD_BLOCKS + 2 * number) * BLOCK as u64;
        let mut buf = vec![0; BLOCK];
        let mut bufs = [IoSliceMut::new(&mut buf)];
        let mut ask = || preadv2(&file, &mut bufs, offset, ReadWriteFlags::NOWAIT);
        evict_within(PATIENCE, path.as_file()) && ask() == Err(rustix::io::Errno::AGAIN)
    })
}

#[test]
fn only_a_loop_with_nothing_else_to_do_waits_where_a_read_is_polled() {
    let name = "reads that wait in a loop";
    on_every_faultless_backend(|engine| {
        let path = temp_path(content());
        if !can_be_asked(&path) {
            return skip(
                name,
                "the page cache does not forget, or does not tell what would wait",
            );
        }
        let mut alone = (0..ATTEMPTS).map(|_| in_flight(engine, &path, Beside::Nothing));
        assert!(
            alone.any(|handed| handed < TRIES / 2),
            "most are handed over"
        );
        for beside in [
            Beside::Task,
            Beside::Timer,
            Beside::Request,
            Beside::Sync,
            Beside::OuterLoop,
            Beside::Limit,
            Beside::Batch,
        ] {
            let mut handed = (0..ATTEMPTS).map(|_| in_flight(engine, &path, beside));
            assert!(
                handed.any(|handed| handed > TRIES / 2),
                "{beside:?}: few are handed over"
            );
        }
    });
}
