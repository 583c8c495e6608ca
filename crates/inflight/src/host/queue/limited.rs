//! For how long a queue looks for results, and how it waits for them.
//!
//! Whoever waits without a limit makes itself what is best made by its thread, and may hang in
//! that. Whoever has a limit is to be back by then, whatever hangs: what may wait is left to the
//! pool, syncs as well, and who makes it rings the proactor's alarm, also for reads that are
//! shared. Where no descriptor is left for an alarm, this thread looks again every millisecond.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::Flights;
use crate::backend::alarm::Alarm;
use crate::completion::Answer;
use crate::host::caller::Want;
use crate::host::pace::FAR;
use crate::op::Prepare;
use crate::policy::wait_for;
use crate::proactor::{Proactor, UNTOLD};

/// For how long a call for a result may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// As long as it takes.
    None,
    /// Not at all.
    Now,
    /// Until then, if that is not too far to be told.
    Until(Option<Instant>),
}

/// The longest wait at a time: the kernel adds what it is told to its clock.
const LONGEST: Duration = Duration::from_secs(3600);

impl Limit {
    pub(crate) fn after(time: Duration) -> Self {
        match time.is_zero() {
            true => Self::Now,
            false => Self::Until(Instant::now().checked_add(time)),
        }
    }

    /// Whether there is one.
    #[inline]
    pub(super) fn is_set(self) -> bool {
        !matches!(self, Self::None)
    }

    /// How long a wait may last that begins now.
    #[inline]
    fn left(self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Now => Some(Duration::ZERO),
            Self::Until(None) => Some(LONGEST),
            Self::Until(Some(at)) => {
                Some(at.saturating_duration_since(Instant::now()).min(LONGEST))
            }
        }
    }

    #[inline]
    pub(super) fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// How many completions a queue waits for at a time.
///
/// Several, because that saves wake-ups; but a device may hang, and those of another must not wait
/// for it. A limit that is reached often would be dear, and one that is far, each time, too long.
#[derive(Default)]
pub(super) struct Waits {
    /// So many turns wait for a single one, after a wait that has come to its limit.
    single: u32,
}

impl Waits {
    /// So many turns come between two waits that may both be in vain.
    const SINGLE: u32 = 256;

    /// Waits until there are some, and puts them behind the others. `at_most`: for how long, if
    /// this thread has to be back by some time. `others`: what else may be over by then.
    #[inline]
    fn wait(
        &mut self,
        proactor: &mut Proactor,
        at_most: Option<Duration>,
        others: &Others,
        ready: &mut VecDeque<(u32, Answer)>,
    ) {
        let mut deliver = |token, answer| ready.push_back((token, answer));
        let at_least = match others {
            // The alarm counts as one.
            Others::Ring | Others::Silent | Others::Over => 1,
            Others::Nothing | Others::LookedFor => wait_for(proactor.in_flight()),
        };
        if at_least == 1 || self.single > 0 {
            self.single = self.single.saturating_sub(1);
            return match (at_most, others) {
                (None, Others::LookedFor) => proactor.turn_or(1, Some(FAR), deliver),
                (None, _) => proactor.turn(1, deliver),
                (at_most, _) => proactor.turn_in_time(1, at_most, deliver),
            };
        }
        let begun = Instant::now();
        match at_most {
            None => proactor.turn_or(at_least, Some(FAR), &mut deliver),
            Some(at_most) => proactor.turn_in_time(at_least, Some(at_most.min(FAR)), &mut deliver),
        }
        // A shorter one that ends in vain says nothing of the device.
        let is_far = at_most.is_none_or(|at_most| at_most >= FAR);
        if is_far && begun.elapsed() >= FAR {
            self.single = Self::SINGLE;
        }
    }
}

/// Wakes whoever waits in the proactor of a queue.
struct Ringing(Alarm);

impl Wake for Ringing {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.ring();
    }
}

/// What is in flight beside the proactor.
enum Others {
    Nothing,
    /// Syncs, which are looked for after each wait.
    LookedFor,
    /// Whoever makes it rings the alarm.
    Ring,
    /// The same, but there is no alarm.
    Silent,
    /// Some of it is over.
    Over,
}

