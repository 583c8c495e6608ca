//! The library's own part of an operation: no-ops and direct 4 KiB reads, beside loops on the
//! `io-uring` crate that do the same.
//!
//! Without arguments, `cargo bench -p inflight --bench hot_path` prints for each case and depth
//! the median ratios of time and of CPU time over interleaved rounds, with the range that holds
//! the middle half of them. With a case, a number of operations and a depth it runs only these,
//! so that a simulator can count instructions: the difference between two numbers of operations
//! is what they cost. Nothing is asserted: the figures go to `docs/measurements`. The file lies in
//! `INFLIGHT_TEST_DIR`, or in the temporary directory.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod bare;

use std::fs::File as StdFile;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{Batch, BufPool, Engine, Operation, ReadInto, read_many};
use io_uring::{IoUring, opcode, types};

const BLOCK: usize = 4096;
const BYTES: u32 = 4096;
const BLOCKS: u64 = 16 << 10;
const ROUNDS: usize = 21;

/// Rounds of so many operations.
const NOPS: usize = 64_000;
const READS: usize = 16_000;

/// What is measured, and the loop written by hand that does the same.
const CASES: [(&str, Run, Run); 7] = [
    ("nop-alone", nop_alone, bare_nops),
    ("nop-batch", nop_batch, bare_nops),
    ("nop-run-loop", nop_run_loop, bare_nops),
    ("read-alone", read_alone, bare_reads),
    ("read-batch", read_batch, bare_batches),
    ("read-queue", read_queue, bare_reads),
    ("read-many", read_many_, bare_borrowed),
];

type Run = fn(&mut Means, usize, usize);

/// What all cases work with.
struct Means {
    engine: Engine,
    ring: IoUring,
    path: PathBuf,
    file: File,
    seed: u64,
}

impl Means {
    fn new(path: &Path) -> Self {
        let engine = Engine::new().unwrap();
        let options = OpenOptions::new().read(true).direct(Direct::Required);
        let file = options.engine(&engine).open(path).unwrap();
        Self {
            engine,
            ring: bare::ring(),
            path: path.to_owned(),
            file,
            seed: 88_172_645_463_325_252,
        }
    }
}

/// The next offset: xorshift, so that read-ahead and the device's cache have no part.
#[inline(always)]
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 20) % BLOCKS * BLOCK as u64
}

fn nop_alone(means: &mut Means, ops: usize, _depth: usize) {
    (0..ops).for_each(|_| means.engine.nop().wait().unwrap());
}

fn nop_batch(means: &mut Means, ops: usize, depth: usize) {
    let mut batch = Batch::on(&means.engine);
    for _ in 0..ops / depth {
        (0..depth).for_each(|_| batch.push(means.engine.nop()));
        batch.wait().for_each(|result| result.unwrap());
    }
}

fn nop_run_loop(means: &mut Means, ops: usize, depth: usize) {
    let engine = &means.engine;
    let run = async {
        let task = || {
            let engine = engine.clone();
            inflight::local::spawn(async move {
                for _ in 0..ops / depth {
                    engine.nop().await.unwrap();
                }
            })
        };
        let tasks: Vec<_> = (0..depth).map(|_| task()).collect();
        for task in tasks {
            task.await;
        }
    };
    engine.run(run).unwrap();
}

fn bare_nops(means: &mut Means, ops: usize, depth: usize) {
    bare::nops(&mut means.ring, ops, depth);
}

fn read_alone(means: &mut Means, ops: usize, _depth: usize) {
    let pool = BufPool::new(1, BLOCK).unwrap();
    let mut spare = pool.take().unwrap();
    for _ in 0..ops {
        let read = means.file.read_at(spare, next(&mut means.seed));
        let (result, buf) = read.wait();
        assert_eq!(result.unwrap(), BLOCK);
        spare = buf;
    }
}

fn read_batch(means: &mut Means, ops: usize, depth: usize) {
    let pool = BufPool::new(u32::try_from(depth).unwrap(), BLOCK).unwrap();
    let mut spare: Vec<_> = (0..depth).map(|_| pool.take().unwrap()).collect();
    let mut batch = Batch::on(&means.engine);
    for _ in 0..ops / depth {
        for buf in spare.drain(..) {
            batch.push(means.file.read_at(buf, next(&mut means.seed)));
        }
        spare.extend(batch.wait().map(|(result, buf)| {
            assert_eq!(result.unwrap(), BLOCK);
            buf
        }));
    }
}

