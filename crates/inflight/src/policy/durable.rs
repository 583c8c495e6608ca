//! How a write with a wish to be durable is kept: what has been measured decides.
//!
//! Either by a flag of its own (`RWF_DSYNC`), for which the kernel writes and flushes; or it is
//! written, and then syncs the file together with others that wait for that. Which one is faster
//! depends on the device, on the file system, and on how many such writes are in flight
//! (`docs/design/durable.md`). Both are right, so from time to time there is a trial: runs of
//! writes kept in turn the one way and the other. Until the next trial the faster one is taken.
//!
//! A file begins with what others on its device have shown, and goes on with their trial: logs that
//! are begun anew every so many writes would else do nothing but try.
//!
//! Plain data of one open file; it is told the time.

use std::sync::Mutex;

use super::device::Device;
use super::pairs::Pairs;
use crate::sync::lock;

/// How a write is made durable that has a wish for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durably {
    /// By a flag of its own (`RWF_DSYNC`, pwritev2(2)).
    Alone,
    /// By a sync of the file behind it, whose flush others may share.
    Together,
}

impl Durably {
    fn other(self) -> Self {
        match self {
            Self::Alone => Self::Together,
            Self::Together => Self::Alone,
        }
    }
}

impl std::fmt::Display for Durably {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alone => "durable by a flag of its own",
            Self::Together => "durable by a sync behind it, whose flush others may share",
        })
    }
}

/// How the beginning of a write has been entered; see [`Durables::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) durably: Durably,
    run: u32,
}

/// What has become of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Durable,
    /// It has failed, or nobody has waited for it.
    Unknown,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Durables {
    in_flight: u32,
    /// Most in flight among the last writes, and how many more are looked at for that.
    most: u32,
    looks: u32,
    /// Which of the choices is that for so many in flight.
    crowd: usize,
    choices: [Choice; CROWDS],
    /// The number of the run that is on; it changes with everything that ends a run.
    run: u32,
    /// Whether there has been no write.
    is_new: bool,
}

/// What the last file of a device has found that was written so.
#[derive(Debug, Default)]
pub(super) struct LastFound(Mutex<Option<Found>>);

#[derive(Clone, Copy, Debug)]
struct Found {
    crowd: usize,
    choices: [Choice; CROWDS],
}

impl LastFound {
    fn get(&self) -> Option<Found> {
        *lock(&self.0)
    }

    fn set(&self, found: Found) {
        *lock(&self.0) = Some(found);
    }
}

/// Writes alone, a few, and many are chosen for one by one.
const CROWDS: usize = 3;

/// So many in flight are many.
const MANY: u32 = 8;

/// So many writes are looked at before it is said how many are in flight.
const LOOKS: u32 = 32;

/// Writes in a run; at least so many times as many as are in flight.
const RUN_WRITES: u32 = 32;
const RUN_ROUNDS: u32 = 8;

/// Where more than these are in flight, a run is shorter, and the rest no longer than for so many:
/// the next writes may be far fewer at a time, and would wait long for the end of either.
const MOST_MAX: u32 = 1024;

/// Writes of a batch may all end at once, so nothing is seen in less than so many times as many.
const RUN_ROUNDS_MIN: u32 = 2;

/// In a trial there are so many pairs of runs, one of each kind.
const PAIRS: usize = 5;

/// So many pairs have to be won for a change; what happens beside them spoils one.
const PAIRS_TO_WIN: usize = PAIRS - 1;

/// After so many pairs that are lost by half, the others are not made.
const PAIRS_TO_LOSE: usize = 2;

/// Writes before the first trial, and runs between trials: more and more as long as nothing
/// changes.
const REST_FIRST: u32 = 64;
const REST_MIN: u32 = 128;
const REST_MAX: u32 = 8192;
/// Together they also flush what others have written to the file, which may become much, so that is
/// asked more often.
const REST_TOGETHER: u32 = 512;

/// What is known for so many in flight.
#[derive(Clone, Copy, Debug)]
struct Choice {
    chosen: Durably,
    /// Writes until the next trial.
    rest: u32,
    /// How many runs the next rest is long.
    rest_runs: u32,
    trial: Option<Trial>,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Nanoseconds for 1024 writes of each run.
    pairs: Pairs<PAIRS>,
    run: Run,
}

