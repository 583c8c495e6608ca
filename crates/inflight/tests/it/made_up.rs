//! Files that the kernel makes up when they are read, and devices that are none for data: a call
//! there may wait for anything, so it is not made where a future is polled.

use std::fs;
use std::future::{Future, IntoFuture};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use inflight::fs::{File, OpenOptions};
use inflight::{Engine, Operation, Way};

use crate::support::{on_every_faultless_backend, skip};

/// Enough for a file to be known for what it is like.
const READS: u64 = 40;

fn open(engine: &Engine, path: &str) -> Option<File> {
    let options = OpenOptions::new().read(true).engine(engine);
    let opened = options.open(path);
    opened.map_err(|why| skip(path, &why.to_string())).ok()
}

/// Runs a future in a run loop, and on tokio's only thread.
fn on_hosts_of_tasks<F: Future>(engine: &Engine, future: impl Fn() -> F) {
    engine.run(future()).expect("there is a loop");
    let mut tokio = tokio::runtime::Builder::new_current_thread();
    let tokio = tokio.enable_all().build().expect("there is a runtime");
    tokio.block_on(future());
}

/// Reads that were made where they were polled.
fn read_in_polls(engine: &Engine, file: &File, check: impl Fn(&[u8])) -> u64 {
    let before = engine.stats().plain_calls;
    on_hosts_of_tasks(engine, async || {
        for _ in 0..READS {
            let (result, buf) = file.read_at(vec![1; 16], 0).into_future().await;
            check(&buf[..result.expect("it can be read")]);
            let bufs = vec![vec![1; 8], vec![1; 8]];
            let (result, bufs) = file.read_vectored_at(bufs, 0).await;
            check(&bufs.concat()[..result.expect("it can be read")]);
        }
    });
    engine.stats().plain_calls - before
}

#[test]
fn what_the_kernel_makes_up_is_not_read_where_that_is_polled() {
    // Some are fast, but none says so before it is read.
    let files = [
        "/proc/self/stat",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ];
    on_every_faultless_backend(|engine| {
        for path in files {
            let Some(file) = open(engine, path) else {
                continue;
            };
            let in_polls = read_in_polls(engine, &file, |read| assert!(!read.is_empty()));
            assert_eq!(in_polls, 0, "{path}");
            let explained = file.read_at(vec![0; 16], 0).explain();
            assert_eq!(explained.awaited, Way::Pool, "{path}: {explained}");
            // Who waits for it may as well make the call.
            assert_eq!(explained.alone, Way::PlainCall);
            let (result, _) = file.read_at(vec![0; 16], 0).wait();
            assert!(result.is_ok_and(|read| read > 0));
        }
    });
}

/// Of what has been read.
type Check<'c> = &'c dyn Fn(&[u8]);

/// Whether reading a few bytes takes less than what is taken for waiting: not on a processor that
/// is interpreted.
fn calls_are_fast() -> bool {
    let zero = fs::File::open("/dev/zero").expect("it is there");
    let mut times = [(); 101].map(|()| {
        let begun = Instant::now();
        zero.read_at(&mut [0; 16], 0).expect("it can be read");
        begun.elapsed()
    });
    times.sort();
    times[90] < Duration::from_micros(5)
}

#[test]
fn devices_that_answer_at_once_are_read_where_that_is_polled() {
    if !calls_are_fast() {
        return skip("devices that answer at once", "system calls take long here");
    }
    on_every_faultless_backend(|engine| {
        let zero = |read: &[u8]| assert_eq!(read, [0; 16]);
        let null = |read: &[u8]| assert!(read.is_empty());
        let random = |read: &[u8]| assert_eq!(read.len(), 16);
        let devices: [(&str, Check); 4] = [
            ("/dev/zero", &zero),
            // It cannot be asked not to wait.
            ("/dev/full", &zero),
            ("/dev/null", &null),
            ("/dev/urandom", &random),
        ];
        for (path, check) in devices {
            let Some(device) = open(engine, path) else {
                continue;
            };
            let in_polls = read_in_polls(engine, &device, check);
            // A call that seemed slow, on a busy machine, has the next ones made elsewhere.
            assert!(in_polls > READS, "{path}: {in_polls}");
        }
    });
}
