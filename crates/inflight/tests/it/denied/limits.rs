//! Where memory that may be locked, or descriptors, are short.
#![allow(unsafe_code)]

use std::fs;
use std::future::IntoFuture;
use std::io;
use std::iter;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use inflight::fs::File;
use inflight::{BackendKind, Batch, BufPool, Engine, Operation, SetupError};

use super::{PAGE, everything_works, in_own_process, rings_may_be_tried};
use crate::support::{
    backend_without_rings, chill, direct_file_or_skip, given_up, pattern, skip, temp_file, until,
    uring_or_skip,
};

/// Sets a soft limit; the hard one stays.
pub(crate) fn set_limit(resource: libc::__rlimit_resource_t, soft: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours to be filled.
    let answer = unsafe { libc::getrlimit(resource, &raw mut limit) };
    assert_eq!(answer, 0);
    limit.rlim_cur = soft.min(limit.rlim_max);
    // SAFETY: `limit` is only read.
    let answer = unsafe { libc::setrlimit(resource, &raw const limit) };
    assert_eq!(answer, 0);
}

/// Has writes beyond so many bytes of a file fail with `EFBIG` (setrlimit(2), `RLIMIT_FSIZE`), and
/// no signal sent for it.
pub(crate) fn limit_files(bytes: u64) {
    // SAFETY: to ignore a signal runs no handler.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
    set_limit(libc::RLIMIT_FSIZE, bytes);
}

/// Becomes a user whom limits bind.
pub(super) fn drop_privileges() {
    become_user(61_234);
}

/// Becomes this user, if root may do that here.
fn become_user(user: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    // SAFETY: no memory is involved.
    if is_root && unsafe { libc::setuid(user) } != 0 {
        panic!("{}", io::Error::last_os_error());
    }
    is_root
}

#[test]
fn without_locked_memory_an_engine_falls_back_or_works() {
    let test = "without_locked_memory_an_engine_falls_back_or_works";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        set_limit(libc::RLIMIT_MEMLOCK, 0);
        drop_privileges();
        let engine = Engine::new().unwrap();
        let backend = engine.backend();
        let is_charged = backend.refusal.is_some();
        match backend.refusal {
            Some(SetupError::Memory { memlock_bytes, .. }) => {
                assert_eq!(
                    (backend.kind, memlock_bytes),
                    (backend_without_rings(), Some(0))
                );
                assert!(
                    backend.reason.contains("RLIMIT_MEMLOCK"),
                    "{}",
                    backend.reason
                );
                let demanded = Engine::builder().backend(BackendKind::Uring).build();
                assert!(matches!(demanded, Err(SetupError::Memory { .. })));
            }
            // Kernels from 5.12 to 6.13 do not charge rings, but what is registered.
            None => assert_eq!(backend.kind, BackendKind::Uring),
            Some(other) => panic!("{other:?}"),
        }
        everything_works(&engine);
        let text = format!("{:?}", engine.stats().fallbacks);
        // Of what is not charged there is nothing to tell: Linux 6.1.
        let is_told = text.contains("MEMLOCK");
        assert!(is_told || !is_charged, "nothing tells why: {text}");
    });
}

#[test]
fn a_pool_that_cannot_be_registered_works_and_says_so() {
    let test = "a_pool_that_cannot_be_registered_works_and_says_so";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        set_limit(libc::RLIMIT_MEMLOCK, 1 << 20);
        drop_privileges();
        let engine = Engine::builder().queue_depth(8).build().unwrap();
        assert_eq!(engine.backend().kind, BackendKind::Uring);
        let content = pattern(4 << 19);
        let Some(file) = direct_file_or_skip(test, &engine, &content) else {
            return;
        };
        // More than the limit.
        let pool = BufPool::new(4, 1 << 19).unwrap();
        let mut batch = Batch::on(&engine);
        for number in 0..4 {
            batch.push(file.read_at(pool.take().unwrap(), number << 19));
        }
        for ((result, buf), expected) in batch.wait().zip(content.chunks(1 << 19)) {
            assert_eq!(result.unwrap(), 1 << 19);
            assert!(buf[..] == *expected);
        }
        let text = format!("{:?}", engine.stats().fallbacks);
        if text.contains("no memory for a ring") {
            // Where the limit is lower already, the rings of other tests may have all there is.
            return skip(test, "this thread could have no ring");
        }
        assert!(text.contains("buffers are not registered"), "{text}");
    });
}

