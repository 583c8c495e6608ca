//! Where futures cannot have what they need: descriptors, a ring that may be entered, the process
//! that they were made in. Each test in a process of its own.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::future::IntoFuture;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::task::Poll;
use std::time::Duration;

use inflight::{Awaited, BackendKind, Batch, Engine, Forked, SetupError, local};
use seccompiler::{SeccompAction, SeccompFilter, apply_filter_all_threads};

use super::hands::{poll_once, until_turned};
use crate::denied::limits::locked_memory_is_scarce;
use crate::support::own::{end_child, end_of, fork, in_forked_child, in_own_process, settle};
use crate::support::{on_every_backend, pattern, skip, temp_file, uring_or_skip};

async fn works(engine: &Engine) {
    let content = pattern(64);
    let file = temp_file(engine, &content);
    for at in 0..64_u8 {
        let (result, bufs) = file
            .read_vectored_at(vec![vec![0; 1]], at.into())
            .by_backend()
            .await;
        assert_eq!(
            (result.expect("it is done"), bufs[0][0]),
            (1, content[usize::from(at)])
        );
    }
    engine
        .sleep(Duration::from_millis(1))
        .await
        .expect("there are timers");
    engine
        .nop()
        .timeout(Duration::from_secs(60))
        .await
        .expect("there are timers")
        .expect("there are no faults");
    let mut batch = Batch::on(engine);
    (0..200).for_each(|_| batch.push(engine.nop()));
    assert!(batch.await.into_iter().all(|result| result.is_ok()));
}

fn works_everywhere(engine: &Engine) {
    pollster::block_on(works(engine));
    engine.run(works(engine)).expect("nothing is demanded");
}

/// Whether each thread here has a ring for sure.
fn rings_are_plenty(test: &str) -> bool {
    if uring_or_skip(test).is_none() {
        return false;
    }
    if locked_memory_is_scarce() {
        skip(
            test,
            "locked memory is scarce, so that there may be no ring",
        );
        return false;
    }
    true
}

pub(super) fn is_forked<T>(polled: Poll<io::Result<T>>) -> bool {
    match polled {
        Poll::Ready(Err(error)) => error.get_ref().is_some_and(|inner| inner.is::<Forked>()),
        _ => false,
    }
}

#[test]
fn a_forked_child_is_refused_and_its_parent_unharmed() {
    let test = "a_forked_child_is_refused_and_its_parent_unharmed";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = temp_file(engine, &pattern(64));
            let mut reads: Vec<_> = (0..20)
                .map(|at| {
                    file.read_vectored_at(vec![vec![0; 4]], at)
                        .by_backend()
                        .into_future()
                })
                .collect();
            let mut sleep = engine.sleep(Duration::from_secs(3600));
            assert!(poll_once(&mut sleep).is_pending());
            for read in &mut reads {
                assert!(poll_once(read).is_pending());
            }
            let mut is_refused = || {
                for read in &mut reads[..10] {
                    let polled = poll_once(read).map(|(result, bufs)| {
                        assert_eq!(bufs[0].len(), 4);
                        result
                    });
                    assert!(is_forked(polled));
                }
                drop(std::mem::take(&mut reads));
                assert!(is_forked(poll_once(&mut sleep)), "it sleeps for ever");
                assert!(is_forked(poll_once(
                    &mut engine.sleep(Duration::from_secs(1))
                )));
                assert!(is_forked(poll_once(&mut engine.nop().into_future())));
                let refused = engine.run(async {}).unwrap_err();
                assert!(is_forked::<()>(Poll::Ready(Err(refused))));
            };
            // Once with all in flight, and once where a child may start threads.
            in_forked_child(&mut is_refused);
            settle();
            in_forked_child(|| {
                is_refused();
                let own = Engine::new().unwrap();
                works_everywhere(&own);
                drop(own);
            });
            for (read, at) in reads.into_iter().zip(0..) {
                let (result, bufs) = pollster::block_on(read);
                assert_eq!(
                    (result.unwrap(), &bufs[0][..]),
                    (4, &pattern(64)[at..at + 4])
                );
            }
            assert!(poll_once(&mut sleep).is_pending());
            works_everywhere(engine);
        });
    });
}

