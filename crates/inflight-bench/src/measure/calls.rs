//! System calls that something counts for all threads or tasks of a stretch, as an engine of the
//! library does, where the measuring thread can ask for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many there were so far.
pub(crate) type Asked = Box<dyn Fn() -> u64 + Send + Sync>;

/// Those of a stretch, if somebody counts them.
#[derive(Default)]
pub(crate) struct Calls(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Counting {
        asked: Asked,
        before: u64,
        /// Those who work.
        held: u32,
    },
    Over(u64),
}

impl State {
    fn since_begin(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Counting { asked, before, .. } => Some(asked() - before),
            Self::Over(calls) => Some(*calls),
        }
    }
}

impl Calls {
    /// Asks for them from now on, until the last of those is dropped that this returns. Whoever
    /// shares the count with others calls this before it works.
    pub(crate) fn begin(self: &Arc<Self>, asked: Asked) -> Counting {
        let mut state = self.state();
        match &mut *state {
            State::Unknown => {
                let (before, held) = (asked(), 1);
                *state = State::Counting {
                    asked,
                    before,
                    held,
                };
            }
            State::Counting { held, .. } => *held += 1,
            State::Over(_) => {}
        }
        Counting(Arc::clone(self))
    }

    /// Those since the count began, if it has.
    pub(crate) fn now(&self) -> Option<u64> {
        self.state().since_begin()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps alive what counts; afterwards the last figure stands.
#[must_use]
pub(crate) struct Counting(Arc<Calls>);

impl Drop for Counting {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let State::Counting { held, .. } = &mut *state {
            *held -= 1;
            if *held > 0 {
                return;
            }
        }
        if let Some(calls) = state.since_begin() {
            *state = State::Over(calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn calls_count_from_the_begin_until_those_who_work_are_gone() {
        let calls = Arc::new(Calls::default());
        assert_eq!(calls.now(), None);
        let made = Arc::new(AtomicU64::new(7));
        let counter = Arc::clone(&made);
        let counting = calls.begin(Box::new(move || counter.load(Relaxed)));
        assert_eq!(calls.now(), Some(0));
        let another = calls.begin(Box::new(|| unreachable!("somebody is asked already")));
        drop(counting);
        made.store(12, Relaxed);
        assert_eq!(calls.now(), Some(5), "another one works");
        drop(another);
        assert_eq!(Arc::strong_count(&made), 1, "nothing is kept");
        made.store(100, Relaxed);
        assert_eq!(calls.now(), Some(5));
    }
}