#[test]
fn threads_that_wait_for_single_reads_leave_descriptors_to_the_program() {
    let test = "threads_that_wait_for_single_reads_leave_descriptors_to_the_program";
    if !rings_can_be_had(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        set_limit(libc::RLIMIT_NOFILE, 64);
        let engine = Engine::builder().backend(BackendKind::Uring).build();
        let engine = engine.unwrap();
        let Some(file) = direct_file_or_skip(test, &engine, &pattern(PAGE)) else {
            return;
        };
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let read = Barrier::new(101);
        let counted = Barrier::new(101);
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let read_once = || {
                        let block = file.aligned_buf(PAGE).unwrap();
                        file.read_at(block, 0).wait().0
                    };
                    let results: Vec<_> = (0..400).map(|_| read_once()).collect();
                    // Whatever they are: the others wait for this thread.
                    read.wait();
                    counted.wait();
                    assert!(results.into_iter().all(|result| result.unwrap() == PAGE));
                });
            }
            read.wait();
            let more = open() - before;
            counted.wait();
            // A sixteenth are rings, though more have tried.
            assert!((1..=7).contains(&more), "{more} descriptors more");
        });
    });
}

/// A read that is waited for does not need the ring that it would have tried.
#[test]
fn a_ring_that_cannot_be_tried_is_missed_by_nobody() {
    let test = "a_ring_that_cannot_be_tried_is_missed_by_nobody";
    if !rings_can_be_had(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        set_limit(libc::RLIMIT_NOFILE, 64);
        let demanded = Engine::builder().backend(BackendKind::Uring).build();
        for engine in [demanded.unwrap(), Engine::new().unwrap()] {
            let Some(file) = direct_file_or_skip(test, &engine, &pattern(PAGE)) else {
                return;
            };
            let read = || file.read_at(file.aligned_buf(PAGE).unwrap(), 0);
            // A thread that has not waited for anything yet.
            thread::scope(|scope| {
                let all = iter::repeat_with(|| fs::File::open("/dev/null"));
                let reads = scope.spawn(move || {
                    let taken: Vec<_> = all.map_while(Result::ok).collect();
                    let results = (0..200).map(|_| read().wait().0);
                    assert!(results.into_iter().all(|result| result.unwrap() == PAGE));
                    drop(taken);
                    let mut batch = Batch::new();
                    (0..8).for_each(|_| batch.push(read()));
                    assert!(batch.wait().all(|(result, _)| result.unwrap() == PAGE));
                });
                reads.join().unwrap();
            });
            let stats = engine.stats();
            assert!(stats.fallbacks.is_empty(), "{stats:?}");
            assert!(stats.enters > 0, "the batch has a ring: {stats:?}");
        }
    });
}

/// Whether a test can count on rings that it asks for, and on those of others not to be in its way.
fn rings_can_be_had(test: &str) -> bool {
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return false;
    }
    if locked_memory_is_scarce() {
        skip(
            test,
            "locked memory is scarce: a ring here may cost another test its own",
        );
        return false;
    }
    true
}

/// Whether rings of other tests of this user can take what a ring here needs.
pub(crate) fn locked_memory_is_scarce() -> bool {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("procfs is there");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    soft.is_some_and(|bytes| bytes < 1 << 20)
}

