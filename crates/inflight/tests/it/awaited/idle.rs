//! A task of a tokio runtime whose operations are all answered at once wakes no worker that has
//! nothing to do each time that it could let others have their turn.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use inflight::fs::File;
use tokio::runtime::{Builder, Runtime};

use super::hands::Watchdog;
use crate::support::{copies_are_fast, engine_with_memory, open, pattern, temp_path};

const LEN: usize = 16;
const READS: u64 = 20_000;
/// So many turns are due in that time.
const DUE: u64 = READS / 129;
const TRIES: u32 = 20;

/// How often a task of this runtime has let others have their turn while it read, for as long as
/// it was to go on by how often it had read and had let others have their turn.
fn turns_of(runtime: &Runtime, file: File, goes_on: fn(u64, u64) -> bool) -> u64 {
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
    let task = async move {
        let mut reads = pin!(reads);
        poll_fn(|cx| {
            let polled = reads.as_mut().poll(cx);
            given.fetch_add(u64::from(polled.is_pending()), Relaxed);
            polled
        })
        .await;
        given.load(Relaxed)
    };
    let task = runtime.spawn(task);
    runtime.block_on(task).expect("the task ends")
}

/// How many in each of some tries; none where reads are slow.
fn turns(name: &str, runtime: &mut Builder) -> Vec<u64> {
    let path = temp_path(&pattern(LEN));
    let runtime = runtime.build().expect("a runtime");
    let engine = engine_with_memory();
    match copies_are_fast(name, path.path(), LEN) {
        true => (0..TRIES)
            .map(|_| {
                turns_of(&runtime, open(&engine, path.path()), |reads, _| {
                    reads < READS
                })
            })
            .collect(),
        false => Vec::new(),
    }
}

#[test]
fn a_worker_with_nothing_to_do_is_left_alone() {
    let name = "a_worker_with_nothing_to_do_is_left_alone";
    let turns = turns(name, Builder::new_multi_thread().worker_threads(2));
    // On a busy machine reads may be slow, and the worker late in going to sleep.
    let is_alone = turns.is_empty() || turns.iter().any(|turns| *turns < DUE / 2);
    assert!(is_alone, "{turns:?} of {DUE}");
}

#[test]
fn where_no_worker_is_idle_others_have_every_turn() {
    let name = "where_no_worker_is_idle_others_have_every_turn";
    let of_one = turns(name, &mut Builder::new_current_thread());
    let of_workers = turns(name, Builder::new_multi_thread().worker_threads(1));
    for turns in [of_one, of_workers].concat() {
        assert!(turns >= DUE, "{turns} of {DUE}");
    }
}

#[test]
fn others_of_the_same_task_have_their_turn_after_a_while() {
    let _watchdog = Watchdog::new();
    let path = temp_path(&pattern(LEN));
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).build().expect("a runtime");
    let file = open(&engine_with_memory(), path.path());
    assert_eq!(turns_of(&runtime, file, |_, turns| turns < 3), 3);
}
