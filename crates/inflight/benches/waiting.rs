//! What waits: 100,000 reads of 128 files at a time against 128, and hosts with nothing to do.
//!
//! `cargo bench -p inflight --bench waiting` makes the files where `INFLIGHT_TEST_DIR` says (here
//! by default), reads them past the page cache where the file system can, and checks each block.
//! 100,000 reads need as many buffers, and memory that is not in a processor's cache is slower to
//! find, to hand over and to look at. So the few are measured twice: with buffers of their own,
//! and going through the same 100,000. With `idle`, only the hosts with nothing to do.
//! The figures go to `docs/measurements`; only the content is asserted.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::VecDeque;
use std::fs;
use std::future::IntoFuture;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{AlignedBuf, Engine, local};
use tokio::runtime::Runtime;

const FILES: usize = 128;
const BLOCKS: usize = 512;
const BLOCK: usize = 4096;
const READS: usize = 100_000;
const FEW: usize = 128;
/// Reads of each of the many tasks: making a task is not what is measured.
const EACH: usize = 4;
const ROUNDS: usize = 8;
const IDLE: Duration = Duration::from_secs(10);

/// The first bytes of a block say where it is.
fn mark(file: usize, block: usize) -> [u8; 8] {
    ((file * BLOCKS + block) as u64 + 1).to_le_bytes()
}

fn make_files(folder: &Path, engine: &Engine) -> Arc<[File]> {
    let make = |number: usize| {
        let path = folder.join(number.to_string());
        let mut content = vec![0; BLOCKS * BLOCK];
        let blocks = content.chunks_mut(BLOCK).enumerate();
        blocks.for_each(|(block, bytes)| bytes[..8].copy_from_slice(&mark(number, block)));
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        let open = OpenOptions::new().read(true).direct(Direct::Auto);
        open.engine(engine).open(path).unwrap()
    };
    (0..FILES).map(make).collect()
}

/// Files, and a buffer for each of the most tasks, made and touched before the clock runs.
#[derive(Clone)]
struct Stock {
    files: Arc<[File]>,
    bufs: Arc<Mutex<VecDeque<AlignedBuf>>>,
}

/// So many tasks, and whether each read has the buffer that was last used longest ago.
#[derive(Clone, Copy)]
struct Load {
    tasks: usize,
    goes_through: bool,
}

const MANY: Load = Load {
    tasks: READS,
    goes_through: false,
};

const LOADS: [Load; 3] = [
    MANY,
    Load { tasks: FEW, ..MANY },
    Load {
        tasks: FEW,
        goes_through: true,
    },
];

/// Reads `count` blocks, one after the other.
async fn reads(stock: Stock, seed: usize, count: usize, goes_through: bool) {
    let Stock { files, bufs } = stock;
    let mut buf = bufs.lock().unwrap().pop_front().unwrap();
    for at in 0..count {
        if goes_through {
            let mut bufs = bufs.lock().unwrap();
            bufs.push_back(buf);
            buf = bufs.pop_front().unwrap();
        }
        let number = (seed + at * 7).wrapping_mul(2_654_435_761);
        let (file, block) = (number % FILES, number / FILES % BLOCKS);
        let offset = (block * BLOCK) as u64;
        let (result, back) = files[file].read_exact_at(buf, offset).await;
        assert_eq!(result.unwrap(), BLOCK);
        assert_eq!(back[..8], mark(file, block));
        buf = back;
    }
    bufs.lock().unwrap().push_front(buf);
}

/// How many in a second, of `EACH * READS` in all.
fn rate(load: Load, run: impl FnOnce(usize)) -> f64 {
    let each = EACH * READS / load.tasks;
    let begun = Instant::now();
    run(each);
    (each * load.tasks) as f64 / begun.elapsed().as_secs_f64()
}

fn in_a_run_loop(engine: &Engine, stock: &Stock, load: Load) -> f64 {
    rate(load, |each| {
        let tasks = async {
            let spawn = |number| {
                let stock = stock.clone();
                local::spawn(reads(stock, number * 31, each, load.goes_through))
            };
            let tasks: Vec<_> = (0..load.tasks).map(spawn).collect();
            for task in tasks {
                task.await;
            }
        };
        engine.run(tasks).unwrap();
    })
}

