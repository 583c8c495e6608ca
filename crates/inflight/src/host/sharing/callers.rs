//! Which threads of an engine make batches of copies.

use crate::sync::lock;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a caller that has not been heard of still counts as one.
pub(in crate::host) const HEARD_OF: Duration = Duration::from_secs(1);

/// Callers of an engine that have been heard of lately: where there are as many as processors, none
/// of them is to take another's.
#[derive(Default)]
pub(crate) struct Callers(Mutex<Vec<Heard>>);

/// What counts as a caller for as long as it is not dropped.
#[derive(Default)]
pub(in crate::host) struct Caller(Arc<()>);

struct Heard {
    thread: ThreadId,
    at: Instant,
    caller: Weak<()>,
}

impl Heard {
    /// Whether it still counts. A thread that has ended has dropped its caller.
    fn counts(&self, now: Instant) -> bool {
        now - self.at < HEARD_OF && self.caller.strong_count() > 0
    }
}

impl Callers {
    /// This thread is heard of, as this caller. How many threads have been lately.
    pub(in crate::host) fn hear(&self, caller: &Caller) -> usize {
        let (thread, at) = (thread::current().id(), Instant::now());
        let mut heard = lock(&self.0);
        heard.retain(|other| other.thread != thread && other.counts(at));
        heard.push(Heard {
            thread,
            at,
            caller: Arc::downgrade(&caller.0),
        });
        heard.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_count_as_long_as_they_live() {
        let (callers, caller, other) = (Callers::default(), Caller::default(), Caller::default());
        assert_eq!([(); 2].map(|()| callers.hear(&caller)), [1, 1]);
        thread::scope(|scope| {
            for _ in 0..3 {
                let hear = || callers.hear(&Caller::default());
                let heard = scope.spawn(hear).join().expect("it does not panic");
                assert_eq!(heard, 2, "those before have ended");
            }
            let heard = scope.spawn(|| callers.hear(&other)).join();
            assert_eq!(heard.expect("it does not panic"), 2);
        });
        assert_eq!(
            callers.hear(&caller),
            2,
            "what it called with is still there"
        );
        drop(other);
        assert_eq!(callers.hear(&caller), 1);
    }
}
