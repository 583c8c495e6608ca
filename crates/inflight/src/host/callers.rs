//! Which threads of an engine make batches of copies.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a caller that has not been heard of still counts as one.
pub(super) const HEARD_OF: Duration = Duration::from_secs(1);

/// Callers of an engine that have been heard of lately: where there are as many as processors, none
/// of them is to take another's.
#[derive(Default)]
pub(crate) struct Callers(Mutex<Vec<(thread::ThreadId, Instant)>>);

impl Callers {
    /// This thread is heard of. How many have been lately.
    pub(super) fn hear(&self) -> usize {
        let (this, now) = (thread::current().id(), Instant::now());
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|(thread, at)| *thread != this && now - *at < HEARD_OF);
        heard.push((this, now));
        heard.len()
    }
}