/// The run that is on.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Writes that are to end in it after the first one, and all that have: before the first,
    /// those of the run before are in the way.
    wanted: u32,
    ended: u32,
    /// How long some write was in flight since then, up to a moment; `None` while none is.
    busy_ns: u64,
    busy_since_ns: Option<u64>,
}

/// The writes of a run, with at most so many in flight.
fn run_writes(most: u32) -> u32 {
    let rounds = RUN_ROUNDS * MOST_MAX / most.max(1);
    let rounds = rounds.clamp(RUN_ROUNDS_MIN, RUN_ROUNDS);
    RUN_WRITES.max(rounds.saturating_mul(most))
}

impl Run {
    fn new(most: u32, in_flight: u32, now_ns: u64) -> Self {
        Self {
            wanted: run_writes(most),
            ended: 0,
            busy_ns: 0,
            busy_since_ns: (in_flight > 0).then_some(now_ns),
        }
    }

    /// A write of this run has ended. True if it was the last.
    fn end(&mut self, now_ns: u64) -> bool {
        if self.ended == 0 {
            self.busy_ns = 0;
            self.busy_since_ns = Some(now_ns);
        }
        self.ended += 1;
        self.ended > self.wanted
    }

    fn pause(&mut self, now_ns: u64) {
        if let Some(since) = self.busy_since_ns.take() {
            self.busy_ns += now_ns.saturating_sub(since);
        }
    }
}

impl Trial {
    fn new(run: Run) -> Self {
        Self {
            pairs: Pairs::NONE,
            run,
        }
    }

    /// Enters the run that is over. True if the trial is over too.
    fn enter(&mut self, now_ns: u64) -> bool {
        self.run.pause(now_ns);
        let ns = (self.run.busy_ns << 10) / u64::from(self.run.wanted);
        self.pairs.enter(ns);
        self.pairs.are_all_made() || self.is_lost()
    }

    fn is_lost(&self) -> bool {
        let is_lost = |(chosen, other)| other >= chosen + chosen / 2;
        self.pairs.made() == PAIRS_TO_LOSE && self.pairs.each().all(is_lost)
    }

    /// Whether the other way has won by a tenth, in nearly every pair.
    fn is_won(&self) -> bool {
        let won = |&(chosen, other): &(u64, u64)| other <= chosen / 10 * 9;
        self.pairs.are_all_made() && self.pairs.each().filter(won).count() >= PAIRS_TO_WIN
    }
}

impl Choice {
    const NEW: Self = Self {
        chosen: Durably::Alone,
        rest: REST_FIRST,
        rest_runs: REST_MIN,
        trial: None,
    };

    /// For another file, in which the run that was on begins anew.
    fn of_another(mut self) -> Self {
        if let Some(trial) = &mut self.trial {
            trial.run.ended = 0;
            trial.run.busy_since_ns = None;
        }
        self
    }

    fn now(&self) -> Durably {
        match &self.trial {
            Some(trial) if !trial.pairs.is_as_chosen() => self.chosen.other(),
            _ => self.chosen,
        }
    }

    /// The trial is over.
    fn decide(&mut self, most: u32) {
        if self.trial.take().is_some_and(|trial| trial.is_won()) {
            self.chosen = self.chosen.other();
            self.rest_runs = REST_MIN;
        }
        self.rest = self
            .rest_runs
            .saturating_mul(run_writes(most.min(MOST_MAX)));
        self.rest_runs = (2 * self.rest_runs).min(match self.chosen {
            Durably::Alone => REST_MAX,
            Durably::Together => REST_TOGETHER,
        });
    }

    /// The trial cannot be gone on with.
    fn give_up(&mut self) {
        self.trial = None;
        self.rest = self.rest.max(REST_FIRST);
    }
}

impl Default for Durables {
    fn default() -> Self {
        Self {
            in_flight: 0,
            most: 0,
            looks: LOOKS,
            crowd: 0,
            choices: [Choice::NEW; CROWDS],
            run: 0,
            is_new: true,
        }
    }
}

