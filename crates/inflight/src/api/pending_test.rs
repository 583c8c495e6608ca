//! Futures over raw descriptors, for Miri (`cargo xtask miri`), in which no [`super::file::File`]
//! can be opened: it knows neither `F_GETFL` of a file, nor statx as this library calls it, nor
//! io_uring. So everything between the future and the system call is run there, on the backend of
//! threads and on the one with faults.
#![allow(unsafe_code)]

use std::fs::File;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::detach::Detach;
use super::engine::{BackendKind, Engine};
use super::handle::Handle;
use super::kept::{Foreseen, KeptFor, Rest, Tells};
use super::operation::Sealed;
use super::pending::Pending;
use super::timeout::Awaited;
use crate::buf::{span_of, span_of_mut};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Prepared, Request, Road, Wishes};

/// A read or a write at offset 0, by way of the backend.
struct Raw<'f> {
    engine: &'f Engine,
    file: &'f File,
    buf: Vec<u8>,
    reads: bool,
}

impl Prepare for Raw<'_> {
    type Output = (io::Result<usize>, Vec<u8>);

    fn prepare(&mut self) -> Prepared {
        let (fd, offset) = (self.file.as_raw_fd(), 0);
        let op = match self.reads {
            true => {
                let span = span_of_mut(&mut self.buf);
                Op::ReadAt {
                    fd,
                    span,
                    offset,
                    wishes: Wishes::NONE,
                }
            }
            false => {
                let span = span_of(&self.buf);
                Op::WriteAt {
                    fd,
                    span,
                    offset,
                    wishes: Wishes::NONE,
                }
            }
        };
        Prepared::run(Road::Backend, Request::simple(op))
    }

    fn finish(self, answer: Answer) -> Self::Output {
        (answer.decode(self.engine), self.buf)
    }
}

impl Sealed for Raw<'_> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.engine
    }
}

// SAFETY: the memory is that of the vector, on the heap; the descriptor outlives the engine here.
unsafe impl Detach for Raw<'_> {
    fn handle(&self) -> Option<&Arc<Handle>> {
        None
    }

    fn foresee(&self) -> Foreseen {
        Foreseen(Tells::Nothing)
    }

    fn into_kept(self, handle: Option<Arc<Handle>>, foreseen: Foreseen) -> KeptFor {
        KeptFor(Box::new(Rest {
            _memory: self.buf,
            handle,
            tells: foreseen.0,
        }))
    }
}

impl<'f> IntoFuture for Raw<'f> {
    type Output = (io::Result<usize>, Vec<u8>);
    type IntoFuture = Pending<Self>;

    fn into_future(self) -> Pending<Self> {
        Pending::new(self)
    }
}

/// Sleeps until it is woken.
#[derive(Default)]
struct Sleeper(Mutex<bool>, Condvar);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.0.lock().expect("no panic") = true;
        self.1.notify_one();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Arc::new(Sleeper::default());
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut cx = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        let mut woken = sleeper.0.lock().expect("no panic");
        while !*woken {
            woken = sleeper.1.wait(woken).expect("no panic");
        }
        *woken = false;
    }
}

fn engines() -> Vec<Engine> {
    let threads = Engine::builder().backend(BackendKind::Threads).threads(2);
    #[cfg_attr(not(feature = "faulty"), allow(unused_mut))]
    let mut engines = vec![threads.build().expect("nothing is demanded")];
    #[cfg(feature = "faulty")]
    for seed in [1, 2] {
        let late = crate::Faults::new(seed).short_transfers(200);
        let engine = Engine::builder().faults(late).build();
        engines.push(engine.expect("nothing is demanded"));
    }
    engines
}

/// A file without a name, with these bytes.
fn file(bytes: &[u8]) -> File {
    // Not the number of this process: Miri runs several as one.
    let number = RandomState::new().build_hasher().finish();
    let name = format!("inflight-pending-{number:016x}");
    let path = std::env::temp_dir().join(name);
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let mut file = options
        .open(&path)
        .expect("the temporary directory can be written");
    file.write_all(bytes).expect("there is room");
    file.seek(SeekFrom::Start(0)).expect("a plain file");
    std::fs::remove_file(path).expect("it is there");
    file
}

