//! The kernel's side: who executes operations. Four kinds, one of them for tests, chosen at run
//! time; the only `match` on them is here.
//!
//! A backend knows operations and completions. It has never heard of a file, a batch or a
//! future. Next: [`uring`], [`threads`], [`aio`].
#![allow(unsafe_code)]

pub(crate) mod aio;
pub(crate) mod alarm;
#[cfg(feature = "faulty")]
pub(crate) mod faulty;
pub(crate) mod returns;
pub(crate) mod statx;
pub(crate) mod threads;
pub(crate) mod unasked;
pub(crate) mod uring;
mod yields;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aio::queue::Aio;
use alarm::{Alarm, Event};

use crate::completion::Completion;
use crate::op::Op;
use threads::execute::to_usize;
use threads::lane::Lane;
use uring::ring::{self, EnterFailed, Uring};

/// Who executes the operations of one proactor.
pub(crate) enum Backend {
    Uring(Box<Uring>),
    Threads(Lane),
    /// Direct transfers only.
    Aio(Box<Aio>),
    #[cfg(feature = "faulty")]
    Faulty(Box<faulty::Faulty>),
}

/// Why a backend cannot go on.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) cause: io::Error,
    /// Whether another try can still go well.
    pub(crate) may_pass: bool,
}

impl From<EnterFailed> for Broken {
    fn from(failed: EnterFailed) -> Self {
        let EnterFailed { cause, may_pass } = failed;
        Self { cause, may_pass }
    }
}

