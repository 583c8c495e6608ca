//! A multi-get: records from many files, each verified, read in one batch.
//!
//! ```text
//! cargo run --example batch -p inflight
//! ```

use std::error::Error;
use std::fs;

use inflight::{Batch, fs::File};

const FILES: u64 = 16;
const RECORDS: u64 = 64;
const RECORD: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for number in 0..FILES {
        let path = folder.path().join(format!("{number}.records"));
        let records: Vec<u8> = (0..RECORDS).flat_map(|at| record(number, at)).collect();
        fs::write(&path, records)?;
        files.push(File::open(path)?);
    }

    // What is wanted: 500 records, here and there.
    let wanted: Vec<(u64, u64)> = (0..500_u64)
        .map(|n| (n * 7 % FILES, n * 13 % RECORDS))
        .collect();
    let mut batch = Batch::new();
    for (number, at) in &wanted {
        let file = &files[usize::try_from(*number)?];
        batch.push(file.read_exact_at(vec![0; RECORD], at * RECORD as u64));
    }

    // Errors belong to single operations: one that fails does not keep the others from being run.
    let mut verified = 0;
    for ((number, at), (result, found)) in wanted.iter().zip(batch.wait()) {
        match result {
            Ok(_) if found == record(*number, *at) => verified += 1,
            Ok(_) => println!("record {at} of file {number} is damaged"),
            Err(error) => println!("record {at} of file {number}: {error}"),
        }
    }
    assert_eq!(verified, wanted.len());
    let stats = files[0].engine().stats();
    println!(
        "{verified} records of {FILES} files; {} enters, {} plain calls",
        stats.enters, stats.plain_calls
    );
    Ok(())
}

/// A record that tells from its bytes which one it is: a number over and over.
fn record(file: u64, at: u64) -> Vec<u8> {
    let number = (file * RECORDS + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number.to_le_bytes().repeat(RECORD / 8)
}
