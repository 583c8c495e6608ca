//! Random reads of a file of which the page cache has the part that is read mostly, beside a thread
//! that asks the page cache and gives a ring the rest, and as many threads of `pread`.
//!
//! `cargo bench -p inflight --bench misses FILE`, a file of 1 GiB or more on a disk: 4 KiB reads of
//! its first 64 MiB, and one in so many of the rest, where no block is read twice. Nothing is
//! asserted: the figures go to `docs/design/roads.md`.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::File;
use inflight::{Engine, local};
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Advice, fadvise};

const ROUNDS: usize = 5;
const CELL: Duration = Duration::from_secs(1);
const DEPTH: usize = 32;
const BLOCK: usize = 4096;
/// Blocks that are read mostly.
const HOT: u64 = 16_384;
/// Reads between two looks at the clock.
const LOOK_EVERY: u64 = 64;

/// Which blocks are read: xorshift, and the others one after the other in steps that meet all.
struct Offsets {
    state: u64,
    missing: f64,
    cold: u64,
    next: u64,
}

impl Offsets {
    fn new(path: &Path, missing: f64, seed: u64) -> Self {
        let cold = path.metadata().unwrap().len() / BLOCK as u64 - HOT;
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            missing,
            cold,
            next: seed.wrapping_mul(7919) % cold,
        }
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn next(&mut self) -> u64 {
        let block = match (self.random() >> 11) as f64 / ((1_u64 << 53) as f64) < self.missing {
            true => {
                self.next = (self.next + 483_059) % self.cold;
                HOT + self.next
            }
            false => self.random() % HOT,
        };
        block * BLOCK as u64
    }
}

/// Evicts the file, and reads what is read mostly.
fn prepare(path: &Path) -> StdFile {
    let file = StdFile::open(path).unwrap();
    for advice in [Advice::DontNeed, Advice::Random] {
        fadvise(&file, 0, None, advice).unwrap();
    }
    let mut block = vec![0; BLOCK];
    for at in 0..HOT {
        file.read_exact_at(&mut block, at * BLOCK as u64).unwrap();
    }
    file
}

/// Counts reads, and tells when it is over.
struct Count {
    reads: u64,
    begun: Instant,
}

impl Count {
    fn new() -> Self {
        Self {
            reads: 0,
            begun: Instant::now(),
        }
    }

    fn goes_on(&mut self) -> bool {
        self.reads += 1;
        !self.reads.is_multiple_of(LOOK_EVERY) || self.begun.elapsed() < CELL
    }
}

/// What one thread does by hand: a call that does not wait, and the ring for the rest.
fn by_hand(path: &Path, mut offsets: Offsets) -> u64 {
    let file = prepare(path);
    let fd = file.as_raw_fd();
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(64)
        .unwrap();
    let mut blocks = vec![vec![0_u8; BLOCK]; DEPTH];
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let mut count = Count::new();
    let reap = |ring: &mut IoUring, at_least: usize, free: &mut Vec<usize>| {
        ring.submit_and_wait(at_least).unwrap();
        let mut reaped = 0;
        for done in ring.completion() {
            assert_eq!(usize::try_from(done.result()), Ok(BLOCK));
            free.push(usize::try_from(done.user_data()).unwrap());
            reaped += 1;
        }
        reaped
    };
    loop {
        let Some(at) = free.pop() else {
            count.reads += reap(&mut ring, 1, &mut free);
            continue;
        };
        let (start, offset) = (blocks[at].as_mut_ptr(), offsets.next());
        let one = libc::iovec {
            iov_base: start.cast(),
            iov_len: BLOCK,
        };
        let signed = i64::try_from(offset).unwrap();
        // SAFETY: the block is there as long as this lasts, and nobody else uses it now.
        let read = unsafe { libc::preadv2(fd, &raw const one, 1, signed, libc::RWF_NOWAIT) };
        if usize::try_from(read) == Ok(BLOCK) {
            free.push(at);
            if !count.goes_on() {
                break;
            }
            if count.reads.is_multiple_of(16) && free.len() < DEPTH {
                count.reads += reap(&mut ring, 0, &mut free);
            }
        } else {
            let read = opcode::Read::new(types::Fd(fd), start, 4096).offset(offset);
            let entry = read.build().user_data(at as u64);
            // SAFETY: as above, until it has been reaped.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit().unwrap();
        }
    }
    while free.len() < DEPTH {
        count.reads += reap(&mut ring, 1, &mut free);
    }
    count.reads
}

