//! A write-ahead log with group commit: threads append records, each returns once its own is
//! durable, and those that come together share a flush. Then it is read back as after a crash.
//!
//! ```text
//! cargo run --release -p inflight --example log
//! ```
//!
//! Clients are acknowledged one by one, so after a crash a gap may lie before a record that counts.
//! That is fine where records do not build on each other, as here; where they do, acknowledge them
//! in their order. Length and sum tell a record from what a crash has left.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use inflight::Operation;
use inflight::fs::{File, OpenOptions, sync_dir};

const CLIENTS: u64 = 16;
const EACH: u64 = 50;
/// Records are of one size, so that a reader finds the next one behind a gap.
const RECORD: usize = 128;
const SUM: usize = 8;

struct Log {
    file: File,
    end: AtomicU64,
}

impl Log {
    /// The place is the record's alone, so records are written at the same time.
    fn append(&self, text: &str) -> io::Result<u64> {
        let offset = self.end.fetch_add(RECORD as u64, Ordering::Relaxed);
        // Durable when this returns. After an error nothing is known of this record, and a log
        // whose records build on each other ends here.
        let (result, _) = self.file.write_all_at(record(text), offset).dsync().wait();
        result.map(|_| offset)
    }
}

/// FNV-1a, which is not zero for zeros. A real log takes a CRC.
fn sum(body: &[u8]) -> [u8; SUM] {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    sum.to_le_bytes()
}

fn record(text: &str) -> Vec<u8> {
    let mut body = text.as_bytes().to_vec();
    body.resize(RECORD - SUM, 0);
    [&sum(&body)[..], &body].concat()
}

/// The text of a record, unless it was never written whole.
fn text(record: &[u8]) -> Option<String> {
    let (told, body) = record.split_at(SUM);
    let is_whole = told == sum(body) && body.iter().any(|byte| *byte != 0);
    let text = || {
        String::from_utf8_lossy(body)
            .trim_end_matches('\0')
            .to_owned()
    };
    is_whole.then(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    let options = OpenOptions::new().read(true).write(true).create_new(true);
    let log = Log {
        file: options.open(&path)?,
        end: AtomicU64::new(0),
    };
    // The name has to be durable as well.
    sync_dir(folder.path()).wait()?;

    let client = |number: u64| {
        for n in 0..EACH {
            log.append(&format!("{n} of client {number}"))?;
        }
        io::Result::Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().expect("no client panics"))
    })?;
    let synced = log.file.engine().stats().synced_writes;
    println!("{synced} of the writes were made durable by a sync, which they may share");

    let file = File::open(&path)?;
    let len = file.metadata().wait()?.len;
    let (result, content) = file.read_exact_at(vec![0; usize::try_from(len)?], 0).wait();
    result?;
    let texts: Vec<String> = content.chunks_exact(RECORD).filter_map(text).collect();
    assert_eq!(texts.len() as u64, CLIENTS * EACH);
    println!("{} records are there", texts.len());
    Ok(())
}
