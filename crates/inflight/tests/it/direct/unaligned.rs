//! What of a file with [`Direct::Auto`] goes through the page cache because it is not aligned: each
//! transfer is counted once, and the first of each file is told.

use std::path::Path;

use inflight::fs::{Alignment, AnyRange, Direct, File, OpenOptions};
use inflight::{
    AnyOp, Engine, Fallback, Misaligned, Operation, ReadInto, WriteFrom, errno_of, read_many,
    write_many,
};

#[cfg(feature = "tokio")]
use crate::awaited::lanes::in_lanes;
use crate::support::temp_path;
use crate::support::{alone_and_batched, given_up, on_every_backend, pattern, read_write, skip};
use crate::wishes::by_every_host;

/// A file with [`Direct::Auto`] that is direct, where it is known what has to be aligned.
fn auto(name: &str, engine: &Engine, path: &Path) -> Option<File> {
    let file = read_write(engine).direct(Direct::Auto).open(path);
    let file = file.expect("it is there");
    match (file.is_direct(), file.alignment()) {
        (true, Alignment::Known { .. }) => Some(file),
        (is_direct, alignment) => {
            skip(name, &format!("direct: {is_direct}, {alignment:?}"));
            None
        }
    }
}

/// How many have been counted, and what has been told.
fn counted(engine: &Engine) -> (u64, Vec<Fallback>) {
    (
        engine.stats().unaligned,
        given_up(engine, "a transfer of a file with Direct::Auto"),
    )
}

/// What is counted of results, of which each is one of so many bytes.
fn each<B>(results: Vec<(std::io::Result<usize>, B)>, bytes: usize) -> u64 {
    let count = results.len() as u64;
    for (result, _) in results {
        assert_eq!(result.expect("it goes through the page cache"), bytes);
    }
    count
}

#[test]
fn each_is_counted_once_by_every_host() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(1 << 16));
        let Some(file) = auto("unaligned transfers", engine, path.path()) else {
            return;
        };
        let mut expected = 0;
        let mut check = |more: u64, what: &str| {
            expected += more;
            assert_eq!(engine.stats().unaligned, expected, "{what}");
        };
        let list = || vec![vec![7; 60], vec![7; 40]];
        let write = || file.write_all_at(vec![7; 100], 5001);
        let read = || file.read_exact_at(vec![0; 100], 5001);
        check(each(by_every_host!(engine, read()), 100), "reads");
        check(each(by_every_host!(engine, write()), 100), "writes");
        let reads = by_every_host!(engine, file.read_vectored_at(list(), 1));
        check(each(reads, 100), "reads to lists");
        let writes = by_every_host!(engine, file.write_vectored_at(list(), 1));
        check(each(writes, 100), "writes of lists");
        let durable = by_every_host!(engine, write().dsync());
        check(each(durable, 100), "durable writes");
        let durable = by_every_host!(engine, file.write_vectored_at(list(), 1).dsync());
        check(each(durable, 100), "durable writes of lists");
        let synced = by_every_host!(engine, write().then_sync());
        check(each(synced, 100), "writes with a sync");
        let hints = by_every_host!(engine, read().dont_cache());
        check(each(hints, 100), "reads with a hint");
        let mixed = by_every_host!(engine, AnyOp::from(read()));
        check(each(mixed, 100), "reads among others");
        let mut bufs = [[0; 100]; 3];
        for together in [1, 2] {
            let (some, _) = bufs.split_at_mut(together);
            let mut reads: Vec<_> = some
                .iter_mut()
                .map(|buf| ReadInto::new(&file, 1, buf))
                .collect();
            read_many(&mut reads).expect("it is read");
            check(together as u64, "many reads");
            let mut writes: Vec<_> = some
                .iter()
                .map(|buf| WriteFrom::new(&file, 1, buf))
                .collect();
            write_many(&mut writes).expect("it is written");
            check(together as u64, "many writes");
        }
        #[cfg(feature = "tokio")]
        {
            in_lanes(engine, async || {
                assert_eq!(read().await.0.expect("it is read"), 100);
            });
            check(2, "reads in lanes");
        }
    });
}

