//! What one read of the page cache costs at a time: by a call that nothing returns from before the
//! next one, by the C library's, waited for, and awaited in a run loop.
//!
//! Where the first two differ by much, a return behind a system call is dear on this processor
//! (`docs/design/roads.md`), and the library makes it cheap for all that it is used by.
//!
//! ```text
//! cargo bench -p inflight --bench alone -- FILE
//! ```

use std::env;
use std::fs::File as StdFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use inflight::fs::{File, OpenOptions};
use inflight::{Engine, Operation};

const ROUNDS: usize = 61;
const READS: u32 = 20_000;
const BLOCK: usize = 4096;

/// xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// What all of them read.
struct Means {
    std: StdFile,
    engine: Engine,
    file: File,
    blocks: u64,
}

impl Means {
    fn offset(&self, random: &mut Random) -> u64 {
        random.next() % self.blocks * BLOCK as u64
    }

    fn in_place(&self, block: &mut [u8], random: &mut Random) {
        for _ in 0..READS {
            let read = rustix::io::pread(&self.std, &mut *block, self.offset(random));
            assert_eq!(read, Ok(BLOCK));
        }
    }

    fn by_the_c_library(&self, block: &mut [u8], random: &mut Random) {
        for _ in 0..READS {
            let read = self.std.read_at(block, self.offset(random));
            assert_eq!(read.expect("it is readable"), BLOCK);
        }
    }

    fn waited_for(&self, block: &mut Vec<u8>, random: &mut Random) {
        for _ in 0..READS {
            let read = self
                .file
                .read_at(std::mem::take(block), self.offset(random));
            let (read, returned) = read.wait();
            assert_eq!(read.expect("it is readable"), BLOCK);
            *block = returned;
        }
    }

    fn awaited(&self, block: &mut Vec<u8>, random: &mut Random) {
        let all = async {
            for _ in 0..READS {
                let read = self
                    .file
                    .read_at(std::mem::take(block), self.offset(random));
                let (read, returned) = read.await;
                assert_eq!(read.expect("it is readable"), BLOCK);
                *block = returned;
            }
        };
        self.engine.run(all).expect("a loop can run");
    }
}

type Way = fn(&Means, &mut Vec<u8>, &mut Random);

const WAYS: [(&str, Way); 4] = [
    ("pread, in place", |means, block, random| {
        means.in_place(block, random);
    }),
    ("pread, by the C library", |means, block, random| {
        means.by_the_c_library(block, random);
    }),
    ("inflight, waited for", Means::waited_for),
    ("inflight, in a run loop", Means::awaited),
];

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn main() {
    // Cargo adds an argument of its own.
    let Some(path) = env::args().skip(1).find(|one| !one.starts_with("--")) else {
        return println!("cargo bench -p inflight --bench alone -- FILE: a file of 1 MiB or more");
    };
    let engine = Engine::new().expect("an engine");
    let options = OpenOptions::new().read(true).engine(&engine);
    let means = Means {
        std: StdFile::open(&path).expect("it is readable"),
        file: options.open(&path).expect("it is readable"),
        engine,
        blocks: std::fs::metadata(&path).expect("it is there").len() / BLOCK as u64,
    };
    let (mut block, mut random) = (vec![0; BLOCK], Random(0x9E37_79B9_7F4A_7C15));
    for number in 0..means.blocks {
        let read = means.std.read_at(&mut block, number * BLOCK as u64);
        read.expect("it is readable");
    }
    let mut ns = WAYS.map(|_| Vec::with_capacity(ROUNDS));
    for round in 0..ROUNDS {
        for turn in 0..WAYS.len() {
            let way = (turn + round) % WAYS.len();
            let begun = Instant::now();
            WAYS[way].1(&means, black_box(&mut block), &mut random);
            let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(READS);
            ns[way].push(each);
        }
    }
    for ((name, _), each) in WAYS.iter().zip(&ns) {
        let ratios = each
            .iter()
            .zip(&ns[0])
            .map(|(one, in_place)| one / in_place);
        let [low, middle, high] = quartiles(ratios.collect());
        let [_, median, _] = quartiles(each.clone());
        println!("{name:<24} {median:7.1} ns  {middle:.3} ({low:.3} to {high:.3})");
    }
}
