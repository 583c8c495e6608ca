//! Where Linux AIO is refused, at first or later, or what it needs beside
//! them.

use std::io;
use std::sync::Arc;

use inflight::fs::{Direct, File};
use inflight::{BackendKind, Batch, Engine, SetupError};

use super::{
    AIO_SETUP, AIO_SUBMIT, AIO_TAKE, ENTER, PAGE, PAGES, REGISTER, SETUP, everything_works,
    in_own_process, refuse, rings_may_be_tried,
};
use crate::support::own::is_rerun;
use crate::support::{
    backend_without_rings, direct_file_or_skip, engine_with_memory, pattern, read_write, skip,
    temp_path,
};

#[test]
fn older_calls_that_can_only_be_set_up_are_not_used() {
    let test = "older_calls_that_can_only_be_set_up_are_not_used";
    let calls = [SETUP, ENTER, REGISTER, AIO_SUBMIT];
    let has_them = || backend_without_rings() == BackendKind::Aio;
    if is_rerun() || (rings_may_be_tried(test) && has_them()) {
        in_own_process(module_path!(), test, None, || {
            refuse(&calls, libc::EPERM);
            let engine = engine_with_memory();
            let backend = engine.backend();
            assert_eq!(backend.kind, BackendKind::Threads, "{}", backend.reason);
            assert!(backend.reason.contains("io_submit"), "{}", backend.reason);
            everything_works(&engine);
            let demanded = Engine::builder().backend(BackendKind::Aio).build();
            let refusal = demanded.expect_err("it cannot be had");
            assert!(matches!(refusal, SetupError::NoAio { .. }), "{refusal:?}");
            assert!(refusal.to_string().contains("seccomp profile"), "{refusal}");
        });
    }
}

#[test]
fn a_filter_that_hides_the_older_calls_is_named() {
    let refusal = |is_filtered| SetupError::NoAio {
        cause: Arc::new(io::Error::from_raw_os_error(libc::ENOSYS)),
        is_filtered,
    };
    let (filtered, unknown) = (refusal(true).to_string(), refusal(false).to_string());
    assert!(filtered.contains("seccomp profile"), "{filtered}");
    assert!(unknown.contains("CONFIG_AIO"), "{unknown}");
    let test = "a_filter_that_hides_the_older_calls_is_named";
    in_own_process(module_path!(), test, None, || {
        refuse(&[AIO_SETUP], libc::ENOSYS);
        let demanded = Engine::builder().backend(BackendKind::Aio).build();
        let refusal = demanded.expect_err("it cannot be had").to_string();
        assert_eq!(refusal, filtered);
    });
}

/// Writes and reads blocks of a direct file, all together and in a loop.
fn moves_directly(engine: &Engine, file: &File, content: &[u8]) {
    let write = |page: usize| {
        let mut buf = file.aligned_buf(PAGE).expect("there is memory");
        buf.copy_from_slice(&content[page * PAGE..][..PAGE]);
        let write = file.write_all_at(buf, (page * PAGE) as u64);
        if page.is_multiple_of(4) {
            write.then_sync()
        } else {
            write
        }
    };
    let read = |page: usize| {
        let buf = file.aligned_buf(PAGE).expect("there is memory");
        file.read_exact_at(buf, (page * PAGE) as u64)
    };
    let check = |page: usize, buf: &[u8]| assert!(buf == &content[page * PAGE..][..PAGE]);
    let mut batch = Batch::on(engine);
    (0..PAGES).for_each(|page| batch.push(write(page)));
    for (result, _) in batch.wait() {
        assert_eq!(result.expect("the file can be written"), PAGE);
    }
    let mut batch = Batch::on(engine);
    (0..PAGES).for_each(|page| batch.push(read(page)));
    for (page, (result, buf)) in batch.wait().enumerate() {
        assert_eq!(result.expect("the file can be read"), PAGE);
        check(page, &buf);
    }
    let run = engine.run(async {
        for page in 0..4 {
            let (result, buf) = read(page).await;
            assert_eq!(result.expect("the file can be read"), PAGE);
            check(page, &buf);
        }
        let mut batch = Batch::new();
        (0..PAGES).for_each(|page| batch.push(write(page)));
        for (result, _) in batch.await {
            assert_eq!(result.expect("the file can be written"), PAGE);
        }
        let mut batch = Batch::new();
        (0..PAGES).for_each(|page| batch.push(read(page)));
        for (page, (result, buf)) in batch.await.into_iter().enumerate() {
            assert_eq!(result.expect("the file can be read"), PAGE);
            check(page, &buf);
        }
    });
    run.expect("nothing is demanded");
}

