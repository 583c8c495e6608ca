//! Many files, each opened, read once and closed: what is known of the first ones has to be enough
//! for the others, and the way to the pool is too long for what takes a microsecond.
//!
//! `cargo bench -p inflight --bench first DIRECTORY`. The files are made there and removed; they
//! are read through the page cache, which has them, and directly where the file system can. Nothing
//! is asserted: the figures go to `docs/design/roads.md` and `docs/design/calls.md`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use inflight::fs::{Direct, File, OpenOptions, ReadAt};
use inflight::{AlignedBuf, Engine, Operation, Queue, local};
use rustix::fs::OFlags;

const ROUNDS: usize = 7;
const FILES: usize = 2000;
const DEPTH: usize = 32;
const BLOCK: usize = 4096;

fn buffer() -> AlignedBuf {
    AlignedBuf::new(BLOCK, BLOCK).unwrap()
}

/// The next file that nobody has taken.
fn taken(next: &AtomicUsize) -> Option<usize> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    (at < FILES).then_some(at)
}

fn by_threads(paths: &[PathBuf], direct: Direct, threads: usize) {
    let next = AtomicUsize::new(0);
    let flags = match direct {
        Direct::Required => i32::try_from(OFlags::DIRECT.bits()).unwrap(),
        _ => 0,
    };
    let open = |path: &Path| {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(flags).open(path).unwrap()
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buf = buffer();
                while let Some(at) = taken(&next) {
                    open(&paths[at]).read_exact_at(&mut buf, 0).unwrap();
                }
            });
        }
    });
}

fn reading(engine: &Engine, direct: Direct) -> OpenOptions {
    OpenOptions::new().read(true).direct(direct).engine(engine)
}

fn read_all<'f>(queue: &mut Queue<'_, '_, ReadAt<'f, AlignedBuf>>, files: &'f [File]) {
    let mut bufs: Vec<_> = (0..DEPTH).map(|_| buffer()).collect();
    for (tag, file) in (0..).zip(files) {
        let buf = bufs.pop().unwrap_or_else(|| {
            let (_, (read, buf)) = queue.next().unwrap();
            assert_eq!(read.unwrap(), BLOCK);
            buf
        });
        assert!(queue.push(tag, file.read_at(buf, 0)).is_ok());
    }
    while let Some((_, (read, _))) = queue.next() {
        assert_eq!(read.unwrap(), BLOCK);
    }
}

fn by_queue(paths: &[PathBuf], direct: Direct) {
    let engine = Engine::new().unwrap();
    let open = |path: &PathBuf| reading(&engine, direct).open(path).unwrap();
    let files: Vec<File> = paths.iter().map(open).collect();
    let depth = u32::try_from(DEPTH).unwrap();
    let run = engine.queue(depth, |queue| read_all(queue, &files));
    run.unwrap();
}

async fn take(paths: &[PathBuf], direct: Direct, next: &AtomicUsize, engine: &Engine) {
    let mut buf = buffer();
    while let Some(at) = taken(next) {
        let file = reading(engine, direct).opening(&paths[at]).await.unwrap();
        let (read, back) = file.read_at(buf, 0).await;
        assert_eq!(read.unwrap(), BLOCK);
        buf = back;
        file.close().await.unwrap();
    }
}

fn by_loop(paths: &Arc<[PathBuf]>, direct: Direct, tasks: usize) {
    let engine = Engine::new().unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let task = |_| {
        let (paths, next, engine) = (Arc::clone(paths), Arc::clone(&next), engine.clone());
        local::spawn(async move { take(&paths, direct, &next, &engine).await })
    };
    let run = engine.run(async {
        let tasks: Vec<_> = (0..tasks).map(task).collect();
        for task in tasks {
            task.await;
        }
    });
    run.unwrap();
}

fn by_tokio(paths: &Arc<[PathBuf]>, direct: Direct) {
    let engine = Engine::new().unwrap();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_io().build().unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let task = |_| {
        let (paths, next, engine) = (Arc::clone(paths), Arc::clone(&next), engine.clone());
        tokio::spawn(async move { take(&paths, direct, &next, &engine).await })
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..DEPTH).map(task).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn one_by_one(paths: &[PathBuf], direct: Direct) {
    let engine = Engine::new().unwrap();
    let mut buf = buffer();
    for path in paths {
        let file = reading(&engine, direct).open(path).unwrap();
        let (read, back) = file.read_at(buf, 0).wait();
        assert_eq!(read.unwrap(), BLOCK);
        buf = back;
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    // Cargo passes `--bench` too.
    let directory = std::env::args_os()
        .skip(1)
        .find(|argument| !argument.as_encoded_bytes().starts_with(b"-"));
    let Some(directory) = directory else {
        return println!("skipped: say where: cargo bench -p inflight --bench first DIRECTORY");
    };
    let directory = tempfile::tempdir_in(Path::new(&directory)).unwrap();
    let path = |number: usize| directory.path().join(number.to_string());
    let paths: Arc<[PathBuf]> = (0..FILES).map(path).collect();
    for path in &*paths {
        fs::write(path, [1; BLOCK]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    let can_be_direct = reading(Engine::global().unwrap(), Direct::Required)
        .open(&paths[0])
        .is_ok();
    compare(&paths, Direct::Off);
    match can_be_direct {
        true => compare(&paths, Direct::Required),
        false => println!("skipped: direct files: the file system has none"),
    }
}

fn compare(paths: &Arc<[PathBuf]>, direct: Direct) {
    let ways: [(&str, &dyn Fn()); 7] = [
        ("one thread of pread", &|| by_threads(paths, direct, 1)),
        ("threads of pread", &|| by_threads(paths, direct, DEPTH)),
        ("one by one", &|| one_by_one(paths, direct)),
        ("a queue", &|| by_queue(paths, direct)),
        ("a loop, one task", &|| by_loop(paths, direct, 1)),
        ("a loop", &|| by_loop(paths, direct, DEPTH)),
        ("tokio, two workers", &|| by_tokio(paths, direct)),
    ];
    let mut times = [const { Vec::new() }; 7];
    for round in 0..ROUNDS {
        for turn in 0..ways.len() {
            let way = (turn + round) % ways.len();
            let begun = Instant::now();
            (ways[way].1)();
            times[way].push(begun.elapsed().as_secs_f64() * 1e6 / FILES as f64);
        }
    }
    println!("microseconds a file, {DEPTH} at a time, direct: {direct:?}:");
    for ((name, _), times) in ways.iter().zip(times) {
        println!("{name}: {:.1}", median(times));
    }
}
