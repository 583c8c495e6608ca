//! Whether a thread shares the copies of its batches with others: what has been measured decides.
//!
//! Two processors copy up to twice as much as one, but the one that comes to help has to be there,
//! costs time of its own, and leaves what it has copied in its own caches, from where the caller
//! gets it later. How that adds up depends on the machine, on what else runs on it, and on the
//! program. So from time to time there is a trial: a few runs of copies alone and a few shared,
//! each with the time until the next one begins. Until the next trial the faster way is taken.
//!
//! Plain data of one thread; it is told the time.

/// How a run of copies is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hands {
    /// By the caller alone.
    Own,
    /// By the caller, and by another thread if it comes.
    Shared,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Spread {
    chosen: Hands,
    /// Reads until the next trial.
    rest: u64,
    /// How many runs the last rest was long.
    rest_runs: u64,
    trial: Trial,
}

/// Runs of each kind in a trial.
const RUNS: usize = 16;

/// The slowest of these are left out: in them the scheduler had something else to do.
const COUNTED: usize = RUNS / 4 * 3;

/// The first and the last runs of a trial are made alone, so that what changes meanwhile falls on
/// both kinds.
const BEFORE: usize = RUNS / 2;

/// Runs between two trials; at least so many after the choice has changed, and more and more of
/// them as long as sharing is found to lose.
const REST_MIN: u64 = 256;
const REST_MAX: u64 = 8192;
/// The first trial comes early: many threads live no longer than what would else be one rest.
const REST_FIRST: u64 = 32;
/// Where it wins, somebody else pays in processor time, so that is asked more often.
const REST_SHARED: u64 = 1024;

/// Reads in a run, where none is known yet.
const USUAL_READS: u64 = 32;

/// What is copied in one run by several hands, in units of [`weight`]: less is over before another
/// thread has come.
const SHARED_FROM: u64 = 8 * weight(4096);

/// Runs in a row that were too small, after which no more are looked at.
const SMALL_MAX: u32 = 64;

/// What a read of so many bytes costs, in what a copied byte costs: a system call costs about half
/// as much as the copy of 4 KiB.
pub(crate) const fn weight(bytes: u64) -> u64 {
    bytes + 2048
}

#[derive(Debug, Default)]
struct Trial {
    /// Nanoseconds for 2^20 units of weight.
    own: [u64; RUNS],
    shared: [u64; RUNS],
    /// The fastest run alone, in the same unit, without what came after it.
    fastest: Option<u64>,
    /// Runs that have been entered.
    entered: usize,
    reads: u64,
    small: u32,
    /// The run that is on, or was the last one.
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    began_ns: u64,
    took_ns: u64,
    weight: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            chosen: Hands::Own,
            rest: REST_FIRST * USUAL_READS,
            rest_runs: REST_MIN,
            trial: Trial::default(),
        }
    }
}

impl Spread {
    /// Counts reads that the caller has made one by one. True when it is time for a trial.
    #[inline]
    pub(crate) fn rests(&mut self, reads: u64) -> bool {
        self.rest = self.rest.saturating_sub(reads);
        self.rest == 0
    }

