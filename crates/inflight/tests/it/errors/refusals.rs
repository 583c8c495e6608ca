//! Operations that a ring does not know: plain calls do them, and that is told.

use std::fs;

use inflight::fs::AllocateRange;
use inflight::{Batch, Engine, Faults, errno_of};

use super::{LEN, durable_file, first_nop, has_piece, with_faults, write_pieces};
use crate::support::{chill, pattern, temp_file};

/// The errnos with which a ring says that it does not know an operation.
const UNKNOWN: [i32; 4] = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS, libc::EACCES];

/// Whether this is the only fallback, once.
fn is_only_fallback(engine: &Engine, kind: &str) -> bool {
    let fallbacks = engine.stats().fallbacks;
    fallbacks.len() == 1 && fallbacks[0].count == 1 && fallbacks[0].reason.contains(kind)
}

#[test]
fn a_refused_operation_is_done_by_plain_calls_and_the_refusal_is_remembered() {
    for errno in UNKNOWN {
        // Three are handed over. The fourth one is not, so that the first no-op is the one.
        let faults = |faults: Faults| faults.refuse("readv", errno).fail_nth(3, libc::EIO);
        with_faults(faults, |engine| {
            let file = temp_file(engine, &pattern(100));
            for _ in 0..3 {
                let mut batch = Batch::new();
                (0..3).for_each(|_| {
                    batch.push(file.read_vectored_at(vec![vec![0; 50]], 50).by_backend())
                });
                for (result, bufs) in batch.wait() {
                    assert_eq!((result.unwrap(), &bufs[0][..]), (50, &pattern(100)[50..]));
                }
                assert!(is_only_fallback(engine, "readv"), "{:?}", engine.stats());
            }
            assert_eq!(engine.stats().plain_calls, 9);
            assert_eq!(
                first_nop(engine),
                Some(libc::EIO),
                "errno {errno}: not remembered"
            );
        });
    }
}

#[test]
fn every_kind_but_a_sync_has_a_plain_call() {
    let kinds = ["read", "write", "writev", "fallocate", "nop"];
    for (kind, errno) in kinds
        .into_iter()
        .flat_map(|kind| UNKNOWN.map(|errno| (kind, errno)))
    {
        with_faults(
            |faults| faults.refuse(kind, errno),
            |engine| {
                let (path, file) = durable_file(engine);
                assert!(write_pieces(&file, 4, true).iter().all(Result::is_ok));
                let (a, b) = (vec![vec![4; LEN]], vec![vec![5; LEN]]);
                let mut batch = Batch::new();
                batch.push(file.write_vectored_all_at(a, 4 * LEN as u64));
                batch.push(file.write_vectored_all_at(b, 5 * LEN as u64));
                assert!(batch.wait().all(|(result, _)| result.unwrap() == LEN));
                let mut batch = Batch::new();
                (0..2).for_each(|_| batch.push(file.sync_data()));
                assert!(batch.wait().all(|result| result.is_ok()));
                let mut batch = Batch::new();
                (0..2).for_each(|_| batch.push(file.allocate(AllocateRange::Reserve, 0, 6000)));
                let unsupported = batch.wait().all(|result| result.is_err());
                assert_eq!(first_nop(engine), None);
                chill(&file);
                let mut batch = Batch::new();
                (0..2).for_each(|_| batch.push(file.read_at(vec![0; LEN], 0)));
                assert!(batch.wait().all(|(result, _)| result.unwrap() == LEN));
                let content = fs::read(path.path()).unwrap();
                assert!((0..6).all(|n| has_piece(&content, n, LEN)));
                let given_up = is_only_fallback(engine, kind);
                assert!(
                    given_up || (kind == "fallocate" && unsupported),
                    "{kind} {errno}"
                );
            },
        );
    }
}

#[test]
fn an_error_of_the_caller_is_no_fallback() {
    with_faults(
        |faults| faults,
        |engine| {
            let (_path, file) = durable_file(engine);
            let mut batch = Batch::new();
            (0..4).for_each(|_| batch.push(file.allocate(AllocateRange::Reserve, 0, 0)));
            for result in batch.wait() {
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
            }
            assert!(engine.stats().fallbacks.is_empty());
        },
    );
}
