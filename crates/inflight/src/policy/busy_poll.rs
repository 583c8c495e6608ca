//! Whether an owner that waits for completions looks for them for a while before it sleeps: what
//! has been measured decides.
//!
//! A thread that sleeps has to be woken, and a processor without anything to do has to be woken
//! first. In a virtual machine that takes longer than a fast device needs for a read, and more
//! processor time than to look for it (`docs/design/busy-polling.md`). Where it does not, looking
//! is a waste of processor time that others could use. So there are trials: runs of waits with the
//! one and with the other in turn. Looking has to bring clearly more completions in the same time,
//! and must not cost more processor time than it saves time.
//!
//! Threads that live for some hundred waits would do nothing but try, with looks that cost several
//! times the processor time of sleep. So the first trial of an owner is put off, longer and longer,
//! as long as none on the same engine finds that looking pays.
//!
//! Plain data of whoever owns a proactor, but for what owners tell each other; it is told the time.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::pairs::Pairs;

/// The longest look. What takes longer gains less by it than a few per cent.
pub(crate) const LOOK_MAX: Duration = Duration::from_micros(100);

/// Waits of a run.
const RUN: u32 = 32;

/// Pairs of runs in a trial at most. Those in the middle of each kind count: in others the program
/// or the scheduler had something else to do, or there happened to be nothing to sleep for.
const PAIRS: usize = 6;

/// A trial is over after so many pairs if one kind took at most so many thousandths of the other in
/// each.
const CLEAR_AFTER: usize = 3;
const CLEAR: u64 = 800;

/// Looking begins if it needs so many thousandths of the time that sleeping does, and ends if it
/// needs more than so many.
const BEGINS_AT: u64 = 920;
const ENDS_ABOVE: u64 = 960;

/// Looking begins only if it was faster in two pairs of three: beside others, runs of either kind
/// take long at times.
const fn are_most(won: usize, of: usize) -> bool {
    3 * won >= 2 * of
}

/// Waits before the first trial, and runs between trials: more and more as long as sleeping is
/// found to be as good. The first trial is put off no longer than the second one, and that of one
/// owner in so many not at all.
const FIRST: u32 = 64;
const PUT_OFF_MAX: u32 = (REST_MIN * RUN / FIRST).ilog2();
const AT_ONCE_EVERY: u32 = 16;
const REST_MIN: u32 = 256;
const REST_MAX: u32 = 4096;
/// While looking, which somebody else may pay for, and which may have been begun by chance.
const REST_MIN_LOOKING: u32 = 128;
const REST_MAX_LOOKING: u32 = 512;

/// After so many looks in a row that were in vain there are no more until the next trial, which
/// comes soon: perhaps the scheduler had put what completes them on the processor of who looks.
const IN_VAIN_MAX: u32 = 8;
const REST_IN_VAIN: u32 = 8;

/// What is known when a run begins and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now_ns: u64,
    /// Processor time of this thread, or of all that drive the proactor.
    pub(crate) processor_ns: u64,
    /// Operations completed so far.
    pub(crate) completed: u64,
}

/// Classes of how many are in flight, by powers of two: whether looking pays depends on that. With
/// more than the last one has, who sleeps finds several each time, and looking brings nothing but
/// trials that chance decides.
const CLASSES: usize = 5;

/// After so many waits in a row in another class that is the one.
const STRAYS: u32 = 16;

/// The trials of all owners of an engine. That looking pays is not passed on: to one thread it may,
/// and to one among many not.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    classes: [Trials; CLASSES],
    alone: Trials,
}

/// Those of one class.
#[derive(Debug, Default)]
struct Trials {
    owners: AtomicU32,
    /// How many have been begun since one has found that looking pays. Many owners do not live to
    /// see the end of theirs.
    in_vain: AtomicU32,
}

impl Trials {
    /// For how many waits more one more owner puts its first trial off.
    fn put_off(&self) -> u32 {
        let owners = self.owners.fetch_add(1, Relaxed);
        let doubled = match owners.is_multiple_of(AT_ONCE_EVERY) {
            true => 0,
            false => self.in_vain.load(Relaxed).min(PUT_OFF_MAX),
        };
        (FIRST << doubled) - FIRST
    }

