//! Buffers that panic between two requests of an operation that has several.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;

use inflight::fs::{AnyRange, File, WriteAt};
use inflight::{AnyOp, Batch, Engine, Operation};

use super::any_range::any;
use crate::commit::SYNCED;
use crate::commit::disk::mounted_or_skip;
use crate::support::fussy::{Fussy, LEN};
use crate::support::{on_every_backend, patience, pattern, read_write, until};

/// How often a buffer is asked while its write is made by this.
fn questions(write: impl FnOnce(Fussy)) -> u32 {
    let buf = Fussy::calm(1);
    let questions = Arc::clone(&buf.questions);
    write(buf);
    questions.load(Ordering::Relaxed)
}

/// Begins within one block and ends within another, so that blocks are read first.
fn write(file: &File, buf: Fussy) -> WriteAt<'_, Fussy> {
    file.write_all_at(buf, 100)
}

fn on_every_file(name: &str, body: impl Fn(&Engine, &File)) {
    on_every_backend(|engine| {
        let data = pattern(4 * 4096);
        if let Some((_path, file)) = any(name, engine, &data, AnyRange::ReadsAndWrites) {
            body(engine, &file);
        }
    });
}

fn panics(what: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(what)).is_err()
}

#[test]
fn a_queue_has_its_place_back_whenever_a_buffer_panics() {
    on_every_file("a queue", |engine, file| {
        let asked = questions(|buf| {
            let done = engine.queue(1, |queue| {
                assert!(queue.push(0, write(file, buf)).is_ok());
                queue.next().expect("it is in flight").1.0
            });
            assert_eq!(done.unwrap().unwrap(), LEN);
        });
        let mut between = 0;
        for at in 1..=asked {
            let done = engine.queue(1, |queue| {
                let buf = Fussy::new(2, at);
                if !panics(|| assert!(queue.push(0, write(file, buf)).is_ok())) {
                    assert!(panics(|| drop(queue.next())), "question {at} of {asked}");
                    between += 1;
                }
                assert!(queue.is_empty() && !queue.is_full());
                assert!(queue.next().is_none());
                assert!(queue.push(1, write(file, Fussy::calm(3))).is_ok());
                queue.next().expect("it is in flight").1.0
            });
            assert_eq!(done.unwrap().unwrap(), LEN);
        }
        assert!(between > 0, "{asked} questions, none between two requests");
    });
}

#[test]
fn a_batch_runs_nothing_twice_when_a_buffer_has_panicked() {
    on_every_file("a batch", |engine, file| {
        let run = |first, second| {
            let mut batch = Batch::on(engine);
            batch.push(write(file, first));
            batch.push(file.write_all_at(second, 2 * 4096 + 100));
            assert!(batch.wait().all(|(result, _)| result.unwrap() == LEN));
        };
        let asked = questions(|buf| run(buf, Fussy::calm(1)));
        for at in 1..=asked {
            let mut batch = Batch::on(engine);
            batch.push(write(file, Fussy::new(2, at)));
            batch.push(file.write_all_at(Fussy::calm(2), 2 * 4096 + 100));
            assert!(panics(|| drop(batch.wait())), "question {at} of {asked}");
            assert_eq!((batch.len(), batch.wait().len()), (0, 0));
            batch.push(write(file, Fussy::calm(3)));
            let results: Vec<_> = batch.wait().map(|(result, _)| result.unwrap()).collect();
            assert_eq!(results, [LEN]);
        }
    });
}

#[test]
fn an_awaited_batch_has_all_results_or_none_whenever_a_buffer_panics() {
    on_every_file("an awaited batch", |engine, file| {
        let begin = |first| {
            let mut batch = Batch::on(engine);
            batch.push(file.write_all_at(Fussy::calm(2), 2 * 4096 + 100));
            batch.push(write(file, first));
            batch.push(file.write_all_at(Fussy::calm(3), 4 * 4096 + 100));
            batch.into_future()
        };
        let asked = questions(|buf| _ = pollster::block_on(begin(buf)));
        let mut outcomes = [0, 0];
        for at in 1..=asked {
            let (mut batch, mut panics, mut results) = (begin(Fussy::new(4, at)), 0, None);
            until("all is written", || {
                let mut context = Context::from_waker(Waker::noop());
                let poll = || Pin::new(&mut batch).poll(&mut context);
                match catch_unwind(AssertUnwindSafe(poll)) {
                    Ok(Poll::Ready(all)) => results = Some(all),
                    Ok(Poll::Pending) => {}
                    Err(_) => panics += 1,
                }
                results.is_some() || panics == 2
            });
            if let Some(results) = results {
                let results = results.into_iter();
                let written: Vec<_> = results.map(|(result, _)| result.unwrap()).collect();
                assert_eq!((written, panics), (vec![LEN; 3], 1), "{at} of {asked}");
            }
            // The results were being put together: it is over.
            outcomes[usize::from(panics == 2)] += 1;
        }
        assert!(outcomes[0] > outcomes[1] && outcomes[1] > 0, "{outcomes:?}");
    });
}

#[test]
fn a_batch_that_unwinds_has_nothing_flushed_for_a_sync_that_it_has_joined() {
    let name = "a_batch_that_unwinds_has_nothing_flushed_for_a_sync_that_it_has_joined";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let disk = &mounted.disk;
    on_every_file(name, |engine, direct| {
        let synced = read_write(engine).open(mounted.path(SYNCED));
        let synced = synced.expect("every number is a file");
        // Its first step is made when it is pushed, and the next one asks again.
        let first = engine.queue(1, |queue| {
            let buf = Fussy::calm(1);
            let questions = Arc::clone(&buf.questions);
            assert!(queue.push(0, write(direct, buf)).is_ok());
            questions.load(Ordering::Relaxed)
        });
        let first = first.expect("nothing is demanded");
        let before = disk.flushes();
        disk.hold();
        thread::scope(|scope| {
            let leads = scope.spawn(|| synced.sync_all().wait());
            disk.wait_for_flushes(before + 1);
            let mut batch: Batch<AnyOp<'_, Fussy>> = Batch::on(engine);
            batch.push(write(direct, Fussy::new(2, first + 1)).into());
            batch.push(synced.sync_all().into());
            let has_unwound = panics(|| drop(batch.wait()));
            disk.let_go();
            assert!(has_unwound);
            leads.join().unwrap().expect("it is synced");
        });
        synced.close().wait().expect("nothing is in flight");
        assert_eq!(engine.drain(patience()), 0);
        assert_eq!(disk.flushes(), before + 1);
    });
}
