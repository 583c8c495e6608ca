//! Where io_uring is refused: by a filter, for want of memory or of descriptors, by the user.
//!
//! Filters and limits are for good, so each is put on a process of its own: this binary, started
//! again for one test, with the environment that the test is about.

pub(crate) mod limits;
mod older;
#[cfg(feature = "tokio")]
mod older_lanes;

use std::collections::BTreeMap;
use std::env;
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::Command;
use std::task::Poll;

use inflight::fs::{Alignment, File};
use inflight::{AnyOp, BackendKind, Batch, BufPool, Engine, Operation, RefusedBy, SetupError};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch, apply_filter};

use crate::support::own::{in_process_of, is_rerun, rerun};
use crate::support::{
    backend_without_rings, chill, engine_with_memory, pattern, read_write, skip, temp_file,
    temp_path, uring_or_skip, with_memory,
};

const PAGE: usize = 4096;
const PAGES: usize = 32;

const BACKEND: &str = "INFLIGHT_BACKEND";

const SETUP: i64 = libc::SYS_io_uring_setup;
const ENTER: i64 = libc::SYS_io_uring_enter;
const REGISTER: i64 = libc::SYS_io_uring_register;

/// Those of Linux AIO.
const AIO_SETUP: i64 = libc::SYS_io_setup;
const AIO_SUBMIT: i64 = libc::SYS_io_submit;
const AIO_TAKE: i64 = libc::SYS_io_getevents;
const AIO_END: i64 = libc::SYS_io_destroy;

/// Runs `body` in a process of its own with this `INFLIGHT_BACKEND`, and wants it to pass.
fn in_own_process(module: &str, test: &str, backend: Option<&str>, body: impl FnOnce()) {
    in_process_of(rerun_with(module, test, backend), body);
}

fn rerun_with(module: &str, test: &str, backend: Option<&str>) -> Command {
    let mut command = rerun(module, test);
    match backend {
        Some(backend) => command.env(BACKEND, backend),
        None => command.env_remove(BACKEND),
    };
    command
}

/// With `INFLIGHT_BACKEND=threads` this process may be under a filter that kills, so that asking
/// for a ring is not even tried.
fn rings_may_be_tried(test: &str) -> bool {
    let may = is_rerun() || env::var_os(BACKEND).is_none_or(|backend| backend != "threads");
    if !may {
        skip(
            test,
            "INFLIGHT_BACKEND=threads, so no ring may be asked for",
        );
    }
    may
}

/// From here on, these calls of this thread are answered by `action`; all others are allowed.
fn filter(calls: &[i64], action: SeccompAction) {
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch: TargetArch = env::consts::ARCH.try_into().expect("a filter can be made");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch);
    let program: seccompiler::BpfProgram = filter
        .expect("the rules are sound")
        .try_into()
        .expect("a few rules fit");
    apply_filter(&program).expect("no_new_privs allows filters");
}

fn refuse(calls: &[i64], errno: i32) {
    filter(calls, SeccompAction::Errno(errno.unsigned_abs()));
}

/// From here on, this thread can start no other.
pub(crate) fn refuse_threads() {
    refuse(&[libc::SYS_clone3, libc::SYS_clone], libc::EAGAIN);
}

