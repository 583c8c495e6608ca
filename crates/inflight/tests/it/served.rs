//! Files that another program serves, which needs the very thread that awaits them: whoever polls
//! must not wait for it.

mod limited;

use std::ffi::OsStr;
use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use fuser::{Errno, FopenFlags, INodeNo, OpenFlags};
use inflight::fs::{AnyRange, Direct, File, OpenOptions};
use inflight::{AlignedBuf, AnyOp, Engine};

use crate::awaited::everywhere::on_every_host;
use crate::awaited::hands::{drained, poll_once, until_turned};
use crate::commit::disk::mounted_or_skip;
use crate::support::fuse::{FOREVER, Served};
use crate::support::{
    FuseMount, direct_file_or_skip, on_every_faultless_backend, on_every_faultless_backend_of,
    pattern, read_write, temp_file, uring_of_depth_or_skip,
};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// How long the server waits for the program that it serves. So that a failed test ends.
const HELPED_WITHIN: Duration = Duration::from_secs(30);

/// A file system that cannot answer before the program it serves has helped it.
#[derive(Clone, Default)]
struct Needy(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// From now on it needs help for each answer.
    needs_help: bool,
    /// It is asked when a file is closed, as a file system is that then writes it back.
    asks_to_close: bool,
    /// Answers that wait for help, and those that have got it.
    waiting: u32,
    helped: u32,
    /// Those for which none came.
    left_alone: u32,
}

impl Needy {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("nobody panics with it")
    }

    fn needs_help(&self, needs_help: bool) {
        self.lock().needs_help = needs_help;
    }

    /// What the program does for it.
    fn help(&self) {
        let mut state = self.lock();
        state.helped += state.waiting;
        state.waiting = 0;
        self.0.1.notify_all();
    }

    fn wait_for_help(&self) {
        let mut state = self.lock();
        if !state.needs_help {
            return;
        }
        state.waiting += 1;
        let waits = |state: &mut State| state.waiting > 0;
        let waited = self.0.1.wait_timeout_while(state, HELPED_WITHIN, waits);
        let (mut state, timeout) = waited.expect("nobody panics with it");
        if timeout.timed_out() {
            state.left_alone += 1;
            state.waiting = 0;
        }
    }
}

impl Served for Needy {
    fn len(&self) -> u64 {
        BLOCKS * BLOCK as u64
    }

    fn find(&self, name: &OsStr) -> Result<(INodeNo, Duration), Errno> {
        // What is known of this one is forgotten at once.
        let ttl = match name == "forgotten" {
            true => Duration::ZERO,
            false => FOREVER,
        };
        Ok((INodeNo(2), ttl))
    }

    fn asked_again(&self, inode: INodeNo) -> Duration {
        if inode != INodeNo::ROOT {
            self.wait_for_help();
        }
        Duration::ZERO
    }

    fn opened(&self) -> FopenFlags {
        FopenFlags::FOPEN_KEEP_CACHE
    }

    fn read(&self, _: usize, len: usize) -> Result<Vec<u8>, Errno> {
        self.wait_for_help();
        Ok(vec![7; len])
    }

    fn write(&self, _: u32, _: usize, data: &[u8], _: OpenFlags) -> Result<usize, Errno> {
        self.wait_for_help();
        Ok(data.len())
    }

    fn fsync(&self, _: u32, _: bool) -> Result<(), Errno> {
        self.wait_for_help();
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        if !self.lock().asks_to_close {
            // The kernel never asks again.
            return Err(Errno::ENOSYS);
        }
        self.wait_for_help();
        Ok(())
    }
}

struct Mounted {
    needy: Needy,
    mount: FuseMount,
}