    /// Whether reads are gathered, to be made in one run.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.chosen == Hands::Shared || self.rest == 0
    }

    /// Whether the next run is part of a trial, for which it has to be told the time.
    #[inline]
    pub(crate) fn is_on_trial(&self) -> bool {
        self.rest == 0
    }

    /// A trial is not to be made now, because too few processors are there for all who would.
    pub(crate) fn waives(&mut self) {
        self.rests_again(Hands::Own, self.rest_runs);
    }

    /// How a run that weighs so much is made; outside a trial.
    #[inline]
    pub(crate) fn hands(&mut self, reads: u64, weight: u64) -> Hands {
        self.rest = self.rest.saturating_sub(reads);
        match weight < SHARED_FROM {
            true => Hands::Own,
            false => self.chosen,
        }
    }

    /// How a run is made that begins now; in a trial.
    pub(crate) fn begins(&mut self, now_ns: u64, reads: u64, weight: u64) -> Hands {
        self.enter_last(now_ns);
        if weight < SHARED_FROM {
            self.trial.small += 1;
            if self.trial.small == SMALL_MAX {
                self.rests_again(Hands::Own, REST_MAX);
            }
            return Hands::Own;
        }
        self.trial.small = 0;
        if self.trial.entered == 2 * RUNS {
            return self.decide();
        }
        self.trial.reads += reads;
        self.trial.run = Some(Run {
            began_ns: now_ns,
            took_ns: 0,
            weight,
        });
        match (BEFORE..BEFORE + RUNS).contains(&self.trial.entered) {
            true => Hands::Shared,
            false => Hands::Own,
        }
    }

    /// The run of a trial is over.
    pub(crate) fn ends(&mut self, now_ns: u64) {
        if let Some(run) = &mut self.trial.run {
            run.took_ns = now_ns - run.began_ns;
        }
    }

    /// Enters the time of the last run, and of what the caller has done since with what it copied:
    /// up to twice what the copies alone take, because it may have waited for something.
    fn enter_last(&mut self, now_ns: u64) {
        let trial = &mut self.trial;
        let Some(run) = trial.run.take() else {
            return;
        };
        let at = trial.entered;
        let rate = |ns: u64| (ns << 20) / run.weight;
        let mut alone = trial.fastest.unwrap_or(u64::MAX);
        if !(BEFORE..BEFORE + RUNS).contains(&at) {
            alone = alone.min(rate(run.took_ns));
            trial.fastest = Some(alone);
        }
        let at_most = 2 * (alone.saturating_mul(run.weight) >> 20);
        let since = (now_ns - run.began_ns - run.took_ns).min(at_most);
        let ns = rate(run.took_ns + since);
        match at {
            _ if at < BEFORE => trial.own[at] = ns,
            _ if at < BEFORE + RUNS => trial.shared[at - BEFORE] = ns,
            _ => trial.own[at - RUNS] = ns,
        }
        trial.entered += 1;
    }

    /// Chooses by what the trial has shown: a tenth has to be won for the change to sharing, and
    /// half of that to stay with it.
    fn decide(&mut self) -> Hands {
        let sum = |runs: &mut [u64; RUNS]| {
            runs.sort_unstable();
            runs[..COUNTED].iter().sum::<u64>()
        };
        let own = sum(&mut self.trial.own);
        let shared = sum(&mut self.trial.shared);
        let margin = match self.chosen {
            Hands::Own => own / 10,
            Hands::Shared => own / 20,
        };
        let (chosen, rest_runs) = match (shared + margin <= own, self.chosen) {
            (true, _) => (Hands::Shared, REST_SHARED),
            (false, Hands::Shared) => (Hands::Own, REST_MIN),
            (false, Hands::Own) => (Hands::Own, (2 * self.rest_runs).min(REST_MAX)),
        };
        self.rests_again(chosen, rest_runs);
        chosen
    }

    fn rests_again(&mut self, chosen: Hands, runs: u64) {
        let reads = match self.trial.entered {
            0 => USUAL_READS,
            entered => (self.trial.reads / entered as u64).max(1),
        };
        self.chosen = chosen;
        self.rest_runs = runs;
        self.rest = runs * reads;
        self.trial = Trial::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads 32 blocks of 4 KiB at a time, and what that takes.
    #[derive(Clone, Copy)]
    struct Program {
        own_ns: u64,
        shared_ns: u64,
        /// What it does with the blocks after a run, by whoever they were copied.
        then_ns: [u64; 2],
        blocks: u64,
    }

    const USUAL: Program = Program {
        own_ns: 16_000,
        shared_ns: 10_000,
        then_ns: [2_000; 2],
        blocks: 32,
    };

    struct Machine {
        spread: Spread,
        now_ns: u64,
        runs: u64,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                spread: Spread::default(),
                now_ns: 0,
                runs: 0,
            }
        }

        /// How many of so many runs are shared; one in `slow` takes a hundred times as long.
        fn run(&mut self, runs: u64, slow: u64, program: Program) -> u64 {
            let mut shared = 0;
            for _ in 0..runs {
                let (reads, spread) = (program.blocks, &mut self.spread);
                let weight = reads * weight(4096);
                let on_trial = spread.is_on_trial();
                let hands = match (spread.gathers(), on_trial) {
                    (false, _) => {
                        spread.rests(reads);
                        Hands::Own
                    }
                    (true, true) => spread.begins(self.now_ns, reads, weight),
                    (true, false) => spread.hands(reads, weight),
                };
                let (took_ns, then_ns) = match hands {
                    Hands::Own => (program.own_ns, program.then_ns[0]),
                    Hands::Shared => (program.shared_ns, program.then_ns[1]),
                };
                self.runs += 1;
                self.now_ns += match self.runs.is_multiple_of(slow) {
                    true => 100 * took_ns,
                    false => took_ns,
                };
                if on_trial {
                    self.spread.ends(self.now_ns);
                }
                self.now_ns += then_ns;
                shared += u64::from(hands == Hands::Shared);
            }
            shared
        }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn what_wins_is_shared_until_it_loses() {
        let mut machine = Machine::new();
        machine.run(500, NEVER, USUAL);
        let shared = machine.run(10_000, NEVER, USUAL);
        assert!(shared > 9_700, "{shared}");
        let busy = Program {
            shared_ns: 17_000,
            ..USUAL
        };
        machine.run(1_500, NEVER, busy);
        let shared = machine.run(10_000, NEVER, busy);
        assert!(shared < 200, "{shared}");
    }

    #[test]
    fn a_little_is_not_worth_another_processor() {
        let little = Program {
            shared_ns: 14_600,
            ..USUAL
        };
        assert!(Machine::new().run(20_000, NEVER, little) < 200);
    }

    #[test]
    fn what_is_won_by_copying_may_be_lost_by_using_it() {
        let used = Program {
            then_ns: [10_000, 16_500],
            ..USUAL
        };
        assert!(Machine::new().run(20_000, NEVER, used) < 200);
        // Who waits for something in between gets it sooner all the same.
        let waits = Program {
            then_ns: [1_000_000; 2],
            shared_ns: 8_500,
            ..USUAL
        };
        assert!(Machine::new().run(20_000, NEVER, waits) > 19_000);
    }

    #[test]
    fn what_the_scheduler_does_decides_nothing() {
        for slow in 7..12 {
            let shared = Machine::new().run(10_000, slow, USUAL);
            assert!(shared > 9_000, "{shared} with one slow run in {slow}");
        }
    }

    #[test]
    fn small_runs_are_not_shared_and_hardly_looked_at() {
        let small = Program {
            own_ns: 1_500,
            shared_ns: 1,
            blocks: 3,
            ..USUAL
        };
        let mut machine = Machine::new();
        assert_eq!(machine.run(10_000, NEVER, small), 0);
        assert!(!machine.spread.gathers());
    }
}
