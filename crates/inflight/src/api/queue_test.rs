//! What a limit that ends in vain says of the next wait.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::*;
use crate::api::engine::{BackendKind, Engine};
use crate::backend::threads::pool::Run;

/// Keeps the only thread of the pool until it is let go.
struct Busy(Mutex<Receiver<()>>, Sender<()>);

impl Run for Busy {
    fn run(self: Arc<Self>) {
        let _ = self.1.send(());
        let let_go = self.0.lock().expect("nobody has panicked");
        let _ = let_go.recv();
    }
}

#[test]
fn a_short_limit_that_ends_in_vain_says_nothing_and_a_long_one_does() {
    const COUNT: u64 = 16;
    let engine = Engine::builder().backend(BackendKind::Threads).threads(1);
    let engine = engine.build().expect("nothing is demanded");
    let (go, let_go) = channel();
    let (begun, has_begun) = channel();
    let busy = Arc::new(Busy(Mutex::new(let_go), begun));
    let pool = engine.shared().pool();
    pool.give_flush(busy).expect("a thread starts");
    has_begun.recv().expect("it begins");
    let results = engine.queue(32, |queue| {
        (0..COUNT).for_each(|tag| assert!(queue.push(tag, engine.nop()).is_ok()));
        for limit in [0, 1, 1].map(Duration::from_millis) {
            let result = queue
                .next_timeout(limit)
                .map(|result| result.map(|(tag, _)| tag));
            assert_eq!(result, Err(TimedOut), "made by whom: {:?}", engine.stats());
            assert!(!queue.flights.waits_for_single(), "several are waited for");
        }
        assert!(queue.next_timeout(Duration::from_millis(40)).is_err());
        assert!(queue.flights.waits_for_single());
        drop(go);
        std::iter::from_fn(|| queue.next()).count() as u64
    });
    assert_eq!(results.expect("nothing is demanded"), COUNT);
}