impl Backend {
    /// Queues an operation, to be handed over by the next [`Backend::turn`]. False if it has not
    /// been taken.
    ///
    /// # Safety
    ///
    /// The addresses in the operation stay valid until its completion has been reaped, and no more
    /// are in flight than the backend was made for.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op) -> bool {
        match self {
            // SAFETY: passed on from the caller.
            Self::Uring(ring) => return unsafe { ring.push(user_data, op) },
            // SAFETY: passed on from the caller.
            Self::Threads(lane) => unsafe { lane.push(user_data, op, false) },
            // SAFETY: passed on from the caller.
            Self::Aio(aio) => return unsafe { aio.push(user_data, op, false) },
            #[cfg(feature = "faulty")]
            // SAFETY: passed on from the caller.
            Self::Faulty(faulty) => unsafe { faulty.push(user_data, op) },
        }
        true
    }

    /// The ring, for many operations that are pushed one after the other, if it is one.
    #[inline(always)]
    pub(crate) fn hold(&mut self) -> Option<ring::Held<'_>> {
        match self {
            Self::Uring(ring) => Some(ring.hold()),
            _ => None,
        }
    }

    /// Hands over what is queued and waits until `at_least` completions can be reaped. It may
    /// come back with fewer, after a signal for instance.
    #[inline]
    pub(crate) fn turn(&mut self, at_least: u32) -> Result<(), Broken> {
        match self {
            Self::Uring(ring) => Ok(ring.enter(at_least)?),
            Self::Threads(lane) => {
                lane.submit(at_least > 0);
                lane.wait(to_usize(at_least), None);
                Ok(())
            }
            Self::Aio(aio) => aio.turn(to_usize(at_least)),
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.turn(at_least),
        }
    }

    /// Hands over what is queued. What has completed may stay where it is until the next turn.
    pub(crate) fn submit(&mut self) -> Result<(), Broken> {
        match self {
            Self::Uring(ring) => Ok(ring.submit()?),
            _ => self.turn(0),
        }
    }

    /// As [`Lane::make_one`](threads::lane::Lane::make_one).
    pub(crate) fn make_one(&mut self) {
        if let Self::Threads(lane) = self {
            lane.make_one();
        }
    }

    /// Whether it is a ring of one thread, or one of several, for [`Backend::look`].
    #[inline]
    pub(crate) fn can_look(&self, is_shared: bool) -> bool {
        matches!(self, Self::Uring(ring) if ring.is_shared() == is_shared)
    }

    /// Hands over what is queued and looks until `at_least` completions can be reaped, or the time
    /// is over. True if they can.
    pub(crate) fn look(&mut self, at_least: u32, at_most: Duration) -> Result<bool, Broken> {
        match self {
            Self::Uring(ring) => Ok(ring.look(at_least, at_most)?),
            _ => self.turn(0).map(|()| false),
        }
    }

    /// What interrupts [`Backend::turn_or`].
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub(crate) fn alarm(&mut self) -> io::Result<Alarm> {
        match self {
            Self::Uring(ring) => ring.alarm().map(Alarm::Event),
            Self::Threads(lane) => Ok(Alarm::Bell(lane.bell())),
            Self::Aio(aio) => aio.alarm().map(Alarm::Event),
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.alarm().map(Alarm::Event),
        }
    }

    /// What signals to whoever sleeps until completions of this one are announced that there are
    /// others.
    ///
    /// # Errors
    ///
    /// When no descriptor is left, and where nothing is announced.
    pub(crate) fn announcer(&mut self) -> io::Result<Arc<Event>> {
        match self {
            Self::Uring(ring) => ring.announcer(),
            Self::Aio(aio) => aio.alarm(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// As [`Backend::turn`], but it also comes back when the alarm is rung and when the time is
    /// over. `is_idle`: nothing is in flight, so there is only the alarm to wait for.
    pub(crate) fn turn_or(
        &mut self,
        at_least: u32,
        at_most: Option<Duration>,
        is_idle: bool,
    ) -> Result<(), Broken> {
        match self {
            Self::Uring(ring) => Ok(ring.enter_or(at_least, at_most, is_idle)?),
            Self::Threads(lane) => {
                lane.submit(true);
                lane.wait_or(to_usize(at_least), at_most);
                Ok(())
            }
            Self::Aio(aio) => aio.turn_or(to_usize(at_least), at_most, is_idle),
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.turn_or(at_least, at_most, is_idle),
        }
    }

    /// Hands over what is queued, and waits for nothing. What has completed can be reaped then; the
    /// kernel is asked only if it has said that there is more.
    pub(crate) fn turn_now(&mut self) -> Result<(), Broken> {
        match self {
            Self::Uring(ring) => Ok(ring.enter_if_due()?),
            // Those have no need to enter.
            _ => self.turn(0),
        }
    }

    /// Operations that were pushed and have not reached the kernel.
    pub(crate) fn unsubmitted(&mut self) -> u32 {
        match self {
            Self::Uring(ring) => ring.unsubmitted(),
            Self::Threads(_) => 0,
            Self::Aio(aio) => aio.unsubmitted(),
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.unsubmitted(),
        }
    }

    /// Has completions of a ring announced, or not.
    #[cfg(feature = "tokio")]
    pub(crate) fn announce(&mut self, is_wanted: bool) {
        if let Self::Uring(ring) = self {
            ring.announce(is_wanted);
        }
    }

    /// Whether completions wait to be reaped.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_completed(&mut self) -> bool {
        match self {
            Self::Uring(ring) => ring.has_completed(),
            Self::Aio(aio) => aio.has_completed(),
            _ => false,
        }
    }

    /// Gives every completion that is there to `each`. False when completions have been lost.
    #[inline]
    pub(crate) fn reap(&mut self, each: impl FnMut(Completion)) -> bool {
        match self {
            Self::Uring(ring) => ring.reap(each),
            Self::Threads(lane) => {
                lane.reap().for_each(each);
                true
            }
            Self::Aio(aio) => {
                aio.reap().for_each(each);
                true
            }
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.reap(each),
        }
    }

    /// Whether a plain system call could answer differently. The thread pool makes plain calls
    /// itself, so its errors are final.
    pub(crate) fn differs_from_plain_calls(&self) -> bool {
        !matches!(self, Self::Threads(_))
    }

    /// Pushes a direct transfer where that is all that the backend takes, as [`Backend::push`].
    /// `may_wait`: its file cannot be asked not to wait. False if it has not been taken.
    ///
    /// # Safety
    ///
    /// As for [`Backend::push`].
    pub(crate) unsafe fn push_direct(&mut self, user_data: u64, op: &Op, may_wait: bool) -> bool {
        match self {
            // SAFETY: passed on from the caller.
            Self::Aio(aio) => unsafe { aio.push(user_data, op, may_wait) },
            _ => false,
        }
    }

    /// Whether it takes direct transfers only, and gives up what would wait.
    pub(crate) fn is_for_direct_transfers(&self) -> bool {
        matches!(self, Self::Aio(_))
    }

    /// Whether the owner is interrupted by its alarm from now on; else it does what waits alone for
    /// a thread.
    pub(crate) fn be_interrupted(&mut self, is_interrupted: bool) {
        if let Self::Threads(lane) = self {
            lane.be_interrupted(is_interrupted);
        }
    }

    /// Makes the files of the operations that follow known in advance, where that helps.
    pub(crate) fn fix_files(&mut self) {
        if let Self::Uring(ring) = self {
            ring.files().fix();
        }
    }

    /// Ends [`Backend::fix_files`].
    #[inline]
    pub(crate) fn release_files(&mut self) {
        if let Self::Uring(ring) = self {
            ring.release_files();
        }
    }

    /// Forgets registered memory whose owner is gone.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        if let Self::Uring(ring) = self {
            ring.sweep();
        }
    }

    /// Enters into the kernel so far.
    #[inline]
    pub(crate) fn enters(&self) -> u64 {
        match self {
            Self::Uring(ring) => ring.enters(),
            Self::Aio(aio) => aio.calls(),
            _ => 0,
        }
    }

    /// Whether there is something for [`Backend::take_refusal`].
    #[inline]
    pub(crate) fn has_refusal(&self) -> bool {
        matches!(self, Self::Uring(ring) if ring.has_refusal())
    }

    /// Why memory is not registered, once.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        match self {
            Self::Uring(ring) => ring.take_refusal(),
            _ => None,
        }
    }
}
