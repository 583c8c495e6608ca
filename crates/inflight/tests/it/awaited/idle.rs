//! A task of a tokio runtime whose operations are all answered at once wakes no worker that has
//! nothing to do each time that it could let others have their turn.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use inflight::fs::File;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use super::hands::Watchdog;
use crate::support::{copies_are_fast, engine_with_memory, open, pattern, temp_path, until};

const LEN: usize = 16;
const READS: u64 = 20_000;
/// So many turns are due in that time.
const DUE: u64 = READS / 129;

/// A task that reads for as long as it is to go on, by how often it has read and has let others
/// have their turn; how often that was.
async fn turns_of(file: File, goes_on: fn(u64, u64) -> bool) -> u64 {
    let given = Arc::new(AtomicU64::new(0));
    let turns = Arc::clone(&given);
    let reads = async move {
        let mut reads = 0;
        while goes_on(reads, turns.load(Relaxed)) {
            let (result, _) = file.read_at(vec![0; LEN], 0).await;
            assert_eq!(result.expect("it is read"), LEN);
            reads += 1;
        }
    };
    let mut reads = pin!(reads);
    poll_fn(|cx| {
        let polled = reads.as_mut().poll(cx);
        given.fetch_add(u64::from(polled.is_pending()), Relaxed);
        polled
    })
    .await;
    given.load(Relaxed)
}

fn of_worker(runtime: &Runtime, file: File) -> u64 {
    let task = runtime.spawn(turns_of(file, |reads, _| reads < READS));
    runtime.block_on(task).expect("the task ends")
}

fn of_local_set(runtime: &Runtime, file: File) -> u64 {
    let tasks = LocalSet::new();
    let task = tasks.spawn_local(turns_of(file, |reads, _| reads < READS));
    tasks.block_on(runtime, task).expect("the task ends")
}

/// Whether a task lets others have so many turns, sooner or later: on a busy machine reads may be
/// slow, and workers late in going to sleep.
fn comes_to(
    name: &str,
    runtime: &mut Builder,
    of: fn(&Runtime, File) -> u64,
    is_so: fn(u64) -> bool,
) {
    let path = temp_path(&pattern(LEN));
    let runtime = runtime.build().expect("a runtime");
    let engine = engine_with_memory();
    if copies_are_fast(name, path.path(), LEN) {
        until(name, || is_so(of(&runtime, open(&engine, path.path()))));
    }
}

#[test]
fn a_worker_with_nothing_to_do_is_left_alone() {
    let name = "a_worker_with_nothing_to_do_is_left_alone";
    let two = &mut Builder::new_multi_thread();
    comes_to(name, two.worker_threads(2), of_worker, |turns| {
        turns < DUE * 9 / 10
    });
}

#[test]
fn tasks_that_no_worker_takes_have_every_turn() {
    let name = "tasks_that_no_worker_takes_have_every_turn";
    let two = &mut Builder::new_multi_thread();
    comes_to(name, two.worker_threads(2), of_local_set, |turns| {
        turns >= DUE
    });
}

#[test]
fn where_no_worker_is_idle_others_have_every_turn() {
    let mut one = Builder::new_multi_thread();
    for builder in [&mut Builder::new_current_thread(), one.worker_threads(1)] {
        let path = temp_path(&pattern(LEN));
        let runtime = builder.build().expect("a runtime");
        let engine = engine_with_memory();
        for _ in 0..8 {
            let turns = of_worker(&runtime, open(&engine, path.path()));
            assert!(turns >= DUE, "{turns} of {DUE}");
        }
    }
}

#[test]
fn others_of_the_same_task_have_their_turn_after_a_while() {
    let _watchdog = Watchdog::new();
    let path = temp_path(&pattern(LEN));
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).build().expect("a runtime");
    let file = open(&engine_with_memory(), path.path());
    let task = runtime.spawn(turns_of(file, |_, turns| turns < 3));
    assert_eq!(runtime.block_on(task).expect("the task ends"), 3);
}
