//! Polling by hand, wakers of all kinds, and engines whose operations stay in flight.
#![allow(unsafe_code)]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "faulty")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "faulty")]
use std::sync::mpsc::Receiver;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::Instant;

#[cfg(feature = "faulty")]
use inflight::IoBuf;
use inflight::fs::{File, ReadVectoredAt};
use inflight::{Engine, Pending};

use crate::support::patience;

/// Polls once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

pub(super) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// After so many times the patience that there is with a single wait a test hangs.
const WATCHED_FOR: u32 = 5;

/// Ends the process unless it is dropped in time: a loop that hangs has its thread. A whole test is
/// watched, which takes many times as long as usual where each call that yields waits for others.
pub(super) struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub(super) fn new() -> Self {
        let (alive, ends) = channel();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            if ends.recv_timeout(WATCHED_FOR * patience()) == Err(RecvTimeoutError::Timeout) {
                crate::support::say(&format!("{test} hangs"));
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}

/// As [`until`](crate::support::until), letting the run loop go on meanwhile, if there is one.
pub(crate) async fn until_turned(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < patience(), "still not: {what}");
        inflight::local::yield_now().await;
    }
}

/// Waits until nothing is in flight on the drivers.
pub(crate) fn drained(engine: &Engine) {
    assert_eq!(engine.drain(patience()), 0);
}

/// Counts how often it is woken.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A counter and its waker.
pub(super) fn counting() -> (Arc<Counter>, Waker) {
    let counter = Arc::new(Counter::default());
    (Arc::clone(&counter), Waker::from(counter))
}

/// What is done to a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Cloned,
    Woken,
    WokenByRef,
    Dropped,
}

type Told = Arc<dyn Fn(Done) + Send + Sync>;

/// A waker that tells `told` of all that is done to it, and may be anything but well-behaved.
pub(super) fn telling(told: impl Fn(Done) + Send + Sync + 'static) -> Waker {
    let told: Box<Told> = Box::new(Arc::new(told));
    // SAFETY: the pointer is a box of the type that the functions of the table expect, and each
    // waker has one of its own.
    unsafe { Waker::from_raw(raw(Box::into_raw(told))) }
}

fn raw(told: *const Told) -> RawWaker {
    RawWaker::new(told.cast(), &TELLING)
}

static TELLING: RawWakerVTable = RawWakerVTable::new(cloned, woken, woken_by_ref, dropped);

fn told_of<'a>(data: *const ()) -> &'a Told {
    // SAFETY: a live waker has a live box; see `telling`.
    unsafe { &*data.cast::<Told>() }
}

unsafe fn cloned(data: *const ()) -> RawWaker {
    let told = told_of(data);
    told(Done::Cloned);
    raw(Box::into_raw(Box::new(Arc::clone(told))))
}

unsafe fn woken(data: *const ()) {
    // SAFETY: the waker is used up by this; see `telling`.
    let told = unsafe { Box::from_raw(data.cast_mut().cast::<Told>()) };
    told(Done::Woken);
}

unsafe fn woken_by_ref(data: *const ()) {
    told_of(data)(Done::WokenByRef);
}

unsafe fn dropped(data: *const ()) {
    // SAFETY: as in `woken`.
    let told = unsafe { Box::from_raw(data.cast_mut().cast::<Told>()) };
    told(Done::Dropped);
}

/// Keeps the operations of an engine in flight while it is closed.
#[cfg(feature = "faulty")]
pub(super) struct Gate(Arc<std::sync::atomic::AtomicBool>);

#[cfg(feature = "faulty")]
impl Gate {
    /// A closed gate, and an engine behind it.
    pub(super) fn closed(
        configure: impl FnOnce(inflight::Builder) -> inflight::Builder,
    ) -> (Self, Engine) {
        Self::closed_with(inflight::Faults::new(1), configure)
    }

    /// As [`Gate::closed`], with other faults too.
    pub(super) fn closed_with(
        faults: inflight::Faults,
        configure: impl FnOnce(inflight::Builder) -> inflight::Builder,
    ) -> (Self, Engine) {
        let hold = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let builder = Engine::builder().faults(faults.hold_while(&hold));
        let engine = configure(builder).build().expect("nothing is demanded");
        (Self(hold), engine)
    }

