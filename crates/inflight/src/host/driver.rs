//! The driver host: a few threads, each the owner of one proactor, with a [`Mailbox`] in front.
//!
//! A driver sleeps in one of three ways. With nothing in flight it looks for mail a little while,
//! then parks. With few in flight it waits for any completion, or the alarm. With many it waits
//! for several completions without the alarm, so that the requests which they bring about are
//! handed over together; mail that comes meanwhile waits for the next of these moments.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::again::Again;
use super::hand_over::HandsOver;
use super::mail::{Mailbox, Next, Rouser, Taken};
use super::pace::{Pace, unseen};
use super::shared::Shared;
use crate::completion::Answer;
use crate::error::{NoThread, SetupError};
use crate::fork::in_the_parent;
use crate::proactor::Proactor;

/// The longest that an idle driver looks for mail before it parks.
const SPIN_MAX: Duration = Duration::from_micros(20);
const SPIN_MIN: Duration = Duration::from_micros(1);

/// The drivers of one engine.
pub(crate) struct Drivers {
    drivers: Vec<(Arc<Mailbox>, JoinHandle<()>)>,
}

/// Why a driver has not been started.
pub(crate) enum NotStarted {
    NoThread(NoThread),
    /// It cannot have what is demanded.
    Refused(SetupError),
}

impl Drivers {
    /// Starts `count` drivers.
    ///
    /// # Errors
    ///
    /// If no thread can be started, or one cannot have what is demanded. The others end.
    pub(crate) fn start(shared: &Arc<Shared>, count: u32) -> Result<Self, NotStarted> {
        let mut drivers = Self {
            drivers: Vec::new(),
        };
        for _ in 0..count.max(1) {
            match start_one(shared) {
                Ok(driver) => drivers.drivers.push(driver),
                Err(NotStarted::NoThread(why)) if drivers.count() > 0 => {
                    let (has, wants) = (drivers.count(), count);
                    let reason = format!("{has} of {wants} drivers, and no more: {why}");
                    shared.counters.fallback(reason);
                    break;
                }
                Err(refusal) => {
                    drivers.end(Instant::now() + Duration::from_secs(1));
                    return Err(refusal);
                }
            }
        }
        Ok(drivers)
    }

    /// The mailbox for requests from one thread.
    pub(crate) fn mailbox(&self, thread: usize) -> &Arc<Mailbox> {
        &self.drivers[thread % self.drivers.len()].0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.drivers.len()
    }

    /// Ends the drivers once nothing is in flight, but waits for that no longer than until
    /// `deadline`. Returns how many requests are then left; their drivers go on alone, and what
    /// belongs to the requests is freed when these are over.
    pub(crate) fn end(self, deadline: Instant) -> u32 {
        self.drivers.iter().for_each(|(mailbox, _)| mailbox.end());
        let this = thread::current().id();
        let mut left = 0;
        for (mailbox, driver) in self.drivers {
            // A waker may drop the last handle of the engine on the driver itself.
            if driver.thread().id() == this {
                continue;
            }
            if mailbox.wait_for_end(deadline) {
                // A driver runs no foreign code that it does not contain.
                let _ = driver.join();
            } else {
                left += mailbox.unanswered();
            }
        }
        left
    }

    /// Requests without an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let counts = self.drivers.iter().map(|(mailbox, _)| mailbox.unanswered());
        counts.sum()
    }
}

fn start_one(shared: &Arc<Shared>) -> Result<(Arc<Mailbox>, JoinHandle<()>), NotStarted> {
    let (say, hear) = std::sync::mpsc::channel();
    let engine = Arc::clone(shared);
    let run = move || {
        let weak = Arc::downgrade(&engine);
        match set_up(&engine) {
            Ok((proactor, mailbox)) => {
                drop(engine);
                if say.send(Ok(Arc::clone(&mailbox))).is_ok() {
                    drive(&weak, Desk::new(proactor), &mailbox);
                }
            }
            Err(refusal) => {
                drop(engine);
                // Whoever asked has left only if it died.
                let _ = say.send(Err(refusal));
            }
        }
    };
    let no_thread = |cause| {
        NotStarted::NoThread(NoThread {
            cause: Arc::new(cause),
        })
    };
    let thread = thread::Builder::new().name("inflight-driver".to_owned());
    let thread = thread.spawn(run).map_err(no_thread)?;
    let died = |_| no_thread(std::io::Error::other("the driver thread has died"));
    let mailbox = hear.recv().map_err(died)?;
    Ok((mailbox.map_err(NotStarted::Refused)?, thread))
}

fn set_up(shared: &Shared) -> Result<(Proactor, Arc<Mailbox>), SetupError> {
    let mut proactor = shared.new_proactor()?;
    let alarm = shared.alarm_of(&mut proactor)?;
    let mailbox = Mailbox::new(Rouser::Alarm(alarm), shared.config.bytes_in_flight);
    Ok((proactor, Arc::new(mailbox)))
}

/// Ends the process if what drives a proactor panics: the kernel may be writing to memory that
/// unwinding would free. No foreign code can be the cause, see [`Mailbox::tell`].
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        eprintln!("inflight: a driver has panicked with operations in flight; this is a bug");
        std::process::abort();
    }
}

