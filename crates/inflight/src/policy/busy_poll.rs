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
//! Plain data of whoever owns a proactor; it is told the time.

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
/// found to be as good.
const FIRST: u32 = 64;
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

/// Classes of how many are in flight, by powers of two, the last without an end: whether looking
/// pays depends on that.
const CLASSES: usize = 5;

/// After so many waits in a row in another class that is the one.
const STRAYS: u32 = 16;

/// What has been found for each class of how many are in flight; see the module.
#[derive(Debug)]
pub(crate) struct BusyPolls {
    rules: [BusyPoll; CLASSES],
    class: usize,
    strays: u32,
}

impl BusyPolls {
    pub(crate) fn new() -> Self {
        Self {
            rules: std::array::from_fn(|_| BusyPoll::new()),
            class: 0,
            strays: 0,
        }
    }

    /// Whether to look for completions in the wait that begins now, with so many in flight.
    #[inline]
    pub(crate) fn waits(&mut self, in_flight: u32, now: impl FnOnce() -> Moment) -> bool {
        let class = usize::try_from(in_flight.max(1).ilog2()).expect("less than 32");
        let class = class.min(CLASSES - 1);
        if class == self.class {
            self.strays = 0;
        } else {
            self.stray_to(class);
        }
        self.rules[self.class].waits(now)
    }

    #[cold]
    fn stray_to(&mut self, class: usize) {
        self.strays += 1;
        if self.strays >= STRAYS {
            self.rules[self.class].give_up();
            (self.class, self.strays) = (class, 0);
        }
    }

    /// What has become of a look.
    #[inline]
    pub(crate) fn looked(&mut self, has_seen: bool) {
        self.rules[self.class].looked(has_seen);
    }
}