/// Does what there is to do, in every way, and compares.
fn everything_works(engine: &Engine) {
    let content = pattern(PAGES * PAGE);
    let file = temp_file(engine, &content);
    chill(&file);
    let page = |page: usize| file.read_at(vec![0; PAGE], (page * PAGE) as u64);
    let (result, buf) = page(3).wait();
    assert_eq!(result.expect("the file can be read"), PAGE);
    assert_eq!(buf, content[3 * PAGE..][..PAGE]);
    let mut batch = Batch::on(engine);
    (0..PAGES).for_each(|number| batch.push(page(number)));
    for (expected, (result, buf)) in content.chunks(PAGE).zip(batch.wait()) {
        assert_eq!(result.expect("the file can be read"), PAGE);
        assert_eq!(buf, expected);
    }
    let mut mixed: Batch<AnyOp<'_, Vec<u8>>> = Batch::on(engine);
    mixed.push(file.write_all_at(vec![7; PAGE], 0).into());
    mixed.push(file.sync_all().into());
    mixed.push(page(5).into());
    mixed.wait().for_each(|(result, _)| {
        result.expect("the file can be written");
    });
    let pool = BufPool::new(8, PAGE).expect("there is memory");
    let answered = engine.queue(4, |queue| {
        let mut answered = 0;
        for number in 0..PAGES {
            let buf = pool.take().expect("at most four are in flight");
            let mut read = file.read_at(buf, (number * PAGE) as u64);
            while let Err(back) = queue.push(number as u64, read) {
                read = back;
                let (_, (result, _)) = queue.next().expect("it is full");
                answered += result.expect("the file can be read");
            }
        }
        while let Some((_, (result, _))) = queue.next() {
            answered += result.expect("the file can be read");
        }
        answered
    });
    assert_eq!(answered.expect("nothing is demanded"), PAGES * PAGE);
    assert_eq!(pool.available(), 8);
    engine.nop().wait().expect("a no-op cannot fail");
}

fn expect_forbidden_by_seccomp(refusal: &SetupError) {
    let SetupError::Forbidden { by, .. } = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(*by, RefusedBy::Seccomp);
    let text = refusal.to_string();
    assert!(text.contains("seccomp filter"), "the cause: {text}");
    assert!(text.contains("seccomp profile"), "the remedy: {text}");
}

/// Under a filter on this thread: what an engine is made of, and that it works.
fn falls_back_and_says_so(to: BackendKind) {
    let engine = engine_with_memory();
    let backend = engine.backend();
    assert_eq!(backend.kind, to, "{}", backend.reason);
    expect_forbidden_by_seccomp(backend.refusal.as_ref().expect("it was tried"));
    assert!(backend.reason.contains("seccomp"), "{}", backend.reason);
    let given_up = engine.stats().fallbacks;
    assert_eq!((given_up.len(), given_up[0].count), (1, 1), "{given_up:?}");
    assert!(given_up[0].reason.contains("seccomp"), "{given_up:?}");
    everything_works(&engine);
    assert_eq!(engine.stats().enters, 0);
    let demand = || Engine::builder().backend(BackendKind::Uring).build();
    let demanded = with_memory(demand, |made| {
        matches!(made, Err(SetupError::Memory { .. }))
    });
    expect_forbidden_by_seccomp(&demanded.expect_err("it cannot be had"));
}

fn refused_at_setup(test: &str, calls: &[i64], errno: i32) {
    if rings_may_be_tried(test) {
        in_own_process(module_path!(), test, None, || {
            // A thread of its own: who refuses must not be asked of the main thread.
            let thread = std::thread::scope(|scope| {
                let run = || {
                    let has_aio = backend_without_rings() == BackendKind::Aio;
                    refuse(calls, errno);
                    falls_back_and_says_so(match has_aio && !calls.contains(&AIO_SETUP) {
                        true => BackendKind::Aio,
                        false => BackendKind::Threads,
                    });
                };
                scope.spawn(run).join()
            });
            thread.expect("see above");
        });
    }
}

#[test]
fn a_filter_that_answers_eperm_is_named_and_older_calls_take_over() {
    let test = "a_filter_that_answers_eperm_is_named_and_older_calls_take_over";
    refused_at_setup(test, &[SETUP, ENTER, REGISTER], libc::EPERM);
}

#[test]
fn a_filter_that_answers_enosys_is_named_and_threads_take_over() {
    let test = "a_filter_that_answers_enosys_is_named_and_threads_take_over";
    let calls = [SETUP, ENTER, REGISTER, AIO_SETUP, AIO_SUBMIT];
    refused_at_setup(test, &calls, libc::ENOSYS);
}

#[test]
fn a_filter_that_allows_only_the_setup_is_noticed_when_the_engine_is_made() {
    let test = "a_filter_that_allows_only_the_setup_is_noticed_when_the_engine_is_made";
    refused_at_setup(test, &[ENTER], libc::EPERM);
}