fn by_threads(path: &Path, missing: f64, seed: u64) -> u64 {
    prepare(path);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..DEPTH as u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut offsets = Offsets::new(path, missing, seed + 1 + thread * 104_729);
                    let file = StdFile::open(path).unwrap();
                    let (mut block, mut count) = (vec![0; BLOCK], Count::new());
                    loop {
                        file.read_exact_at(&mut block, offsets.next()).unwrap();
                        if !count.goes_on() {
                            return count.reads;
                        }
                    }
                })
            })
            .collect();
        let reads = threads.into_iter().map(|thread| thread.join().unwrap());
        reads.sum()
    })
}

fn opened(engine: &Engine, path: &Path) -> File {
    let options = inflight::fs::OpenOptions::new().read(true).engine(engine);
    options.open(path).unwrap()
}

fn by_queue(path: &Path, mut offsets: Offsets) -> u64 {
    prepare(path);
    let engine = Engine::new().unwrap();
    let file = opened(&engine, path);
    let mut count = Count::new();
    let run = |queue: &mut inflight::Queue<'_, '_, _>| {
        for _ in 0..DEPTH {
            let read = file.read_at(vec![0; BLOCK], offsets.next());
            assert!(queue.push(0, read).is_ok());
        }
        let mut goes_on = true;
        while let Some((_, (read, block))) = queue.next() {
            assert_eq!(read.unwrap(), BLOCK);
            goes_on &= count.goes_on();
            if goes_on {
                let read = file.read_at(block, offsets.next());
                assert!(queue.push(0, read).is_ok());
            }
        }
    };
    engine.queue(u32::try_from(DEPTH).unwrap(), run).unwrap();
    count.reads
}

fn by_loop(path: &Path, offsets: Offsets) -> u64 {
    prepare(path);
    let engine = Engine::new().unwrap();
    let file = Rc::new(opened(&engine, path));
    let offsets = Rc::new(RefCell::new(offsets));
    let count = Rc::new(RefCell::new(Count::new()));
    let is_over = Rc::new(Cell::new(false));
    let task = |_| {
        let (file, offsets) = (Rc::clone(&file), Rc::clone(&offsets));
        let (count, is_over) = (Rc::clone(&count), Rc::clone(&is_over));
        local::spawn(async move {
            let mut block = vec![0; BLOCK];
            while !is_over.get() {
                let offset = offsets.borrow_mut().next();
                let (read, back) = file.read_at(block, offset).await;
                assert_eq!(read.unwrap(), BLOCK);
                block = back;
                if !count.borrow_mut().goes_on() {
                    is_over.set(true);
                }
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
    let count = count.borrow();
    count.reads
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    // Cargo passes `--bench` too.
    let path = std::env::args_os()
        .skip(1)
        .find(|argument| !argument.as_encoded_bytes().starts_with(b"-"));
    let Some(path) = path else {
        return println!("skipped: say which file: cargo bench -p inflight --bench misses FILE");
    };
    let path = Path::new(&path);
    println!("thousand reads a second: by hand, {DEPTH} threads, a queue, a loop");
    for missing in [0.0, 0.001, 0.003, 0.01, 0.05, 0.2] {
        let mut rates = [const { Vec::new() }; 4];
        for round in 0..ROUNDS {
            for turn in 0..4 {
                let way = (turn + round) % 4;
                let seed = (round * 4 + turn + 1) as u64;
                let offsets = Offsets::new(path, missing, seed);
                let reads = match way {
                    0 => by_hand(path, offsets),
                    1 => by_threads(path, missing, seed),
                    2 => by_queue(path, offsets),
                    _ => by_loop(path, offsets),
                };
                rates[way].push(reads as f64 / CELL.as_secs_f64() / 1e3);
            }
        }
        let [hand, threads, queue, tasks] = rates.map(median);
        println!("{missing:5} missing: {hand:.0}, {threads:.0}, {queue:.0}, {tasks:.0}");
    }
}