#[test]
fn want_of_descriptors_is_named_and_passes() {
    let test = "want_of_descriptors_is_named_and_passes";
    if !rings_can_be_had(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        let engine = Engine::new().unwrap();
        let file = temp_file(&engine, &pattern(PAGE));
        chill(&file);
        let reads = || {
            let mut batch = Batch::on(&engine);
            (0..8).for_each(|_| batch.push(file.read_at(vec![0; PAGE], 0)));
            batch
                .wait()
                .all(|(result, _)| result.is_ok_and(|read| read == PAGE))
        };
        assert!(reads());
        // The lowest that is free: everything below is taken.
        let free = File::open("/proc/self/exe").unwrap().as_raw_fd();
        set_limit(libc::RLIMIT_NOFILE, u64::try_from(free).unwrap());
        let demanded = Engine::builder().backend(BackendKind::Uring);
        let refused = demanded.clone().build();
        let Err(SetupError::Refused { cause }) = refused else {
            panic!("there is no descriptor for a ring, and yet: {refused:?}");
        };
        assert_eq!(cause.raw_os_error(), Some(libc::EMFILE));
        let falls_back = Engine::new().unwrap().backend();
        assert_eq!(falls_back.kind, BackendKind::Threads);
        assert!(matches!(
            falls_back.refusal,
            Some(SetupError::Refused { .. })
        ));
        // This thread has its ring; another one does without.
        assert!(reads());
        assert_eq!(engine.stats().fallbacks, []);
        std::thread::scope(|scope| assert!(scope.spawn(reads).join().unwrap()));
        let fallbacks = engine.stats().fallbacks;
        assert!(
            fallbacks[0].reason.contains("a thread has no ring"),
            "{fallbacks:?}"
        );
        set_limit(libc::RLIMIT_NOFILE, 1024);
        assert_eq!(demanded.build().unwrap().backend().kind, BackendKind::Uring);
    });
}

/// What was scarce for a moment is not missed for good, by a thread or by a driver.
#[test]
fn who_had_no_ring_for_want_of_descriptors_has_one_when_there_are_some() {
    let test = "who_had_no_ring_for_want_of_descriptors_has_one_when_there_are_some";
    if !rings_can_be_had(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        let engine = Engine::new().unwrap();
        let Some(file) = direct_file_or_skip(test, &engine, &pattern(8 * PAGE)) else {
            return;
        };
        let batch = || {
            let mut batch = Batch::on(&engine);
            let read = |page| file.read_at(file.aligned_buf(PAGE).unwrap(), page * PAGE as u64);
            (0..8).for_each(|page| batch.push(read(page)));
            batch
        };
        let waited = || batch().wait().all(|(result, _)| result.unwrap() == PAGE);
        let awaited = || {
            let results = pollster::block_on(batch().into_future());
            results
                .into_iter()
                .all(|(result, _)| result.unwrap() == PAGE)
        };
        let ways: [&dyn Fn() -> bool; 2] = [&waited, &awaited];
        let free = File::open("/proc/self/exe").unwrap().as_raw_fd();
        set_limit(libc::RLIMIT_NOFILE, u64::try_from(free).unwrap());
        assert!(ways.iter().all(|way| way()));
        let stats = engine.stats();
        assert_eq!((stats.enters, stats.fallbacks.len()), (0, 1), "{stats:?}");
        assert_eq!(stats.fallbacks[0].count, 2, "{stats:?}");
        set_limit(libc::RLIMIT_NOFILE, 1024);
        for way in ways {
            let before = engine.stats().enters;
            until("there is a ring", || {
                way() && engine.stats().enters > before
            });
        }
    });
}

#[test]
fn where_not_all_drivers_can_have_a_thread_the_others_work() {
    let test = "where_not_all_drivers_can_have_a_thread_the_others_work";
    if !rings_may_be_tried(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        // Nobody else's threads count.
        if !become_user(100_000 + std::process::id()) {
            return skip(
                test,
                "only root can be a user of whom there is no other process",
            );
        }
        let threads = fs::read_dir("/proc/self/task")
            .expect("/proc is there")
            .count();
        set_limit(libc::RLIMIT_NPROC, threads as u64 + 1);
        let engine = Engine::builder()
            .drivers(3)
            .build()
            .expect("nothing is demanded");
        let slept = pollster::block_on(engine.sleep(Duration::from_millis(1)));
        slept.expect("there is a driver");
        pollster::block_on(engine.nop().into_future()).expect("a no-op cannot fail");
        let told = given_up(&engine, "1 of 3 drivers, and no more");
        assert_eq!(told.len(), 1, "{:?}", engine.stats().fallbacks);
    });
}
