//! Futures over raw descriptors, for Miri (`cargo xtask miri`), in which no [`super::file::File`]
//! can be opened: it knows neither `F_GETFL` of a file, nor statx as this library calls it, nor
//! io_uring. So everything between the future and the system call is run there, on the backend of
//! threads and on the one with faults.
#![allow(unsafe_code)]

use std::fs::File;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::batch::Batch;
use super::detach::Detach;
use super::engine::{BackendKind, Engine};
use super::handle::Handle;
use super::kept::{Foreseen, InUse, KeptFor, Tells};
use super::operation::Sealed;
use super::pending::Pending;
use super::timeout::Awaited;
use crate::buf::{IoBufMut, span_of, span_of_mut};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Prepared, Request, Road, Wishes};

/// A read or a write at offset 0, by way of the backend.
struct Raw<'f, B> {
    engine: &'f Engine,
    file: &'f File,
    buf: B,
    reads: bool,
}

/// Moving a vector says nothing of its bytes; moving a box or a reference says that nobody else
/// uses them, which a future may not say while they are read into.
trait Buf: IoBufMut + AsRef<[u8]> + Send + 'static {
    fn of(bytes: &[u8]) -> Self;
}

impl Buf for Vec<u8> {
    fn of(bytes: &[u8]) -> Self {
        bytes.to_vec()
    }
}

impl Buf for Box<[u8]> {
    fn of(bytes: &[u8]) -> Self {
        bytes.into()
    }
}

impl Buf for &'static mut [u8] {
    fn of(bytes: &[u8]) -> Self {
        // What nobody knows of counts as lost.
        static LENT: Mutex<Vec<AtomicPtr<u8>>> = Mutex::new(Vec::new());
        let lent = Box::into_raw(Box::<[u8]>::from(bytes));
        let known = AtomicPtr::new(lent.cast());
        LENT.lock().expect("no panic").push(known);
        // SAFETY: it has just been made, and is not used by way of the list.
        unsafe { &mut *lent }
    }
}

impl<B: Buf> Prepare for Raw<'_, B> {
    type Output = (io::Result<usize>, B);

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

impl<B: Buf> Sealed for Raw<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.engine
    }
}

// SAFETY: the memory is on the heap and belongs to the buffer; the descriptor outlives the engine
// here.
unsafe impl<B: Buf> Detach for Raw<'_, B> {
    fn handle(&self) -> Option<&Arc<Handle>> {
        None
    }

    fn foresee(&self) -> Foreseen {
        Foreseen(Tells::Nothing)
    }

    unsafe fn into_kept(
        mut operation: MaybeUninit<Self>,
        handle: Option<Arc<Handle>>,
        foreseen: Foreseen,
    ) -> KeptFor {
        // SAFETY: the caller has initialised it.
        let operation = unsafe { operation.assume_init_mut() };
        // SAFETY: nobody uses or drops the operation after this; the caller waits for the kernel.
        let memory = unsafe { InUse::take(&mut operation.buf) };
        KeptFor::new(memory, handle, foreseen)
    }
}

impl<'f, B: Buf> IntoFuture for Raw<'f, B> {
    type Output = (io::Result<usize>, B);
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

impl<'f, B: Buf> Raw<'f, B> {
    fn read(engine: &'f Engine, file: &'f File) -> Self {
        Self {
            engine,
            file,
            buf: B::of(&[0; 8]),
            reads: true,
        }
    }

    fn write(engine: &'f Engine, file: &'f File, bytes: &[u8]) -> Self {
        Self {
            engine,
            file,
            buf: B::of(bytes),
            reads: false,
        }
    }
}

async fn poll_once(mut future: impl Future + Unpin) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx).is_pending())).await
}

/// What is read is in the buffer that comes back; a future may move between its polls.
async fn read_and_write<B: Buf>(engine: &Engine, file: &File) {
    let (result, buf) = Raw::<B>::read(engine, file).await;
    let moved = result.expect("it can be read");
    assert_eq!(buf.as_ref()[..moved], b"contents"[..moved]);
    let mut read = Raw::<B>::read(engine, file).into_future();
    if poll_once(&mut read).await {
        let moved = Box::new(read);
        moved.await.0.expect("it can be read");
    }
    let (result, buf) = Raw::<B>::write(engine, file, b"CONTENTS").await;
    assert!(result.expect("it can be written") <= buf.len());
    file.set_len(0).expect("there is room");
    let (result, _) = Raw::<B>::write(engine, file, b"contents").await;
    let written = result.expect("it can be written");
    let (result, buf) = Raw::<B>::read(engine, file).await;
    let moved = result.expect("it can be read");
    assert!(moved <= written && buf.as_ref()[..moved] == b"contents"[..moved]);
}

