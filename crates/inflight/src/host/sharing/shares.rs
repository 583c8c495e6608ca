//! Copies that a host which lasts shares with a thread of the pool: what run loops and lanes have
//! in common. A host does not wait for a device: a read of its own that the page cache does not
//! have goes to the proactor after all. What cannot be asked to do without waiting is read by plain
//! calls, as long as most of those that are timed are fast: one in a few is made where it is polled
//! for that.
//!
//! Next: [`super::spread`].

use super::shown::{Made, Place};
use super::spread::Gathered;
use crate::completion::Answer;
use crate::op::Request;
use crate::proactor::Tally;

/// What has become of a read that may be shared.
pub(crate) enum Offer<T> {
    Shared(T),
    /// It is to be made where it is polled, to see how that goes.
    Sample,
    /// It is to be made where it is polled, by a call that may wait: nobody else would have to.
    Call,
    /// Nothing is shared now, or there is no room.
    Declined,
}

impl<T> Offer<T> {
    pub(in crate::host) fn map<U>(self, shared: impl FnOnce(T) -> U) -> Offer<U> {
        match self {
            Self::Shared(read) => Offer::Shared(shared(read)),
            Self::Sample => Offer::Sample,
            Self::Call => Offer::Call,
            Self::Declined => Offer::Declined,
        }
    }
}

/// What has become of a read that was shared.
pub(in crate::host) enum Came {
    Answer(Answer),
    /// The page cache did not have all of it. Nobody is at work at it any more.
    Missed(Request),
}

/// Reads whose answers have been taken.
#[derive(Clone, Copy)]
pub(in crate::host) struct Took {
    made: Made,
    missed: u32,
}

impl Took {
    /// Whether there were any.
    pub(in crate::host) fn is_some(self) -> bool {
        self.made.own + self.made.helped > 0
    }

    /// Counts them. They are all of one kind, and what was missed counts when it is answered.
    pub(in crate::host) fn count(self, tally: &Tally) {
        let Made { own, helped } = self.made;
        let missed = self.missed;
        tally.answered.add(u64::from(own + helped - missed));
        tally.plain_calls.add(u64::from(own.saturating_sub(missed)));
        let helped = helped.saturating_sub(missed);
        tally.helped.add(u64::from(helped));
    }
}

/// What a host knows once it has taken answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Taken {
    /// Nothing is shared.
    Nothing,
    Some,
    /// The other thread is at work at all that is shared. It rings for a host that is about to
    /// sleep.
    Theirs,
}

/// Takes answers that are there, or made by this thread; if it `waits`, one at least, unless
/// nothing is shared.
pub(in crate::host) fn take(
    gathered: &mut Gathered,
    waits: bool,
    mut each: impl FnMut(u32, Came),
) -> Took {
    let mut missed = 0;
    let mut each = |token, answer, place: &Place| match place.missed(answer) {
        Some(request) => {
            missed += 1;
            each(token, Came::Missed(request));
        }
        None => each(token, Came::Answer(answer)),
    };
    let made = match waits {
        true => gathered.take_some(&mut each),
        false => gathered.take_now(&mut each),
    };
    Took { made, missed }
}
