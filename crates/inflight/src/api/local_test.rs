//! Wake-ups of a run loop by other threads; under Miri, which has memory that is seen late.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};
use std::thread;

use super::engine::{BackendKind, Engine};

/// The second wake-up finds that the loop has yet to hear of the first one, and sends nothing.
#[test]
fn what_was_done_before_a_wake_up_is_seen_by_the_poll() {
    let engine = Engine::builder().backend(BackendKind::Threads);
    let engine = engine.build().expect("nothing is demanded");
    for _ in 0..20 {
        let is_set = Arc::new(AtomicBool::new(false));
        let sets = Arc::clone(&is_set);
        let (send, receive) = channel::<Waker>();
        let thread = thread::spawn(move || {
            let waker = receive.recv().expect("it is sent");
            waker.wake_by_ref();
            sets.store(true, Ordering::Release);
            waker.wake_by_ref();
        });
        let mut first = Some(send);
        let run = engine.run(poll_fn(|context| {
            if let Some(send) = first.take() {
                send.send(context.waker().clone()).expect("it is received");
            }
            match is_set.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        run.expect("there is a loop");
        thread.join().expect("no panic");
    }
}
