//! Flushes that take no time, as of a file in memory, and files whose flushes do.

use std::future::IntoFuture;
use std::thread;

use inflight::fs::File;
use inflight::{BackendKind, Engine, Operation};

use super::disk::mounted_or_skip;
use super::{SYNCED, open, poll_once};
use crate::support::{on_every_backend, path_in_memory};

/// Polls syncs once each, until one is answered by that. How many were not.
fn pending_before_one_at_once(file: &File, at_most: usize) -> Option<usize> {
    (0..at_most).find(|_| {
        let mut sync = file.sync_data().into_future();
        match poll_once(&mut sync) {
            std::task::Poll::Ready(answer) => {
                answer.expect("memory is sound");
                true
            }
            std::task::Poll::Pending => {
                pollster::block_on(sync).expect("memory is sound");
                false
            }
        }
    })
}

/// A flush of memory that took long was interrupted, and it takes as many short ones again.
const SYNCS_MAX: usize = 10_000;

#[test]
fn a_file_in_memory_comes_to_be_flushed_where_that_is_awaited() {
    let name = "flushes of memory";
    let kinds = [BackendKind::Threads, BackendKind::Uring];
    for engine in kinds.map(|kind| Engine::builder().backend(kind).build()) {
        // Where there are no rings.
        let Ok(engine) = engine else { continue };
        let Some(path) = path_in_memory(name, b"abc") else {
            return;
        };
        let file = crate::support::open(&engine, path.path());
        let before = pending_before_one_at_once(&file, SYNCS_MAX).expect("there is no device");
        assert!(before >= 32, "it was not known yet, after {before}");
        // Beside others that sync the same file, by each way, all are answered.
        thread::scope(|scope| {
            for client in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let synced = match client % 2 {
                            0 => pollster::block_on(file.sync_data().into_future()),
                            _ => file.sync_all().wait(),
                        };
                        synced.expect("memory is sound");
                    }
                });
            }
        });
        let stats = engine.stats();
        assert_eq!(stats.in_flight, 0);
        assert!(stats.operations >= 8_000, "each is counted");
    }
}

#[test]
fn a_flush_of_a_device_is_never_waited_for_in_a_poll() {
    let Some(mounted) = mounted_or_skip("a_flush_of_a_device_is_never_waited_for_in_a_poll") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        assert_eq!(pending_before_one_at_once(&file, 100), None);
    });
}