    pub(super) fn open(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub(super) fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(feature = "faulty")]
impl Drop for Gate {
    /// So that a test that fails ends.
    fn drop(&mut self) {
        self.open();
    }
}

/// Waits until so many operations are with the backends of an engine.
#[cfg(feature = "faulty")]
pub(super) async fn in_flight(engine: &Engine, count: u64) {
    until_turned("in flight", || engine.stats().in_flight == count).await;
}

/// Runs `body` behind a closed gate, outside a run loop and in one. It opens the gate itself.
#[cfg(feature = "faulty")]
pub(super) fn on_both_hosts(body: impl AsyncFn(&Engine, &Gate)) {
    on_both_hosts_with(|faults| faults, |builder| builder, body);
}

/// As [`on_both_hosts`], with other faults and settings.
#[cfg(feature = "faulty")]
pub(super) fn on_both_hosts_with(
    faults: impl Fn(inflight::Faults) -> inflight::Faults,
    configure: impl Fn(inflight::Builder) -> inflight::Builder,
    body: impl AsyncFn(&Engine, &Gate),
) {
    for in_loop in [false, true] {
        let _named = crate::support::Named(format!("in a loop: {in_loop}"));
        let made = faults(inflight::Faults::new(1));
        let (gate, engine) = Gate::closed_with(made, &configure);
        if in_loop {
            engine
                .run(body(&engine, &gate))
                .expect("nothing is demanded");
        } else {
            pollster::block_on(body(&engine, &gate));
        }
        drained(&engine);
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    }
}

/// A buffer that is dropped in two steps.
#[cfg(feature = "faulty")]
pub(super) struct Slow {
    bytes: Vec<u8>,
    say: Sender<()>,
    go: Mutex<Receiver<()>>,
}

#[cfg(feature = "faulty")]
impl Slow {
    /// Says when its drop begins, and waits until it may end.
    pub(super) fn new(say: Sender<()>, go: Receiver<()>) -> Self {
        let (bytes, go) = (vec![0; 8], Mutex::new(go));
        Self { bytes, say, go }
    }
}

#[cfg(feature = "faulty")]
impl Drop for Slow {
    fn drop(&mut self) {
        self.say.send(()).expect("the test listens");
        let go = self.go.get_mut().expect("nobody has panicked");
        go.recv().expect("the test goes on");
    }
}

#[cfg(feature = "faulty")]
// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Slow {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A buffer to be written that does something when it is dropped.
#[cfg(feature = "faulty")]
pub(super) struct Loud {
    bytes: Vec<u8>,
    /// Whether it panics when it is asked for its length.
    pub(super) keeps_its_length: Arc<std::sync::atomic::AtomicBool>,
    then: Option<Box<dyn FnOnce() + Send>>,
}

#[cfg(feature = "faulty")]
impl Loud {
    /// What it consists of, eight times.
    pub(super) const BYTE: u8 = 7;

    pub(super) fn new(then: impl FnOnce() + Send + 'static) -> Self {
        Self {
            bytes: vec![Self::BYTE; 8],
            keeps_its_length: Arc::default(),
            then: Some(Box::new(then)),
        }
    }
}

#[cfg(feature = "faulty")]
impl Drop for Loud {
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

#[cfg(feature = "faulty")]
// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Loud {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        assert!(!self.keeps_its_length.load(Ordering::SeqCst), "no length");
        self.bytes.len()
    }
}

/// A buffer of eight bytes that panics the second time it is asked how many.
#[cfg(feature = "faulty")]
pub(super) struct Mute {
    bytes: Vec<u8>,
    asked: AtomicU64,
}

#[cfg(feature = "faulty")]
impl Mute {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; 8],
            asked: AtomicU64::new(0),
        }
    }
}

#[cfg(feature = "faulty")]
// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Mute {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        if self.asked.fetch_add(1, Ordering::SeqCst) == 1 {
            std::panic::resume_unwind(Box::new("mute"));
        }
        self.bytes.len()
    }
}

/// A read of one byte that is not answered when it is begun.
pub(super) type Read<'f> = Pending<ReadVectoredAt<'f, Vec<u8>>>;

/// Reads of every byte, each begun.
pub(super) fn begun(file: &File, count: u64) -> Vec<Read<'_>> {
    let mut reads: Vec<_> = (0..count)
        .map(|at| {
            file.read_vectored_at(vec![vec![0; 1]], at)
                .by_backend()
                .into_future()
        })
        .collect();
    for read in &mut reads {
        assert!(poll_once(read).is_pending());
    }
    reads
}

/// Awaits them, and compares each with its byte.
pub(super) async fn check(reads: Vec<Read<'_>>, content: &[u8]) {
    for (read, byte) in reads.into_iter().zip(content) {
        let (result, bufs) = read.await;
        assert_eq!((result.expect("it is done"), bufs[0][0]), (1, *byte));
    }
}
