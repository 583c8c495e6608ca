//! Threads on which runtimes run, one stretch after the other.
//!
//! A program's threads live long, and one that has just begun is slower: where each write is
//! synced, by a third in stretches of 50 and 200 ms with a file system on a loop device here,
//! whoever makes them (`docs/figures.md`). So a runtime gets a thread that has run others before,
//! as a lane alone has the measuring thread. One that does not end keeps its thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::measure::caught::told;
use crate::measure::threads::NO_THREAD;
use crate::signals;

/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);
/// Whoever has sent one waits for the end of the program.
const PATIENCE_AFTER_SIGNAL: Duration = Duration::from_secs(2);

type Work = Box<dyn FnOnce() + Send>;

/// Threads that wait for work, the one that has ended its last work last.
static IDLE: Mutex<Vec<Sender<Work>>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Sender<Work>>> {
    // A list stays one wherever a panic came from.
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work on one of the threads.
pub(super) struct Runner<T> {
    is_finished: Arc<AtomicBool>,
    ended: Receiver<std::thread::Result<Result<T>>>,
}

/// Starts work on a thread that waits for some, or else on a new one.
pub(super) fn start<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Runner<T>> {
    let waiting = idle().pop();
    let thread = match waiting {
        Some(thread) => thread,
        None => new_thread()?,
    };
    let is_finished = Arc::new(AtomicBool::new(false));
    let (tell, ended) = channel();
    let (finishes, next) = (Arc::clone(&is_finished), thread.clone());
    let all = move || {
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // Before it is told, so that who has heard of it finds the thread there.
        idle().push(next);
        finishes.store(true, Release);
        // Nobody may wait for it any more.
        let _ = tell.send(outcome);
    };
    let sent = thread.send(Box::new(all));
    sent.ok().context("a thread that waits for work is gone")?;
    Ok(Runner { is_finished, ended })
}

/// A thread that works at whatever it is sent, for as long as the program lasts.
fn new_thread() -> Result<Sender<Work>> {
    let (sender, works) = channel::<Work>();
    let thread = Builder::new().name("runner".to_owned());
    let thread = thread.spawn(move || works.into_iter().for_each(|work| work()));
    thread.context(NO_THREAD)?;
    Ok(sender)
}

impl<T> Runner<T> {
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Acquire)
    }

    /// Waits for the work, which was told to end.
    pub(super) fn end(self, patience: Duration) -> Result<T> {
        match wait(&self.ended, patience) {
            Ok(ended) => told(ended.context("its thread is gone")?),
            Err(limit) => bail!("it did not end within {limit:?}; its threads were left behind"),
        }
    }
}

/// How long is waited at most, of which so much was meant.
pub(super) fn limit(patience: Duration) -> Duration {
    match signals::interrupted() {
        true => patience.min(PATIENCE_AFTER_SIGNAL),
        false => patience,
    }
}

/// What is sent, or nothing if nobody is left who could; or after how long neither was so.
pub(super) fn wait<S>(from: &Receiver<S>, patience: Duration) -> Result<Option<S>, Duration> {
    let begun = Instant::now();
    loop {
        match from.recv_timeout(LOOK.min(patience)) {
            Ok(sent) => return Ok(Some(sent)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let limit = limit(patience);
        if begun.elapsed() >= limit {
            return Err(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_that_has_ended_its_work_gets_the_next_and_one_that_has_not_does_not() {
        let here = || Ok(thread::current().id());
        let (go, held) = channel::<()>();
        let holds = start(move || {
            let _ = held.recv();
            here()
        });
        let holds = holds.expect("a thread can be started");
        // Other tests may take a thread in between.
        let ids: Vec<_> = (0..32)
            .map(|_| start(here).and_then(|next| next.end(PATIENCE)))
            .collect::<Result<_>>()
            .expect("threads can be started");
        assert!(ids.windows(2).any(|two| two[0] == two[1]), "{ids:?}");
        assert!(!holds.is_finished());
        drop(go);
        let held = holds.end(PATIENCE).expect("it ends");
        assert!(!ids.contains(&held), "it was at work");
    }

    #[test]
    fn a_panic_is_told_and_the_thread_works_on() {
        let broken = start(|| -> Result<()> { panic!("planned") });
        let told = broken.expect("a thread can be started").end(PATIENCE);
        let told = told.expect_err("it panicked").to_string();
        assert_eq!(told, "it panicked: planned");
        let next = start(|| Ok(7)).expect("a thread can be started");
        assert_eq!(next.end(PATIENCE).expect("it ends"), 7);
    }

    #[test]
    fn who_does_not_end_is_left_behind() {
        let (go, held) = channel::<()>();
        let hangs = start(move || {
            let _ = held.recv();
            Ok(())
        });
        let told = hangs.expect("a thread can be started").end(Duration::ZERO);
        let told = told.expect_err("it hangs").to_string();
        assert!(told.contains("did not end"), "{told}");
        drop(go);
    }
}
