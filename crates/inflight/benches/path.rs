//! The cost of the path itself: no-op operations and cached reads through the library, beside a
//! bare loop on the `io-uring` crate and a bare `pread` loop.
//!
//! `cargo bench -p inflight --bench path` prints the median ratio of interleaved rounds with the
//! range that holds the middle half of them; with `nops` or `cached` only those. Nothing is
//! asserted: the figures go to `docs/measurements`.
#![allow(missing_docs, clippy::unwrap_used)]

mod bare;
mod in_turn;

use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use in_turn::in_turn;
use inflight::fs::{File, OpenOptions};
use inflight::{Batch, BufPool, Engine, Operation};

const BATCH: usize = 32;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

/// Runs `a` and `b` in turn and prints the ratio of their times for one operation.
fn compare(what: &str, ops: usize, a: impl FnMut(), b: impl FnMut()) {
    let times = in_turn(ops, a, b);
    let [low, middle, high] = times.ratio;
    println!(
        "{what:38} {:7.1} ns, bare {:7.1} ns, ratio {middle:.3} ({low:.3} to {high:.3})",
        times.a_ns, times.b_ns,
    );
}

fn nops() {
    let engine = Engine::new().unwrap();
    println!(
        "backend {}: {}",
        engine.backend().kind,
        engine.backend().reason
    );
    let mut bare = bare::ring();
    let mut other = bare::ring();
    const OPS: usize = 64_000;
    compare(
        "no-op, bare against bare",
        OPS,
        || bare::nops(&mut other, OPS, BATCH),
        || bare::nops(&mut bare, OPS, BATCH),
    );
    let mut batch = Batch::on(&engine);
    compare(
        "no-op, batches of 32",
        OPS,
        || {
            for _ in 0..OPS / BATCH {
                for _ in 0..BATCH {
                    batch.push(engine.nop());
                }
                for result in batch.wait() {
                    result.unwrap();
                }
            }
        },
        || bare::nops(&mut bare, OPS, BATCH),
    );
    const SINGLE: usize = 16_000;
    compare(
        "no-op, one at a time",
        SINGLE,
        || (0..SINGLE).for_each(|_| engine.nop().wait().unwrap()),
        || bare::nops(&mut bare, SINGLE, 1),
    );
}

