//! Durable writes of 4 KiB: each by a flag of its own (`RWF_DSYNC`), or a write and then a sync,
//! whose flush others share.
//!
//! `cargo bench -p inflight --bench durable` overwrites a file that it has written before, in the
//! folder that `INFLIGHT_TEST_DIR` names (the temporary directory by default); `-- direct` or
//! `-- buffered` for one of the two. So many writes are in flight, from one thread or from one for
//! each. Times are relative to threads that call pwritev2(2) with the flag. Nothing is asserted:
//! the figures go to `docs/measurements`.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use std::fs;
use std::future::poll_fn;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{AlignedBuf, Batch, Engine, Operation};
use io_uring::{IoUring, opcode, types};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;
const ROUNDS: usize = 9;
const STRETCH: Duration = Duration::from_millis(60);
const AT_ONCE: [usize; 4] = [1, 4, 16, 64];

struct Place {
    engine: Engine,
    file: File,
}

/// Blocks in an order in which no two neighbours are in flight together.
fn block(number: u64) -> u64 {
    number.wrapping_mul(1021) % BLOCKS * BLOCK as u64
}

fn buf(fill: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK, BLOCK).unwrap();
    buf.fill(fill);
    buf
}

/// How far a stretch has come.
struct Stretch {
    until: Instant,
    next: AtomicU64,
    done: AtomicU64,
}

impl Stretch {
    fn claim(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (Instant::now() < self.until).then(|| block(number))
    }

    fn ends_one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Threads, one for each write in flight.
fn by_threads(
    at_once: usize,
    stretch: &Stretch,
    write: impl Fn(AlignedBuf, u64) -> AlignedBuf + Sync,
) {
    let write = &write;
    thread::scope(|scope| {
        for number in 0..at_once {
            scope.spawn(move || {
                let mut buf = buf(u8::try_from(number).unwrap());
                while let Some(offset) = stretch.claim() {
                    buf = write(buf, offset);
                    stretch.ends_one();
                }
            });
        }
    });
}

fn call(fd: RawFd, buf: &AlignedBuf, offset: u64, flags: i32) {
    let iovec = libc::iovec {
        iov_base: buf.as_ptr().cast_mut().cast(),
        iov_len: BLOCK,
    };
    let offset = i64::try_from(offset).unwrap();
    // SAFETY: the buffer lives as long as this call lasts.
    let written = unsafe { libc::pwritev2(fd, &raw const iovec, 1, offset, flags) };
    assert_eq!(usize::try_from(written), Ok(BLOCK));
}

fn calls_dsync(place: &Place, at_once: usize, stretch: &Stretch) {
    let fd = place.file.as_raw_fd();
    by_threads(at_once, stretch, |buf, offset| {
        call(fd, &buf, offset, libc::RWF_DSYNC);
        buf
    });
}

fn calls_then_fdatasync(place: &Place, at_once: usize, stretch: &Stretch) {
    let fd = place.file.as_raw_fd();
    by_threads(at_once, stretch, |buf, offset| {
        call(fd, &buf, offset, 0);
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::fdatasync(fd) }, 0);
        buf
    });
}

fn calls_rounds(place: &Place, at_once: usize, stretch: &Stretch) {
    by_threads(at_once, stretch, |buf, offset| {
        let (written, buf) = place.file.write_at(buf, offset).wait();
        assert_eq!(written.unwrap(), BLOCK);
        place.file.sync_data().wait().unwrap();
        buf
    });
}

/// One thread with a ring of its own, kept full.
fn ring_dsync(place: &Place, at_once: usize, stretch: &Stretch) {
    let fd = types::Fd(place.file.as_raw_fd());
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(64)
        .unwrap();
    let bufs: Vec<_> = (0..at_once).map(|_| buf(1)).collect();
    let mut free: Vec<usize> = (0..at_once).collect();
    loop {
        while let Some(number) = free.pop() {
            let Some(offset) = stretch.claim() else {
                free.push(number);
                break;
            };
            let entry = opcode::Write::new(fd, bufs[number].as_ptr(), 4096)
                .offset(offset)
                .rw_flags(libc::RWF_DSYNC)
                .build()
                .user_data(number as u64);
            // SAFETY: the buffers live until all has come back, below.
            unsafe { ring.submission().push(&entry) }.unwrap();
        }
        if free.len() == at_once {
            return;
        }
        ring.submit_and_wait(1).unwrap();
        for completion in ring.completion() {
            assert_eq!(completion.result(), 4096);
            free.push(usize::try_from(completion.user_data()).unwrap());
            stretch.ends_one();
        }
    }
}

