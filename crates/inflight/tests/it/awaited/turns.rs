//! A task whose operations are all answered at once lets the others of its thread have their turn,
//! however it awaits them.

use std::cell::Cell;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::{Context, Waker};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered};
use inflight::fs::File;
use inflight::{Awaited, Batch};

use super::everywhere::on_every_host;
use crate::support::{on_every_faultless_backend, patience, pattern, temp_file};

const READS: u64 = 64;
/// So many at a time are as much as is answered at once before others have their turn.
const LEN: usize = 32 << 10;
const ROUNDS: u32 = 16;

/// Runs a future, and counts how often it is not ready, which is when others have their turn.
async fn turns_of(future: impl Future<Output = ()>) -> u32 {
    let turns = Cell::new(0);
    let mut future = pin!(future);
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            turns.set(turns.get() + 1);
        }
        polled
    })
    .await;
    turns.get()
}

/// Whatever reads all of a file is in between left at least once for each time that it reads it.
fn others_have_turns<F: Future<Output = ()>>(read_all: impl Fn(&'static File) -> F) {
    on_every_faultless_backend(|engine| {
        let file = temp_file(engine, &pattern(LEN));
        // What awaits in a runtime does not borrow.
        let file: &'static File = Box::leak(Box::new(file));
        on_every_host(engine, || async {
            let rounds = async {
                for _ in 0..ROUNDS {
                    read_all(file).await;
                }
            };
            let turns = turns_of(rounds).await;
            assert!(turns >= ROUNDS, "{turns} turns in {ROUNDS} rounds");
        });
    });
}

fn read(file: &File) -> inflight::fs::ReadAt<'_, Vec<u8>> {
    file.read_at(vec![0; LEN], 0)
}

fn batch(file: &File) -> Batch<inflight::fs::ReadAt<'_, Vec<u8>>> {
    (0..READS).map(|_| read(file)).collect()
}

#[test]
fn of_one_after_the_other() {
    others_have_turns(|file| async {
        for _ in 0..READS {
            assert_eq!(read(file).await.0.unwrap(), LEN);
        }
    });
}

#[test]
fn of_a_batch() {
    others_have_turns(|file| async {
        for (result, _) in batch(file).await {
            assert_eq!(result.unwrap(), LEN);
        }
    });
}

#[test]
fn of_a_batch_with_a_timeout() {
    others_have_turns(|file| async {
        let results = batch(file).timeout(patience()).await;
        for (result, _) in results.expect("in time") {
            assert_eq!(result.unwrap(), LEN);
        }
    });
}

#[test]
fn of_what_is_joined() {
    others_have_turns(|file| async {
        let reads = (0..READS).map(|_| read(file).into_future());
        for (result, _) in join_all(reads).await {
            assert_eq!(result.unwrap(), LEN);
        }
    });
}

#[test]
fn of_a_set_of_futures() {
    others_have_turns(|file| async {
        let reads = (0..READS).map(|_| read(file).into_future());
        let mut reads: FuturesUnordered<_> = reads.collect();
        while let Some((result, _)) = reads.next().await {
            assert_eq!(result.unwrap(), LEN);
        }
    });
}

#[test]
fn of_a_stream_that_is_buffered() {
    others_have_turns(|file| async {
        let reads = stream::iter((0..READS).map(|_| read(file).into_future()));
        let mut reads = reads.buffer_unordered(16);
        while let Some((result, _)) = reads.next().await {
            assert_eq!(result.unwrap(), LEN);
        }
    });
}

#[test]
fn who_never_polls_a_future_again_is_answered_all_the_same() {
    const READS: usize = 10_000;
    on_every_faultless_backend(|engine| {
        let file = temp_file(engine, &pattern(64));
        let mut context = Context::from_waker(Waker::noop());
        let mut is_ready = |_: &usize| {
            let mut read = file.read_at(vec![0; 64], 0).into_future();
            pin!(&mut read).poll(&mut context).is_ready()
        };
        let answered = (0..READS).filter(&mut is_ready).count();
        assert!(answered > READS / 100 * 95, "{answered} of {READS}");
    });
}
