//! How a proactor waits: asleep in the backend, or looking for completions first, if its host has
//! that decided by somebody (`docs/design/busy-polling.md`); and how one does whose owner has to be
//! back by some time, whatever hangs.

use std::io;
use std::time::Duration;

use super::{Proactor, Wait};
use crate::backend::Broken;
use crate::backend::alarm::Alarm;
use crate::completion::Answer;

/// Decides whether completions are looked for.
pub(crate) trait Looks: Send {
    /// For how long at most in the wait that begins now, with so many in flight and after so many
    /// completions; `None` to sleep at once.
    fn looks_for(&mut self, in_flight: u32, completed: u64) -> Option<Duration>;

    /// What has become of such a look.
    fn looked(&mut self, has_seen: bool);
}

impl Proactor {
    /// Has this decide from now on; without it nothing is looked for but by who waits for one and
    /// decides that by itself.
    pub(crate) fn looking(mut self, looks: impl Looks + 'static) -> Self {
        self.looks = Some(Box::new(looks));
        self
    }

    /// The answer of what has been pushed, which is the only one in flight. If it is told for how
    /// long, it is looked for before this thread sleeps. Whether it was seen by then.
    pub(crate) fn turn_for_one(&mut self, looks_for: Option<Duration>) -> (Answer, bool) {
        let (seen, reaped) = (self.tally.busy_polls.get(), self.reaped);
        let wait = looks_for.map_or(Wait::Through, Wait::Looking);
        let mut answer = None;
        loop {
            self.turn_with(1, wait, |_, it| answer = Some(it));
            if let Some(answer) = answer {
                if looks_for.is_some() {
                    self.reaped = reaped;
                }
                return (answer, self.tally.busy_polls.get() > seen);
            }
        }
    }

    /// As [`Proactor::turn_or`], for an owner that has to be back after `at_most`: what waits for a
    /// thread is left to the pool, if that has one. With no time it looks for what has completed,
    /// and the kernel is entered if that hands something over or is said to bring something.
    pub(crate) fn turn_in_time(
        &mut self,
        at_least: u32,
        at_most: Option<Duration>,
        deliver: impl FnMut(u32, Answer),
    ) {
        self.in_time(|this| match at_most {
            Some(Duration::ZERO) => this.turn_with(0, Wait::Now, deliver),
            at_most => this.turn_or(at_least, at_most, deliver),
        });
    }

    /// Does something for an owner that has to be back by some time. It must not panic.
    pub(super) fn in_time<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        let is_interrupted = self.aside.is_interrupted();
        self.be_interrupted(true);
        self.is_in_time = true;
        let done = act(self);
        self.is_in_time = false;
        self.be_interrupted(is_interrupted);
        done
    }

    /// What interrupts [`Proactor::turn_in_time`]. Other turns are as they were.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub(crate) fn alarm_in_time(&mut self) -> io::Result<Alarm> {
        self.in_time(Self::alarm)
    }

    /// Whether there is a ring of this thread in which completions can be looked for.
    pub(crate) fn can_look(&self) -> bool {
        self.broken.is_none() && self.backend.can_look(false)
    }

    #[inline]
    fn looks_for(&mut self) -> Option<Duration> {
        let looks = self.looks.as_mut()?;
        looks.looks_for(self.slots.in_flight(), self.reaped)
    }

    /// Notes what has become of a look.
    fn looked(&mut self, has_seen: bool) {
        if let Some(looks) = &mut self.looks {
            looks.looked(has_seen);
        }
        self.tally.busy_polls.add(u64::from(has_seen));
    }

    /// Hands over what is queued and waits for completions, as [`Proactor::hand_over`].
    #[inline]
    pub(super) fn wait(&mut self, at_least: u32, wait: Wait) -> Result<(), Broken> {
        let can_look = at_least > 0 && !wait.is_idle() && self.backend.can_look(false);
        let looks_for = match wait {
            _ if !can_look => None,
            Wait::Looking(at_most) => Some(at_most),
            Wait::Not | Wait::Now => None,
            Wait::Through | Wait::OrAlarm(..) => self.looks_for(),
        };
        match looks_for {
            Some(at_most) => self.wait_looking(at_least, wait, at_most),
            None => self.sleep(at_least, wait),
        }
    }

    fn wait_looking(&mut self, at_least: u32, wait: Wait, at_most: Duration) -> Result<(), Broken> {
        let left = match wait {
            Wait::OrAlarm(Some(left), _) => left,
            _ => Duration::MAX,
        };
        let has_seen = self.backend.look(at_least, at_most.min(left))?;
        match wait {
            Wait::Looking(_) => self.tally.busy_polls.add(u64::from(has_seen)),
            _ if has_seen || left >= at_most / 2 => self.looked(has_seen),
            _ => {}
        }
        match wait {
            _ if has_seen || left <= at_most => Ok(()),
            Wait::OrAlarm(Some(left), is_idle) => {
                self.sleep(at_least, Wait::OrAlarm(Some(left - at_most), is_idle))
            }
            wait => self.sleep(at_least, wait),
        }
    }

    /// For whoever drives this proactor and sleeps elsewhere, until completions are announced: it
    /// looks for some before that, if it is so decided. What is queued is handed over.
    #[cfg(feature = "tokio")]
    pub(crate) fn look(&mut self, mut deliver: impl FnMut(u32, Answer)) {
        let is_waited_for = self.slots.in_flight() > 0 && !self.aside.is_busy();
        // What is in two places is not looked for.
        let is_there = is_waited_for && !self.is_in_two_places();
        let can_look = is_there && self.broken.is_none() && self.backend.can_look(true);
        let Some(at_most) = can_look.then(|| self.looks_for()).flatten() else {
            return;
        };
        let looked = match self.older.is_busy() {
            true => Ok(self.look_in_older_calls(at_most)),
            false => self.backend.look(1, at_most),
        };
        self.queued = 0;
        self.looked(*looked.as_ref().unwrap_or(&false));
        self.count_enters();
        self.conclude(looked.map(|_| ()), &mut deliver);
    }

    #[inline]
    fn sleep(&mut self, at_least: u32, wait: Wait) -> Result<(), Broken> {
        match wait {
            Wait::Not => self.backend.submit(),
            Wait::Through | Wait::Looking(_) => self.backend.turn(at_least),
            Wait::OrAlarm(at_most, is_idle) => self.backend.turn_or(at_least, at_most, is_idle),
            Wait::Now => self.backend.turn_now(),
        }
    }
}

impl Wait {
    /// How long it lasts at most.
    pub(super) fn at_most(self) -> Option<Duration> {
        match self {
            Self::OrAlarm(at_most, _) => at_most,
            Self::Not | Self::Through | Self::Looking(_) | Self::Now => None,
        }
    }

    /// Whether there is nothing in flight to be waited for.
    fn is_idle(self) -> bool {
        matches!(self, Self::OrAlarm(_, true))
    }
}

// Miri has no rings.
#[cfg(all(test, not(miri), not(loom)))]
#[path = "waiting_test.rs"]
mod tests;