/// Forks with operations in flight, and awaits them in both processes.
async fn fork_and_await(engine: &Engine) -> libc::pid_t {
    let mut begun: Vec<_> = (0..9).map(|_| engine.nop().into_future()).collect();
    for nop in &mut begun {
        assert!(poll_once(nop).is_pending());
    }
    let pid = fork();
    if pid == 0 {
        drop(begun.split_off(5));
    }
    for nop in begun {
        let result = nop.await;
        assert_eq!(result.is_ok(), pid != 0);
    }
    let slept = engine.sleep(Duration::from_millis(2)).await;
    assert_eq!(slept.is_ok(), pid != 0);
    local::yield_now().await;
    local::spawn(local::yield_now()).await;
    pid
}

#[test]
fn a_child_that_is_forked_within_a_run_loop_comes_out_of_it() {
    let test = "a_child_that_is_forked_within_a_run_loop_comes_out_of_it";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let parent = process::id();
            let run = catch_unwind(AssertUnwindSafe(|| engine.run(fork_and_await(engine))));
            if process::id() != parent {
                end_child(matches!(run, Ok(Ok(0))));
            }
            let status = end_of(run.unwrap().unwrap());
            assert!(status.success(), "the child: {status}");
            works_everywhere(engine);
        });
    });
}

/// From here on, these calls are refused to all threads.
fn refuse(calls: &[i64]) {
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = env::consts::ARCH.try_into().expect("a filter can be made");
    let action = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch);
    let program: seccompiler::BpfProgram = filter
        .expect("the rules are sound")
        .try_into()
        .expect("a few rules fit");
    apply_filter_all_threads(&program).expect("no_new_privs allows filters");
}

const ENTER: i64 = libc::SYS_io_uring_enter;
const ALL: [i64; 3] = [libc::SYS_io_uring_setup, ENTER, libc::SYS_io_uring_register];

fn expect_fallback(engine: &Engine) {
    let stats = engine.stats();
    assert!(!stats.fallbacks.is_empty(), "nothing tells of it");
    assert_eq!((stats.in_flight, stats.strays), (0, 0), "{stats:?}");
}

#[test]
fn a_filter_that_comes_when_drivers_are_there_makes_plain_calls_take_over() {
    let test = "a_filter_that_comes_when_drivers_are_there_makes_plain_calls_take_over";
    if !rings_are_plenty(test) {
        return;
    }
    in_own_process(module_path!(), test, || {
        let engine = Engine::builder().drivers(2).build().unwrap();
        works_everywhere(&engine);
        let mut begun: Vec<_> = (0..9).map(|_| engine.nop().into_future()).collect();
        for nop in &mut begun {
            let _ = poll_once(nop);
        }
        engine
            .run(async {
                let mut here: Vec<_> = (0..9).map(|_| engine.nop().into_future()).collect();
                for nop in &mut here {
                    let _ = poll_once(nop);
                }
                refuse(&ALL);
                for nop in here {
                    nop.await.unwrap();
                }
                works(&engine).await;
            })
            .unwrap();
        for nop in begun {
            pollster::block_on(nop.into_future()).unwrap();
        }
        for _ in 0..3 {
            works_everywhere(&engine);
        }
        std::thread::scope(|scope| _ = scope.spawn(|| works_everywhere(&engine)));
        expect_fallback(&engine);
        assert_eq!(engine.backend().kind, BackendKind::Threads);
    });
}