fn pending<'f>(engine: &'f Engine, file: &'f File, buf: Vec<u8>, reads: bool) -> Pending<Raw<'f>> {
    let raw = Raw {
        engine,
        file,
        buf,
        reads,
    };
    Pending::new(raw)
}

async fn poll_once(pending: &mut Pending<Raw<'_>>) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *pending).poll(cx).is_pending())).await
}

/// What is read is in the buffer that comes back; a future may move between its polls.
async fn read_and_write(engine: &Engine, file: &File) {
    let (result, buf) = pending(engine, file, vec![0; 8], true).await;
    let moved = result.expect("it can be read");
    assert_eq!(buf[..moved], b"contents"[..moved]);
    let mut read = pending(engine, file, vec![0; 8], true);
    if poll_once(&mut read).await {
        let moved = Box::new(read);
        moved.await.0.expect("it can be read");
    }
    let (result, buf) = pending(engine, file, b"CONTENTS".to_vec(), false).await;
    assert!(result.expect("it can be written") <= buf.len());
    file.set_len(0).expect("there is room");
    let (result, _) = pending(engine, file, b"contents".to_vec(), false).await;
    let written = result.expect("it can be written");
    let (result, buf) = pending(engine, file, vec![0; 8], true).await;
    let moved = result.expect("it can be read");
    assert!(moved <= written && buf[..moved] == b"contents"[..moved]);
}

/// Left before and after the first poll, in time and late.
async fn leave(engine: &Engine, file: &File) {
    drop(pending(engine, file, vec![0; 8], true));
    let mut left = Vec::new();
    for _ in 0..4 {
        let mut read = pending(engine, file, vec![0; 8], true);
        if poll_once(&mut read).await {
            left.push(read);
        }
    }
    // The first is dropped at home, the others elsewhere.
    drop(left.pop());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(left));
    });
    let raw = || Raw {
        engine,
        file,
        buf: vec![0; 8],
        reads: true,
    };
    match raw().timeout(Duration::ZERO).await {
        Ok((result, _)) => drop(result.expect("it can be read")),
        Err(late) => drop(late),
    }
    let in_time = raw().timeout(Duration::from_secs(600)).await;
    in_time.expect("in time").0.expect("it can be read");
    engine
        .sleep(Duration::from_millis(1))
        .await
        .expect("a timer");
}

#[test]
fn buffers_come_back_from_drivers_and_run_loops() {
    for engine in engines() {
        let file = file(b"contents");
        block_on(read_and_write(&engine, &file));
        engine
            .run(read_and_write(&engine, &file))
            .expect("nothing is demanded");
        assert_eq!(engine.drain(Duration::from_secs(600)), 0);
    }
}

#[test]
fn futures_may_be_left_anywhere() {
    for engine in engines() {
        let file = file(b"contents");
        block_on(leave(&engine, &file));
        engine
            .run(leave(&engine, &file))
            .expect("nothing is demanded");
        assert_eq!(engine.drain(Duration::from_secs(600)), 0);
        drop(engine);
    }
}

/// Waits for another thread, which wakes this task when it is done.
async fn told_by_another_thread() {
    let told = Arc::new(AtomicBool::new(false));
    let mut teller = None;
    poll_fn(|cx| {
        if told.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let (tells, waker) = (Arc::clone(&told), cx.waker().clone());
        teller.get_or_insert_with(|| {
            std::thread::spawn(move || {
                tells.store(true, Ordering::Release);
                waker.wake();
            })
        });
        Poll::Pending
    })
    .await;
    if let Some(teller) = teller {
        teller.join().expect("no panic");
    }
}

#[test]
fn tasks_of_a_loop_are_woken_from_other_threads() {
    for engine in engines() {
        let file = file(b"contents");
        let body = async {
            let task = crate::local::spawn(told_by_another_thread());
            read_and_write(&engine, &file).await;
            told_by_another_thread().await;
            task.await;
        };
        engine.run(body).expect("nothing is demanded");
    }
}
