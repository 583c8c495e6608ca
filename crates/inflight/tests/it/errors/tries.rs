//! Errors that another try meets: how often, and what comes then.

use std::fs;

use inflight::Faults;

use super::{LEN, durable_file, has_piece, with_faults, write_pieces};

#[test]
fn again_and_interrupted_are_met_with_another_try() {
    for errno in [libc::EAGAIN, libc::EINTR, libc::ECANCELED, libc::EFAULT] {
        with_faults(
            |faults| faults.errors(errno, 300),
            |engine| {
                let (path, file) = durable_file(engine);
                for result in write_pieces(&file, 64, false) {
                    assert_eq!(result.unwrap(), LEN);
                }
                let content = fs::read(path.path()).unwrap();
                assert!((0..64).all(|n| has_piece(&content, n, LEN)));
                let stats = engine.stats();
                assert!(stats.retries > 0 && stats.fallbacks.is_empty(), "{stats:?}");
            },
        );
    }
}

#[test]
fn after_a_few_tries_a_plain_call_decides() {
    let cases = [
        (libc::EAGAIN, 3),
        (libc::EINTR, 3),
        (libc::ECANCELED, 1),
        (libc::EFAULT, 1),
    ];
    for (errno, tries) in cases {
        with_faults(
            |faults| faults.refuse("write", errno),
            |engine| {
                let (path, file) = durable_file(engine);
                for result in write_pieces(&file, 20, true) {
                    assert_eq!(result.unwrap(), LEN);
                }
                let content = fs::read(path.path()).unwrap();
                assert!((0..20).all(|n| has_piece(&content, n, LEN)));
                let stats = engine.stats();
                assert_eq!(
                    (stats.retries, stats.plain_calls),
                    (20 * tries, 20),
                    "errno {errno}"
                );
                assert_eq!((stats.operations, stats.in_flight), (20, 0));
            },
        );
    }
}

#[test]
fn an_operation_does_not_inherit_the_tries_of_another_one() {
    // The first operation fails once, then both of the second batch do. Each is tried again.
    let faults = |faults: Faults| {
        [0, 3, 4]
            .into_iter()
            .fold(faults, |faults, n| faults.fail_nth(n, libc::ECANCELED))
    };
    with_faults(faults, |engine| {
        let (_path, file) = durable_file(engine);
        for _ in 0..2 {
            assert!(write_pieces(&file, 2, false).iter().all(Result::is_ok));
        }
        let stats = engine.stats();
        assert_eq!((stats.retries, stats.plain_calls), (3, 0));
    });
}