impl<O: Prepare> Flights<'_, O> {
    /// Whether a single completion is waited for at a time, whatever is in flight.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn waits_for_single(&self) -> bool {
        self.waits.single > 0
    }

    /// Whether something is in flight that a call with this limit waits for in the proactor.
    #[inline]
    pub(super) fn is_awaited(&mut self, limit: Limit) -> bool {
        let has_others = limit.is_set() && self.has_others();
        has_others || !self.lease.proactor().is_idle()
    }

    fn has_others(&self) -> bool {
        !self.joined.is_empty() || self.lease.has_gathered()
    }

    /// Looks for what has completed, when there are other results already.
    pub(super) fn look(&mut self, limit: Limit) {
        let (proactor, ready) = (self.lease.proactor(), &mut self.ready);
        let deliver = |token, answer| ready.push_back((token, answer));
        match limit.is_set() {
            false => proactor.turn(0, deliver),
            true => proactor.turn_in_time(0, Some(Duration::ZERO), deliver),
        }
    }

    /// Waits for results in the proactor, once.
    #[inline]
    pub(super) fn wait(&mut self, limit: Limit) {
        match limit.left() {
            None => self.wait_through(),
            Some(Duration::ZERO) => self.look_now(limit),
            Some(left) => self.wait_in_time(left),
        }
    }

    #[inline]
    fn wait_through(&mut self) {
        let others = match self.joined.is_empty() {
            true => Others::Nothing,
            false => Others::LookedFor,
        };
        let (proactor, ready) = (self.lease.proactor(), &mut self.ready);
        self.waits.wait(proactor, None, &others, ready);
        if !self.joined.is_empty() {
            // What else is in flight may hang.
            self.take_syncs();
        }
    }

    #[cold]
    fn look_now(&mut self, limit: Limit) {
        self.look(limit);
        if self.ready.is_empty() {
            // Of what no thread can be had for, who never waits makes one after the other. And what
            // has completed may have another step.
            self.lease.proactor().make_one();
            self.look(limit);
        }
    }

    #[cold]
    fn wait_in_time(&mut self, left: Duration) {
        let others = self.watch_others();
        let proactor = self.lease.proactor();
        let at_most = match others {
            Others::Over => Duration::ZERO,
            Others::Silent => left.min(UNTOLD),
            Others::Nothing | Others::LookedFor | Others::Ring => left,
        };
        // A proactor whose backend has broken waits for nothing.
        let is_elsewhere = matches!(others, Others::Silent) || proactor.is_broken();
        if is_elsewhere && proactor.is_idle() {
            thread::sleep(at_most.min(UNTOLD));
        } else {
            let ready = &mut self.ready;
            self.waits.wait(proactor, Some(at_most), &others, ready);
        }
        self.take_others();
    }

    /// Has the alarm rung when something is over that is not in the proactor.
    fn watch_others(&mut self) -> Others {
        if !self.has_others() {
            return Others::Nothing;
        }
        let Ok(alarm) = self.lease.proactor().alarm_in_time() else {
            return Others::Silent;
        };
        let waker = match &self.waker {
            Some(waker) => waker,
            None => {
                let ringing = Ringing(alarm.clone());
                self.waker.insert(Waker::from(Arc::new(ringing)))
            }
        };
        let mut seats = self.joined.iter().map(|(_, seat)| seat);
        let is_over = seats.any(|seat| seat.poll(waker).is_some());
        match is_over || self.lease.watch_gathered(&alarm) {
            true => Others::Over,
            false => Others::Ring,
        }
    }

    /// Takes what is over that is not in the proactor.
    fn take_others(&mut self) {
        if self.lease.has_gathered() {
            self.take_gathered(Want::InTime);
        }
        if !self.joined.is_empty() {
            self.take_syncs();
        }
    }

    /// A call with a limit is over: syncs that are late are those of a thread again, which may wait
    /// for them.
    pub(super) fn forget_wakers(&self) {
        if self.waker.is_some() {
            let seats = self.joined.iter().map(|(_, seat)| seat);
            seats.for_each(|seat| seat.forget_waker());
        }
    }
}
