//! Wishes that a file refuses.

use std::io;

use inflight::fs::{File, OpenOptions};
use inflight::{Engine, WishRefused};
use tempfile::NamedTempFile;

use super::by_every_host;
use crate::support::{given_up, on_every_backend, pattern, read_write, skip};

/// A file in memory, which refuses hints about the page cache.
fn in_memory(engine: &Engine, name: &str) -> Option<(NamedTempFile, File)> {
    let Ok(path) = NamedTempFile::new_in("/dev/shm") else {
        skip(name, "/dev/shm cannot be written");
        return None;
    };
    let file = read_write(engine).open(path.path()).expect("it is there");
    Some((path, file))
}

#[test]
fn a_hint_that_is_refused_is_left_out_and_counted() {
    let data = pattern(5000);
    on_every_backend(|engine| {
        let name = "a hint in memory";
        let Some((_path, file)) = in_memory(engine, name) else {
            return;
        };
        let mut count = 0;
        let mut check = |result: io::Result<usize>, expected| {
            assert_eq!(result.unwrap(), expected);
            count += 1;
            let stats = engine.stats();
            if stats.hints_unheard > 0 {
                // Told once, and counted each time.
                let told = given_up(engine, "dont_cache");
                assert!(told.len() == 1 && told[0].count == 1, "{told:?}");
            }
        };
        let pieces = || vec![vec![5; 3], vec![6; 4]];
        let vectored = || file.write_vectored_all_at(pieces(), 100).dont_cache();
        for (result, _) in by_every_host!(engine, vectored().dsync()) {
            check(result, 7);
        }
        for (result, _) in by_every_host!(engine, vectored().then_sync()) {
            check(result, 7);
        }
        let write = || file.write_all_at(data.clone(), 0).dont_cache();
        for (result, _) in by_every_host!(engine, write().then_sync()) {
            check(result, 5000);
        }
        for (result, _) in by_every_host!(engine, write()) {
            check(result, 5000);
        }
        for (result, buf) in by_every_host!(engine, file.read_at(vec![0; 6000], 0).dont_cache()) {
            assert!(buf[..5000] == data);
            check(result, 5000);
        }
        let unheard = engine.stats().hints_unheard;
        if unheard == 0 {
            return skip(name, "this kernel does not refuse it");
        }
        assert_eq!(unheard, count);
    });
}

/// The wishes that are named by the error.
fn refused(error: &io::Error) -> Option<&'static str> {
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    let cause: &WishRefused = error.get_ref()?.downcast_ref()?;
    assert!(error.to_string().contains(cause.wishes), "{error}");
    Some(cause.wishes)
}

#[test]
fn a_wish_that_changes_the_meaning_is_refused_by_name() {
    on_every_backend(|engine| {
        // What is in there is made when it is read.
        let options = OpenOptions::new().read(true).engine(engine);
        let file = options.open("/proc/self/status").unwrap();
        let read = || file.read_at(vec![7; 10], 0);
        for (result, buf) in by_every_host!(engine, read().no_wait()) {
            assert_eq!(refused(&result.unwrap_err()), Some("no_wait"));
            assert_eq!(buf, [7; 10]);
        }
        for (result, _) in by_every_host!(engine, read().no_wait().dont_cache()) {
            assert_eq!(refused(&result.unwrap_err()), Some("no_wait"));
        }
        let bufs = || vec![vec![0; 5], vec![0; 5]];
        for (result, _) in by_every_host!(engine, file.read_vectored_at(bufs(), 0).no_wait()) {
            assert_eq!(refused(&result.unwrap_err()), Some("no_wait"));
        }
        // The file is none the worse for it.
        for (result, buf) in by_every_host!(engine, read()) {
            assert_eq!((result.unwrap(), &buf[..5]), (10, &b"Name:"[..]));
        }
    });
}

#[test]
fn a_write_that_may_not_wait_is_done_or_refused_but_never_half_believed() {
    on_every_backend(|engine| {
        let path = crate::support::temp_path(&[0; 10]);
        let file = read_write(engine).open(path.path()).unwrap();
        let write = || file.write_at(vec![1; 10], 0);
        for (result, _) in by_every_host!(engine, write().no_wait()) {
            let content = std::fs::read(path.path()).unwrap();
            match result {
                Ok(moved) => assert!(content[..moved].iter().all(|byte| *byte == 1)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    assert_eq!(refused(&error), Some("no_wait"));
                    assert_eq!(content, [0; 10]);
                }
            }
        }
        for (result, _) in by_every_host!(engine, write().no_wait().dsync()) {
            if let Err(error) = result
                && error.kind() != io::ErrorKind::WouldBlock
            {
                assert_eq!(refused(&error), Some("dsync or no_wait"));
            }
        }
    });
}
