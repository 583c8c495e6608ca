//! Rounds of syncs: with a disk whose flushes last as long as the test wants.

use std::future::IntoFuture;
use std::sync::mpsc;
use std::thread;

use inflight::fs::{File, SyncFile};
use inflight::{Batch, Operation, Pending, SyncFailed};

use super::disk::mounted_or_skip;
use super::{SYNCED, WRITTEN, open, poll_once};
use crate::support::{
    on_every_backend, on_every_faultless_backend, patience, read_write, temp_path,
};

fn pending(file: &File, count: usize) -> Vec<Pending<SyncFile<'_>>> {
    let mut syncs: Vec<_> = (0..count).map(|_| file.sync_data().into_future()).collect();
    for sync in &mut syncs {
        assert!(poll_once(sync).is_pending());
    }
    syncs
}

#[test]
fn many_tasks_share_few_flushes() {
    const TASKS: usize = 64;
    let Some(mounted) = mounted_or_skip("many_tasks_share_few_flushes") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let written = open(engine, &mounted, WRITTEN);
        let before = engine.stats();
        let mut flushes = 0;
        for round in 0..10_u8 {
            for task in 0..TASKS {
                let write = written.write_all_at(vec![round; 512], task as u64 * 512);
                assert_eq!(write.wait().0.unwrap(), 512);
            }
            mounted.disk.hold();
            let begun = mounted.disk.flushes();
            let syncs = pending(&file, TASKS);
            mounted.disk.let_go();
            for sync in syncs {
                pollster::block_on(sync).unwrap();
            }
            let made = mounted.disk.flushes() - begun;
            assert!((1..=2).contains(&made), "{made} flushes for {TASKS} syncs");
            flushes += made;
        }
        let after = engine.stats();
        assert_eq!(
            after.shared_syncs - before.shared_syncs,
            10 * TASKS as u64 - flushes
        );
        assert_eq!(after.flushes - before.flushes, flushes);
    });
}

#[test]
fn a_sync_that_is_asked_for_while_one_runs_is_not_served_by_it() {
    let name = "a_sync_that_is_asked_for_while_one_runs_is_not_served_by_it";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let begun = mounted.disk.flushes();
        mounted.disk.hold();
        thread::scope(|scope| {
            let first = scope.spawn(|| file.sync_all().wait());
            mounted.disk.wait_for_flushes(begun + 1);
            let late = pending(&file, 3);
            mounted.disk.let_go();
            first.join().unwrap().unwrap();
            for sync in late {
                pollster::block_on(sync).unwrap();
            }
        });
        assert_eq!(mounted.disk.flushes() - begun, 2);
    });
}

#[test]
fn everyone_hears_of_a_failed_flush_and_nobody_tries_again() {
    let name = "everyone_hears_of_a_failed_flush_and_nobody_tries_again";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT] {
        on_every_backend(|engine| {
            let file = open(engine, &mounted, SYNCED);
            let other = open(engine, &mounted, SYNCED);
            let begun = mounted.disk.flushes();
            mounted.disk.hold();
            let first = pending(&file, 1);
            mounted.disk.wait_for_flushes(begun + 1);
            // They wait for the next flush, which is never made.
            let late = pending(&file, 5);
            mounted.disk.fail(Some(errno));
            mounted.disk.let_go();
            for sync in first {
                let told = pollster::block_on(sync).unwrap_err();
                assert_eq!(told.raw_os_error(), Some(errno));
            }
            mounted.disk.fail(None);
            let mut refused: Vec<_> = late.into_iter().map(pollster::block_on).collect();
            refused.push(file.sync_all().wait());
            let mut batch = Batch::new();
            (0..2).for_each(|_| batch.push(file.sync_all()));
            refused.extend(batch.wait());
            for result in refused {
                let error = result.unwrap_err();
                let failed = error.get_ref().and_then(|cause| cause.downcast_ref());
                assert_eq!(failed, Some(&SyncFailed { errno }));
            }
            assert_eq!(mounted.disk.flushes() - begun, 1);
            // A handle that was not synced while the disk failed has seen nothing.
            other.sync_all().wait().unwrap();
        });
    }
}

#[test]
fn a_round_that_fails_tells_all_of_its_syncs() {
    let Some(mounted) = mounted_or_skip("a_round_that_fails_tells_all_of_its_syncs") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let begun = mounted.disk.flushes();
        mounted.disk.hold();
        thread::scope(|scope| {
            let first = scope.spawn(|| file.sync_all().wait());
            mounted.disk.wait_for_flushes(begun + 1);
            let late = pending(&file, 8);
            mounted.disk.let_one_go();
            first.join().unwrap().unwrap();
            mounted.disk.wait_for_flushes(begun + 2);
            mounted.disk.fail(Some(libc::EIO));
            mounted.disk.let_go();
            for sync in late {
                let told = pollster::block_on(sync).unwrap_err();
                assert_eq!(told.raw_os_error(), Some(libc::EIO));
            }
            mounted.disk.fail(None);
        });
    });
}

