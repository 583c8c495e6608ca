//! Flushes that a queue makes itself, and those that were left to it and that somebody else needs.
//! Run loops make none of FUSE, so theirs are among the library's own tests.

use std::future::IntoFuture;
use std::thread;

use inflight::fs::File;
use inflight::{AnyOp, Operation};

use super::disk::{Mounted, mounted_or_skip};
use super::{SYNCED, WRITTEN, open};
use crate::support::{on_every_backend, read_write};

/// This thread, as the kernel numbers it.
fn this_thread() -> u32 {
    let path = std::fs::read_link("/proc/thread-self").expect("it is there");
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    number.expect("its name is a number")
}

fn is_flushed_here(mounted: &Mounted) -> bool {
    mounted.disk.flusher() == this_thread()
}

/// Flushes do not end while this is there.
struct Held<'m>(&'m Mounted);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.disk.let_go();
    }
}

#[test]
fn a_queue_has_several_files_flushed_side_by_side() {
    let name = "a_queue_has_several_files_flushed_side_by_side";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let files = [SYNCED, WRITTEN].map(|number| open(engine, &mounted, number));
        let begun = mounted.disk.flushes();
        mounted.disk.hold();
        let queued = thread::scope(|scope| {
            scope.spawn(|| {
                let _held = Held(&mounted);
                mounted.disk.wait_for_flushes(begun + 2);
            });
            engine.queue(4, |queue| {
                for (tag, file) in (0..).zip(files.iter().chain(&files)) {
                    assert!(queue.push(tag, file.sync_data()).is_ok());
                }
                let results = std::iter::from_fn(|| queue.next());
                results.map(|(_, result)| result.unwrap()).count()
            })
        });
        assert_eq!(queued.unwrap(), 4);
        assert_eq!(mounted.disk.flushes() - begun, 2);
    });
}

#[test]
fn the_syncs_of_a_queue_are_one_flush_of_its_thread() {
    let name = "the_syncs_of_a_queue_are_one_flush_of_its_thread";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let begun = mounted.disk.flushes();
        let queued = engine.queue(8, |queue| {
            (0..8).for_each(|tag| assert!(queue.push(tag, file.sync_data()).is_ok()));
            let results = std::iter::from_fn(|| queue.next());
            results.map(|(_, result)| result.unwrap()).count()
        });
        assert_eq!(queued.unwrap(), 8);
        assert_eq!(mounted.disk.flushes() - begun, 1);
        assert!(is_flushed_here(&mounted));
    });
}

#[test]
fn a_queue_that_waits_for_something_else_leaves_its_flush_to_the_pool() {
    let name = "a_queue_that_waits_for_something_else_leaves_its_flush_to_the_pool";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let durable = read_write(engine).durable_writes(true);
        let other = durable.open(mounted.path(WRITTEN)).unwrap();
        let queued = engine.queue(8, |queue| {
            let sync = || AnyOp::from(file.sync_data());
            let write = || AnyOp::from(other.write_at(vec![1; 512], 0));
            let operations = [sync(), write(), sync(), write()];
            for (tag, operation) in (0..).zip(operations) {
                assert!(queue.push(tag, operation).is_ok());
            }
            let results = std::iter::from_fn(|| queue.next());
            let mut tags: Vec<u64> = results
                .map(|(tag, (result, _))| {
                    result.unwrap();
                    tag
                })
                .collect();
            tags.sort_unstable();
            tags
        });
        assert_eq!(queued.unwrap(), [0, 1, 2, 3]);
    });
}

/// Nobody waits for a queue that does not come back, because this thread blocks.
#[test]
fn whoever_else_asks_does_not_count_on_a_promise() {
    let name = "whoever_else_asks_does_not_count_on_a_promise";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let waits: fn(&File) = |file| file.sync_all().wait().unwrap();
    let awaits: fn(&File) = |file| pollster::block_on(file.sync_all().into_future()).unwrap();
    for asks in [waits, awaits] {
        on_every_backend(|engine| {
            let file = open(engine, &mounted, SYNCED);
            let ask = || {
                thread::scope(|scope| scope.spawn(|| asks(&file)).join().unwrap());
                asks(&file);
            };
            let queued = engine.queue(2, |queue| {
                assert!(queue.push(0, file.sync_data()).is_ok());
                ask();
                queue.next().unwrap().1
            });
            queued.unwrap().unwrap();
        });
    }
}

#[test]
fn a_failed_flush_of_a_loop_or_a_queue_is_remembered() {
    let name = "a_failed_flush_of_a_loop_or_a_queue_is_remembered";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        for queues in [false, true] {
            let file = open(engine, &mounted, SYNCED);
            file.sync_data().wait().unwrap();
            mounted.disk.fail(Some(libc::EIO));
            let told = if queues {
                let queued = engine.queue(1, |queue| {
                    assert!(queue.push(0, file.sync_data()).is_ok());
                    queue.next().unwrap().1
                });
                queued.unwrap()
            } else {
                engine.run(async { file.sync_data().await }).unwrap()
            };
            mounted.disk.fail(None);
            assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::EIO));
            let begun = mounted.disk.flushes();
            assert!(file.sync_data().wait().is_err());
            assert_eq!(mounted.disk.flushes(), begun);
        }
    });
}
