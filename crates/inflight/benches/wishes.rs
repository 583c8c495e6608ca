//! What the wishes of a single transfer cost and bring, and what a range costs that is not aligned.
//!
//! `cargo bench -p inflight --bench wishes DIRECTORY [CASE]..` makes a file of 256 MiB there, which
//! goes in the end. Each way of a case is timed in turn; a line has its median, the ratio to the
//! first way of the case with the range that holds the middle half, its processor time, and what it
//! leaves of the file in the page cache. Nothing is asserted: the figures go to
//! `docs/design/wishes.md` and `docs/design/any-range.md`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::env;
use std::fs::{self, File as StdFile};
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use inflight::fs::{AnyRange, Direct, File, OpenOptions, ReadAt, WriteAt};
use inflight::{AlignedBuf, Engine, Operation, Queue};
use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::time::{ClockId, clock_gettime};
use tempfile::NamedTempFile;

const ROUNDS: usize = 15;
const FILE_BYTES: u64 = 256 << 20;
const BLOCK: usize = 4096;
/// Bytes of those that go through the file from its beginning, and how many are in flight.
const LARGE: usize = 128 << 10;
const LARGE_DEPTH: usize = 8;
/// Bytes of those that are not aligned.
const SMALL: usize = 1000;
/// Where such a one begins in its block.
const INTO: u64 = 100;
const READS: u64 = 4096;
const WRITES: u64 = 512;

type Ask<'f, O> = fn(&'f File, AlignedBuf, u64) -> O;

/// What all ways work with.
struct Means {
    named: NamedTempFile,
    engine: Engine,
    random: u64,
}

impl Means {
    fn new(directory: &Path) -> Self {
        let named = NamedTempFile::new_in(directory).unwrap();
        // No holes: those are read as no device is.
        let bytes = vec![0xa5; usize::try_from(FILE_BYTES).unwrap()];
        fs::write(&named, bytes).unwrap();
        Self {
            named,
            engine: Engine::new().unwrap(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn open(&self, direct: Direct, any_range: AnyRange) -> File {
        let options = OpenOptions::new().read(true).write(true);
        let options = options.direct(direct).any_range(any_range);
        options.engine(&self.engine).open(&self.named).unwrap()
    }

    fn cached(&self) -> File {
        self.open(Direct::Off, AnyRange::Off)
    }

    fn direct(&self) -> File {
        self.open(Direct::Required, AnyRange::Off)
    }

    fn auto(&self) -> File {
        self.open(Direct::Auto, AnyRange::Off)
    }

    fn any_range(&self) -> File {
        self.open(Direct::Required, AnyRange::ReadsAndWrites)
    }

    /// Takes the file out of the page cache.
    fn evict(&self) {
        let file = StdFile::open(&self.named).unwrap();
        fdatasync(&file).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }

    /// How much of the file the page cache has, in percent; some of its blocks are looked at.
    fn resident(&self) -> f64 {
        let file = self.cached();
        // What is refused is read ahead too.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let is_there = |block: &u64| file.read_at(vec![0], *block).no_wait().wait().0.is_ok();
        let looked_at = || (0..FILE_BYTES).step_by(61 * BLOCK);
        100.0 * looked_at().filter(is_there).count() as f64 / looked_at().count() as f64
    }

    /// Where different blocks begin that are far apart, in another order each time.
    fn blocks(&mut self, count: u64) -> impl Iterator<Item = u64> + use<> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (first, all) = (self.random, FILE_BYTES / BLOCK as u64);
        // Odd, so that the steps meet each block.
        let number = move |step: u64| first.wrapping_add(step * 40_503) % all;
        (0..count).map(move |step| number(step) * BLOCK as u64)
    }
}

/// Has so many operations of so many bytes in flight, one at each offset.
fn keep_full<'f, O>(
    file: &'f File,
    (depth, bytes): (usize, usize),
    mut offsets: impl Iterator<Item = u64>,
    ask: Ask<'f, O>,
    mut use_block: impl FnMut(&AlignedBuf),
) -> u64
where
    O: Operation<Output = (io::Result<usize>, AlignedBuf)>,
{
    let block = |_| file.aligned_buf(bytes).unwrap();
    let mut spare: Vec<AlignedBuf> = (0..depth).map(block).collect();
    let run = |queue: &mut Queue<'_, '_, O>| {
        let mut done = 0;
        loop {
            while let Some(block) = spare.pop()
                && let Some(offset) = offsets.next()
            {
                assert!(queue.push(0, ask(file, block, offset)).is_ok());
            }
            let Some((_, (moved, block))) = queue.next() else {
                return done;
            };
            assert_eq!(moved.unwrap(), bytes);
            use_block(&block);
            spare.push(block);
            done += 1;
        }
    };
    let depth = u32::try_from(depth).unwrap();
    file.engine().queue(depth, run).unwrap()
}

fn read(file: &File, block: AlignedBuf, offset: u64) -> ReadAt<'_, AlignedBuf> {
    file.read_at(block, offset)
}

