//! Closing: what it waits for, and what it tells.

use std::future::IntoFuture;
use std::io;
use std::os::fd::AsRawFd;
use std::task::Poll;

use inflight::Engine;
use inflight::fs::{AllocateRange, Direct, File};

use super::{ELSEWHERE, entries, errno, folder, is_open, open_file, poll_once};
use crate::support::own::{fails_with, in_own_process};
use crate::support::{on_every_backend, patience, read_write, temp_path};

#[test]
fn a_closed_file_has_no_descriptor_left() {
    let test = "a_closed_file_has_no_descriptor_left";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let folder = folder();
            let (path, file) = open_file(engine, &folder);
            file.close().wait().unwrap();
            assert!(!is_open(&path));
            let before = entries("/proc/self/fd");
            for direct in [Direct::Off, Direct::Auto] {
                let options = read_write(engine).direct(direct);
                let file = options.open(&path).unwrap();
                assert!(is_open(&path));
                pollster::block_on(file.close().into_future()).unwrap();
                assert!(!is_open(&path));
                options.open(&path).unwrap().close().wait().unwrap();
                // Not polled: as dropping the file.
                drop(options.open(&path).unwrap().close().into_future());
                assert!(!is_open(&path));
            }
            assert_eq!(entries("/proc/self/fd"), before);
        });
    });
}

/// Begins an operation and drops its future. In a run loop nothing completes between two polls, so
/// that it stays in flight.
fn leave_one_in_flight(file: &File) {
    let mut reserve = file.allocate(AllocateRange::Reserve, 0, 4096).into_future();
    assert!(poll_once(&mut reserve).is_pending());
}

#[test]
fn closing_waits_for_operations_whose_futures_were_dropped() {
    let test = "closing_waits_for_operations_whose_futures_were_dropped";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let folder = folder();
            let (path, file) = open_file(engine, &folder);
            let result = engine.run(async {
                leave_one_in_flight(&file);
                let mut closing = file.close().into_future();
                assert!(poll_once(&mut closing).is_pending());
                // Whatever the pool had been given before this is over after it.
                let other = inflight::fs::metadata(ELSEWHERE).on(engine).into_future();
                pollster::block_on(other).unwrap();
                assert!(is_open(&path), "closed with an operation in flight");
                closing.await
            });
            result.unwrap().unwrap();
            assert!(!is_open(&path));
        });
    });
}

#[test]
fn a_dropped_close_goes_on() {
    in_own_process(module_path!(), "a_dropped_close_goes_on", || {
        on_every_backend(|engine| {
            let folder = folder();
            let (path, file) = open_file(engine, &folder);
            let ran = engine.run(async {
                leave_one_in_flight(&file);
                let mut closing = file.close().into_future();
                assert!(poll_once(&mut closing).is_pending());
                drop(closing);
            });
            ran.unwrap();
            assert_eq!(engine.drain(patience()), 0);
            assert!(!is_open(&path));
        });
    });
}

#[test]
fn waiting_for_a_close_in_a_run_loop_does_not_block_what_it_waits_for() {
    let test = "waiting_for_a_close_in_a_run_loop_does_not_block_what_it_waits_for";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let folder = folder();
            let (path, file) = open_file(engine, &folder);
            let result = engine.run(async {
                leave_one_in_flight(&file);
                file.close().wait()
            });
            result.unwrap().unwrap();
            assert!(!is_open(&path));
        });
    });
}

/// Closes files with something of others in flight, many times.
fn close_beside_others(test: &str, close: impl Fn(&Engine, File, usize) -> io::Result<()>) {
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let folder = folder();
            for turn in 0..20 {
                let (path, file) = open_file(engine, &folder);
                for _ in 0..3 {
                    let reserve = file.allocate(AllocateRange::Reserve, 0, 4096);
                    drop(poll_once(&mut reserve.into_future()));
                }
                close(engine, file, turn).expect("it is closed");
                assert!(!is_open(&path));
            }
        });
    });
}

#[test]
fn waiting_for_a_close_in_a_run_loop_waits_for_what_others_have_in_flight() {
    let test = "waiting_for_a_close_in_a_run_loop_waits_for_what_others_have_in_flight";
    close_beside_others(test, |engine, file, _| {
        engine.run(async { file.close().wait() }).unwrap()
    });
}

#[test]
fn a_close_waits_for_what_drivers_have_in_flight() {
    let test = "a_close_waits_for_what_drivers_have_in_flight";
    close_beside_others(test, |_, file, turn| match turn % 2 {
        0 => file.close().wait(),
        _ => pollster::block_on(file.close().into_future()),
    });
}

/// From here on, closing this descriptor answers EIO on this thread and those it starts.
fn refuse_to_close(fd: i32) {
    fails_with(libc::SYS_close, 0, fd);
}

#[test]
fn an_error_of_close_is_told() {
    in_own_process(module_path!(), "an_error_of_close_is_told", || {
        on_every_backend(|engine| {
            let path = temp_path(b"");
            let options = read_write(engine);
            let (one, two, three) = (
                options.open(&path).unwrap(),
                options.open(&path).unwrap(),
                options.open(&path).unwrap(),
            );
            refuse_to_close(one.as_raw_fd());
            refuse_to_close(two.as_raw_fd());
            assert_eq!(errno(one.close().wait()), libc::EIO);
            assert_eq!(
                errno(pollster::block_on(two.close().into_future())),
                libc::EIO
            );
            three.close().wait().unwrap();
        });
    });
}

#[test]
fn a_close_is_not_ready_before_it_is_polled_and_then_once() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let file = read_write(engine).open(&path).unwrap();
        let mut closing = file.close().into_future();
        let result = loop {
            if let Poll::Ready(result) = poll_once(&mut closing) {
                break result;
            }
        };
        result.unwrap();
    });
}