#[test]
fn a_filter_that_comes_before_the_drivers_makes_threads_take_over() {
    let test = "a_filter_that_comes_before_the_drivers_makes_threads_take_over";
    if !rings_are_plenty(test) {
        return;
    }
    in_own_process(module_path!(), test, || {
        let engine = Engine::new().unwrap();
        let demanded = Engine::builder().backend(BackendKind::Uring).build();
        let demanded = demanded.unwrap();
        // Here is a ring that may be set up, but not entered.
        refuse(&[ENTER]);
        works_everywhere(&engine);
        expect_fallback(&engine);
        for result in [
            pollster::block_on(demanded.nop().into_future()),
            pollster::block_on(demanded.sleep(Duration::from_millis(1))),
            demanded.run(async {}),
        ] {
            expect_forbidden(&result.expect_err("it is refused"));
        }
        // What is queued for the alarm is not taken for an operation that has been lost.
        demanded.run(works_by_plain_calls(&demanded)).unwrap();
    });
}

async fn works_by_plain_calls(engine: &Engine) {
    for _ in 0..20 {
        engine.nop().await.expect("a no-op cannot fail");
    }
}

fn setup_error(error: &io::Error) -> &SetupError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.unwrap_or_else(|| panic!("no SetupError: {error:?}"))
}

fn expect_forbidden(error: &io::Error) {
    let refusal = setup_error(error);
    assert!(
        matches!(refusal, SetupError::Forbidden { .. }),
        "{refusal:?}"
    );
}

/// Takes all descriptors but `left`, and keeps them so that nobody else has them.
fn all_descriptors_but(left: usize) -> Vec<fs::File> {
    let limit = libc::rlimit {
        rlim_cur: 128,
        rlim_max: 128,
    };
    // SAFETY: `limit` is only read.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(answer, 0);
    let mut taken = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - left);
    taken
}

#[test]
fn without_descriptors_threads_take_over_and_a_demand_is_refused_with_its_reason() {
    let test = "without_descriptors_threads_take_over_and_a_demand_is_refused_with_its_reason";
    if !rings_are_plenty(test) {
        return;
    }
    in_own_process(module_path!(), test, || {
        // A driver needs one for its ring and one for its alarm.
        for left in 0..3 {
            let engine = Engine::new().unwrap();
            let demanded = Engine::builder().backend(BackendKind::Uring).build();
            let demanded = demanded.unwrap();
            let content = pattern(64);
            let file = temp_file(&engine, &content);
            let taken = all_descriptors_but(left);
            let run = async || {
                let (result, bufs) = file
                    .read_vectored_at(vec![vec![0; 64]], 0)
                    .by_backend()
                    .await;
                assert_eq!((result.unwrap(), &bufs[0]), (64, &content));
            };
            pollster::block_on(run());
            let refused = pollster::block_on(demanded.nop().into_future());
            match refused {
                Ok(()) => assert_eq!(left, 2, "it had no ring"),
                Err(error) => {
                    let refusal = setup_error(&error);
                    let SetupError::Refused { cause } = refusal else {
                        panic!("{refusal:?}");
                    };
                    assert_eq!(cause.raw_os_error(), Some(libc::EMFILE));
                }
            }
            drop(demanded);
            engine.run(run()).unwrap();
            drop(taken);
            works_everywhere(&engine);
        }
    });
}

#[test]
fn a_driver_starts_once_there_are_descriptors_again() {
    let test = "a_driver_starts_once_there_are_descriptors_again";
    if !rings_are_plenty(test) {
        return;
    }
    in_own_process(module_path!(), test, || {
        let demanded = Engine::builder().backend(BackendKind::Uring).build();
        let demanded = demanded.unwrap();
        let taken = all_descriptors_but(0);
        assert!(pollster::block_on(demanded.nop().into_future()).is_err());
        assert!(demanded.run(async {}).is_err());
        drop(taken);
        works_everywhere(&demanded);
        let is_idle = || demanded.stats().in_flight == 0;
        pollster::block_on(until_turned("idle", is_idle));
    });
}