fn write(file: &File, block: AlignedBuf, offset: u64) -> WriteAt<'_, AlignedBuf> {
    file.write_at(block, offset)
}

/// Reads the file from its beginning to its end.
fn read_through<'f>(file: &'f File, ask: Ask<'f, ReadAt<'f, AlignedBuf>>) -> u64 {
    let offsets = (0..FILE_BYTES).step_by(LARGE);
    keep_full(file, (LARGE_DEPTH, LARGE), offsets, ask, |_| ())
}

/// Writes the file from its beginning to its end, durably.
fn write_through<'f>(file: &'f File, ask: Ask<'f, WriteAt<'f, AlignedBuf>>) -> u64 {
    let offsets = (0..FILE_BYTES).step_by(LARGE);
    let done = keep_full(file, (LARGE_DEPTH, LARGE), offsets, ask, |_| ());
    file.sync_data().wait().unwrap();
    done
}

/// Reads blocks that are far apart, one at a time.
fn read_alone(means: &mut Means, is_to_wait: bool) -> u64 {
    let file = means.cached();
    let mut block = file.aligned_buf(BLOCK).unwrap();
    for offset in means.blocks(READS) {
        let read = file.read_at(block, offset);
        let (read, back) = match is_to_wait {
            true => read.wait(),
            false => read.no_wait().wait(),
        };
        match read {
            Ok(bytes) => assert_eq!(bytes, BLOCK),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        block = back;
    }
    READS
}

/// Reads ranges within blocks that are far apart.
fn read_small(means: &mut Means, file: &File, depth: usize) -> u64 {
    let offsets = means.blocks(READS).map(|block| block + INTO);
    keep_full(file, (depth, SMALL), offsets, read, |_| ())
}

/// Reads the blocks that have such ranges, and copies these.
fn small_reads_by_hand<const DEPTH: usize>(means: &mut Means) -> u64 {
    let file = means.direct();
    let mut small = [0; SMALL];
    let into = usize::try_from(INTO).unwrap();
    let copy = |block: &AlignedBuf| {
        small.copy_from_slice(&block[into..into + SMALL]);
        black_box(&small);
    };
    keep_full(&file, (DEPTH, BLOCK), means.blocks(READS), read, copy)
}

fn small_reads_of_any_range<const DEPTH: usize>(means: &mut Means) -> u64 {
    let file = means.any_range();
    read_small(means, &file, DEPTH)
}

fn small_reads_by_the_cache<const DEPTH: usize>(means: &mut Means) -> u64 {
    let file = means.auto();
    read_small(means, &file, DEPTH)
}

/// Writes ranges within blocks that are far apart, durably.
fn write_small(means: &mut Means, file: &File, depth: usize) -> u64 {
    let offsets = means.blocks(WRITES).map(|block| block + INTO);
    let done = keep_full(file, (depth, SMALL), offsets, write, |_| ());
    file.sync_data().wait().unwrap();
    done
}

fn small_writes_by_the_cache<const DEPTH: usize>(means: &mut Means) -> u64 {
    let file = means.auto();
    write_small(means, &file, DEPTH)
}

fn small_writes_of_any_range<const DEPTH: usize>(means: &mut Means) -> u64 {
    let file = means.any_range();
    write_small(means, &file, DEPTH)
}

/// Does some operations, and says how many.
type Way = fn(&mut Means) -> u64;

struct Case {
    name: &'static str,
    /// Whether the page cache has the file when it begins; else it has nothing of it.
    is_cached: bool,
    ways: &'static [(&'static str, Way)],
}

