//! Many threads at once, and what they leave behind: nothing.

use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;

use inflight::fs::{File, OpenOptions};
use inflight::{Batch, Engine, Operation};

use super::allocations::live_bytes;
use crate::support::own::in_own_process;
use crate::support::{chill, on_every_backend, pattern, temp_file, temp_path, until};

const THREADS: u64 = 64;
const ROUNDS: u64 = 20;
const BATCH: u64 = 40;

/// Batches of reads and of no-ops, and single reads, each of them checked.
fn work(engine: &Engine, file: &File, data: &[u8], thread: u64) {
    let words = data.len() as u64 / 8;
    let at = |n: u64| usize::try_from(n).expect("the file is small");
    for round in 0..ROUNDS {
        let word = |n: u64| (thread * 31 + round * 7 + n * 3) % words;
        let mut batch = Batch::on(engine);
        for n in 0..BATCH {
            batch.push(
                file.read_vectored_exact_at(vec![vec![0; 8]], word(n) * 8)
                    .by_backend(),
            );
        }
        for (n, (result, bufs)) in (0..).zip(batch.wait()) {
            let from = at(word(n) * 8);
            assert_eq!(result.expect("it is read"), 8);
            assert_eq!(bufs[0], data[from..from + 8]);
        }
        let mut batch = Batch::on(engine);
        (0..BATCH).for_each(|_| batch.push(engine.nop()));
        assert!(batch.wait().all(|result| result.is_ok()));
        let (result, buf) = file.read_exact_at(vec![0; 8], word(0) * 8).wait();
        assert_eq!(result.expect("it is read"), 8);
        assert_eq!(buf, data[at(word(0) * 8)..at(word(0) * 8) + 8]);
    }
}

/// Operations that [`work`] does.
const WORK: u64 = ROUNDS * (2 * BATCH + 1);

/// Runs [`work`] on many threads at once and waits until the last of them is gone.
fn work_on_threads(engine: &Engine, path: &std::path::Path, data: &[u8]) {
    let options = OpenOptions::new().read(true).engine(engine);
    let file = Arc::new(options.open(path).expect("the file is there"));
    let start = Arc::new(Barrier::new(usize::try_from(THREADS).expect("a few")));
    let data: Arc<[u8]> = data.into();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (engine, file) = (engine.clone(), Arc::clone(&file));
            let (start, data) = (Arc::clone(&start), Arc::clone(&data));
            thread::spawn(move || {
                start.wait();
                work(&engine, &file, &data, thread);
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

#[test]
fn many_threads_run_batches_at_once_and_all_is_counted() {
    on_every_backend(|engine| {
        let data = pattern(64 << 10);
        let path = temp_path(&data);
        for times in 1..=2 {
            work_on_threads(engine, path.path(), &data);
            let stats = engine.stats();
            assert_eq!(stats.operations, times * THREADS * WORK);
            assert_eq!((stats.in_flight, stats.strays), (0, 0));
        }
    });
}

#[test]
fn threads_share_a_file_and_what_is_learnt_of_it() {
    on_every_backend(|engine| {
        let data = pattern(64 << 10);
        let file = temp_file(engine, &data);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (file, data) = (&file, &data);
                scope.spawn(move || {
                    for round in 0..30 {
                        // Some make the file cold, some warm.
                        if (thread + round) % 3 == 0 {
                            chill(file);
                        }
                        let mut batch = Batch::new();
                        (0..64).for_each(|n| batch.push(file.read_at(vec![0; 1024], 1024 * n)));
                        for (part, (result, buf)) in data.chunks(1024).zip(batch.wait()) {
                            assert_eq!((result.unwrap(), &buf[..]), (1024, part));
                        }
                    }
                });
            }
        });
        assert_eq!(engine.stats().in_flight, 0);
    });
}

/// What this process holds: descriptors, threads, and rings mapped.
fn held() -> [usize; 3] {
    let count = |folder| fs::read_dir(folder).expect("procfs is there").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs is there");
    let rings = maps
        .lines()
        .filter(|line| line.contains("io_uring"))
        .count();
    [count("/proc/self/fd"), count("/proc/self/task"), rings]
}

#[test]
fn threads_that_have_ended_leave_nothing_behind() {
    // Other tests open files and start threads too.
    let test = "threads_that_have_ended_leave_nothing_behind";
    in_own_process(module_path!(), test, leave_nothing_behind);
}

fn leave_nothing_behind() {
    let data = pattern(64 << 10);
    let path = temp_path(&data);
    let run = || {
        let engine = Engine::new().expect("nothing is demanded");
        work_on_threads(&engine, path.path(), &data);
        // The engine lives on, its threads do not; only a pool may have some left.
        let [descriptors, _, rings] = held();
        drop(engine);
        (descriptors, rings)
    };
    let before = held();
    let mut live = Vec::new();
    for round in 0..6 {
        let (descriptors, rings) = run();
        assert_eq!(
            (descriptors, rings),
            (before[0], before[2]),
            "in round {round}"
        );
        // A thread that has been joined is still listed until the kernel is through with it.
        let what = format!("as before round {round}: descriptors, threads and rings");
        until(&what, || held() == before);
        live.push(live_bytes());
    }
    // The first rounds fill what is kept for ever, of the standard library as well.
    let grown = live[5] - live[2];
    assert!(
        grown < 4096,
        "{grown} bytes more after three more rounds: {live:?}"
    );
}
