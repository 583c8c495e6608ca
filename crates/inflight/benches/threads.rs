//! Many threads that submit batches at once: total reads a second, against one thread.
//!
//! `cargo bench -p inflight --bench threads -- FILE` reads 4 KiB blocks of FILE, which has to be
//! 64 MiB or larger, past the page cache. Nothing is asserted: the figures go to
//! `docs/measurements`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{Batch, BufPool, Engine};

const BLOCK: usize = 4096;
const BATCH: u64 = 32;
const ROUNDS: usize = 9;
const READS: u64 = 64_000;
const THREADS: [u64; 5] = [1, 2, 4, 8, 64];

/// Reads a second with so many threads.
fn total(engine: &Engine, file: &File, blocks: u64, threads: u64) -> f64 {
    let each = READS / threads / BATCH;
    let start_together = Barrier::new(usize::try_from(threads).unwrap() + 1);
    let (start_together, engine) = (&start_together, &engine);
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                let pool = BufPool::new(u32::try_from(BATCH).unwrap(), BLOCK).unwrap();
                let mut bufs: Vec<_> = (0..BATCH).map(|_| pool.take().unwrap()).collect();
                let mut batch = Batch::on(engine);
                let mut random = number + 1;
                start_together.wait();
                for _ in 0..each {
                    for buf in bufs.drain(..) {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        batch.push(file.read_at(buf, (random >> 33) % blocks * BLOCK as u64));
                    }
                    bufs.extend(batch.wait().map(|(result, buf)| {
                        assert_eq!(result.unwrap(), BLOCK);
                        buf
                    }));
                }
                start_together.wait();
            });
        }
        start_together.wait();
        let begun = Instant::now();
        start_together.wait();
        (each * BATCH * threads) as f64 / begun.elapsed().as_secs_f64()
    })
}

fn main() {
    let Some(path) = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"))
    else {
        println!("name a file of 64 MiB or more to read from");
        return;
    };
    let engine = Engine::new().unwrap();
    let open = OpenOptions::new()
        .read(true)
        .direct(Direct::Required)
        .engine(&engine);
    let file = open.open(path).unwrap();
    let blocks = file.metadata();
    let blocks = inflight::Operation::wait(blocks).unwrap().len / BLOCK as u64;
    let mut rates = vec![Vec::new(); THREADS.len()];
    for _ in 0..ROUNDS {
        for (threads, rates) in THREADS.iter().zip(&mut rates) {
            rates.push(total(&engine, &file, blocks, *threads));
        }
    }
    let one = rates[0].clone();
    for (threads, rates) in THREADS.iter().zip(&rates) {
        let mut ratios: Vec<f64> = rates
            .iter()
            .zip(&one)
            .map(|(many, one)| many / one)
            .collect();
        ratios.sort_by(f64::total_cmp);
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        println!(
            "{threads:3} threads {:8.0} reads/s, {:.2} of one thread ({:.2} to {:.2})",
            sorted[ROUNDS / 2],
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
        );
    }
    let stats = engine.stats();
    println!(
        "in flight {}, strays {}, {:?}",
        stats.in_flight, stats.strays, stats.fallbacks
    );
}
