//! Backends that break: completions for nobody, rings that cannot be entered any more, and
//! completions that are lost.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use inflight::{AnyOp, Batch, Engine, Faults};

use super::{LEN, durable_file, has_piece, with_faults, write_pieces};
use crate::support::own::{alarm_seconds, is_rerun, rerun, set_alarm};
use crate::support::{chill, pattern, temp_file};

#[test]
fn completions_that_nobody_waits_for_are_counted_and_do_no_harm() {
    with_faults(
        |faults| faults.strays(500).short_transfers(300),
        |engine| {
            for all in [true, false] {
                let (path, file) = durable_file(engine);
                for _ in 0..20 {
                    let moved: Vec<_> = write_pieces(&file, 32, all)
                        .into_iter()
                        .map(Result::unwrap)
                        .collect();
                    let content = fs::read(path.path()).unwrap();
                    for (n, moved) in moved.into_iter().enumerate() {
                        assert!(moved > 0 && has_piece(&content, n, moved));
                        assert!(moved == LEN || !all);
                    }
                }
            }
            let stats = engine.stats();
            assert!(stats.strays > 100, "{stats:?}");
            assert_eq!((stats.operations, stats.in_flight), (1280, 0));
        },
    );
}

#[test]
fn completions_that_come_twice_are_believed_once_in_queues_too() {
    with_faults(
        |faults| faults.strays(700),
        |engine| {
            let tags = engine.queue(4, |queue| {
                let mut tags = Vec::new();
                for tag in 0..400 {
                    while queue.push(tag, engine.nop()).is_err() {
                        let (tag, result) = queue.next().unwrap();
                        result.unwrap();
                        tags.push(tag);
                    }
                }
                tags.extend(std::iter::from_fn(|| queue.next()).map(|(tag, _)| tag));
                tags
            });
            let mut tags = tags.unwrap();
            tags.sort_unstable();
            assert_eq!(tags, (0..400).collect::<Vec<_>>());
            assert!(engine.stats().strays > 0);
        },
    );
}

#[test]
fn a_backend_that_breaks_is_followed_by_plain_calls() {
    for after in [0, 1, 7, 31, 32, 33, 60, 100] {
        with_faults(
            |faults| faults.break_after(after),
            |engine| {
                let (path, file) = durable_file(engine);
                for _ in 0..5 {
                    for result in write_pieces(&file, 32, true) {
                        assert_eq!(result.unwrap(), LEN);
                    }
                }
                let content = fs::read(path.path()).unwrap();
                assert!((0..32).all(|n| has_piece(&content, n, LEN)));
                let data = pattern(4096);
                let other = temp_file(engine, &data);
                chill(&other);
                let mut batch = Batch::new();
                (0..64).for_each(|n| batch.push(other.read_exact_at(vec![0; 64], n * 64)));
                for (part, (result, buf)) in data.chunks(64).zip(batch.wait()) {
                    assert_eq!((result.unwrap(), &buf[..]), (64, part));
                }
                let stats = engine.stats();
                let told = stats
                    .fallbacks
                    .iter()
                    .any(|fallback| fallback.reason.contains("entered"));
                assert!(told && stats.in_flight == 0, "after {after}: {stats:?}");
            },
        );
    }
}

/// What is on its way is handed over before a copy is made.
#[test]
fn a_backend_that_breaks_before_a_copy_loses_neither() {
    let data = pattern(16 * 4096);
    for after in 60..100 {
        with_faults(
            |faults| faults.break_after(after),
            |engine| {
                let (read, written) = (temp_file(engine, &data), temp_file(engine, &[0; 4096]));
                chill(&read);
                let before = engine.stats().operations;
                let mut batch: Batch<AnyOp<'_, Vec<u8>>> = Batch::new();
                for n in 0..32 {
                    batch.push(read.read_exact_at(vec![0; 64], n * 512).into());
                    batch.push(written.write_all_at(vec![7; 64], n * 64).into());
                }
                for (at, (result, buf)) in batch.wait().enumerate() {
                    let from = at / 2 * 512;
                    let expected = match at % 2 {
                        0 => &data[from..from + 64],
                        _ => &[7; 64],
                    };
                    assert_eq!((result.unwrap(), &buf.unwrap()[..]), (64, expected));
                }
                let stats = engine.stats();
                assert_eq!((stats.operations - before, stats.in_flight), (64, 0));
            },
        );
    }
}

#[test]
fn a_backend_that_breaks_below_a_queue_and_short_transfers_leaves_the_results_right() {
    for after in 0..48 {
        let faults = |faults: Faults| faults.break_after(after).short_transfers(500);
        with_faults(faults, |engine| {
            let (path, file) = durable_file(engine);
            let written = engine.queue(8, |queue| {
                let mut written = 0;
                for n in 0..40_u8 {
                    let mut write = file.write_all_at(vec![n; LEN], u64::from(n) * LEN as u64);
                    while let Err(back) = queue.push(n.into(), write) {
                        write = back;
                        written += queue.next().unwrap().1.0.unwrap();
                    }
                }
                std::iter::from_fn(|| queue.next()).fold(written, |written, (_, (result, _))| {
                    written + result.unwrap()
                })
            });
            assert_eq!(written.unwrap(), 40 * LEN);
            let content = fs::read(path.path()).unwrap();
            assert!(
                (0..40).all(|n| has_piece(&content, n, LEN)),
                "after {after}"
            );
        });
    }
}

#[test]
fn lost_completions_end_the_process_with_a_message() {
    if is_rerun() {
        set_alarm(alarm_seconds());
        let engine = Engine::builder()
            .faults(Faults::new(1).lose_completions())
            .build()
            .unwrap();
        let mut batch = Batch::new();
        (0..4).for_each(|_| batch.push(engine.nop()));
        let results = batch.wait().count();
        panic!("{results} results although completions have been lost");
    }
    let test = "lost_completions_end_the_process_with_a_message";
    let output = rerun(module_path!(), test).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{message}");
    assert!(message.contains("The process ends here"), "{message}");
    assert!(!message.contains("results although"), "{message}");
}