/// Left before and after the first poll, in time and late, alone and in a batch.
async fn leave<B: Buf>(engine: &Engine, file: &File) {
    let read = || Raw::<B>::read(engine, file);
    drop(read().into_future());
    let mut left = Vec::new();
    for _ in 0..4 {
        let mut read = read().into_future();
        if poll_once(&mut read).await {
            left.push(read);
        }
    }
    // Time for the pool to begin with them.
    std::thread::yield_now();
    // The first is dropped at home, the others elsewhere.
    drop(left.pop());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(left));
    });
    let mut write = Raw::<B>::write(engine, file, b"contents").into_future();
    poll_once(&mut write).await;
    std::thread::yield_now();
    drop(write);
    let reads = (0..4).map(|_| read()).collect::<Batch<_>>();
    poll_once(reads.into_future()).await;
    let reads = (0..4).map(|_| read()).collect::<Batch<_>>();
    if let Err(late) = reads.timeout(Duration::ZERO).await {
        let mut apart = late.into_results();
        drop(apart.pop());
        for result in apart {
            let (result, _) = match result {
                Ok(in_time) => in_time,
                Err(late) => late.await,
            };
            assert!(result.expect("it can be read") <= 8);
        }
    }
    match read().timeout(Duration::ZERO).await {
        Ok((result, _)) => drop(result.expect("it can be read")),
        Err(late) => drop(late),
    }
    let in_time = read().timeout(Duration::from_secs(600)).await;
    in_time.expect("in time").0.expect("it can be read");
    engine
        .sleep(Duration::from_millis(1))
        .await
        .expect("a timer");
}

fn come_back<B: Buf>() {
    for engine in engines() {
        let file = file(b"contents");
        block_on(read_and_write::<B>(&engine, &file));
        engine
            .run(read_and_write::<B>(&engine, &file))
            .expect("nothing is demanded");
        assert_eq!(engine.drain(Duration::from_secs(600)), 0);
    }
}

#[test]
fn buffers_come_back_from_drivers_and_run_loops() {
    come_back::<Vec<u8>>();
    come_back::<Box<[u8]>>();
    come_back::<&mut [u8]>();
}

fn are_left<B: Buf>() {
    for engine in engines() {
        let file = file(b"contents");
        block_on(leave::<B>(&engine, &file));
        engine
            .run(leave::<B>(&engine, &file))
            .expect("nothing is demanded");
        assert_eq!(engine.drain(Duration::from_secs(600)), 0);
        drop(engine);
    }
}

#[test]
fn futures_may_be_left_anywhere() {
    are_left::<Vec<u8>>();
    are_left::<Box<[u8]>>();
    are_left::<&mut [u8]>();
}

/// What is left is written to until it is over, wherever it has been moved.
fn is_kept<B: Buf>(engine: &Engine, file: &File) {
    let mut operation = MaybeUninit::new(Raw::<B>::read(engine, file));
    // SAFETY: it has just been made.
    let raw = unsafe { operation.assume_init_mut() };
    let (bytes, foreseen) = (raw.buf.as_mut_ptr(), raw.foresee());
    // SAFETY: it is initialised, and what is kept is there until the last byte has been written.
    let kept = unsafe { Raw::into_kept(operation, None, foreseen) }.0;
    // SAFETY: as the kernel does.
    unsafe { bytes.write(1) };
    let moved = std::thread::spawn(move || kept);
    let moved = moved.join().expect("no panic");
    // SAFETY: as the kernel does.
    unsafe { bytes.write(2) };
    moved.over(Answer::moved(8));
}

#[test]
fn what_is_left_is_written_to_until_it_is_over() {
    let (engine, file) = (engines().remove(0), file(b"contents"));
    is_kept::<Vec<u8>>(&engine, &file);
    is_kept::<Box<[u8]>>(&engine, &file);
    is_kept::<&mut [u8]>(&engine, &file);
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
            read_and_write::<Vec<u8>>(&engine, &file).await;
            told_by_another_thread().await;
            task.await;
        };
        engine.run(body).expect("nothing is demanded");
    }
}