fn read_queue(means: &mut Means, ops: usize, depth: usize) {
    let pool = BufPool::new(u32::try_from(depth).unwrap(), BLOCK).unwrap();
    let (file, seed) = (&means.file, &mut means.seed);
    let run = means.engine.queue(u32::try_from(depth).unwrap(), |queue| {
        for tag in 0..depth as u64 {
            let read = file.read_at(pool.take().unwrap(), next(seed));
            assert!(queue.push(tag, read).is_ok());
        }
        for _ in 0..ops - depth {
            let (tag, (result, buf)) = queue.next().unwrap();
            assert_eq!(result.unwrap(), BLOCK);
            assert!(queue.push(tag, file.read_at(buf, next(seed))).is_ok());
        }
        while let Some((_, (result, _))) = queue.next() {
            assert_eq!(result.unwrap(), BLOCK);
        }
    });
    run.unwrap();
}

fn read_many_(means: &mut Means, ops: usize, depth: usize) {
    let pool = BufPool::new(u32::try_from(depth).unwrap(), BLOCK).unwrap();
    let mut bufs: Vec<_> = (0..depth).map(|_| pool.take().unwrap()).collect();
    for _ in 0..ops / depth {
        let (file, seed) = (&means.file, &mut means.seed);
        let reads = bufs.iter_mut();
        let mut reads: Vec<_> = reads
            .map(|buf| ReadInto::new(file, next(seed), buf))
            .collect();
        read_many(&mut reads).unwrap();
        let sums = reads.iter().map(|read| read.result().unwrap());
        assert_eq!(sums.sum::<usize>(), depth * BLOCK);
    }
}

/// How many completions a loop by hand waits for; the library's own rule (`policy.rs`).
fn wait_for(in_flight: usize) -> usize {
    match in_flight {
        0..16 => 1,
        _ => (in_flight / 4).min(8),
    }
}

/// Keeps the ring full, with file, buffers and ring registered.
fn bare_reads(means: &mut Means, ops: usize, depth: usize) {
    bare(means, ops, depth, (false, true));
}

/// The same, one batch after the other.
fn bare_batches(means: &mut Means, ops: usize, depth: usize) {
    bare(means, ops / depth * depth, depth, (true, true));
}

/// The same without registered buffers: borrowed memory is not known to a ring.
fn bare_borrowed(means: &mut Means, ops: usize, depth: usize) {
    bare(means, ops / depth * depth, depth, (true, false));
}

fn bare(means: &mut Means, ops: usize, depth: usize, (batched, registered): (bool, bool)) {
    let options = StdFile::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .to_owned();
    let file = options.open(&means.path).unwrap();
    let pool = BufPool::new(u32::try_from(depth).unwrap(), BLOCK).unwrap();
    let mut bufs: Vec<_> = (0..depth).map(|_| pool.take().unwrap()).collect();
    let iovecs: Vec<_> = bufs
        .iter_mut()
        .map(|buf| libc::iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: BLOCK,
        })
        .collect();
    let seed = &mut means.seed;
    let (mut submitter, mut queue, mut completions) = means.ring.split();
    submitter.register_files(&[file.as_raw_fd()]).unwrap();
    // SAFETY: the buffers live until they are unregistered below.
    unsafe { submitter.register_buffers(&iovecs).unwrap() };
    submitter.register_ring_fd().unwrap();
    let (mut begun, mut in_flight) = (0, 0);
    let mut free: Vec<usize> = (0..depth).collect();
    while begun < ops || in_flight > 0 {
        if !batched || in_flight == 0 {
            while begun < ops
                && let Some(at) = free.pop()
            {
                let (start, place) = (iovecs[at].iov_base.cast(), u16::try_from(at).unwrap());
                let (file, offset) = (types::Fixed(0), next(seed));
                let entry = match registered {
                    true => opcode::ReadFixed::new(file, start, BYTES, place)
                        .offset(offset)
                        .build(),
                    false => opcode::Read::new(file, start, BYTES).offset(offset).build(),
                };
                let entry = entry.user_data(at as u64);
                // SAFETY: each buffer is in flight once at a time, and lives until all are back.
                unsafe { queue.push(&entry).unwrap() };
                begun += 1;
                in_flight += 1;
            }
        }
        queue.sync();
        completions.sync();
        let at_least = match batched {
            true => in_flight,
            false => wait_for(in_flight),
        };
        submitter.submit_and_wait(at_least).unwrap();
        queue.sync();
        completions.sync();
        for entry in &mut completions {
            assert_eq!(usize::try_from(entry.result()), Ok(BLOCK));
            free.push(usize::try_from(entry.user_data()).unwrap());
            in_flight -= 1;
        }
    }
    submitter.unregister_buffers().unwrap();
    submitter.unregister_files().unwrap();
    submitter.unregister_ring_fd().unwrap();
}