/// Runs what drives a proactor, and must not unwind. A runtime may be run while its thread unwinds
/// for reasons of its own, so it is not asked whether the thread panics.
pub(super) fn without_unwinding<R>(drives: impl FnOnce() -> R) -> R {
    let guard = NoUnwinding;
    let result = drives();
    std::mem::forget(guard);
    result
}

/// What whoever drives a proactor works with; the memory is used again and again.
pub(crate) struct Desk<P = Proactor> {
    pub(crate) proactor: P,
    /// Answers that have yet to be left in the mailbox.
    pub(crate) answers: Vec<(u32, Answer)>,
    pub(crate) taken: Taken,
}

impl<P> Desk<P> {
    pub(crate) fn new(proactor: P) -> Self {
        Self {
            proactor,
            answers: Vec::new(),
            taken: Taken::default(),
        }
    }
}

/// Serves a mailbox until it is to end and nothing is left to do.
pub(super) fn drive(shared: &Weak<Shared>, mut desk: Desk, mailbox: &Mailbox) {
    without_unwinding(|| drive_on(shared, &mut desk, mailbox));
}

fn drive_on(shared: &Weak<Shared>, desk: &mut Desk, mailbox: &Mailbox) {
    let Desk {
        proactor,
        answers,
        taken,
    } = desk;
    let mut spin = SPIN_MAX;
    let mut pace = Pace::default();
    let mut hands_over = HandsOver::new();
    let mut again = shared.upgrade().map(|shared| Again::of(&shared, proactor));
    loop {
        if let Some(again) = &mut again
            && again.is_due()
            && proactor.is_idle()
        {
            try_again(again, shared, proactor, mailbox);
        }
        let room = match proactor.has_room() && taken.requests.is_empty() {
            true => proactor.capacity() - proactor.in_flight(),
            false => 0,
        };
        let (next, timer) = mailbox.exchange(answers, taken, room);
        hand_over(proactor, taken);
        in_the_parent(|| mailbox.tell(&mut taken.news));
        proactor.sweep();
        let until = timer.map(|at| at.saturating_duration_since(Instant::now()));
        let in_flight = proactor.in_flight();
        let (at_least, at_most) = match next {
            // Who is called need not look for mail.
            Next::Park => (1, until),
            Next::Work => (pace.at_least(in_flight), Some(unseen(until))),
            Next::End => break,
        };
        if at_least > 0 {
            pace = pace.after(in_flight, || {
                let deliver = |token, answer| answers.push((token, answer));
                proactor.turn_or(at_least, at_most, deliver);
                answers.len()
            });
        } else if proactor.needs_turn() {
            proactor.turn(0, |token, answer| answers.push((token, answer)));
        } else if in_flight == 0 {
            look_for_mail(mailbox, &mut spin);
        }
        hands_over.turned(proactor);
        if proactor.has_news() {
            tell_of_fallbacks(shared, proactor, mailbox);
        }
    }
}

/// Hands what was taken to the proactor, as far as it has room.
#[allow(unsafe_code)]
pub(super) fn hand_over(proactor: &mut Proactor, taken: &mut Taken) {
    while proactor.has_room()
        && let Some((token, request)) = taken.requests.pop()
    {
        // SAFETY: whoever has the ticket of a request keeps its memory until the cell is done, or
        // has left it in the cell; cells are done only by the answers that the proactor delivers.
        unsafe { proactor.push(token, &request) };
    }
}

/// Looks for mail a little while, as long as that has mostly paid.
fn look_for_mail(mailbox: &Mailbox, spin: &mut Duration) {
    let begun = Instant::now();
    while !mailbox.has_hint() {
        if begun.elapsed() > *spin {
            *spin = (*spin / 2).max(SPIN_MIN);
            return;
        }
        std::hint::spin_loop();
    }
    *spin = (*spin * 2).min(SPIN_MAX);
}

/// Tells the engine what has been given up. A proactor whose backend has broken is replaced.
#[cold]
fn tell_of_fallbacks(shared: &Weak<Shared>, proactor: &mut Proactor, mailbox: &Mailbox) {
    let reasons: Vec<String> = proactor.take_fallbacks().collect();
    let Some(shared) = shared.upgrade() else {
        return;
    };
    for reason in reasons {
        shared.counters.fallback(reason);
    }
    if !proactor.is_idle() {
        return;
    }
    let Some(cause) = proactor.take_broken() else {
        return;
    };
    shared.give_up_rings(cause);
    let next = shared.new_proactor_on_threads();
    replace(&shared, proactor, next, mailbox);
}

#[cold]
fn try_again(again: &mut Again, shared: &Weak<Shared>, proactor: &mut Proactor, mailbox: &Mailbox) {
    if let Some(shared) = shared.upgrade()
        && let Some(next) = again.made(&shared)
    {
        replace(&shared, proactor, next, mailbox);
    }
}

/// Has another proactor take the place of one that is idle.
fn replace(shared: &Shared, proactor: &mut Proactor, mut next: Proactor, mailbox: &Mailbox) {
    match next.alarm() {
        Ok(alarm) => {
            drop(mailbox.replace_alarm(Rouser::Alarm(alarm)));
            *proactor = next;
        }
        // The old one goes on.
        Err(cause) => shared.counters.fallback(cause.to_string()),
    }
}