/// A direct file to be written and read, with this content.
fn direct_file(engine: &Engine, content: &[u8]) -> Option<(tempfile::NamedTempFile, File)> {
    let path = temp_path(content);
    let file = read_write(engine)
        .direct(Direct::Required)
        .open(path.path());
    Some((path, file.ok()?))
}

#[test]
fn calls_that_are_refused_later_leave_it_to_the_pool() {
    let test = "calls_that_are_refused_later_leave_it_to_the_pool";
    if backend_without_rings() != BackendKind::Aio {
        return skip(test, "there are none");
    }
    in_own_process(module_path!(), test, Some("aio"), || {
        let refusals: [(&[i64], i32); 3] = [
            (&[AIO_SUBMIT, AIO_SETUP], libc::EPERM),
            // As if there were no memory for requests, for ever.
            (&[AIO_SUBMIT], libc::EAGAIN),
            (&[AIO_SUBMIT, AIO_TAKE], libc::EPERM),
        ];
        for (calls, errno) in refusals {
            let engine = Engine::new().unwrap();
            let content = pattern(PAGES * PAGE);
            let Some((_path, file)) = direct_file(&engine, &content) else {
                return skip(test, "there is no direct I/O");
            };
            let run = || {
                moves_directly(&engine, &file, &content);
                let before = engine.stats();
                assert!(before.enters > 0, "{before:?}");
                refuse(calls, errno);
                moves_directly(&engine, &file, &content);
                let after = engine.stats();
                assert_eq!((after.in_flight, after.strays), (0, 0), "{after:?}");
            };
            // The filter goes with the thread.
            std::thread::scope(|scope| scope.spawn(run).join()).expect("see above");
        }
    });
}

#[test]
fn a_thread_that_gets_none_of_the_calls_says_so() {
    let test = "a_thread_that_gets_none_of_the_calls_says_so";
    if backend_without_rings() != BackendKind::Aio {
        return skip(test, "there are none");
    }
    in_own_process(module_path!(), test, Some("aio"), || {
        // Of a depth that nobody else has, so that no context is left of another thread.
        let builder = Engine::builder().queue_depth(33);
        let engine = builder.build().unwrap();
        let _theirs = engine.queue(1, |queue| {
            assert!(queue.push(0, engine.nop()).is_ok());
            // As if fs.aio-max-nr were reached.
            refuse(&[AIO_SETUP], libc::EAGAIN);
            let content = pattern(PAGES * PAGE);
            let Some(file) = direct_file_or_skip(test, &engine, &content) else {
                return;
            };
            std::thread::scope(|scope| {
                scope.spawn(|| read_directly(&engine, &file, &content));
            });
            let given_up = engine.stats().fallbacks;
            let text = format!("{given_up:?}");
            assert!(text.contains("fs.aio-max-nr"), "{text}");
        });
    });
}

fn read_directly(engine: &Engine, file: &File, content: &[u8]) {
    let mut batch = Batch::on(engine);
    for page in 0..PAGES {
        let buf = file.aligned_buf(PAGE).expect("there is memory");
        batch.push(file.read_exact_at(buf, (page * PAGE) as u64));
    }
    for (expected, (result, buf)) in content.chunks(PAGE).zip(batch.wait()) {
        assert_eq!(result.expect("the file can be read"), PAGE);
        assert!(&buf[..] == expected);
    }
}