impl Durables {
    /// A write of a file on this device begins. It is to be ended once, whatever becomes of it.
    pub(crate) fn begin(&mut self, device: Option<&Device>, now_ns: impl FnOnce() -> u64) -> Begun {
        let last_found = device.map(|device| &device.durables);
        if std::mem::take(&mut self.is_new)
            && let Some(found) = last_found.and_then(LastFound::get)
        {
            self.crowd = found.crowd;
            self.choices = found.choices.map(Choice::of_another);
        }
        self.in_flight += 1;
        self.most = self.most.max(self.in_flight);
        self.looks -= 1;
        if self.looks == 0 {
            self.look();
            if let Some(last_found) = last_found {
                let (crowd, choices) = (self.crowd, self.choices);
                last_found.set(Found { crowd, choices });
            }
        }
        let (most, in_flight) = (self.most, self.in_flight);
        let choice = &mut self.choices[self.crowd];
        choice.rest = choice.rest.saturating_sub(1);
        match &mut choice.trial {
            Some(trial) if trial.run.busy_since_ns.is_none() => {
                trial.run.busy_since_ns = Some(now_ns());
            }
            None if choice.rest == 0 => {
                choice.trial = Some(Trial::new(Run::new(most, in_flight, now_ns())));
                self.run = self.run.wrapping_add(1);
            }
            Some(_) | None => {}
        }
        Begun {
            durably: choice.now(),
            run: self.run,
        }
    }

    /// Sees how many have been in flight of late.
    fn look(&mut self) {
        let crowd = match self.most {
            0 | 1 => 0,
            few if few < MANY => 1,
            _ => 2,
        };
        if crowd != self.crowd {
            self.choices[self.crowd].give_up();
            self.crowd = crowd;
            self.run = self.run.wrapping_add(1);
        }
        self.most = self.in_flight;
        self.looks = LOOKS.max(RUN_ROUNDS * self.in_flight.min(MOST_MAX));
    }

