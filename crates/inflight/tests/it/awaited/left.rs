//! What an engine does about operations that were left behind when it is dropped.

use std::any::Any;
use std::cell::RefCell;
use std::fs;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use inflight::fs::File;
use inflight::{BufPool, Engine, leaked_operations};

use super::hands::{Gate, Slow, in_flight, poll_once};
use crate::support::{open, temp_path, until};

const PAGE: usize = 4096;

/// Begins writes of one page each and drops their futures.
fn leave_writes(engine: &Engine, file: &File, pool: &BufPool, count: u64) {
    let writes = (0..count).map(|page| {
        let buf = pool.take().expect("there are enough");
        let mut write = file.write_all_at(buf, page * PAGE as u64).into_future();
        assert!(poll_once(&mut write).is_pending());
        write
    });
    let writes: Vec<_> = writes.collect();
    pollster::block_on(in_flight(engine, count));
    drop(writes);
}

#[test]
fn dropping_the_engine_waits_for_what_was_left_behind() {
    let (gate, engine) = Gate::closed(|builder| builder.drain_for(Duration::MAX));
    let pool = BufPool::new(4, PAGE).unwrap();
    let path = temp_path(b"");
    let file = open(&engine, path.path());
    leave_writes(&engine, &file, &pool, 4);
    drop(file);
    thread::scope(|scope| {
        scope.spawn(|| gate.open());
        drop(engine);
        assert_eq!(pool.available(), 4, "it did not wait");
    });
    assert_eq!(fs::read(path.path()).unwrap().len(), 4 * PAGE);
}

#[test]
fn what_is_in_flight_past_the_drain_is_counted_and_let_go_when_it_is_over() {
    let (gate, engine) = Gate::closed(|builder| builder.drain_for(Duration::ZERO));
    let pool = BufPool::new(3, PAGE).unwrap();
    let path = temp_path(b"");
    let file = open(&engine, path.path());
    leave_writes(&engine, &file, &pool, 3);
    drop(file);
    let before = leaked_operations();
    drop(engine);
    assert!(leaked_operations() >= before + 3);
    assert_eq!(pool.available(), 0, "the memory is the kernel's");
    gate.open();
    until("the buffers are back", || pool.available() == 3);
    assert_eq!(fs::read(path.path()).unwrap().len(), 3 * PAGE);
}

#[test]
fn dropping_a_runtime_with_operations_in_flight_leaks_nothing() {
    let (gate, engine) = Gate::closed(|builder| builder);
    let pool = BufPool::new(16, PAGE).unwrap();
    let path = temp_path(b"");
    let file = Arc::new(open(&engine, path.path()));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).build().unwrap();
    for page in 0..16 {
        let (file, buf) = (Arc::clone(&file), pool.take().unwrap());
        runtime.spawn(async move {
            let _ = file.write_at(buf, page * PAGE as u64).await;
            panic!("it was answered behind a closed gate");
        });
    }
    pollster::block_on(in_flight(&engine, 16));
    drop(runtime);
    assert_eq!(pool.available(), 0, "the memory is the kernel's");
    gate.open();
    super::hands::drained(&engine);
    until("the buffers are back", || pool.available() == 16);
    assert!(Arc::try_unwrap(file).is_ok(), "a task is left");
}

#[test]
fn draining_waits_until_what_was_left_behind_has_been_let_go() {
    let (gate, engine) = Gate::closed(|builder| builder);
    let path = temp_path(b"");
    let file = open(&engine, path.path());
    let (say, hear) = channel();
    let (go, wait) = channel();
    let buf = Slow::new(say, wait);
    let mut write = file.write_at(buf, 0).into_future();
    assert!(poll_once(&mut write).is_pending());
    pollster::block_on(in_flight(&engine, 1));
    drop(write);
    gate.open();
    hear.recv().unwrap();
    assert_eq!(
        engine.drain(Duration::ZERO),
        1,
        "its buffer is being dropped"
    );
    go.send(()).unwrap();
    super::hands::drained(&engine);
}

thread_local! {
    static AT_THE_END: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_may_end_with_futures_in_flight() {
    let (gate, engine) = Gate::closed(|builder| builder);
    let pool = BufPool::new(2, PAGE).unwrap();
    let path = temp_path(b"");
    let file: &'static _ = Box::leak(Box::new(open(&engine, path.path())));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut write = file.write_at(pool.take().unwrap(), 0).into_future();
            assert!(poll_once(&mut write).is_pending());
            let fresh = file.write_at(pool.take().unwrap(), 0).into_future();
            pollster::block_on(in_flight(&engine, 1));
            AT_THE_END.set(Some(Box::new((write, fresh))));
        });
    });
    // A scope does not wait for thread-local destructors.
    until("the fresh one is gone", || pool.available() == 1);
    gate.open();
    super::hands::drained(&engine);
    until("the buffers are back", || pool.available() == 2);
}