impl Mounted {
    fn or_skip(name: &str) -> Option<Self> {
        let needy = Needy::default();
        let mount = FuseMount::or_skip(name, needy.clone())?;
        Some(Self { needy, mount })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    fn open(&self, engine: &Engine, name: &str) -> File {
        let options = OpenOptions::new().read(true).write(true);
        let options = options.direct(match name == "direct" {
            true => Direct::Required,
            false => Direct::Off,
        });
        let options = options.any_range(AnyRange::ReadsAndWrites);
        let file = options.engine(engine).open(self.path(name));
        file.expect("everything can be opened there")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.needy.needs_help(false);
        self.needy.help();
    }
}

/// Awaits operations on one thread, on which a task helps the server meanwhile.
///
/// What awaits them first does so without help being needed, so that the file is known by then.
async fn with_help<F: Future<Output = ()>>(
    needy: &Needy,
    pause: impl AsyncFn(),
    operation: impl Fn(u64) -> F,
) {
    // Some ask first, and what is fast is trusted.
    for _ in 0..16 {
        operation(0).await;
    }
    needy.needs_help(true);
    let operations = async {
        for round in 1..=3 {
            operation(round * 16).await;
        }
    };
    let mut operations = std::pin::pin!(operations);
    let mut is_over = false;
    while !is_over {
        let pause = pause();
        let mut pause = std::pin::pin!(pause);
        std::future::poll_fn(|cx| {
            is_over = is_over || operations.as_mut().poll(cx).is_ready();
            pause.as_mut().poll(cx)
        })
        .await;
        needy.help();
    }
    needy.needs_help(false);
}

/// Has operations on a file awaited in a run loop, and on tokio's only thread.
fn awaited<F: Future<Output = ()>>(
    name: &str,
    path: &str,
    operation: impl Fn(Arc<File>, u64) -> F,
) {
    let Some(mounted) = Mounted::or_skip(name) else {
        return;
    };
    let needy = &mounted.needy;
    // Longer than a run loop is away for a flush.
    let pause = Duration::from_millis(5);
    let is_helped = |host: &str| {
        let helped = std::mem::take(&mut needy.lock().helped);
        let left_alone = needy.lock().left_alone;
        assert!(helped >= 3, "{name}, {host}: it was not asked");
        assert_eq!(left_alone, 0, "{name}, {host}: whoever polls waits");
    };
    on_every_faultless_backend(|engine| {
        let file = Arc::new(mounted.open(engine, path));
        let pauses = async || {
            let slept = inflight::local::sleep(pause).expect("in a loop").await;
            slept.expect("it can sleep");
        };
        let run = engine.run(with_help(needy, pauses, |at| operation(file.clone(), at)));
        run.expect("there is a loop");
        is_helped("run loop");
        drop(file);

        let file = Arc::new(mounted.open(engine, path));
        let mut tokio = tokio::runtime::Builder::new_current_thread();
        let tokio = tokio.enable_all().build().expect("there is a runtime");
        let pauses = async || tokio::time::sleep(pause).await;
        tokio.block_on(with_help(needy, pauses, |at| operation(file.clone(), at)));
        is_helped("tokio");
    });
}

fn forget(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("it is only advice");
}

#[test]
fn who_awaits_a_read_does_not_wait_for_whoever_serves_the_file() {
    awaited("reads of FUSE", "file", async |file: Arc<File>, at: u64| {
        if at > 0 {
            forget(&file);
        }
        let (result, buf) = file.read_at(vec![0; BLOCK], at * BLOCK as u64).await;
        assert_eq!((result.unwrap(), buf), (BLOCK, vec![7; BLOCK]));
    });
}

#[test]
fn who_awaits_a_read_into_several_buffers_does_not_wait_either() {
    awaited(
        "lists and FUSE",
        "file",
        async |file: Arc<File>, at: u64| {
            if at > 0 {
                forget(&file);
            }
            let bufs = vec![vec![0; BLOCK / 2], vec![0; BLOCK / 2]];
            let (result, _) = file.read_vectored_at(bufs, at * BLOCK as u64).await;
            assert_eq!(result.unwrap(), BLOCK);
        },
    );
}

#[test]
fn who_awaits_a_write_does_not_wait_for_whoever_serves_the_file() {
    awaited(
        "writes to FUSE",
        "file",
        async |file: Arc<File>, at: u64| {
            let (result, _) = file.write_at(vec![7; BLOCK], at * BLOCK as u64).await;
            assert_eq!(result.unwrap(), BLOCK);
        },
    );
}

/// Who enters a ring for such a file may have to wait there.
#[test]
fn who_awaits_a_list_past_the_page_cache_does_not_wait_either() {
    awaited(
        "lists, FUSE and direct I/O",
        "direct",
        async |file: Arc<File>, at: u64| {
            let bufs = [(); 2].map(|()| file.aligned_buf(BLOCK).expect("there is memory"));
            let read = file.read_vectored_at(bufs.into(), at * BLOCK as u64);
            assert_eq!(read.await.0.unwrap(), 2 * BLOCK);
        },
    );
}

#[test]
fn who_awaits_a_write_with_a_wish_past_the_page_cache_does_not_wait_either() {
    awaited(
        "wishes, FUSE and direct I/O",
        "direct",
        async |file: Arc<File>, at: u64| {
            let buf = file.aligned_buf(BLOCK).expect("there is memory");
            let write = file.write_at(buf, at * BLOCK as u64).then_sync();
            assert_eq!(write.await.0.unwrap(), BLOCK);
        },
    );
}

#[test]
fn who_awaits_a_write_of_any_range_past_the_page_cache_does_not_wait_either() {
    awaited(
        "any range, FUSE and direct I/O",
        "direct",
        async |file: Arc<File>, at: u64| {
            let write = file.write_at(vec![1; 100], at * BLOCK as u64 + 10);
            assert_eq!(write.await.0.unwrap(), 100);
        },
    );
}

#[test]
fn who_awaits_a_sync_does_not_wait_for_whoever_serves_the_file() {
    awaited("syncs of FUSE", "file", async |file: Arc<File>, _: u64| {
        file.sync_data().await.unwrap();
    });
}

#[test]
fn who_awaits_what_is_known_of_a_file_does_not_wait_for_whoever_serves_it() {
    awaited(
        "metadata of FUSE",
        "forgotten",
        async |file: Arc<File>, _: u64| {
            assert_eq!(file.metadata().await.unwrap().len, BLOCKS * BLOCK as u64);
        },
    );
}

/// Of a read that was left, and whose file was dropped: nobody waits where it ends.
#[test]
fn nobody_waits_while_a_file_is_closed_that_was_left() {
    let Some(mounted) = Mounted::or_skip("a file that was left") else {
        return;
    };
    let needy = &mounted.needy;
    needy.lock().asks_to_close = true;
    let is_asked = || needy.lock().waiting == 1;
    on_every_faultless_backend(|engine| {
        on_every_host(engine, || async {
            let good = temp_file(engine, &[8]);
            let file = mounted.open(engine, "file");
            forget(&file);
            needy.needs_help(true);
            let mut read = file.read_vectored_at(vec![vec![0]], 0).into_future();
            assert!(poll_once(&mut read).is_pending());
            until_turned("it is asked for the read", is_asked).await;
            drop(read);
            drop(file);
            needy.help();
            until_turned("it is asked to close the file", is_asked).await;
            let (result, bufs) = good.read_vectored_at(vec![vec![0]], 0).by_backend().await;
            assert_eq!((result.expect("it has a byte"), bufs[0][0]), (1, 8));
            assert!(is_asked(), "whoever closes it does not wait");
            needy.needs_help(false);
            needy.help();
            assert_eq!(needy.lock().left_alone, 0, "whoever polls waits");
        });
        drained(engine);
    });
}

/// Of reads in the ring: where threads of the pool are late, a queue makes what they have not begun
/// itself, and may hang in that.
#[test]
fn a_queue_hands_out_what_is_done_while_all_others_hang() {
    let name = "a queue with files that hang";
    let engine = uring_of_depth_or_skip(name, 32);
    let (Some(engine), Some(mounted)) = (engine, Mounted::or_skip(name)) else {
        return;
    };
    let (hanging, good) = (mounted.open(&engine, "file"), temp_file(&engine, &[7]));
    let needy = &mounted.needy;
    let read = |file| File::read_vectored_at(file, vec![vec![0]], 0).by_backend();
    let left_alone = engine.queue(32, |queue| {
        needy.needs_help(true);
        (0..30).for_each(|at| assert!(queue.push(at, read(&hanging)).is_ok()));
        // Twice: after a wait in vain, others come sooner.
        for at in [100, 101] {
            assert!(queue.push(at, read(&good)).is_ok());
            let (first, (result, _)) = queue.next().expect("they are in flight");
            assert_eq!((first, result.unwrap()), (at, 1));
        }
        let left_alone = needy.lock().left_alone;
        needy.needs_help(false);
        needy.help();
        while queue.next().is_some() {}
        left_alone
    });
    assert_eq!(left_alone.unwrap(), 0, "it waits for what hangs");
}

/// Reads that are split leave others without room, whose turn comes with each part.
#[test]
fn a_queue_hands_out_large_reads_while_a_sync_hangs() {
    const LARGE: usize = 8 << 20;
    let name = "a queue of large reads beside a sync that hangs";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let content = pattern(LARGE);
    on_every_faultless_backend_of(
        |builder| builder.queue_depth(4),
        |engine| {
            let Some(large) = direct_file_or_skip(name, engine, &content) else {
                return;
            };
            let served = read_write(engine).open(mounted.path(2));
            let served = served.expect("every number is a file");
            let come = engine.queue(4, |queue| {
                mounted.disk.hold();
                let sync: AnyOp<'_, AlignedBuf> = served.sync_data().into();
                assert!(queue.push(0, sync).is_ok());
                for tag in 1..4 {
                    let buf = large.aligned_buf(LARGE).expect("there is memory");
                    assert!(queue.push(tag, large.read_at(buf, 0).into()).is_ok());
                }
                let reads: Vec<_> = (1..4).filter_map(|_| queue.next()).collect();
                mounted.disk.let_go();
                let last = queue.next().into_iter();
                let results = reads.into_iter().chain(last);
                let come = results.map(|(tag, (result, _))| result.map(|_| tag));
                come.map(|tag| tag.expect("it is made")).collect::<Vec<_>>()
            });
            let come = come.expect("nothing is demanded");
            assert_eq!((come.len(), come.last()), (4, Some(&0)), "{come:?}");
        },
    );
}