const LARGE_READS: &[(&str, Way)] = &[
    ("cached", |means| read_through(&means.cached(), read)),
    ("dont_cache", |means| {
        let ask = |file, block, at| read(file, block, at).dont_cache();
        read_through(&means.cached(), ask)
    }),
    ("direct", |means| read_through(&means.direct(), read)),
];

const LARGE_WRITES: &[(&str, Way)] = &[
    ("cached", |means| write_through(&means.cached(), write)),
    ("dont_cache", |means| {
        let ask = |file, block, at| write(file, block, at).dont_cache();
        write_through(&means.cached(), ask)
    }),
    ("direct", |means| write_through(&means.direct(), write)),
];

const ALONE: &[(&str, Way)] = &[
    ("waits", |means| read_alone(means, true)),
    ("no_wait", |means| read_alone(means, false)),
];

const fn small_reads<const DEPTH: usize>() -> &'static [(&'static str, Way)] {
    &[
        ("by-hand", small_reads_by_hand::<DEPTH>),
        ("any_range", small_reads_of_any_range::<DEPTH>),
        ("auto", small_reads_by_the_cache::<DEPTH>),
    ]
}

const fn small_writes<const DEPTH: usize>() -> &'static [(&'static str, Way)] {
    &[
        ("auto", small_writes_by_the_cache::<DEPTH>),
        ("any_range", small_writes_of_any_range::<DEPTH>),
    ]
}

const fn case(name: &'static str, is_cached: bool, ways: &'static [(&'static str, Way)]) -> Case {
    Case {
        name,
        is_cached,
        ways,
    }
}

const CASES: [Case; 8] = [
    case("large-reads", false, LARGE_READS),
    case("large-writes", false, LARGE_WRITES),
    case("hits", true, ALONE),
    case("misses", false, ALONE),
    case("small-reads-1", false, small_reads::<1>()),
    case("small-reads-32", false, small_reads::<32>()),
    case("small-writes-1", false, small_writes::<1>()),
    case("small-writes-8", false, small_writes::<8>()),
];

/// What a round of a way was.
#[derive(Clone, Copy)]
struct Round {
    /// Of one operation.
    us: f64,
    cpu_us: f64,
    resident: f64,
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(now).unwrap()
}

fn round(means: &mut Means, is_cached: bool, way: Way) -> Round {
    match is_cached {
        true => drop(fs::read(&means.named).unwrap()),
        false => means.evict(),
    }
    let (begun, cpu) = (Instant::now(), cpu_time());
    let count = way(means) as f64;
    let (took, cpu) = (begun.elapsed(), cpu_time() - cpu);
    Round {
        us: took.as_secs_f64() * 1e6 / count,
        cpu_us: cpu.as_secs_f64() * 1e6 / count,
        resident: means.resident(),
    }
}

fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn compare(means: &mut Means, case: &Case) {
    println!("{}", case.name);
    let mut rounds = vec![Vec::new(); case.ways.len()];
    for number in 0..ROUNDS {
        for turn in 0..case.ways.len() {
            let at = (turn + number) % case.ways.len();
            rounds[at].push(round(means, case.is_cached, case.ways[at].1));
        }
    }
    for ((name, _), of_way) in case.ways.iter().zip(&rounds) {
        let of_first = of_way.iter().zip(&rounds[0]);
        let [low, ratio, high] = quartiles(of_first.map(|(one, first)| one.us / first.us));
        let median = |of: fn(&Round) -> f64| quartiles(of_way.iter().map(of))[1];
        let us = median(|round| round.us);
        let cpu_us = median(|round| round.cpu_us);
        let resident = median(|round| round.resident);
        println!(
            "  {name:<10} {us:8.2} us  {ratio:.2} ({low:.2} to {high:.2})  CPU {cpu_us:7.2} us  \
             {resident:3.0} % cached after",
        );
    }
}

fn main() {
    // Cargo adds an argument of its own.
    let mut arguments = env::args().skip(1).filter(|one| !one.starts_with("--"));
    let Some(directory) = arguments.next() else {
        return println!("skipped: say where: cargo bench -p inflight --bench wishes DIRECTORY");
    };
    let wanted: Vec<String> = arguments.collect();
    let mut means = Means::new(Path::new(&directory));
    for case in &CASES {
        if wanted.is_empty() || wanted.iter().any(|one| one == case.name) {
            compare(&mut means, case);
        }
    }
}