#[test]
fn a_kernel_that_does_not_know_how_it_is_asked_is_called_too_old() {
    let test = "a_kernel_that_does_not_know_how_it_is_asked_is_called_too_old";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        // What Linux 5.1 to 5.5 answers to IORING_REGISTER_PROBE.
        refuse(&[REGISTER], libc::EINVAL);
        let demand = || Engine::builder().backend(BackendKind::Uring).build();
        let demanded = with_memory(demand, |made| {
            matches!(made, Err(SetupError::Memory { .. }))
        });
        let refusal = demanded.expect_err("it cannot be had");
        let SetupError::Forbidden { cause, by } = &refusal else {
            panic!("{refusal:?}");
        };
        let errno = cause.raw_os_error();
        assert_eq!((*by, errno), (RefusedBy::Kernel, Some(libc::EINVAL)));
        let told = refusal.to_string();
        let parts = ["older than 5.6", "from 5.6 on"];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        everything_works(&engine_with_memory());
    });
}

#[test]
fn a_filter_that_comes_after_the_ring_was_used_makes_plain_calls_take_over() {
    let test = "a_filter_that_comes_after_the_ring_was_used_makes_plain_calls_take_over";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    if limits::locked_memory_is_scarce() {
        return skip(
            test,
            "locked memory is scarce, so that there may be no ring at first",
        );
    }
    in_own_process(module_path!(), test, None, || {
        let engine = Engine::new().unwrap();
        everything_works(&engine);
        let before = engine.stats();
        assert!(before.enters > 0);
        assert_eq!(before.fallbacks, []);
        refuse(&[SETUP, ENTER, REGISTER], libc::EPERM);
        everything_works(&engine);
        let after = engine.stats();
        let says = |what: &str| {
            after
                .fallbacks
                .iter()
                .any(|given| given.reason.contains(what))
        };
        assert!(says("could not be entered any more"), "{after:?}");
        assert_eq!((after.in_flight, after.strays), (0, 0), "{after:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| everything_works(&engine));
        });
    });
}

/// The entry that listens to the alarm of a run loop is the first that the ring does not take, and
/// has the place of an operation from then on.
#[test]
fn a_ring_that_takes_nothing_any_more_keeps_no_operation_of_a_loop_from_being_done() {
    let test = "a_ring_that_takes_nothing_any_more_keeps_no_operation_of_a_loop_from_being_done";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        const DEPTH: u32 = 8;
        let engine = Engine::builder().queue_depth(DEPTH).build().unwrap();
        engine.nop().wait().expect("a no-op cannot fail");
        let before = engine.stats();
        if !before.fallbacks.is_empty() {
            return skip(test, "this thread has no ring to begin with");
        }
        refuse(&[ENTER], libc::EAGAIN);
        let mut nops: Vec<_> = (0..2 * DEPTH).map(|_| engine.nop().into_future()).collect();
        let all = poll_fn(|context| {
            nops.retain_mut(|nop| match Pin::new(nop).poll(context) {
                Poll::Ready(done) => {
                    done.expect("a no-op cannot fail");
                    false
                }
                Poll::Pending => true,
            });
            match nops.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        engine.run(all).expect("nothing is demanded");
        let after = engine.stats();
        assert!(after.plain_calls > before.plain_calls, "{after:?}");
        assert_eq!((after.in_flight, after.strays), (0, 0), "{after:?}");
        everything_works(&engine);
    });
}

#[test]
fn a_thread_that_is_refused_a_demanded_ring_has_typed_errors() {
    let test = "a_thread_that_is_refused_a_demanded_ring_has_typed_errors";
    if !rings_may_be_tried(test) || uring_or_skip(test).is_none() {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        let builder = Engine::builder().backend(BackendKind::Uring);
        let engine = builder.build().unwrap();
        refuse(&[SETUP], libc::EPERM);
        let file = temp_file(&engine, &pattern(PAGE));
        let mut batch = Batch::on(&engine);
        (0..3).for_each(|_| batch.push(file.read_at(vec![1; PAGE], 0)));
        for (result, buf) in batch.wait() {
            expect_setup_error(&result.expect_err("there is no ring"));
            assert_eq!(buf, [1; PAGE], "it came back as it was");
        }
        let queue = engine.queue(4, |queue| queue.push(0, engine.nop()).is_ok());
        expect_setup_error(&queue.expect_err("there is no ring"));
        let fallbacks = engine.stats().fallbacks;
        assert!(!fallbacks.is_empty(), "it is counted");
    });
}