fn in_tokio(runtime: &Runtime, stock: &Stock, load: Load) -> f64 {
    rate(load, |each| {
        let spawn = |number| {
            let stock = stock.clone();
            runtime.spawn(reads(stock, number * 31, each, load.goes_through))
        };
        let tasks: Vec<_> = (0..load.tasks).map(spawn).collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
    })
}

fn compare(what: &str, mut rate: impl FnMut(Load) -> f64) {
    let mut rounds = LOADS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (load, rates) in LOADS.into_iter().zip(&mut rounds) {
            rates.push(rate(load));
        }
    }
    let [many, few, going_through] = &rounds;
    println!(
        "{what}: {:.0} reads/s with {READS} waiting",
        middle(many.clone()).1
    );
    for (name, few) in [("their own", few), ("the same", going_through)] {
        let ratios = many.iter().zip(few).map(|(many, few)| many / few);
        let (least, ratio, most) = middle(ratios.collect());
        let few = middle(few.clone()).1;
        println!("  {few:.0} with {FEW} and {name} buffers: {ratio:.2} ({least:.2} to {most:.2})");
    }
}

/// The least, the median and the greatest.
fn middle(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    )
}

/// Voluntary switches of this thread and of all others, and hundredths of a second that a processor
/// has waited for I/O.
fn switches_and_iowait() -> [u64; 3] {
    let own = fs::read_link("/proc/thread-self").unwrap();
    let (mut by_own, mut by_others) = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count: u64 = line.map_or(0, |count| count.trim().parse().unwrap());
        match Some(task.file_name().as_os_str()) == own.file_name() {
            true => by_own += count,
            false => by_others += count,
        }
    }
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let iowait = stat.split_whitespace().nth(5).unwrap().parse().unwrap();
    [by_own, by_others, iowait]
}

/// Engines whose drivers have worked, with the feature `tokio` also a runtime that serves one of
/// them, and a run loop that waits for a timer.
fn idle() {
    let engines: Vec<Engine> = (0..3)
        .map(|_| Engine::builder().drivers(2).build().unwrap())
        .collect();
    for engine in &engines {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pollster::block_on(engine.nop().into_future()).unwrap());
            }
        });
    }
    #[cfg(feature = "tokio")]
    let _serving = {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_io().build().unwrap();
        let engine = engines[1].clone();
        runtime.block_on(async {
            engine.serve_on_tokio().unwrap();
            engine.nop().await.unwrap();
        });
        runtime
    };
    // Whoever has worked goes to sleep, and a keeper finds nothing to look after.
    thread::sleep(Duration::from_secs(2));
    let before = switches_and_iowait();
    let begun = Instant::now();
    let run = engines[0].run(engines[0].sleep(IDLE));
    run.unwrap().unwrap();
    let after = switches_and_iowait();
    let [by_own, by_others, iowait] = [0, 1, 2].map(|of| after[of] - before[of]);
    println!(
        "idle for {:.1} s, three engines, six drivers, {} a run loop: {by_others} voluntary \
         switches of the others, {by_own} of the thread that waits for its timer, \
         {iowait} hundredths of a second of iowait on all processors",
        begun.elapsed().as_secs_f64(),
        match cfg!(feature = "tokio") {
            true => "a runtime that serves,",
            false => "and",
        },
    );
}

fn main() {
    if std::env::args().nth(1).is_some_and(|only| only == "idle") {
        return idle();
    }
    let here = std::env::var_os("INFLIGHT_TEST_DIR").unwrap_or_else(|| ".".into());
    let folder = tempfile::tempdir_in(here).unwrap();
    let engine = Engine::new().unwrap();
    let files = make_files(folder.path(), &engine);
    println!("direct: {}", files[0].is_direct());
    let bufs = (0..READS).map(|_| AlignedBuf::new(BLOCK, BLOCK).unwrap());
    let bufs = Arc::new(Mutex::new(bufs.collect()));
    let stock = Stock { files, bufs };
    compare("run loop", |load| in_a_run_loop(&engine, &stock, load));
    let mut multi = tokio::runtime::Builder::new_multi_thread();
    let multi = multi.worker_threads(2).build().unwrap();
    compare("tokio, 2 threads", |load| in_tokio(&multi, &stock, load));
    idle();
}