/// No-ops that are awaited by 32 tasks, in a run loop and on a driver.
fn awaited_nops() {
    let engine = Engine::new().unwrap();
    let mut bare = bare::ring();
    const OPS: usize = 64_000;
    let loop_engine = engine.clone();
    let tasks = move || {
        let engine = loop_engine.clone();
        let run = async {
            let tasks: Vec<_> = (0..BATCH)
                .map(|_| {
                    let engine = loop_engine.clone();
                    inflight::local::spawn(async move {
                        for _ in 0..OPS / BATCH {
                            engine.nop().await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        };
        engine.run(run).unwrap();
    };
    compare("no-op, 32 tasks of a run loop", OPS, tasks, || {
        bare::nops(&mut bare, OPS, BATCH)
    });
    let mut single = tokio::runtime::Builder::new_current_thread();
    let single = single.build().unwrap();
    let mut multi = tokio::runtime::Builder::new_multi_thread();
    let multi = multi.worker_threads(2).build().unwrap();
    for (name, runtime) in [("tokio, 1 thread", single), ("tokio, 2 threads", multi)] {
        let enters = || (engine.stats().operations, engine.stats().enters);
        let before = enters();
        let run = || {
            let tasks: Vec<_> = (0..BATCH)
                .map(|_| {
                    let engine = engine.clone();
                    runtime.spawn(async move {
                        for _ in 0..OPS / BATCH {
                            engine.nop().await.unwrap();
                        }
                    })
                })
                .collect();
            runtime.block_on(async {
                for task in tasks {
                    task.await.unwrap();
                }
            });
        };
        let what = format!("no-op, 32 tasks of {name}");
        compare(&what, OPS, run, || bare::nops(&mut bare, OPS, BATCH));
        let after = enters();
        let per_op = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
        println!("{:38} {per_op:.3} enters an operation", "");
    }
}

/// Offsets in a fixed order that no read-ahead follows.
fn offset(at: usize) -> u64 {
    (at as u64).wrapping_mul(2_654_435_761) % BLOCKS * BLOCK as u64
}

fn cached_reads(path: &std::path::Path) {
    let file = File::open(path).unwrap();
    let std_file = StdFile::open(path).unwrap();
    let mut page = vec![0; BLOCK];
    for at in 0..BLOCKS {
        std_file
            .read_exact_at(&mut page, at * BLOCK as u64)
            .unwrap();
    }
    const READS: usize = 16_384;
    let mut pages: Vec<_> = (0..BATCH).map(|_| vec![0_u8; BLOCK]).collect();
    let mut preads = |reads: usize| {
        for at in 0..reads {
            std_file
                .read_at(&mut pages[at % BATCH], offset(at))
                .unwrap();
        }
    };
    let mut spare = Some(vec![0; BLOCK]);
    compare(
        "cached 4 KiB read, one at a time",
        READS,
        || {
            for at in 0..READS {
                let (result, buf) = file.read_at(spare.take().unwrap(), offset(at)).wait();
                assert_eq!(result.unwrap(), BLOCK);
                spare = Some(buf);
            }
        },
        || preads(READS),
    );
    let mut batch = Batch::new();
    let mut spare: Vec<_> = (0..BATCH).map(|_| vec![0; BLOCK]).collect();
    compare(
        "cached 4 KiB read, batches of 32",
        READS,
        || {
            for first in (0..READS).step_by(BATCH) {
                for (at, buf) in (first..).zip(spare.drain(..)) {
                    batch.push(file.read_at(buf, offset(at)));
                }
                spare.extend(batch.wait().map(|(result, buf)| {
                    assert_eq!(result.unwrap(), BLOCK);
                    buf
                }));
            }
        },
        || preads(READS),
    );
    let pool = BufPool::new(u32::try_from(BATCH).unwrap(), BLOCK).unwrap();
    let mut batch = Batch::new();
    let mut spare: Vec<_> = (0..BATCH).map(|_| pool.take().unwrap()).collect();
    compare(
        "the same, registered buffers",
        READS,
        || {
            for first in (0..READS).step_by(BATCH) {
                for (at, buf) in (first..).zip(spare.drain(..)) {
                    batch.push(file.read_at(buf, offset(at)));
                }
                spare.extend(batch.wait().map(|(result, buf)| {
                    assert_eq!(result.unwrap(), BLOCK);
                    buf
                }));
            }
        },
        || preads(READS),
    );
}

/// One task that reads what the page cache has, beside preads into one buffer.
fn awaited_cached_reads(path: &std::path::Path) {
    const READS: usize = 16_384;
    let engine = Engine::new().unwrap();
    let file = OpenOptions::new().read(true).engine(&engine).open(path);
    let file = Arc::new(file.unwrap());
    let std_file = StdFile::open(path).unwrap();
    let mut page = vec![0; BLOCK];
    let mut preads = || {
        for at in 0..READS {
            std_file.read_at(&mut page, offset(at)).unwrap();
        }
    };
    let reads = |file: Arc<File>| async move {
        let mut spare = vec![0; BLOCK];
        for at in 0..READS {
            let (result, buf) = file.read_at(spare, offset(at)).await;
            assert_eq!(result.unwrap(), BLOCK);
            spare = buf;
        }
    };
    let run_loop = || engine.run(reads(Arc::clone(&file))).unwrap();
    compare(
        "cached, awaited in a run loop",
        READS,
        run_loop,
        &mut preads,
    );
    let one = tokio::runtime::Builder::new_current_thread().build();
    let one = one.unwrap();
    let on_one = || one.block_on(reads(Arc::clone(&file)));
    compare(
        "cached, awaited on tokio, one thread",
        READS,
        on_one,
        &mut preads,
    );
    let mut two = tokio::runtime::Builder::new_multi_thread();
    let two = two.worker_threads(2).build().unwrap();
    let on_two = || two.block_on(two.spawn(reads(Arc::clone(&file)))).unwrap();
    compare(
        "cached, awaited on tokio, two workers",
        READS,
        on_two,
        &mut preads,
    );
}

fn main() {
    let only = std::env::args()
        .nth(1)
        .filter(|only| !only.starts_with('-'));
    if only.as_deref() != Some("cached") {
        nops();
        awaited_nops();
    }
    if only.as_deref() == Some("nops") {
        return;
    }
    let folder = std::env::var_os("INFLIGHT_TEST_DIR").unwrap_or_else(|| ".".into());
    let file = tempfile::NamedTempFile::new_in(folder).unwrap();
    let block: Vec<u8> = (0..=250).cycle().take(BLOCK).collect();
    for at in 0..BLOCKS {
        file.as_file()
            .write_all_at(&block, at * BLOCK as u64)
            .unwrap();
    }
    cached_reads(file.path());
    awaited_cached_reads(file.path());
}
