//! Whom a thread that waits for a sync does not wait for: threads that never come, and itself.
#![allow(unsafe_code)]

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;

use inflight::fs::File;
use inflight::{AnyOp, Batch, Engine, IoBuf, IoBufMut, Operation};
use tempfile::TempDir;

use super::disk::mounted_or_skip;
use super::{SYNCED, open, poll_once};
use crate::support::fifo::Fifo;
use crate::support::{
    directory, on_every_backend, on_every_backend_of, on_every_faultless_backend_of, patience,
    read_write, temp_path,
};

const SYNCS: usize = 50;

#[test]
fn threads_sync_while_the_only_thread_of_the_pool_is_in_a_call_that_does_not_end() {
    on_every_backend_of(
        |builder| builder.threads(1),
        |engine| {
            let path = temp_path(b"");
            let file = &read_write(engine).open(path.path()).expect("it is there");
            let folder = TempDir::new_in(directory()).expect("it can be written");
            let fifo = Fifo::new(folder.path());
            let mut opens = fifo.opening(engine).into_future();
            assert!(poll_once(&mut opens).is_pending());
            let (told, ends) = channel();
            thread::scope(|scope| {
                for _ in 0..4 {
                    let told = told.clone();
                    scope.spawn(move || {
                        let synced = (0..SYNCS).all(|_| file.sync_data().wait().is_ok());
                        told.send(synced).expect("it is waited for");
                    });
                }
                let ends: Vec<_> = (0..4).map(|_| ends.recv_timeout(patience())).collect();
                // Else a test that fails does not end either.
                fifo.release();
                assert_eq!(ends, [Ok(true); 4]);
            });
            pollster::block_on(opens).expect("it is open");
        },
    );
}

#[test]
fn flushes_of_another_program_leave_a_thread_to_the_others() {
    let name = "flushes_of_another_program_leave_a_thread_to_the_others";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_faultless_backend_of(
        |builder| builder.threads(2),
        |engine| {
            let files = [(); 3].map(|()| open(engine, &mounted, SYNCED));
            let path = temp_path(b"");
            let local = read_write(engine).open(path.path()).expect("it is there");
            let begun = mounted.disk.flushes();
            mounted.disk.hold();
            let mut held = files.each_ref().map(|file| file.sync_data().into_future());
            for sync in &mut held {
                assert!(poll_once(sync).is_pending());
            }
            mounted.disk.wait_for_flushes(begun + 1);
            let (told, is_told) = channel();
            let waker = Waker::from(Arc::new(Tells(Mutex::new(told))));
            let mut sync = local.sync_data().into_future();
            let polled = Pin::new(&mut sync).poll(&mut Context::from_waker(&waker));
            let woken = match polled.is_ready() {
                true => Ok(()),
                false => is_told.recv_timeout(patience()),
            };
            mounted.disk.let_go();
            assert_eq!(woken, Ok(()), "a thread is left to it");
            pollster::block_on(sync).expect("it is made");
            for sync in held {
                pollster::block_on(sync).expect("it is made");
            }
        },
    );
}

struct Tells(Mutex<Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let tells = self.0.lock().expect("nobody panics with it");
        // Whoever is told more often than it asks has gone.
        let _ = tells.send(());
    }
}

/// A waker that syncs by a queue.
struct Queues {
    engine: Engine,
    file: Arc<File>,
    told: Mutex<Sender<usize>>,
}

impl Wake for Queues {
    fn wake(self: Arc<Self>) {
        let synced = self.engine.queue(4, |queue| {
            (0..3).for_each(|tag| assert!(queue.push(tag, self.file.sync_data()).is_ok()));
            let results = std::iter::from_fn(|| queue.next());
            results.filter(|(_, result)| result.is_ok()).count()
        });
        let told = self.told.lock().expect("nobody panics with it");
        told.send(synced.expect("there is a queue"))
            .expect("it is waited for");
    }
}

#[test]
fn a_waker_may_sync_by_a_queue() {
    on_every_backend(|engine| {
        let path = temp_path(&vec![7; 4 << 20]);
        let file = Arc::new(read_write(engine).open(path.path()).expect("it is there"));
        let (told, is_told) = channel();
        let waker = Waker::from(Arc::new(Queues {
            engine: engine.clone(),
            file: Arc::clone(&file),
            told: Mutex::new(told),
        }));
        let mut sync = file.sync_data().into_future();
        let polled = Pin::new(&mut sync).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "a large file is flushed by the pool");
        assert_eq!(is_told.recv_timeout(patience()), Ok(3));
        pollster::block_on(sync).expect("it is made");
    });
}

/// A buffer whose code waits for a sync the first times that it is asked for.
struct Syncs {
    bytes: Vec<u8>,
    file: Arc<File>,
    asked: AtomicU32,
}

// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Syncs {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn len(&self) -> usize {
        if self.asked.fetch_add(1, Ordering::Relaxed) < 2 {
            self.file.sync_data().wait().expect("it is made");
        }
        self.bytes.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Syncs {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}

#[test]
fn a_batch_flushes_when_all_else_has_been_started() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let file = Arc::new(read_write(engine).open(path.path()).expect("it is there"));
        let (told, is_told) = channel();
        let (batched, engine) = (Arc::clone(&file), engine.clone());
        let runs = thread::spawn(move || {
            let bytes = Syncs {
                bytes: vec![7; 512],
                file: Arc::clone(&batched),
                asked: AtomicU32::new(0),
            };
            let mut batch: Batch<AnyOp<Syncs>> = Batch::on(&engine);
            batch.push(batched.sync_data().into());
            batch.push(batched.write_at(bytes, 0).into());
            assert!(batch.wait().all(|(result, _)| result.is_ok()));
            told.send(()).expect("it is waited for");
        });
        is_told.recv_timeout(patience()).expect("it ends");
        runs.join().expect("no panic");
    });
}

#[test]
fn syncs_of_a_batch_are_one_flush_which_one_of_them_may_want_to_be_of_metadata_too() {
    let name = "syncs_of_a_batch_are_one_flush_which_one_of_them_may_want_to_be_of_metadata_too";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        for (all_at, of_data) in [(Some(0), 0), (Some(2), 0), (Some(4), 0), (None, 1)] {
            let before = (mounted.disk.flushes(), mounted.disk.flushes_of_data());
            let mut batch = Batch::on(engine);
            for at in 0..5 {
                match all_at == Some(at) {
                    true => batch.push(file.sync_all()),
                    false => batch.push(file.sync_data()),
                }
            }
            assert!(batch.wait().all(|result| result.is_ok()));
            let after = (mounted.disk.flushes(), mounted.disk.flushes_of_data());
            assert_eq!((after.0 - before.0, after.1 - before.1), (1, of_data));
        }
    });
}
