//! Calls that may wait for a device, but mostly do not: whether one is made where it is awaited.
//!
//! To change a name is mostly done in memory, in 10 to 30 us, and the journal or the write-back has
//! it written later. To have a thread of the pool do it takes two wake-ups, which are longer. So
//! such calls are timed by kind, wherever they are made: after a slow one the next ones go to the
//! pool, until a few of those were fast (`docs/design/calls.md`).

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use super::{FAST_AGAIN, streak_after};

/// What such a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// It opens a file that it may create or empty.
    Create,
    /// It closes a file that may have been written.
    Close,
    Rename,
    Remove,
    CreateDir,
    RemoveDir,
}

const KINDS: usize = 6;

/// How the calls of each kind went last, whatever they were made on.
#[derive(Debug)]
pub(crate) struct ShortCalls([AtomicI32; KINDS]);

/// Those of this process.
pub(crate) static SHORT_CALLS: ShortCalls = ShortCalls::new();

/// No thread that was only preempted is away for longer, but on a machine that has too much to do.
const FORGIVEN_MAX: Duration = Duration::from_millis(2);

/// What takes longer than the way to another thread and back might as well go there.
pub(crate) const SHORT_MAX: Duration = Duration::from_micros(50);

impl ShortCalls {
    const fn new() -> Self {
        Self([const { AtomicI32::new(0) }; KINDS])
    }

    /// Whether the next one is expected to be short.
    pub(crate) fn are_short(&self, kind: Short) -> bool {
        self.streak(kind).load(Ordering::Relaxed) >= 0
    }

    /// Learns from one, made by a thread of the pool or where it was awaited. Threads may learn at
    /// the same time; a lost update does no harm.
    pub(crate) fn note(&self, kind: Short, took: Duration, by_pool: bool) {
        let streak = self.streak(kind);
        let before = streak.load(Ordering::Relaxed);
        let is_short = took <= SHORT_MAX;
        let after = match before {
            // It had begun before another one was slow.
            _ if is_short && !by_pool && before < 0 => before,
            _ if took > FORGIVEN_MAX => -FAST_AGAIN,
            _ => streak_after(before, is_short, by_pool),
        };
        if after != before {
            streak.store(after, Ordering::Relaxed);
        }
    }

    fn streak(&self, kind: Short) -> &AtomicI32 {
        &self.0[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(12);
    const SLOW: Duration = Duration::from_micros(400);

    #[test]
    fn a_slow_call_sends_the_next_ones_of_its_kind_to_the_pool() {
        let calls = ShortCalls::new();
        assert!(calls.are_short(Short::Create));
        calls.note(Short::Create, SLOW, false);
        assert!(!calls.are_short(Short::Create) && calls.are_short(Short::Rename));
        calls.note(Short::Create, FAST, true);
        calls.note(Short::Create, SLOW, true);
        calls.note(Short::Create, FAST, true);
        assert!(
            !calls.are_short(Short::Create),
            "two in a row have to be fast"
        );
        calls.note(Short::Create, FAST, true);
        assert!(calls.are_short(Short::Create));
    }

    #[test]
    fn one_slow_call_behind_many_fast_ones_is_forgiven() {
        let calls = ShortCalls::new();
        (0..100).for_each(|_| calls.note(Short::Remove, FAST, false));
        calls.note(Short::Remove, SLOW, false);
        assert!(calls.are_short(Short::Remove), "it may have been preempted");
        calls.note(Short::Remove, SLOW, false);
        assert!(!calls.are_short(Short::Remove));
        calls.note(Short::Remove, FAST, false);
        assert!(!calls.are_short(Short::Remove), "it had begun before");
    }

    #[test]
    fn one_that_takes_milliseconds_is_never_forgiven() {
        let calls = ShortCalls::new();
        (0..100).for_each(|_| calls.note(Short::Close, FAST, false));
        calls.note(Short::Close, Duration::from_millis(3), false);
        assert!(!calls.are_short(Short::Close));
    }
}
