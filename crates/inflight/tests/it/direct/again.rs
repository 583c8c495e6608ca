//! Operations of any range that are prepared, and then once more before they are run: they were
//! explained, or another buffer of their awaited batch has panicked.
#![allow(unsafe_code)]

use std::fs;
use std::future::{Future, IntoFuture};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Waker};

use inflight::fs::{AnyRange, Direct, File};
use inflight::{AnyOp, Batch, Engine, Operation};
use tempfile::NamedTempFile;

use super::any_range::any;
use crate::support::fussy::{Fussy, LEN};
use crate::support::{evict, on_every_backend, pattern, read_write, skip, temp_path, until};

const BLOCK: usize = 4096;
/// Neither this nor its length fits direct I/O.
const AT: usize = 10;

/// A mapped file for reads of any range, of which the last page alone is resident: if none was,
/// that would be believed for longer.
struct Mapped {
    path: NamedTempFile,
    content: Vec<u8>,
    file: File,
}

impl Mapped {
    /// `None`, with the reason said, where there are no such files.
    fn or_skip(name: &str, engine: &Engine) -> Option<Self> {
        let content = pattern(16 * BLOCK);
        let path = temp_path(&content);
        evict(path.as_file());
        let options = read_write(engine)
            .direct(Direct::Required)
            .any_range(AnyRange::Reads);
        // SAFETY: the file is not changed.
        let Ok(file) = unsafe { options.mapped() }.open(path.path()) else {
            skip(name, "there is no direct I/O");
            return None;
        };
        let mapped = Self {
            path,
            content,
            file,
        };
        let mut last = vec![0; 1];
        let at = mapped.content.len() as u64 - 1;
        let read = mapped.path.as_file().read_exact_at(&mut last, at);
        read.expect("it is there");
        if mapped.copies(engine, AT) {
            skip(name, "the file system keeps the file in memory");
            return None;
        }
        Some(mapped)
    }

    /// Whether what is read there is copied from the mapping.
    fn copies(&self, engine: &Engine, at: usize) -> bool {
        let before = engine.stats().copied;
        let (result, _) = self.file.read_at(vec![0; 1], at as u64).wait();
        assert_eq!(result.expect("it is there"), 1);
        engine.stats().copied > before
    }

    /// Has all of it in the page cache, and the library know.
    fn warm_up(&self, engine: &Engine) {
        let read = fs::read(self.path.path()).expect("it is there");
        assert!(read == self.content);
        until("it is resident", || self.copies(engine, AT));
    }
}

/// Polls a batch in vain: one of its buffers panics.
fn panics<F: Future + Unpin>(batch: &mut F) {
    let mut context = Context::from_waker(Waker::noop());
    let poll = || Pin::new(batch).poll(&mut context).is_ready();
    assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
}

#[test]
fn a_read_of_what_has_become_resident_since_it_was_prepared_is_that_of_its_range() {
    let name = "a read that is prepared again";
    on_every_backend(|engine| {
        let Some(mapped) = Mapped::or_skip(name, engine) else {
            return;
        };
        let (file, expected) = (&mapped.file, &mapped.content[AT..AT + LEN]);
        // What the aligned memory has had in it before is from elsewhere.
        let (result, _) = file.read_at(vec![0; LEN], 8 * BLOCK as u64 + 1).wait();
        assert_eq!(result.unwrap(), LEN);
        let mut explained = file.read_at(vec![0; LEN], AT as u64);
        explained.explain();
        let mut batch: Batch<AnyOp<Fussy>> = Batch::on(engine);
        batch.push(file.read_at(Fussy::calm(0), AT as u64).into());
        batch.push(file.read_at(Fussy::new(0, 1), 0).into());
        let mut batch = batch.into_future();
        panics(&mut batch);

        mapped.warm_up(engine);
        let before = engine.stats().copied;
        let (result, buf) = explained.wait();
        assert_eq!(result.unwrap(), LEN);
        assert!(buf == expected, "that was explained");
        let mut results = pollster::block_on(batch).into_iter();
        let (result, buf) = results.next().expect("there are two");
        let buf = buf.expect("that of a read").bytes;
        assert_eq!(result.unwrap(), LEN);
        assert!(buf == expected, "that of the batch");
        assert_eq!(engine.stats().copied - before, 3);
    });
}

#[test]
fn a_write_that_is_prepared_again_writes_its_range_once() {
    on_every_backend(|engine| {
        let mut model = pattern(8 * BLOCK);
        let name = "a write that is prepared again";
        let Some((path, file)) = any(name, engine, &model, AnyRange::ReadsAndWrites) else {
            return;
        };
        let mut explained = file.write_all_at(vec![1; LEN], AT as u64);
        explained.explain();
        explained.explain();
        let mut batch = Batch::on(engine);
        batch.push(file.write_all_at(Fussy::calm(2), 2 * BLOCK as u64 + 1));
        batch.push(file.write_all_at(Fussy::new(3, 1), 4 * BLOCK as u64 + 2));
        let mut batch = batch.into_future();
        panics(&mut batch);
        assert!(fs::read(path.path()).unwrap() == model);

        assert_eq!(explained.wait().0.unwrap(), LEN);
        for (result, _) in pollster::block_on(batch) {
            assert_eq!(result.unwrap(), LEN);
        }
        for (at, byte) in [(AT, 1), (2 * BLOCK + 1, 2), (4 * BLOCK + 2, 3)] {
            model[at..at + LEN].fill(byte);
        }
        assert!(fs::read(path.path()).unwrap() == model);
    });
}