fn expect_setup_error(error: &io::Error) {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    expect_forbidden_by_seccomp(inner.expect("a SetupError is the cause"));
}

/// Profiles that are older than the call refuse it.
#[test]
fn where_statx_is_refused_what_came_before_it_is_asked() {
    let test = "where_statx_is_refused_what_came_before_it_is_asked";
    if !rings_may_be_tried(test) {
        return;
    }
    in_own_process(module_path!(), test, None, || {
        refuse(&[libc::SYS_statx], libc::EPERM);
        let engines = [
            Engine::new(),
            Engine::builder().backend(BackendKind::Threads).build(),
        ];
        for engine in engines.map(Result::unwrap) {
            everything_works(&engine);
            let path = temp_path(&pattern(PAGE));
            let told = inflight::fs::metadata(path.path())
                .on(&engine)
                .wait()
                .unwrap();
            assert_eq!((told.len, told.direct), (PAGE as u64, Alignment::Unknown));
            let file = read_write(&engine).open(path.path()).unwrap();
            assert_eq!(file.metadata().wait().unwrap().len, PAGE as u64);
            let missing = path.path().with_extension("missing");
            let missing = inflight::fs::metadata(missing).on(&engine).wait();
            assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        }
    });
}

#[test]
fn with_threads_demanded_a_filter_that_kills_never_fires() {
    let test = "with_threads_demanded_a_filter_that_kills_never_fires";
    in_own_process(module_path!(), test, Some("threads"), || {
        let older = [AIO_SETUP, AIO_SUBMIT, AIO_TAKE, AIO_END];
        let calls = [SETUP, ENTER, REGISTER].into_iter().chain(older);
        filter(&calls.collect::<Vec<_>>(), SeccompAction::KillProcess);
        let engine = Engine::new().unwrap();
        assert_eq!(engine.backend().kind, BackendKind::Threads);
        everything_works(&engine);
        std::thread::scope(|scope| {
            scope.spawn(|| everything_works(&engine));
        });
        let path = env::current_exe().unwrap();
        assert!(File::open(path).unwrap().metadata().wait().unwrap().len > 0);
    });
    if !is_rerun() {
        // The same without the demand is killed, so the filter works.
        let ended = rerun_with(module_path!(), test, Some("auto")).output();
        let status = ended.expect("this binary can be started").status;
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    }
}

#[test]
fn an_unknown_backend_in_the_environment_is_an_error_that_names_it() {
    let test = "an_unknown_backend_in_the_environment_is_an_error_that_names_it";
    in_own_process(module_path!(), test, Some("nonsense"), || {
        let refusal = Engine::new().unwrap_err();
        let SetupError::UnknownBackend { value } = &refusal else {
            panic!("{refusal:?}");
        };
        assert_eq!(value, "nonsense");
        assert!(refusal.to_string().contains("uring, aio, threads or auto"));
        let error = File::open(env::current_exe().unwrap()).unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert!(matches!(inner, Some(SetupError::UnknownBackend { .. })));
    });
}

#[test]
fn the_environment_has_the_last_word_over_the_builder() {
    let test = "the_environment_has_the_last_word_over_the_builder";
    in_own_process(module_path!(), test, Some("threads"), || {
        let builder = Engine::builder().backend(BackendKind::Uring);
        let backend = builder.build().unwrap().backend();
        assert_eq!(backend.kind, BackendKind::Threads);
        assert!(backend.reason.contains(BACKEND), "{}", backend.reason);
        assert!(backend.refusal.is_none(), "nothing was tried");
    });
}

#[test]
fn an_empty_demand_in_the_environment_is_none() {
    let test = "an_empty_demand_in_the_environment_is_none";
    in_own_process(module_path!(), test, Some(""), || {
        let builder = Engine::builder().backend(BackendKind::Threads);
        let backend = builder.build().expect("threads work").backend();
        assert_eq!(backend.kind, BackendKind::Threads);
        assert!(!backend.reason.contains(BACKEND), "{}", backend.reason);
    });
}