#[test]
fn whoever_leaves_keeps_nobody_waiting() {
    let Some(mounted) = mounted_or_skip("whoever_leaves_keeps_nobody_waiting") else {
        return;
    };
    on_every_backend(|engine| {
        for forgets in [false, true] {
            let file = open(engine, &mounted, SYNCED);
            let begun = mounted.disk.flushes();
            mounted.disk.hold();
            let mut first = pending(&file, 2);
            mounted.disk.wait_for_flushes(begun + 1);
            let mut late = pending(&file, 2);
            // Who asked first of those whose flush runs, and of those who wait for the next one.
            let left = [first.remove(0), late.remove(0)];
            // One that is not polled any more is as good as forgotten; its descriptor has to be
            // closed in the end, or the disk cannot be unmounted.
            let forgotten = forgets.then_some(left);
            mounted.disk.let_go();
            for sync in first.into_iter().chain(late) {
                pollster::block_on(sync).unwrap();
            }
            drop(forgotten);
        }
    });
}

/// The kernel tells an error of write-back once, and a durable write may be who it tells.
#[test]
fn a_durable_write_that_fails_is_remembered() {
    let Some(mounted) = mounted_or_skip("a_durable_write_that_fails_is_remembered") else {
        return;
    };
    let wait: fn(&File) = |file| {
        let result = file.write_at(vec![1; 512], 0).wait().0;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    };
    let wait_awake: fn(&File) = |file| {
        let result = pollster::block_on(file.write_at(vec![1; 512], 0).into_future()).0;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    };
    for write in [wait, wait_awake] {
        on_every_backend(|engine| {
            let options = read_write(engine).durable_writes(true);
            let file = options.open(mounted.path(SYNCED)).unwrap();
            file.sync_all().wait().unwrap();
            mounted.disk.fail_writes(Some(libc::EIO));
            write(&file);
            mounted.disk.fail_writes(None);
            let begun = mounted.disk.flushes();
            let error = file.sync_all().wait().unwrap_err();
            let failed = error.get_ref().and_then(|cause| cause.downcast_ref());
            assert_eq!(failed, Some(&SyncFailed { errno: libc::EIO }));
            assert_eq!(mounted.disk.flushes(), begun);
        });
    }
}

/// A thread that waits in the run loop, or in the queue, of which the flush would be.
#[test]
fn a_thread_does_not_wait_for_itself() {
    let Some(mounted) = mounted_or_skip("a_thread_does_not_wait_for_itself") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let ran = engine.run(async {
            let syncs = pending(&file, 3);
            file.sync_all().wait().unwrap();
            for sync in syncs {
                sync.await.unwrap();
            }
        });
        ran.unwrap();
        let queued = engine.queue(8, |queue| {
            (0..3).for_each(|tag| assert!(queue.push(tag, file.sync_all()).is_ok()));
            file.sync_all().wait().unwrap();
            let results = std::iter::from_fn(|| queue.next());
            results.map(|(_, result)| result.unwrap()).count()
        });
        assert_eq!(queued.unwrap(), 3);
        let mut batch = Batch::new();
        (0..20).for_each(|_| batch.push(file.sync_data()));
        let batched = batch.wait().map(|result| result.unwrap()).count();
        assert_eq!(batched, 20);
    });
}

#[test]
fn a_file_is_closed_when_it_is_dropped_after_its_syncs() {
    let name = "a_file_is_closed_when_it_is_dropped_after_its_syncs";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        for _ in 0..20 {
            let file = open(engine, &mounted, SYNCED);
            for sync in pending(&file, 4) {
                pollster::block_on(sync).unwrap();
            }
            // It is not given back while anything keeps it open.
            assert!(file.into_std().is_ok());
        }
    });
}

#[test]
fn a_sync_does_not_wait_for_what_else_is_in_the_batch_that_leads() {
    let name = "a_sync_does_not_wait_for_what_else_is_in_the_batch_that_leads";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    // The others keep answers back while one is waited for.
    on_every_faultless_backend(|engine| {
        let path = temp_path(b"");
        let local = read_write(engine).open(path.path()).unwrap();
        let slow = open(engine, &mounted, SYNCED);
        let begun = mounted.disk.flushes();
        mounted.disk.hold();
        thread::scope(|scope| {
            let batch = scope.spawn(|| {
                let mut batch = Batch::on(engine);
                batch.push(local.sync_data());
                batch.push(slow.sync_data());
                assert!(batch.wait().all(|result| result.is_ok()));
            });
            mounted.disk.wait_for_flushes(begun + 1);
            let (told, is_told) = mpsc::channel();
            let local = &local;
            scope.spawn(move || told.send(local.sync_data().wait()));
            let synced = is_told.recv_timeout(patience());
            let is_over = batch.is_finished();
            mounted.disk.let_go();
            synced.expect("it waits for another file").unwrap();
            assert!(!is_over, "the other flush was held");
        });
    });
}
