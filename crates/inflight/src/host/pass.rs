//! One pass of a lane's task: it reaps, exchanges with the mailbox, hands over, and, where that
//! pays, waits for the next completions; and it finds out whether the task may sleep.
//!
//! **Sleeping.** Mail rouses the task from the exchange on that has found none; completions do so
//! once they are announced again. What is there is looked for after that, so that whatever comes
//! is either seen or rouses the task.
//!
//! The task itself, and whose the desk is, are the business of `lane.rs`. What a pass works with
//! is a trait, so that `lane_loom.rs` can run passes in every order.

use super::driver::Desk;
use super::flow::Flow;
use super::mail::{Mailbox, News, Next, Rouse, Taken};
use crate::completion::Answer;
use crate::sync::{Ordering, fence};

/// A proactor, or that of a model.
pub(crate) trait Works {
    /// Has completions announced to whoever watches for them, or not.
    fn announce(&mut self, is_wanted: bool);

    fn in_flight(&self) -> u32;

    /// How many requests there is room for.
    fn room(&self) -> u32;

    /// Takes requests, as far as there is room.
    fn take(&mut self, taken: &mut Taken);

    /// Hands over and reaps. Waits for `at_least` completions, but not for long.
    fn turn(&mut self, at_least: u32, answers: &mut Vec<(u32, Answer)>);

    /// Looks for completions for a moment, where that is better than to sleep.
    fn look(&mut self, answers: &mut Vec<(u32, Answer)>);

    /// Whether another turn would get further now.
    fn has_work(&mut self) -> bool;
}

/// What a pass does beside reaping and telling.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing.
    None,
    /// It hands over what has come.
    Mail,
    /// It also waits for completions, unless somebody is to be told something first.
    MailAndWaits,
}

/// How the task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It is woken when there is something to do.
    Sleep,
    Again,
    /// As `Again`, after all others that are ready.
    #[cfg(feature = "tokio")]
    Yield,
    End,
}

/// Who has been told something.
#[derive(Default)]
pub(crate) struct Told {
    /// Who is to be told now. Its memory is used again and again.
    pub(crate) news: News,
    /// How many there are to be told at a time: what the largest of the last waves of completions
    /// was taken from, less one for each wave since. A small wave between large ones is no reason
    /// to hand over each operation by itself, after which they would stay apart.
    pub(crate) of: u32,
    /// What the last wave was taken from.
    last_of: u32,
    /// With more in flight completions are not looked for.
    look_most: u32,
    flow: Flow,
}

/// With more in flight completions are not looked for, in a runtime of one thread, and in one of
/// several, whose others have something to do then (`docs/design/busy-polling.md`).
const LOOK_MOST_ALONE: u32 = 2;
const LOOK_MOST: u32 = 1;

impl Told {
    /// For the lane of a runtime that `is_alone` if it has one thread.
    pub(crate) fn new(is_alone: bool) -> Self {
        Self {
            look_most: match is_alone {
                true => LOOK_MOST_ALONE,
                false => LOOK_MOST,
            },
            ..Self::default()
        }
    }

    /// How many completions may be waited for; 0 if the next one is too far.
    #[cfg(feature = "tokio")]
    pub(crate) fn worth(&self) -> u32 {
        self.flow.worth(self.last_of)
    }

    /// So many completions have come, of so many in flight.
    fn note(&mut self, in_flight: u32, answered: usize) {
        if answered == 0 {
            return;
        }
        let answered = u32::try_from(answered).unwrap_or(u32::MAX);
        // Those that were answered as soon as they were handed over count as well.
        self.last_of = in_flight.max(answered);
        self.of = self.last_of.max(self.of.saturating_sub(1));
        self.flow.note(answered);
    }
}

/// Reaps, and leaves in `told` who is to be told. `note` is given what is in flight.
pub(crate) fn pass<P: Works, A: Rouse>(
    desk: &mut Desk<P>,
    mailbox: &Mailbox<A>,
    told: &mut Told,
    takes: Takes,
    note: impl FnOnce(u32),
) -> Then {
    let Desk {
        proactor,
        answers,
        taken,
    } = desk;
    proactor.announce(false);
    let in_flight = proactor.in_flight();
    if takes != Takes::MailAndWaits {
        proactor.turn(0, answers);
    }
    told.note(in_flight, answers.len());
    let room = match takes != Takes::None && taken.requests.is_empty() {
        true => proactor.room(),
        false => 0,
    };
    let (next, _) = mailbox.exchange(answers, taken, room);
    proactor.take(taken);
    note(proactor.in_flight());
    let at_least = match takes == Takes::MailAndWaits && !taken.news.is_some() {
        true => told.flow.worth(proactor.in_flight()),
        false => 0,
    };
    if at_least > 0 {
        proactor.turn(at_least, answers);
        if u32::try_from(answers.len()).is_ok_and(|came| came < at_least) {
            // The wait was in vain.
            told.flow.note(0);
        }
    } else if proactor.has_work() {
        proactor.turn(0, answers);
    }
    // What there is no room for waits for completions.
    let can_take = !taken.requests.is_empty() && proactor.room() > 0;
    if at_least == 0 && next == Next::Park {
        let are_few = proactor.in_flight().max(told.of) <= told.look_most;
        if are_few && answers.is_empty() && !taken.news.is_some() {
            proactor.look(answers);
        }
        proactor.announce(true);
        // Whoever completes shows that, and looks then whether to announce it.
        fence(Ordering::SeqCst);
    }
    // A later completion is announced.
    let is_done = at_least == 0 && answers.is_empty() && !can_take && !proactor.has_work();
    std::mem::swap(&mut told.news, &mut taken.news);
    match next {
        Next::End => Then::End,
        Next::Park if is_done => Then::Sleep,
        _ => Then::Again,
    }
}
