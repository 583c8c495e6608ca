//! Calls that cannot be made: where no thread can be started, and in a forked child.

use std::future::IntoFuture;
use std::io;
use std::sync::Arc;
use std::thread;

use inflight::fs::metadata;
use inflight::{Engine, Forked, NoThread};

use super::{ELSEWHERE, folder, is_open, link_to, open_file, poll_once};
use crate::denied::refuse_threads;
use crate::support::own::{in_forked_child, in_own_process};
use crate::support::{on_every_backend, patience, read_write, temp_file, temp_path};

#[test]
fn without_threads_what_is_awaited_fails_and_what_is_waited_for_works() {
    let test = "without_threads_what_is_awaited_fails_and_what_is_waited_for_works";
    in_own_process(module_path!(), test, || {
        refuse_threads();
        on_every_backend(|engine| {
            let folder = folder();
            let (path, file) = open_file(engine, &folder);
            let failed = pollster::block_on(metadata(ELSEWHERE).on(engine).into_future());
            let error = failed.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            let NoThread { cause } = inner.expect("it says why");
            assert_eq!(cause.raw_os_error(), Some(libc::EAGAIN));
            let options = read_write(engine).create(true);
            let link = link_to(&path, folder.path());
            assert!(pollster::block_on(options.opening(&link).into_future()).is_err());
            assert!(pollster::block_on(file.truncate(0).into_future()).is_err());
            assert_eq!(metadata(&path).on(engine).wait().unwrap().len, 7);
            file.truncate(1).wait().unwrap();
            // A file is closed whatever there is.
            pollster::block_on(file.close().into_future()).unwrap();
            assert!(!is_open(&path));
            assert_eq!(engine.drain(patience()), 0);
        });
    });
}

fn is_forked<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    let error = result.expect_err("it is refused");
    error.get_ref().is_some_and(|inner| inner.is::<Forked>())
}

fn in_child(engine: &Engine, fork: impl FnOnce(&dyn Fn())) {
    let (folder, target) = (folder(), temp_path(b"abc"));
    let path = link_to(&target, folder.path());
    let (file, other) = (temp_file(engine, b"abc"), temp_file(engine, b"abc"));
    let options = read_write(engine).create(true);
    let mut begun = options.opening(&path).into_future();
    assert!(poll_once(&mut begun).is_pending());
    let mut dropped = metadata(ELSEWHERE).on(engine).into_future();
    assert!(poll_once(&mut dropped).is_pending());
    let mut closing = temp_file(engine, b"").close().into_future();
    drop(poll_once(&mut closing));
    let futures = std::cell::RefCell::new(Some((begun, dropped, closing, file, other)));
    fork(&|| {
        let (begun, dropped, closing, file, other) = futures.take().expect("asked once");
        assert!(is_forked(pollster::block_on(begun)));
        drop(dropped);
        // It was over before the fork, or is refused.
        drop(closing);
        assert!(is_forked(pollster::block_on(
            options.opening(&path).into_future()
        )));
        assert!(is_forked(pollster::block_on(
            file.truncate(1).into_future()
        )));
        assert!(is_forked(file.truncate(1).wait()));
        assert!(is_forked(pollster::block_on(file.close().into_future())));
        assert!(is_forked(other.close().wait()));
        // Names belong to no engine until they are awaited.
        assert_eq!(metadata(&path).wait().expect("it is there").len, 3);
        assert_eq!(engine.drain(patience()), 0);
    });
    if let Some((begun, ..)) = futures.take() {
        assert!(pollster::block_on(begun).is_ok());
    }
}

#[test]
fn a_forked_child_is_refused_and_touches_no_lock() {
    let test = "a_forked_child_is_refused_and_touches_no_lock";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            thread::scope(|scope| {
                // A panic drops it too, and so ends the thread.
                let goes_on = Arc::new(());
                let stays = Arc::downgrade(&goes_on);
                // Somebody nearly always holds the lock of the pool.
                scope.spawn(move || {
                    while stays.strong_count() > 0 {
                        let call = metadata(ELSEWHERE).on(engine).into_future();
                        pollster::block_on(call).expect("there is a root");
                    }
                });
                for _ in 0..10 {
                    in_child(engine, |body| in_forked_child(body));
                }
            });
        });
    });
}