/// Tasks of the library's run loop, one for each write in flight.
fn in_a_loop(
    place: &Place,
    at_once: usize,
    stretch: &Stretch,
    write: impl AsyncFn(AlignedBuf, u64) -> AlignedBuf,
) {
    let write = &write;
    let client = async |_| {
        let mut buf = buf(2);
        while let Some(offset) = stretch.claim() {
            buf = write(buf, offset).await;
            stretch.ends_one();
        }
    };
    let ran = place.engine.run(async {
        let mut clients: Vec<_> = (0..at_once)
            .map(|number| Box::pin(client(number)))
            .collect();
        let all = poll_fn(|context| {
            clients.retain_mut(|client| client.as_mut().poll(context).is_pending());
            match clients.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        all.await;
    });
    ran.unwrap();
}

fn loop_dsync(place: &Place, at_once: usize, stretch: &Stretch) {
    in_a_loop(place, at_once, stretch, async |buf, offset| {
        let (written, buf) = place.file.write_at(buf, offset).dsync().await;
        assert_eq!(written.unwrap(), BLOCK);
        buf
    });
}

fn loop_rounds(place: &Place, at_once: usize, stretch: &Stretch) {
    in_a_loop(place, at_once, stretch, async |buf, offset| {
        let (written, buf) = place.file.write_at(buf, offset).await;
        assert_eq!(written.unwrap(), BLOCK);
        place.file.sync_data().await.unwrap();
        buf
    });
}

/// Batches of one thread.
fn in_batches(place: &Place, at_once: usize, stretch: &Stretch, dsync: bool) {
    let mut bufs: Vec<_> = (0..at_once).map(|_| buf(3)).collect();
    let mut batch = Batch::on(&place.engine);
    while let Some(first) = stretch.claim() {
        let mut offset = Some(first);
        while let (Some(buf), Some(at)) = (bufs.pop(), offset) {
            let write = place.file.write_at(buf, at);
            batch.push(if dsync { write.dsync() } else { write });
            offset = Some(block(stretch.next.fetch_add(1, Ordering::Relaxed)));
        }
        for (written, buf) in batch.wait() {
            assert_eq!(written.unwrap(), BLOCK);
            bufs.push(buf);
        }
        if !dsync {
            place.file.sync_data().wait().unwrap();
        }
        (0..at_once).for_each(|_| stretch.ends_one());
    }
}

type Way = (&'static str, fn(&Place, usize, &Stretch));

const WAYS: [Way; 8] = [
    ("threads, RWF_DSYNC", calls_dsync),
    ("threads, write + fdatasync", calls_then_fdatasync),
    ("threads, write + round", calls_rounds),
    ("ring, RWF_DSYNC", ring_dsync),
    ("run loop, dsync", loop_dsync),
    ("run loop, write + round", loop_rounds),
    ("batches, dsync", |place, at_once, stretch| {
        in_batches(place, at_once, stretch, true);
    }),
    ("batches, then one sync", |place, at_once, stretch| {
        in_batches(place, at_once, stretch, false);
    }),
];

/// Microseconds of time, and of the processor, for each write.
fn timed(place: &Place, at_once: usize, way: Way) -> [f64; 2] {
    let begun = Instant::now();
    let stretch = Stretch {
        until: begun + STRETCH,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
    };
    let before = cpu_us();
    way.1(place, at_once, &stretch);
    let done = stretch.done.into_inner() as f64;
    let us = begun.elapsed().as_secs_f64() * 1e6;
    [us / done, (cpu_us() - before) / done]
}

/// Processor time of this process, in microseconds.
fn cpu_us() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: it is room for one.
    let asked = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(asked, 0);
    // SAFETY: the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[quarter * (values.len() - 1) / 4])
}

fn compare(places: &[Place], name: &str, at_once: usize) {
    let mut rounds = vec![Vec::new(); WAYS.len()];
    for round in 0..ROUNDS {
        for turn in 0..WAYS.len() {
            let number = (turn + round) % WAYS.len();
            rounds[number].push(timed(&places[number], at_once, WAYS[number]));
        }
    }
    for ((way, _), times) in WAYS.iter().zip(&rounds) {
        let ratios = times
            .iter()
            .zip(&rounds[0])
            .map(|(time, base)| time[0] / base[0]);
        let [low, ratio, high] = quartiles(ratios.collect());
        let [_, us, _] = quartiles(times.iter().map(|time| time[0]).collect());
        let [_, cpu, _] = quartiles(times.iter().map(|time| time[1]).collect());
        print!("{name:8} {at_once:3} | {way:27} | {ratio:5.2} ({low:.2} to {high:.2}) | ");
        println!("{us:8.1} us | cpu {cpu:6.1} us");
    }
}

fn write_file(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    let content = vec![7; BLOCK];
    (0..BLOCKS).for_each(|_| file.write_all(&content).unwrap());
    file.sync_all().unwrap();
}

fn main() {
    let folder =
        std::env::var_os("INFLIGHT_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).unwrap();
    let asked: Vec<String> = std::env::args().skip(1).collect();
    for (name, direct) in [("direct", Direct::Required), ("buffered", Direct::Off)] {
        if asked
            .iter()
            .any(|asked| asked == "direct" || asked == "buffered")
            && !asked.iter().any(|asked| asked == name)
        {
            continue;
        }
        let path = folder.path().join(name);
        write_file(&path);
        // What the library learns of one way says nothing of another.
        let place = |_: &Way| {
            let engine = Engine::new().unwrap();
            let options = OpenOptions::new().read(true).write(true).direct(direct);
            let file = options.engine(&engine).open(&path).unwrap();
            Place { engine, file }
        };
        let places: Vec<Place> = WAYS.iter().map(place).collect();
        AT_ONCE
            .into_iter()
            .for_each(|at_once| compare(&places, name, at_once));
    }
}
