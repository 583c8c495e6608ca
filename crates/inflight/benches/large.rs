//! What it costs to have the memory of a large buffer anew, beside the allocator.
//!
//! `cargo bench -p inflight --bench large`: each buffer is made zeroed, one byte of each page is
//! written, and it is dropped: alone, in place of a random one of many, and by two threads at once.
//! Medians of interleaved rounds, with the range that holds the middle half of their ratios.
//! Nothing is asserted: the figures go to `docs/measurements`.
#![allow(missing_docs, clippy::unwrap_used, unsafe_code)]

mod in_turn;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::hint::black_box;
use std::slice;
use std::thread;

use in_turn::in_turn;
use inflight::AlignedBuf;

const PAGE: usize = 4096;

/// Memory as [`AlignedBuf`] has it, of the allocator.
struct Plain(*mut u8, Layout);

// SAFETY: it is owned alone.
unsafe impl Send for Plain {}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: allocated in `plain` with this layout.
        unsafe { dealloc(self.0, self.1) }
    }
}

fn plain(len: usize) -> Plain {
    let layout = Layout::from_size_align(len, PAGE).unwrap();
    // SAFETY: no length here is 0.
    let start = unsafe { alloc_zeroed(layout) };
    assert!(!start.is_null());
    // SAFETY: zeroed, and nobody else knows it.
    touch(unsafe { slice::from_raw_parts_mut(start, len) });
    Plain(start, layout)
}

fn aligned(len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len, PAGE).unwrap();
    touch(&mut buf);
    buf
}

/// Writes to each page. The compiler does not know, so it leaves out nothing.
fn touch(bytes: &mut [u8]) {
    black_box(&mut *bytes)
        .iter_mut()
        .step_by(PAGE)
        .for_each(|byte| *byte = 1);
    black_box(bytes);
}

/// So many made, each in the place of a random one of those there are.
fn replace<T>(had: &mut [Option<T>], count: usize, make: impl Fn() -> T) {
    let mut random = 1_u64;
    for _ in 0..count {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = usize::try_from(random >> 33).unwrap() % had.len();
        had[at] = None;
        had[at] = Some(make());
    }
}

fn on_threads(threads: usize, run: &(dyn Fn() + Sync)) {
    if threads == 1 {
        return run();
    }
    thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(run)));
    });
}

fn compare(what: &str, count: usize, a: impl FnMut(), b: impl FnMut()) {
    let times = in_turn(count, a, b);
    let [low, middle, high] = times.ratio;
    println!(
        "{what:34} {:8.2} us, allocator {:8.2} us, ratio {middle:.2} ({low:.2} to {high:.2})",
        times.a_ns / 1000.0,
        times.b_ns / 1000.0,
    );
}

fn main() {
    for kib in [16, 64, 128, 1024, 4096] {
        let len = kib << 10;
        let count = (64 << 20) / len;
        for threads in [1, 2] {
            compare(
                &format!("{kib} KiB, alone, {threads} threads"),
                count,
                || on_threads(threads, &|| (0..count).for_each(|_| drop(aligned(len)))),
                || on_threads(threads, &|| (0..count).for_each(|_| drop(plain(len)))),
            );
        }
        for mib in [64, 1024] {
            let many = (mib << 20) / len;
            let mut ours: Vec<_> = (0..many).map(|_| Some(aligned(len))).collect();
            let mut plains: Vec<_> = (0..many).map(|_| Some(plain(len))).collect();
            compare(
                &format!("{kib} KiB, one of {mib} MiB"),
                count,
                || replace(&mut ours, count, || aligned(len)),
                || replace(&mut plains, count, || plain(len)),
            );
        }
    }
}
