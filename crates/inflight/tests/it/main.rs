//! The library through its public API, on every backend.
//!
//! A test that needs what this machine does not grant says so on standard error and passes;
//! `INFLIGHT_REQUIRE=uring` turns the skips for want of a ring into failures. `INFLIGHT_TEST_DIR`
//! is where the files are made, and `INFLIGHT_TEST_SEED` runs every test with faults with that
//! seed. Start with [`support`].

mod support;

mod transfers;

mod awaited;
mod batches;

mod queues;

mod made_up;
mod many;

mod vectored;

mod direct;

mod buffers;

mod metadata;

mod mistakes;

mod names;

mod errors;

mod mapped;
mod roads;

mod served;

mod spread;

mod wishes;

mod steady;

mod lifetime;

mod process;

mod denied;

mod commit;

use inflight::{BackendKind, Engine};

#[test]
fn the_required_backend_is_chosen() {
    let required = match std::env::var("INFLIGHT_REQUIRE").as_deref() {
        Ok("uring") => BackendKind::Uring,
        Ok("aio") => BackendKind::Aio,
        Ok("threads") => BackendKind::Threads,
        Ok(other) => panic!("INFLIGHT_REQUIRE={other:?} is neither uring nor aio nor threads"),
        Err(_) => return,
    };
    let backend = Engine::new().unwrap().backend();
    assert_eq!(backend.kind, required, "{}", backend.reason);
}