    /// A write has ended.
    pub(crate) fn end(&mut self, begun: Begun, outcome: Outcome, now_ns: impl FnOnce() -> u64) {
        self.in_flight -= 1;
        let (most, in_flight) = (self.most, self.in_flight);
        let choice = &mut self.choices[self.crowd];
        let is_of_run = begun.run == self.run;
        let Some(trial) = &mut choice.trial else {
            if outcome != Outcome::Durable {
                // As long as they fail there is nothing to be compared.
                choice.rest = choice.rest.max(REST_FIRST);
            }
            return;
        };
        if outcome != Outcome::Durable {
            choice.give_up();
            self.run = self.run.wrapping_add(1);
            return;
        }
        let now_ns = now_ns();
        let is_over = is_of_run && trial.run.end(now_ns);
        if in_flight == 0 {
            trial.run.pause(now_ns);
        }
        if !is_over {
            return;
        }
        self.run = self.run.wrapping_add(1);
        if trial.enter(now_ns) {
            choice.decide(most);
        } else {
            trial.run = Run::new(most, in_flight, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Clients that write one durable block after the other, all at the same time.
    struct Machine {
        device: Device,
        durables: Durables,
        now_ns: u64,
    }

    impl Machine {
        /// How a write would be kept now.
        fn choice(&self) -> Durably {
            self.durables.choices[self.durables.crowd].now()
        }

        fn new() -> Self {
            Self {
                device: Device::default(),
                durables: Durables::default(),
                now_ns: 0,
            }
        }

        /// How many of so many writes are kept together. Each takes the device so long.
        fn run(&mut self, clients: usize, writes: u32, took_ns: impl Fn(Durably) -> u64) -> u32 {
            let mut flying = VecDeque::new();
            let mut together = 0;
            for _ in 0..writes {
                if flying.len() == clients {
                    self.end_first(&mut flying, &took_ns);
                }
                let begun = self.durables.begin(Some(&self.device), || self.now_ns);
                together += u32::from(begun.durably == Durably::Together);
                flying.push_back(begun);
            }
            while !flying.is_empty() {
                self.end_first(&mut flying, &took_ns);
            }
            together
        }

        fn end_first(&mut self, flying: &mut VecDeque<Begun>, took_ns: impl Fn(Durably) -> u64) {
            let begun = flying.pop_front().expect("one is in flight");
            self.now_ns += took_ns(begun.durably);
            self.durables.end(begun, Outcome::Durable, || self.now_ns);
            // A program does something else now and then.
            if flying.is_empty() {
                self.now_ns += 1_000_000;
            }
        }
    }

    fn by(alone: u64, together: u64) -> impl Fn(Durably) -> u64 {
        move |durably| match durably {
            Durably::Alone => alone,
            Durably::Together => together,
        }
    }

    #[test]
    fn the_faster_way_is_taken_for_each_crowd() {
        let mut machine = Machine::new();
        for clients in [1, 4, 64] {
            machine.run(clients, 10_000, by(100, 80));
            let together = machine.run(clients, 20_000, by(100, 80));
            assert!(together > 19_000, "{clients}: {together}");
        }
        // What holds for many says nothing of one.
        let mut machine = Machine::new();
        machine.run(16, 10_000, by(100, 50));
        assert_eq!(machine.choice(), Durably::Together);
        machine.run(1, 10_000, by(100, 150));
        assert_eq!(machine.choice(), Durably::Alone);
        machine.run(16, 1_000, by(100, 50));
        assert_eq!(machine.choice(), Durably::Together);
    }

    #[test]
    fn a_little_is_not_worth_a_change_and_the_slower_way_is_tried_less_and_less() {
        let mut machine = Machine::new();
        let tried = [(); 4].map(|()| machine.run(16, 100_000, by(100, 93)));
        assert!(0 < tried[0] && tried[0] < 5_000, "{tried:?}");
        assert!(tried[1] + tried[2] + tried[3] < tried[0], "{tried:?}");
        // What loses by half is given up earlier.
        let lost = Machine::new().run(16, 100_000, by(100, 300));
        assert!(0 < lost && lost < tried[0] / 2, "{lost}");
    }

    #[test]
    fn what_has_changed_is_noticed() {
        let mut machine = Machine::new();
        machine.run(16, 10_000, by(100, 50));
        machine.run(16, 100_000, by(50, 100));
        assert_eq!(machine.choice(), Durably::Alone);
    }

    #[test]
    fn logs_that_are_begun_anew_go_on_with_the_trial_of_the_last_one() {
        const LOG: u32 = 2560;
        for clients in [1, 64] {
            let mut machine = Machine::new();
            let mut logs = |count: u32| {
                let log = |_| {
                    machine.durables = Durables::default();
                    machine.run(clients, LOG, by(100, 50))
                };
                (0..count).map(log).sum::<u32>()
            };
            logs(8);
            let together = logs(8);
            assert!(together > 8 * LOG / 10 * 9, "{clients}: {together}");
            assert_eq!(logs(1), LOG, "from the first write on");
        }
    }

    #[test]
    fn a_huge_batch_does_not_settle_it_for_what_comes_after() {
        let mut machine = Machine::new();
        machine.run(100_000, 300_000, by(100, 100));
        machine.run(16, 400_000, by(100, 50));
        let Durables { choices, crowd, .. } = machine.durables;
        assert_eq!(choices[crowd].chosen, Durably::Together);
    }

    #[test]
    fn one_run_that_is_held_up_decides_nothing() {
        // Every so many writes, one takes as long as a thousand.
        for every in [211, 307, 401] {
            let mut machine = Machine::new();
            let count = std::cell::Cell::new(0_u32);
            let took = |durably| {
                count.set(count.get() + 1);
                let held_up = count.get().is_multiple_of(every);
                by(100, 97)(durably) * if held_up { 1000 } else { 1 }
            };
            let together = machine.run(1, 200_000, took);
            assert!(together < 20_000, "{together} with one in {every}");
        }
    }

    #[test]
    fn writes_that_fail_or_are_left_are_no_trial() {
        let mut durables = Durables::default();
        for _ in 0..10_000 {
            let begun = durables.begin(None, || 0);
            assert_eq!(begun.durably, Durably::Alone);
            durables.end(begun, Outcome::Unknown, || 0);
        }
        assert_eq!(durables.in_flight, 0);
    }
}
