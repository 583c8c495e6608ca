//! What is awaited where there are no rings: threads of the pool make it, and answer it.

use std::fs;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use inflight::{BackendKind, Batch, Engine};
use tempfile::TempDir;

use super::hands::poll_once;
use crate::support::fifo::Fifo;
use crate::support::own::in_own_process;
use crate::support::{directory, patience, pattern, temp_file, until};

const PAGE: usize = 4096;

fn on_threads(threads: u32) -> Engine {
    let builder = Engine::builder().backend(BackendKind::Threads);
    builder.threads(threads).build().expect("there are threads")
}

fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is there");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|known| known.starts_with(name)).count()
}

#[test]
fn what_is_awaited_on_threads_needs_no_driver() {
    let test = "what_is_awaited_on_threads_needs_no_driver";
    in_own_process(module_path!(), test, || {
        let engine = on_threads(3);
        let content = pattern(16 * PAGE);
        let file = temp_file(&engine, &content);
        let before = engine.stats().operations;
        pollster::block_on(async {
            for _ in 0..10 {
                engine.nop().await.expect("it does nothing");
            }
            let mut batch = Batch::new();
            for page in 0..16 {
                batch.push(
                    file.write_at(content[..PAGE].to_vec(), (page * PAGE) as u64)
                        .dsync(),
                );
            }
            for (result, _) in batch.await {
                assert_eq!(result.expect("it can be written"), PAGE);
            }
        });
        assert_eq!(engine.drain(Duration::ZERO), 0);
        let stats = engine.stats();
        assert_eq!((stats.operations - before, stats.in_flight), (26, 0));
        assert_eq!(stats.fallbacks.len(), 0);
        assert_eq!(threads_named("inflight-driver"), 0);
        assert!((1..=3).contains(&threads_named("inflight-pool")));
    });
}

#[test]
fn what_waits_for_a_thread_is_taken_back_or_made_later() {
    let engine = on_threads(1);
    let folder = TempDir::new_in(directory()).expect("the test directory can be written");
    let fifo = Fifo::new(folder.path());
    // Opening it keeps the only thread busy until somebody opens the other end.
    let mut open = fifo.opening(&engine).into_future();
    assert!(poll_once(&mut open).is_pending());

    let mut nops: Vec<_> = (0..8).map(|_| engine.nop().into_future()).collect();
    for nop in &mut nops {
        assert!(poll_once(nop).is_pending());
    }
    assert_eq!(engine.drain(Duration::ZERO), 9);
    nops.truncate(5);
    assert_eq!(engine.drain(Duration::ZERO), 6);

    fifo.release();
    for nop in nops {
        pollster::block_on(nop).expect("it does nothing");
    }
    pollster::block_on(open).expect("it is open");
    assert_eq!(engine.drain(Duration::ZERO), 0);
    // A thread that was called for what has been taken back finds nothing, and others are called.
    for _ in 0..100 {
        let mut nop = std::pin::pin!(engine.nop().into_future());
        let mut context = Context::from_waker(Waker::noop());
        let is_left = nop.as_mut().poll(&mut context).is_pending();
        assert!(is_left, "a thread makes it");
    }
    pollster::block_on(engine.nop().into_future()).expect("it does nothing");
}

/// Takes what it is given when it is woken, and does this with it.
struct Does<T>(Mutex<Option<T>>, fn(T));

impl<T: Send> Wake for Does<T> {
    fn wake(self: Arc<Self>) {
        if let Some(given) = self.0.lock().expect("nobody panics with it").take() {
            (self.1)(given);
        }
    }
}

#[test]
fn the_last_handle_may_be_dropped_by_what_the_pool_wakes() {
    // The engines of other tests have such threads too.
    let test = "the_last_handle_may_be_dropped_by_what_the_pool_wakes";
    in_own_process(module_path!(), test, drop_the_last_handle_in_a_waker);
}

fn drop_the_last_handle_in_a_waker() {
    let builder = Engine::builder().backend(BackendKind::Threads).threads(1);
    // Whoever waits for what nobody makes does so until the test has failed.
    let engine = builder.drain_for(10 * patience()).build();
    let engine = engine.expect("there are threads");
    let (dropped, was_dropped) = channel();
    let (is_last, comes) = channel();
    let drops = |(engine, comes, dropped): (Engine, Receiver<()>, Sender<()>)| {
        comes.recv().expect("it is told");
        // Something is in flight that needs this thread, which is the only one of the pool.
        let mut nop = engine.nop().into_future();
        let is_pending = pin!(&mut nop).poll(&mut Context::from_waker(Waker::noop()));
        assert!(is_pending.is_pending());
        std::mem::forget(nop);
        drop(engine);
        dropped.send(()).expect("it is awaited");
    };
    let mut nop = engine.nop().into_future();
    let given = Mutex::new(Some((engine.clone(), comes, dropped)));
    let waker = Waker::from(Arc::new(Does(given, drops)));
    let polled = pin!(&mut nop).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    std::mem::forget(nop);
    drop(engine);
    is_last.send(()).expect("it is awaited");
    was_dropped.recv_timeout(patience()).expect("it ends");
    until("nobody waits for what nobody makes", || {
        threads_named("inflight") == 0
    });
}
