//! Many direct files, each opened and read once: what is known of the first ones has to be enough
//! for the others.
//!
//! `cargo bench -p inflight --bench first DIRECTORY`, on a file system with direct I/O. The files
//! are made there and removed. Nothing is asserted: the figures go to `docs/design/roads.md`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use inflight::fs::{File, OpenOptions, ReadAt};
use inflight::{AlignedBuf, Direct, Engine, Operation, Queue, local};
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

fn by_threads(paths: &[PathBuf], threads: usize) {
    let next = AtomicUsize::new(0);
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
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

fn direct(engine: &Engine) -> OpenOptions {
    let options = OpenOptions::new().read(true).direct(Direct::Required);
    options.engine(engine)
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

fn by_queue(paths: &[PathBuf]) {
    let engine = Engine::new().unwrap();
    let open = |path: &PathBuf| direct(&engine).open(path).unwrap();
    let files: Vec<File> = paths.iter().map(open).collect();
    let depth = u32::try_from(DEPTH).unwrap();
    let run = engine.queue(depth, |queue| read_all(queue, &files));
    run.unwrap();
}

fn by_loop(paths: &Rc<[PathBuf]>) {
    let engine = Engine::new().unwrap();
    let next = Rc::new(Cell::new(0));
    let task = |_| {
        let (paths, next, engine) = (Rc::clone(paths), Rc::clone(&next), engine.clone());
        local::spawn(async move {
            let mut buf = buffer();
            while next.get() < FILES {
                let path = &paths[next.replace(next.get() + 1)];
                let file = direct(&engine).opening(path).await.unwrap();
                let (read, back) = file.read_at(buf, 0).await;
                assert_eq!(read.unwrap(), BLOCK);
                buf = back;
            }
        })
    };
    let run = engine.run(async {
        let tasks: Vec<_> = (0..DEPTH).map(task).collect();
        for task in tasks {
            task.await;
        }
    });
    run.unwrap();
}

fn one_by_one(paths: &[PathBuf]) {
    let engine = Engine::new().unwrap();
    let mut buf = buffer();
    for path in paths {
        let file = direct(&engine).open(path).unwrap();
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
    let paths: Rc<[PathBuf]> = (0..FILES).map(path).collect();
    for path in &*paths {
        fs::write(path, [1; BLOCK]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    let ways: [(&str, &dyn Fn()); 5] = [
        ("one thread of pread", &|| by_threads(&paths, 1)),
        ("threads of pread", &|| by_threads(&paths, DEPTH)),
        ("one by one", &|| one_by_one(&paths)),
        ("a queue", &|| by_queue(&paths)),
        ("a loop", &|| by_loop(&paths)),
    ];
    let mut times = [const { Vec::new() }; 5];
    for round in 0..ROUNDS {
        for turn in 0..ways.len() {
            let way = (turn + round) % ways.len();
            let begun = Instant::now();
            (ways[way].1)();
            times[way].push(begun.elapsed().as_secs_f64() * 1e6 / FILES as f64);
        }
    }
    println!("microseconds a file, opened and read once, {DEPTH} at a time:");
    for ((name, _), times) in ways.iter().zip(times) {
        println!("{name}: {:.1}", median(times));
    }
}