#[test]
fn the_first_one_of_each_file_is_told_with_what_it_needs() {
    on_every_backend(|engine| {
        let paths = [temp_path(&pattern(8192)), temp_path(&pattern(8192))];
        for (before, path) in paths.iter().enumerate() {
            let Some(file) = auto("told once", engine, path.path()) else {
                return;
            };
            assert_eq!(counted(engine).0, 3 * before as u64);
            for _ in 0..3 {
                assert_eq!(file.read_at(vec![0; 100], 1).wait().0.expect("read"), 100);
            }
            let told = counted(engine).1;
            let [Fallback { reason, count, .. }] = &told[..] else {
                panic!("{told:?}");
            };
            // They need the same, so it is one entry, of as many files.
            assert_eq!(*count, before as u64 + 1);
            let Alignment::Known {
                memory_bytes,
                offset_bytes,
            } = file.alignment()
            else {
                unreachable!("it has been looked at");
            };
            let needs = [
                format!("aligned to {memory_bytes} bytes"),
                format!("multiples of {offset_bytes} bytes"),
                "BufPool".to_owned(),
                "any_range".to_owned(),
            ];
            for need in needs {
                assert!(reason.contains(&need), "{reason}");
            }
        }
    });
}

#[test]
fn what_fits_or_goes_another_way_is_not_counted() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(8192 + 100));
        let Some(file) = auto("what is not counted", engine, path.path()) else {
            return;
        };
        // Aligned, also at the end of the file and behind it, and of no bytes.
        let block = || file.aligned_buf(8192).expect("there is memory");
        for (at, bytes) in [(0, 8192), (8192, 100), (16384, 0)] {
            each(by_every_host!(engine, file.read_at(block(), at)), bytes);
        }
        each(by_every_host!(engine, file.write_at(block(), 0)), 8192);
        each(alone_and_batched!(file.read_at(Vec::new(), 1)), 0);
        // Explained, at the end of the file, refused: nothing was moved.
        let mut explained = file.read_at(vec![0; 100], 1);
        let first = explained.explain().to_string();
        assert_eq!(first, explained.explain().to_string());
        each(alone_and_batched!(file.read_at(vec![0; 100], 8292)), 0);
        for (result, _) in alone_and_batched!(file.read_at(vec![0; 100], u64::MAX)) {
            assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
        }
        // What was asked for, or told when it was opened.
        let options = || read_write(engine);
        let buffered = options().open(path.path()).unwrap();
        let any_range = options().any_range(AnyRange::ReadsAndWrites);
        let any_range = any_range.direct(Direct::Auto).open(path.path()).unwrap();
        let proc_file = OpenOptions::new().read(true).engine(engine);
        let proc_file = proc_file.direct(Direct::Auto).open("/proc/self/status");
        for file in [&buffered, &any_range, &proc_file.unwrap()] {
            each(alone_and_batched!(file.read_at(vec![0; 100], 1)), 100);
        }
        for file in [&buffered, &any_range] {
            each(alone_and_batched!(file.write_at(vec![0; 100], 1)), 100);
        }
        let required = options().direct(Direct::Required).open(path.path());
        let (result, _) = required.unwrap().read_at(vec![0; 100], 1).wait();
        let error = result.unwrap_err();
        assert!(error.get_ref().unwrap().is::<Misaligned>(), "{error}");
        assert_eq!(counted(engine), (0, vec![]));

        // Some of what was asked for is there, though that is an error: it was moved.
        let cut = alone_and_batched!(file.read_exact_at(vec![0; 100], 8200));
        let count = cut.len() as u64;
        assert!(cut.into_iter().all(|(result, _)| result.is_err()));
        // For lists of buffers, any_range changes nothing.
        let list = any_range.read_vectored_at(vec![vec![0; 100]], 1);
        each(vec![list.wait()], 100);
        assert_eq!(engine.stats().unaligned, count + 1);
    });
}

#[test]
#[cfg(feature = "faulty")]
fn what_is_resumed_is_counted_once() {
    let faults = inflight::Faults::new(0x5eed).short_transfers(700);
    let engine = Engine::builder().faults(faults).build();
    let engine = &engine.expect("nothing is demanded");
    let path = temp_path(&pattern(1 << 16));
    let Some(file) = auto("resumed transfers", engine, path.path()) else {
        return;
    };
    let reads = by_every_host!(engine, file.read_exact_at(vec![0; 50_000], 1));
    let count = each(reads, 50_000);
    let stats = engine.stats();
    assert!(stats.short_transfers > 0, "{stats:?}");
    assert_eq!(stats.unaligned, count);
}
