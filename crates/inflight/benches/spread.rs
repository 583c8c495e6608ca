//! Cached reads in batches, in a queue and in the tasks of a run loop, beside one and two threads
//! of `pread`: in ratios of interleaved rounds, with the CPU time of the process for each read.
//!
//! `cargo bench -p inflight --bench spread [WORDS]`, of those whose names have these words. Nothing
//! is asserted: the figures go to `docs/design/roads.md`.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use std::fs::File as StdFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{File, ReadAt};
use inflight::{Batch, Engine, local};

const ROUNDS: usize = 21;
const READS: usize = 32_768;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16_384;

/// Offsets in a fixed order that no read-ahead follows.
fn offset(at: usize) -> u64 {
    (at as u64).wrapping_mul(2_654_435_761) % BLOCKS * BLOCK as u64
}

/// What a program may do with a block.
#[derive(Clone, Copy, Debug)]
enum Use {
    Nothing,
    EveryByte,
}

fn consume(with: Use, block: &[u8]) {
    match with {
        Use::Nothing => black_box(block[0]),
        Use::EveryByte => black_box(
            block
                .iter()
                .fold(0, |sum: u8, byte| sum.wrapping_add(*byte)),
        ),
    };
}

/// CPU time of this process.
fn cpu() -> Duration {
    // SAFETY: all bits zero is a valid value, to be filled.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is ours.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    assert_eq!(answer, 0);
    let time = |time: libc::timeval| {
        Duration::from_micros((time.tv_sec * 1_000_000 + time.tv_usec).cast_unsigned())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Nanoseconds for a read: of time, and of CPU time.
fn time(run: &mut dyn FnMut()) -> (f64, f64) {
    let (start, used) = (Instant::now(), cpu());
    run();
    let each = |time: Duration| time.as_nanos() as f64 / READS as f64;
    (each(start.elapsed()), each(cpu() - used))
}

/// Each thread with a descriptor of its own: they slow each other down where they share one.
fn preads(path: &Path, threads: usize, with: Use) {
    thread::scope(|scope| {
        for thread in 0..threads {
            let run = move || {
                let file = StdFile::open(path).unwrap();
                let mut block = vec![0; BLOCK];
                for at in (thread..READS).step_by(threads) {
                    assert_eq!(file.read_at(&mut block, offset(at)).unwrap(), BLOCK);
                    consume(with, &block);
                }
            };
            match threads {
                1 => run(),
                _ => drop(scope.spawn(run)),
            }
        }
    });
}

fn batches<'f>(file: &'f File, size: usize, with: Use) -> impl FnMut() + use<'f> {
    let mut batch = Batch::new();
    let mut bufs: Vec<_> = (0..size).map(|_| vec![0; BLOCK]).collect();
    move || {
        for first in (0..READS).step_by(size) {
            for (at, buf) in (first..).zip(bufs.drain(..)) {
                batch.push(file.read_at(buf, offset(at)));
            }
            bufs.extend(batch.wait().map(|(result, buf)| {
                assert_eq!(result.unwrap(), BLOCK);
                consume(with, &buf);
                buf
            }));
        }
    }
}

fn queue<'f>(engine: &Engine, file: &'f File, depth: usize, with: Use) {
    let run = |queue: &mut inflight::Queue<'_, '_, ReadAt<'f, Vec<u8>>>| {
        for at in 0..depth {
            assert!(
                queue
                    .push(0, file.read_at(vec![0; BLOCK], offset(at)))
                    .is_ok()
            );
        }
        for at in depth..READS + depth {
            let (_, (result, buf)) = queue.next().unwrap();
            assert_eq!(result.unwrap(), BLOCK);
            consume(with, &buf);
            if at < READS {
                assert!(queue.push(0, file.read_at(buf, offset(at))).is_ok());
            }
        }
    };
    engine.queue(u32::try_from(depth).unwrap(), run).unwrap();
}

/// As many tasks as are to be in flight, in a run loop.
fn tasks(engine: &Engine, file: &Rc<File>, depth: usize, with: Use) {
    let task = |first: usize| {
        let file = Rc::clone(file);
        local::spawn(async move {
            let mut buf = vec![0; BLOCK];
            for at in (first..READS).step_by(depth) {
                let (result, back) = file.read_at(buf, offset(at)).await;
                assert_eq!(result.unwrap(), BLOCK);
                consume(with, &back);
                buf = back;
            }
        })
    };
    let run = engine.run(async {
        let running: Vec<_> = (0..depth).map(task).collect();
        for task in running {
            task.await;
        }
    });
    run.unwrap();
}

fn compare(what: &str, path: &Path, with: Use, mut run: impl FnMut()) {
    let ways: [&mut dyn FnMut(); 3] = [&mut run, &mut || preads(path, 1, with), &mut || {
        preads(path, 2, with)
    }];
    let mut rounds: Vec<[(f64, f64); 3]> = Vec::new();
    for round in 0..=ROUNDS {
        let mut times = [(0.0, 0.0); 3];
        for turn in 0..3 {
            let way = (turn + round) % 3;
            times[way] = time(&mut *ways[way]);
        }
        // In the first round everything is still to be learned.
        if round > 0 {
            rounds.push(times);
        }
    }
    let ratio = |other: usize, of: fn((f64, f64)) -> f64| {
        let mut ratios: Vec<f64> = rounds.iter().map(|at| of(at[0]) / of(at[other])).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
        format!("{:.2} ({low:.2} to {high:.2})", ratios[ROUNDS / 2])
    };
    println!(
        "{what:30} time: of 1 thread {}, of 2 threads {}; CPU: of 1 thread {}",
        ratio(1, |at| at.0),
        ratio(2, |at| at.0),
        ratio(1, |at| at.1),
    );
}

fn main() {
    let folder = std::env::var_os("INFLIGHT_TEST_DIR").unwrap_or_else(|| ".".into());
    let path = tempfile::NamedTempFile::new_in(folder).unwrap();
    let block: Vec<u8> = (0..=250).cycle().take(BLOCK).collect();
    for at in 0..BLOCKS {
        path.as_file()
            .write_all_at(&block, at * BLOCK as u64)
            .unwrap();
    }
    let engine = Engine::new().unwrap();
    let file = inflight::fs::OpenOptions::new().read(true).engine(&engine);
    let file = Rc::new(file.open(path.path()).unwrap());
    // Cargo passes `--bench` too.
    let words = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .map(|words| format!("{words} "));
    let is_asked_for = |what: &str| match &words {
        Some(words) => format!("{what} ").contains(words),
        None => true,
    };
    let measure = |what: &str, with: Use, run: &mut dyn FnMut()| {
        if !is_asked_for(what) {
            return;
        }
        let before = engine.stats();
        compare(what, path.path(), with, run);
        let after = engine.stats();
        let share =
            (after.helped - before.helped) as f64 / (after.operations - before.operations) as f64;
        println!("{:30} {:.0} % by another thread", "", share * 100.0);
    };
    for with in [Use::Nothing, Use::EveryByte] {
        println!("{with:?} is done with a block");
        for size in [4, 8, 16, 32, 128, 512] {
            let what = format!("batches of {size}");
            measure(&what, with, &mut batches(&file, size, with));
        }
        for depth in [2, 4, 8, 16, 32, 128] {
            let what = format!("a queue of {depth}");
            measure(&what, with, &mut || queue(&engine, &file, depth, with));
        }
        for depth in [1, 2, 4, 8, 16, 32, 128] {
            let what = format!("a loop of {depth}");
            measure(&what, with, &mut || tasks(&engine, &file, depth, with));
        }
    }
}
