//! Group commit: who is served by which flush, and what is left after a power cut.

mod cuts;
pub(crate) mod disk;
mod durable;
mod promises;
mod rounds;
mod short;
mod told;
mod waits;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use inflight::Engine;
use inflight::fs::File;

use crate::support::read_write;
use disk::Mounted;

/// The file that is synced.
pub(crate) const SYNCED: u64 = 2;
/// The one that is written, while the other one is being synced.
const WRITTEN: u64 = 3;

fn open(engine: &Engine, mounted: &Mounted, number: u64) -> File {
    let file = read_write(engine).open(mounted.path(number));
    file.expect("every number is a file")
}

/// So many bytes that no other number has.
fn bytes_of(number: u64, count: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(count.div_ceil(8))[..count].to_vec()
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(future).poll(&mut context)
}