/// Nanoseconds of processor time that this process has had.
fn cpu_ns() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is ours to be filled.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(told, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Time and CPU time of one operation, in nanoseconds.
fn measured(means: &mut Means, run: Run, ops: usize, depth: usize) -> [f64; 2] {
    let (cpu, start) = (cpu_ns(), Instant::now());
    run(means, ops, depth);
    [start.elapsed().as_nanos() as f64, cpu_ns() - cpu].map(|ns| ns / ops as f64)
}

/// Time and CPU time of an operation: by the library, and by hand.
type Round = ([f64; 2], [f64; 2]);

fn compare(means: &mut Means, case: usize, depth: usize) {
    let (name, ours, bare) = CASES[case];
    let ops = if name.starts_with("nop") { NOPS } else { READS };
    let ops = if depth == 1 { ops / 4 } else { ops };
    let rounds: Vec<Round> = (0..=ROUNDS)
        .map(|round| {
            if round % 2 == 0 {
                let ours = measured(means, ours, ops, depth);
                (ours, measured(means, bare, ops, depth))
            } else {
                let bare = measured(means, bare, ops, depth);
                (measured(means, ours, ops, depth), bare)
            }
        })
        .skip(1)
        .collect();
    let sorted = |of: &dyn Fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        [
            all[ROUNDS / 4],
            all[ROUNDS / 2],
            all[ROUNDS - 1 - ROUNDS / 4],
        ]
    };
    let ratio = |what: usize| {
        let [low, median, high] = sorted(&|(ours, bare)| ours[what] / bare[what]);
        format!("{median:.3} ({low:.3} to {high:.3})")
    };
    let cpu = |of: fn(&Round) -> f64| sorted(&of)[1];
    println!(
        "{name:14} {depth:4}: time {}, CPU {}: {:.0} and {:.0} ns",
        ratio(0),
        ratio(1),
        cpu(|(ours, _)| ours[1]),
        cpu(|(_, bare)| bare[1]),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let folder = std::env::var_os("INFLIGHT_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    let block: Vec<u8> = (0..=250).cycle().take(BLOCK).collect();
    (0..BLOCKS).for_each(|_| file.write_all(&block).unwrap());
    file.as_file().sync_all().unwrap();
    let mut means = Means::new(file.path());
    if let [case, ops, depth] = arguments.as_slice()
        && let (Ok(ops), Ok(depth)) = (ops.parse(), depth.parse())
    {
        let is_bare = |name: &str| case.strip_prefix("bare-") == Some(name);
        let found = CASES
            .iter()
            .find(|(name, ..)| name == case || is_bare(name));
        let (name, ours, bare) = found.expect("one of the cases");
        let run = if is_bare(name) { bare } else { ours };
        return run(&mut means, ops, depth);
    }
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|it| it == name);
    for case in (0..CASES.len()).filter(|case| wanted(CASES[*case].0)) {
        let depths: &[usize] = match CASES[case].0 {
            "nop-alone" | "read-alone" => &[1],
            "nop-batch" | "nop-run-loop" => &[32],
            "read-queue" => &[1, 4, 16, 32, 64, 128],
            _ => &[4, 16, 32, 64, 128],
        };
        depths
            .iter()
            .for_each(|depth| compare(&mut means, case, *depth));
    }
}
