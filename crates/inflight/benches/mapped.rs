//! Reads of what the page cache has, by a mapping written by hand, through a file that is
//! [`inflight::fs::OpenOptions::mapped`], and by `pread`.
//!
//! `cargo bench -p inflight --bench mapped` prints for each way the median of interleaved rounds,
//! and its ratio to the mapping. Nothing is asserted.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use std::fs::File as StdFile;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use inflight::fs::{File, OpenOptions};
use inflight::{Engine, Operation};

const BLOCK: usize = 4096;
const BLOCKS: usize = 65_536;
const READS: usize = 100_000;
const ROUNDS: usize = 21;

/// Blocks in an order that no read-ahead follows, another one for each call.
fn blocks(seed: usize) -> impl Iterator<Item = usize> {
    (0..READS).map(move |at| (at + seed).wrapping_mul(2_654_435_761) % BLOCKS)
}

/// A mapping written by hand.
struct Bare {
    start: *const u8,
}

impl Bare {
    fn new(file: &StdFile) -> Self {
        // SAFETY: a mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCKS * BLOCK,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self {
            start: start.cast(),
        }
    }

    fn read(&self, buf: &mut [u8], block: usize) {
        let from = self.start.wrapping_add(block * BLOCK);
        // SAFETY: the file is that large, nobody changes it, and the buffer holds a block.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), BLOCK) };
        black_box(&buf);
    }
}

fn awaited(engine: &Engine, file: &File, seed: usize, tasks: usize) {
    let run = async {
        // One task is as many reads as all of them.
        let each = READS / tasks;
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let mut blocks = blocks(seed + task * each);
                async move {
                    let mut buf = vec![0; BLOCK];
                    for block in blocks.by_ref().take(each) {
                        let (result, back) = file.read_at(buf, (block * BLOCK) as u64).await;
                        assert_eq!(result.unwrap(), BLOCK);
                        buf = back;
                    }
                }
            })
            .collect();
        for task in tasks {
            task.await;
        }
    };
    engine.run(run).unwrap();
}

/// A way of reading, given a seed.
type Way<'w> = Box<dyn FnMut(usize) + 'w>;

/// Runs the ways in turns and prints what each took beside the first.
fn compare(ways: &mut [(&str, Way<'_>)]) {
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..=ROUNDS {
        for at in 0..ways.len() {
            let way = (at + round) % ways.len();
            let start = Instant::now();
            ways[way].1(round * READS);
            // The first round maps the pages.
            if round > 0 {
                times[way].push(start.elapsed().as_nanos() as f64 / READS as f64);
            }
        }
    }
    for (at, (name, _)) in ways.iter().enumerate() {
        let median = |mut of: Vec<f64>| {
            of.sort_by(f64::total_cmp);
            (of[ROUNDS / 4], of[ROUNDS / 2], of[ROUNDS - 1 - ROUNDS / 4])
        };
        let (_, time, _) = median(times[at].clone());
        let ratios = times[at]
            .iter()
            .zip(&times[0])
            .map(|(time, bare)| time / bare);
        let (low, ratio, high) = median(ratios.collect());
        println!("{name:18} {time:7.0} ns, to the mapping {ratio:.3} ({low:.3} to {high:.3})");
    }
}

fn main() {
    let folder = std::env::var_os("INFLIGHT_TEST_DIR").unwrap_or_else(|| ".".into());
    let scratch = tempfile::NamedTempFile::new_in(folder).unwrap();
    let block: Vec<u8> = (0..=250).cycle().take(BLOCK).collect();
    for at in 0..BLOCKS as u64 {
        let at = at * BLOCK as u64;
        scratch.as_file().write_all_at(&block, at).unwrap();
    }
    let engine = Engine::new().unwrap();
    let open = || OpenOptions::new().read(true).engine(&engine);
    let plain = open().open(scratch.path()).unwrap();
    // SAFETY: nobody changes the scratch file until this program ends.
    let mapped = unsafe { open().mapped() }.open(scratch.path()).unwrap();
    assert!(mapped.is_mapped());
    let std_file = StdFile::open(scratch.path()).unwrap();
    let bare = Bare::new(&std_file);
    let wait = |file: &File, seed| {
        let mut spare = Some(vec![0; BLOCK]);
        for block in blocks(seed) {
            let read = file.read_at(spare.take().unwrap(), (block * BLOCK) as u64);
            let (result, buf) = read.wait();
            assert_eq!(result.unwrap(), BLOCK);
            spare = Some(buf);
        }
    };
    let mut buf = vec![0; BLOCK];
    let mut other = vec![0; BLOCK];
    let mut ways: Vec<(&str, Way<'_>)> = vec![
        (
            "mapping by hand",
            Box::new(|seed| blocks(seed).for_each(|block| bare.read(&mut buf, block))),
        ),
        (
            "pread",
            Box::new(|seed| {
                for block in blocks(seed) {
                    let at = (block * BLOCK) as u64;
                    assert_eq!(std_file.read_at(&mut other, at).unwrap(), BLOCK);
                }
            }),
        ),
        ("wait", Box::new(|seed| wait(&plain, seed))),
        ("wait, mapped", Box::new(|seed| wait(&mapped, seed))),
        (
            "run loop",
            Box::new(|seed| awaited(&engine, &plain, seed, 1)),
        ),
        (
            "run loop, mapped",
            Box::new(|seed| awaited(&engine, &mapped, seed, 1)),
        ),
    ];
    compare(&mut ways);
}