    fn begins(&self) {
        self.in_vain.fetch_add(1, Relaxed);
    }

    fn pays(&self) {
        self.in_vain.store(0, Relaxed);
    }
}

/// What has been found for each class of how many are in flight; see the module.
#[derive(Debug)]
pub(crate) struct BusyPolls {
    rules: [BusyPoll; CLASSES],
    class: usize,
    strays: u32,
    tried: Arc<Tried>,
}

impl BusyPolls {
    /// For one more owner of those that have tried so much.
    pub(crate) fn new(tried: Arc<Tried>) -> Self {
        Self {
            rules: std::array::from_fn(|_| BusyPoll::new()),
            class: 0,
            strays: 0,
            tried,
        }
    }

    /// Whether to look for completions in the wait that begins now, with so many in flight.
    #[inline]
    pub(crate) fn waits(&mut self, in_flight: u32, now: impl FnOnce() -> Moment) -> bool {
        let class = usize::try_from(in_flight.max(1).ilog2()).expect("less than 32");
        let class = class.min(CLASSES);
        if class == self.class {
            self.strays = 0;
        } else {
            self.stray_to(class);
        }
        match self.rules.get_mut(self.class) {
            Some(rule) => rule.waits(&self.tried.classes[self.class], now),
            None => false,
        }
    }

    #[cold]
    fn stray_to(&mut self, class: usize) {
        self.strays += 1;
        if self.strays >= STRAYS {
            if let Some(rule) = self.rules.get_mut(self.class) {
                rule.give_up();
            }
            (self.class, self.strays) = (class, 0);
        }
    }

    /// What has become of a look.
    #[inline]
    pub(crate) fn looked(&mut self, has_seen: bool) {
        if let Some(rule) = self.rules.get_mut(self.class) {
            rule.looked(has_seen);
        }
    }
}

/// The rule of a thread that waits for one operation at a time. It sleeps in a plain call: a ring
/// for which it does not look is no faster, and takes memory and a descriptor.
#[derive(Debug)]
pub(crate) struct BusyPollAlone(BusyPoll);

impl BusyPollAlone {
    pub(crate) fn new() -> Self {
        Self(BusyPoll::new())
    }

    /// As [`BusyPolls::waits`], on an engine on which so much has been tried.
    #[inline]
    pub(crate) fn waits(&mut self, tried: &Tried, now: impl FnOnce() -> Moment) -> bool {
        self.0.waits(&tried.alone, now)
    }

    /// As [`BusyPolls::looked`].
    #[inline]
    pub(crate) fn looked(&mut self, has_seen: bool) {
        self.0.looked(has_seen);
    }

    /// There is nothing to look at. It sleeps until the next trial.
    pub(crate) fn cannot_look(&mut self) {
        self.0.rest(false);
    }
}

/// That for one class.
#[derive(Debug)]
struct BusyPoll {
    /// Whether nobody has been asked yet for how long the first trial is put off.
    is_new: bool,
    /// Whether it looks, outside of trials.
    looks: bool,
    /// Waits until something is to be done.
    left: u32,
    rest_runs: u32,
    in_vain: u32,
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Trial {
    /// Nanoseconds for 1024 completions, and those of the processor.
    time: Pairs<PAIRS>,
    processor: Pairs<PAIRS>,
    /// The beginning of the run that is on.
    began: Moment,
}

impl Trial {
    fn new(began: Moment) -> Self {
        Self {
            time: Pairs::NONE,
            processor: Pairs::NONE,
            began,
        }
    }

    /// Ends the run that is on and begins the next one.
    fn enter(&mut self, now: Moment) {
        let Moment {
            now_ns,
            processor_ns,
            completed,
        } = std::mem::replace(&mut self.began, now);
        let count = now.completed.saturating_sub(completed).max(1);
        let rate = |from: u64, to: u64| to.saturating_sub(from).saturating_mul(1024) / count;
        self.time.enter(rate(now_ns, now.now_ns));
        self.processor.enter(rate(processor_ns, now.processor_ns));
    }

