//! Lanes where Linux AIO is all that there is, and what the pool does for them.

use std::fs;

use inflight::fs::Direct;
use inflight::{BackendKind, Batch, Engine, Operation, SetupError};

use super::limits::{drop_privileges, set_limit};
use super::{PAGE, PAGES, in_own_process};
use crate::awaited::lanes::runtimes;
use crate::support::{
    backend_without_rings, evict, given_up, open, pattern, read_write, skip, temp_path,
};

/// What would wait is for the pool; where that can start no thread the lane's task does it.
#[test]
fn a_lane_goes_on_where_the_pool_gets_no_thread() {
    let test = "a_lane_goes_on_where_the_pool_gets_no_thread";
    if backend_without_rings() != BackendKind::Aio {
        return skip(test, "there are none");
    }
    in_own_process(module_path!(), test, Some("aio"), || {
        let engine = Engine::new().unwrap();
        let content = pattern(PAGES * PAGE);
        let path = temp_path(b"");
        let hole = fs::File::options().write(true).open(path.path());
        let hole = hole.and_then(|hole| hole.set_len((PAGES * PAGE) as u64));
        hole.expect("a hole takes no room");
        let Ok(file) = read_write(&engine)
            .direct(Direct::Required)
            .open(path.path())
        else {
            return skip(test, "there is no direct I/O");
        };
        let [runtime, _] = runtimes();
        let buf = || {
            let mut buf = file.aligned_buf(PAGE).expect("there is memory");
            buf.copy_from_slice(&content[..PAGE]);
            buf
        };
        runtime.block_on(async {
            engine
                .serve_on_tokio()
                .expect("there are asynchronous calls");
            let (result, _) = file.read_at(buf(), 0).await;
            result.expect("it is a hole");
            drop_privileges();
            set_limit(libc::RLIMIT_NPROC, 1);
            for page in 0..8 {
                let write = file.write_all_at(buf(), page * PAGE as u64);
                let (result, _) = write.await;
                assert_eq!(result.expect("there is room"), PAGE);
            }
        });
        assert_eq!(given_up(&engine, "has not polled"), []);
        let (result, read) = file.read_at(buf(), 7 * PAGE as u64).wait();
        assert_eq!(result.expect("it has been written"), PAGE);
        assert!(read[..] == content[..PAGE]);
    });
}

/// Direct reads and others go to a lane together. What of that the pool does has to be announced
/// also if nothing else is in flight.
#[test]
fn a_lane_is_told_of_what_the_pool_does_for_it() {
    let test = "a lane and its pool";
    if backend_without_rings() != BackendKind::Aio {
        return skip(test, "there are none");
    }
    let builder = Engine::builder().backend(BackendKind::Aio).queue_depth(4);
    let engine = builder.build().expect("they are there");
    let content = pattern(PAGES * PAGE);
    let path = temp_path(&content);
    let options = read_write(&engine).direct(Direct::Required);
    let (Ok(direct), cached) = (options.open(path.path()), open(&engine, path.path())) else {
        return skip(test, "there is no direct I/O");
    };
    for runtime in runtimes() {
        runtime.block_on(async {
            engine
                .serve_on_tokio()
                .expect("there are asynchronous calls");
            for _ in 0..32 {
                evict(&fs::File::open(path.path()).expect("it is there"));
                let mut batch = Batch::new();
                for page in 0..8 {
                    let file = if page < 4 { &direct } else { &cached };
                    let buf = file.aligned_buf(PAGE).expect("there is memory");
                    batch.push(file.read_exact_at(buf, page * PAGE as u64));
                }
                for (expected, (result, buf)) in content.chunks(PAGE).zip(batch.await) {
                    assert_eq!(result.expect("the file can be read"), PAGE);
                    assert!(&buf[..] == expected);
                }
            }
        });
    }
    assert_eq!(given_up(&engine, "has not polled"), []);
}

/// Takes all descriptors of this process but so many, and keeps them so that nobody else has them.
fn all_descriptors_but(left: usize) -> Vec<fs::File> {
    let open = || fs::File::open("/dev/null").ok();
    let mut taken: Vec<_> = std::iter::from_fn(open).collect();
    taken.truncate(taken.len() - left);
    taken
}

#[test]
fn want_of_descriptors_is_told_with_the_limit_to_raise_and_not_taken_for_an_old_kernel() {
    let test =
        "want_of_descriptors_is_told_with_the_limit_to_raise_and_not_taken_for_an_old_kernel";
    if backend_without_rings() != BackendKind::Aio {
        return skip(test, "there are none");
    }
    in_own_process(module_path!(), test, Some("aio"), || {
        let engine = Engine::new().unwrap();
        let [runtime, _] = runtimes();
        set_limit(libc::RLIMIT_NOFILE, 128);
        let is_told = |refusal: SetupError| {
            let text = refusal.to_string();
            assert!(text.contains("RLIMIT_NOFILE"), "{text}");
            assert!(matches!(refusal, SetupError::NoAio { .. }), "{refusal:?}");
        };
        // A lane needs one to be watched by and one for its alarm.
        for left in 0..2 {
            let taken = all_descriptors_but(left);
            let demanded = Engine::builder().backend(BackendKind::Aio).build();
            assert_eq!(demanded.is_err(), left == 0, "{demanded:?}");
            demanded.err().into_iter().for_each(is_told);
            let entered = runtime.enter();
            is_told(engine.serve_on_tokio().expect_err("there are too few"));
            drop((entered, taken));
        }
        let entered = runtime.enter();
        engine.serve_on_tokio().expect("there are descriptors");
        drop(entered);
    });
}