/// That for one class.
#[derive(Debug)]
struct BusyPoll {
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
    fn waits(&mut self, now: impl FnOnce() -> Moment) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.go_on(&now()),
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
    fn go_on(&mut self, now: &Moment) {
        self.left = RUN - 1;
        let Some(trial) = &mut self.trial else {
            self.trial = Some(Trial::new(*now));
            return;
        };
        trial.enter(*now);
        if trial.is_over() {
            let looks = trial.is_for_looking(self.looks);
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
mod tests {
    use super::*;

    /// What a wait takes, and how much of it the thread is on a processor.
    #[derive(Clone, Copy)]
    struct Cost {
        ns: u64,
        processor_ns: u64,
    }

    const fn cost(ns: u64, processor_ns: u64) -> Cost {
        Cost { ns, processor_ns }
    }

    struct Program {
        rule: BusyPoll,
        now: Moment,
    }

    impl Program {
        fn new() -> Self {
            let now = Moment {
                now_ns: 0,
                processor_ns: 0,
                completed: 0,
            };
            let rule = BusyPoll::new();
            Self { rule, now }
        }

        /// Makes so many waits. Returns in how many it looked; those that take longer than a look
        /// may have been in vain.
        fn waits(&mut self, count: u32, asleep: Cost, looking: Cost) -> u32 {
            let mut looked = 0;
            for _ in 0..count {
                let now = self.now;
                let looks = self.rule.waits(|| now);
                let cost = if looks { looking } else { asleep };
                self.now.now_ns += cost.ns;
                self.now.processor_ns += cost.processor_ns;
                self.now.completed += 1;
                if looks {
                    looked += 1;
                    self.rule.looked(Duration::from_nanos(cost.ns) <= LOOK_MAX);
                }
            }
            looked
        }
    }

    const WAITS: u32 = 100_000;
    const ASLEEP: Cost = cost(65_000, 28_000);

    #[test]
    fn looking_begins_where_it_is_faster_and_pays() {
        for (looking, begins) in [
            (cost(42_000, 42_000), true),
            (cost(61_000, 20_000), false),
            (cost(50_000, 50_000), false),
            (cost(59_000, 28_000), true),
        ] {
            let mut program = Program::new();
            program.waits(WAITS, ASLEEP, looking);
            assert_eq!(program.rule.looks, begins, "{}", looking.ns);
        }
    }

    #[test]
    fn it_ends_when_it_is_no_use_any_more() {
        let mut program = Program::new();
        program.waits(WAITS, ASLEEP, cost(42_000, 42_000));
        assert!(program.rule.looks);
        program.waits(WAITS, ASLEEP, cost(61_000, 20_000));
        assert!(program.rule.looks, "a little is enough to stay");
        program.waits(WAITS, ASLEEP, cost(64_000, 20_000));
        assert!(!program.rule.looks);
    }

    #[test]
    fn what_is_not_seen_in_time_is_soon_not_looked_for() {
        let mut program = Program::new();
        program.waits(WAITS, ASLEEP, cost(42_000, 42_000));
        assert!(program.rule.looks);
        let slow = cost(5_000_000, 130_000);
        assert!(program.waits(1000, slow, slow) <= 3 * IN_VAIN_MAX);
        // By and by it is hardly tried.
        program.waits(20 * WAITS, slow, slow);
        assert!(program.waits(WAITS, slow, slow) <= 2 * IN_VAIN_MAX);
    }

    #[test]
    fn what_does_not_win_is_tried_less_and_less() {
        let mut program = Program::new();
        let [first, .., last] =
            [(); 4].map(|()| program.waits(10 * WAITS, ASLEEP, cost(60_000, 60_000)));
        assert!(last > 0 && last < first, "{first}, {last}");
        assert!(last * 500 < 10 * WAITS, "{last}");
    }

    /// As beside a program that has the processor in turn: what is hit by that takes ten times as
    /// long, of whatever kind it is.
    #[test]
    fn what_is_slow_now_and_then_is_mostly_not_taken_for_sleeping() {
        for turn in [5, 11, 23, 41] {
            let mut program = Program::new();
            let mut looked = 0;
            for _ in 0..10 * WAITS / (2 * turn) {
                looked += program.waits(turn, ASLEEP, cost(62_000, 28_000));
                looked += program.waits(turn, cost(650_000, 28_000), cost(620_000, 28_000));
            }
            assert!(looked < WAITS, "in turns of {turn}: {looked}");
        }
    }

    #[test]
    fn looking_that_has_begun_is_soon_confirmed_and_then_seldom() {
        let mut program = Program::new();
        let looking = cost(42_000, 42_000);
        program.waits(FIRST + 2 * RUN * 3 + 1, ASLEEP, looking);
        assert!(program.rule.looks);
        assert_eq!(program.rule.left, REST_MIN_LOOKING * RUN);
        program.waits(WAITS, ASLEEP, looking);
        assert_eq!(program.rule.rest_runs, REST_MAX_LOOKING);
    }

    #[test]
    fn each_class_has_its_own_rule_and_a_few_strays_change_nothing() {
        let mut polls = BusyPolls::new();
        let mut now = Moment {
            now_ns: 0,
            processor_ns: 0,
            completed: 0,
        };
        let mut waits = |in_flight: u32, count: u32| {
            let mut looked = 0;
            for _ in 0..count {
                let at = now;
                let looks = polls.waits(in_flight, || at);
                now.now_ns += match looks && in_flight == 2 {
                    true => 20_000,
                    false => 40_000,
                };
                now.processor_ns += 15_000;
                now.completed += 1;
                looked += u32::from(looks);
            }
            looked
        };
        waits(2, 10_000);
        waits(100, 1000);
        assert!(waits(100, 4000) < 400);
        waits(2, STRAYS);
        assert!(
            waits(3, 1000) > 600,
            "what is known of a few is still known"
        );
        for _ in 0..100 {
            waits(100, STRAYS - 1);
            assert_eq!(waits(2, 1), 1);
        }
    }

    #[test]
    fn what_happens_beside_a_trial_decides_nothing() {
        for (looking, looks) in [(cost(42_000, 42_000), true), (cost(64_000, 40_000), false)] {
            let mut program = Program::new();
            for _ in 0..WAITS / 97 {
                program.waits(97, ASLEEP, looking);
                program.now.now_ns += 50_000_000;
            }
            assert_eq!(program.rule.looks, looks);
        }
    }
}
