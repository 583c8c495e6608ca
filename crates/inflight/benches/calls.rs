//! What a call costs on each road: statx(2) and openat(2) made here, awaited, and through a ring.
//! The file and its name are in the cache, so it is the road that is seen.
//!
//! ```text
//! cargo bench -p inflight --bench calls
//! ```
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs;
use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use inflight::Engine;
use inflight::fs::{OpenOptions, metadata};
use io_uring::{IoUring, opcode, squeue, types};

const ROUNDS: usize = 41;
const CALLS: usize = 512;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls all futures until all are ready.
fn join<F: Future + Unpin>(futures: impl Iterator<Item = F>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut left: Vec<F> = futures.collect();
    loop {
        left.retain_mut(|future| match Pin::new(future).poll(&mut context) {
            Poll::Ready(output) => {
                black_box(output);
                false
            }
            Poll::Pending => true,
        });
        if left.is_empty() {
            return;
        }
        thread::park();
    }
}

/// Hands entries over together and waits for all; `each` gets the results.
fn through_ring(
    ring: &mut IoUring,
    count: usize,
    entry: impl Fn(usize) -> squeue::Entry,
    each: impl Fn(i32),
) {
    for number in 0..count {
        // SAFETY: what the entries point to lives until all of them are over, below.
        unsafe { ring.submission().push(&entry(number)) }.expect("there is room for them");
    }
    ring.submit_and_wait(count)
        .expect("the ring can be entered");
    let completions: Vec<i32> = ring.completion().map(|entry| entry.result()).collect();
    assert_eq!(completions.len(), count);
    completions.into_iter().for_each(each);
}

fn ring_statx(ring: &mut IoUring, path: &CStr, count: usize) {
    let mut outs = vec![MaybeUninit::<libc::statx>::uninit(); count];
    let start = outs.as_mut_ptr();
    let entry = |number: usize| {
        let out = start.wrapping_add(number).cast();
        opcode::Statx::new(types::Fd(libc::AT_FDCWD), path.as_ptr(), out)
            .mask(libc::STATX_BASIC_STATS)
            .build()
    };
    through_ring(ring, count, entry, |result| assert_eq!(result, 0));
    black_box(outs);
}

fn ring_open(ring: &mut IoUring, path: &CStr, count: usize) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let entry = |_| {
        opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
            .flags(flags)
            .build()
    };
    through_ring(ring, count, entry, |fd| {
        assert!(fd >= 0, "{fd}");
        // SAFETY: the descriptor is new and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    });
}

/// Nanoseconds for each of [`CALLS`] calls, `at_once` together.
fn timed(at_once: usize, mut run: impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    for _ in 0..CALLS / at_once {
        run(at_once);
    }
    begun.elapsed().as_secs_f64() * 1e9 / (CALLS as f64)
}

type Road<'a> = (&'static str, Box<dyn FnMut(usize) + 'a>);

fn compare(name: &str, at_once: usize, roads: &mut [Road<'_>]) {
    let mut rounds = vec![Vec::new(); roads.len()];
    for round in 0..ROUNDS {
        for turn in 0..roads.len() {
            let place = (turn + round) % roads.len();
            rounds[place].push(timed(at_once, &mut roads[place].1));
        }
    }
    for ((road, _), times) in roads.iter().zip(&mut rounds) {
        times.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| times[quarter * (ROUNDS - 1) / 4]);
        println!("{name:6} {at_once:4} at once  {road:7} {median:8.0} ns ({low:.0} to {high:.0})");
    }
}

fn main() {
    let folder = tempfile::tempdir().expect("there is a place for files");
    let path = folder.path().join("file");
    fs::write(&path, b"abc").expect("it can be made");
    let name = CString::new(path.as_os_str().as_bytes()).expect("it has no zero byte");
    let (path, name): (&Path, &CStr) = (&path, &name);
    let engine = Engine::new().expect("nothing is demanded");
    let reading = OpenOptions::new().read(true).engine(&engine);
    for at_once in [1, 32, 256] {
        let ring = || IoUring::new(256).expect("io_uring is allowed");
        let (mut statx, mut open) = (ring(), ring());
        let (engine, reading) = (&engine, &reading);
        let asking = || metadata(path).on(engine).into_future();
        let mut roads: Vec<Road<'_>> = vec![
            (
                "here",
                Box::new(|count| {
                    (0..count).for_each(|_| drop(black_box(metadata(path).wait())));
                }),
            ),
            (
                "awaited",
                Box::new(|count| join((0..count).map(|_| asking()))),
            ),
            (
                "ring",
                Box::new(|count| ring_statx(&mut statx, name, count)),
            ),
        ];
        compare("statx", at_once, &mut roads);
        let opening = || reading.opening(path).into_future();
        let mut roads: Vec<Road<'_>> = vec![
            (
                "here",
                Box::new(|count| {
                    (0..count).for_each(|_| drop(black_box(reading.open(path))));
                }),
            ),
            (
                "pool",
                Box::new(|count| join((0..count).map(|_| opening()))),
            ),
            ("ring", Box::new(|count| ring_open(&mut open, name, count))),
        ];
        compare("open", at_once, &mut roads);
    }
}