    /// Whether no more has to be tried.
    fn is_over(&self) -> bool {
        let is_clear = |by_kind: fn((u64, u64)) -> (u64, u64)| {
            let mut pairs = self.time.each().map(by_kind);
            pairs.all(|(one, other)| is_within(one, other, CLEAR))
        };
        let can_be = self.time.made() >= CLEAR_AFTER;
        let is_clear = can_be && (is_clear(|pair| pair) || is_clear(|(one, other)| (other, one)));
        is_clear || self.time.are_all_made()
    }

    /// Whether to look from now on; if it `looked` before, whether to go on with it.
    fn is_for_looking(&self, looked: bool) -> bool {
        let by_kind = |(chosen, other)| match looked {
            true => (other, chosen),
            false => (chosen, other),
        };
        let (asleep, looking) = by_kind(self.time.middle());
        let is_faster = match looked {
            true => is_within(looking, asleep, ENDS_ABOVE),
            false => {
                let pairs = self.time.each().map(by_kind);
                let won = pairs.filter(|(asleep, looking)| looking < asleep);
                are_most(won.count(), self.time.made()) && is_within(looking, asleep, BEGINS_AT)
            }
        };
        let (asleep_processor, looking_processor) = by_kind(self.processor.middle());
        // The factor that it gives is not less than the one that it takes.
        let pays = u128::from(looking) * u128::from(looking_processor)
            <= u128::from(asleep) * u128::from(asleep_processor);
        is_faster && pays
    }
}

/// Whether the one takes at most so many thousandths of the other.
fn is_within(one: u64, other: u64, thousandths: u64) -> bool {
    u128::from(one) * 1000 <= u128::from(other) * u128::from(thousandths)
}

impl BusyPoll {
    fn new() -> Self {
        Self {
            is_new: true,
            looks: false,
            left: FIRST,
            rest_runs: 0,
            in_vain: 0,
            trial: None,
        }
    }

    /// The trial, if there is one, cannot be gone on with.
    fn give_up(&mut self) {
        if self.trial.take().is_some() {
            self.left = FIRST;
        }
    }

    /// Whether to look for completions in the wait that begins now.
    #[inline]
    fn waits(&mut self, tried: &Trials, now: impl FnOnce() -> Moment) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.go_on(tried, &now()),
        }
        self.looks_now()
    }

    /// What has become of a look.
    #[inline]
    fn looked(&mut self, has_seen: bool) {
        match has_seen {
            true => self.in_vain = 0,
            false => self.was_in_vain(),
        }
    }

    #[cold]
    fn was_in_vain(&mut self) {
        self.in_vain += 1;
        if self.in_vain == IN_VAIN_MAX {
            let looked = self.looks;
            self.rest(false);
            if looked {
                self.left = REST_IN_VAIN * RUN;
            }
        }
    }

    #[inline]
    fn looks_now(&self) -> bool {
        match &self.trial {
            Some(trial) => self.looks == trial.time.is_as_chosen(),
            None => self.looks,
        }
    }

    #[cold]
    fn go_on(&mut self, tried: &Trials, now: &Moment) {
        self.left = RUN - 1;
        let Some(trial) = &mut self.trial else {
            if std::mem::take(&mut self.is_new)
                && let Some(left) = tried.put_off().checked_sub(1)
            {
                self.left = left;
                return;
            }
            tried.begins();
            self.trial = Some(Trial::new(*now));
            return;
        };
        trial.enter(*now);
        if trial.is_over() {
            let looks = trial.is_for_looking(self.looks);
            if looks {
                tried.pays();
            }
            self.rest(looks);
        }
    }

    /// Goes on without a trial for a while.
    fn rest(&mut self, looks: bool) {
        let (least, most) = match looks {
            true => (REST_MIN_LOOKING, REST_MAX_LOOKING),
            false => (REST_MIN, REST_MAX),
        };
        self.rest_runs = match looks == self.looks {
            true => (2 * self.rest_runs).clamp(least, most),
            false => least,
        };
        self.trial = None;
        self.in_vain = 0;
        self.looks = looks;
        self.left = self.rest_runs * RUN;
    }
}

#[cfg(test)]
#[path = "busy_poll_test.rs"]
mod tests;
