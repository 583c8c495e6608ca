//! Whether a thread shares the copies it is asked for with another: what has been measured decides.
//!
//! Two processors copy up to twice as much as one, but the one that comes to help has to be there,
//! costs time of its own, and leaves what it has copied in its own caches, from where the caller
//! gets it later. How that adds up depends on the machine, on what else runs on it, and on the
//! program. So from time to time there is a trial: a few runs of reads made alone and a few shared,
//! each with what the program does in between. Until the next trial the faster way is taken.
//!
//! Where this speaks of reads, direct writes to memory are meant as well.
//!
//! Plain data of one thread; it is told the time.

use std::ops::Range;

/// Who makes a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hands {
    /// The caller, at once.
    Own,
    /// The caller or another thread, whoever comes first.
    Shared,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Spread {
    chosen: Hands,
    /// Reads of 4 KiB until the next trial: larger ones count for [several](worth).
    rest: u64,
    /// How many runs the last rest was long.
    rest_runs: u64,
    /// Whether a ring makes those that are not shared; else they are plain calls. What is won
    /// against one says nothing of the other.
    has_ring: bool,
    /// What the reads of the last trial weighed on average; 0 before there was one.
    tried_weight: u64,
    passed: Passed,
    trial: Trial,
}

/// Reads that have passed, to be compared with those of the last trial.
#[derive(Debug, Default)]
struct Passed {
    reads: u64,
    weight: u64,
}

/// So many are compared at a time: about as many as there are in a trial, so that a program whose
/// reads change all the time is not in trials for longer than not.
const COMPARED_READS: u64 = 2048;

/// A trial says nothing of reads that weigh so many times as much, or so little.
const UNLIKE: u64 = 4;

/// Runs of each kind in a trial.
const RUNS: usize = 16;

/// The same of reads that a ring makes if they are not shared, at most: it may answer all that are
/// in flight at a time, so there are four times as many.
const RING_RUN_READS: u64 = 256;
const RING_RUN_WAVES: u64 = 4;

/// When who makes the reads of a trial changes, so many are not timed, or all that are in flight:
/// another thread has to come, and what is in flight was asked for the other way.
const LEAD_READS: u64 = 128;

/// The slowest are left out: in them the scheduler had something else to do.
const COUNTED: Range<usize> = 0..RUNS / 4 * 3;
/// Of a ring the fastest as well: what they asked for was answered in the next ones.
const COUNTED_OF_RING: Range<usize> = RUNS / 4..RUNS / 4 * 3;

/// The first and the last runs of a trial are made alone, so that what changes meanwhile falls on
/// both kinds.
const BEFORE: usize = RUNS / 2;

/// Runs after which a trial ends if they leave no doubt: half of each kind. Trials cost, and what
/// comes before the first one is over is made the slower way.
const HALF: usize = BEFORE + RUNS / 2;

/// Reads of 4 KiB in a run, or as many more as are asked for at a time: so many take longer than it
/// takes to ask what time it is, and than another thread needs to come.
const RUN_READS: u64 = 32;

/// A larger read counts for so many of 4 KiB at most: some are needed all the same, as each is made
/// by one thread.
const WORTH_MAX: u64 = 8;

/// Runs between two trials. Few before the first one, because many threads live no longer than
/// what would else be one rest, and after the choice has changed to the caller alone, because now
/// and then that is wrong; twice as many each time that sharing is found to lose.
const REST_MIN: u64 = 32;
const REST_MAX: u64 = 8192;
/// Where it wins, somebody else pays in processor time, so that is asked more often.
const REST_SHARED: u64 = 1024;

/// Reads until the next trial after one in which there was never more than one to be shared at a
/// time. That costs little, and the program may do several at any time.
const REST_ALONE: u64 = 8192;

/// What a read of so many bytes costs, in what a copied byte costs: a system call costs about half
/// as much as the copy of 4 KiB.
pub(crate) const fn weight(bytes: u64) -> u64 {
    bytes + 2048
}

/// For how many reads of 4 KiB one of such weight counts.
fn worth(of: u64) -> u64 {
    (of / weight(4096)).clamp(1, WORTH_MAX)
}

#[derive(Debug, Default)]
struct Trial {
    /// Nanoseconds for 2^20 units of weight.
    own: [u64; RUNS],
    shared: [u64; RUNS],
    /// The fastest run alone, in the same unit, without the pauses.
    fastest: Option<u64>,
    /// Runs that have been entered.
    entered: usize,
    reads: u64,
    weight: u64,
    /// What its first read is [worth]; 0 before that.
    worth: u64,
    /// Most that were in flight at a time, where a ring makes what is not shared.
    most_in_flight: u32,
    /// Whether there have been several reads to be shared at a time.
    has_company: bool,
    /// The run that is on.
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    began_ns: u64,
    /// Reads to be made, and whether their time counts.
    needs: u64,
    counts: bool,
    /// What has been read.
    reads: u64,
    weight: u64,
    /// Since when there is nothing to be read.
    pause_from_ns: Option<u64>,
    pauses_ns: u64,
}

impl Run {
    fn new(now_ns: u64, needs: u64) -> Self {
        Self {
            began_ns: now_ns,
            needs,
            counts: true,
            reads: 0,
            weight: 0,
            pause_from_ns: None,
            pauses_ns: 0,
        }
    }

    /// What comes before the first run that is timed, after a change.
    fn lead(now_ns: u64, needs: u64) -> Self {
        Self {
            counts: false,
            ..Self::new(now_ns, needs)
        }
    }

    /// Whether nothing has to be looked at when a read is asked for.
    #[inline]
    fn goes_on(&self) -> bool {
        self.reads < self.needs && self.pause_from_ns.is_none()
    }
}

impl Trial {
    /// Reads in a run.
    fn needs(&self) -> u64 {
        let waves = (RING_RUN_WAVES / self.worth).max(1) * u64::from(self.most_in_flight);
        waves.clamp(RUN_READS / self.worth, RING_RUN_READS)
    }

    /// Reads that come before the first run that is timed, after a change.
    fn leads(&self) -> u64 {
        (LEAD_READS / self.worth).max(self.most_in_flight.into())
    }

    /// So many are in flight, in a ring or shared.
    fn has_in_flight(&mut self, count: u32) {
        if count <= self.most_in_flight {
            return;
        }
        self.most_in_flight = count;
        let needs = self.needs();
        if let Some(run) = self.run.as_mut().filter(|run| run.counts) {
            run.needs = needs;
        }
    }

    /// How the run that is on is made, or the next one.
    fn hands(&self) -> Hands {
        match (BEFORE..BEFORE + RUNS).contains(&self.entered) {
            true => Hands::Shared,
            false => Hands::Own,
        }
    }
}

impl Spread {
    pub(crate) fn new(has_ring: bool) -> Self {
        Self {
            chosen: Hands::Own,
            rest: REST_MIN * RUN_READS,
            rest_runs: REST_MIN,
            has_ring,
            tried_weight: 0,
            passed: Passed::default(),
            trial: Trial::default(),
        }
    }

    /// Counts reads of such weight outside of a trial. True when it is time for one.
    #[inline]
    pub(crate) fn passes(&mut self, reads: u64, weight: u64) -> bool {
        self.rest = self.rest.saturating_sub(reads * worth(weight));
        self.passed.reads += reads;
        self.passed.weight += reads * weight;
        if self.passed.reads >= COMPARED_READS {
            self.compare();
        }
        self.rest == 0
    }

    /// Ends the rest if what has passed is unlike what was tried.
    #[cold]
    fn compare(&mut self) {
        let Passed { reads, weight } = std::mem::take(&mut self.passed);
        let (passed, tried) = (weight / reads, self.tried_weight);
        if tried > 0 && (passed >= UNLIKE * tried || tried >= UNLIKE * passed) {
            self.rest = 0;
            self.rest_runs = REST_MIN;
        }
    }

    /// Whether it has to be asked who makes a read.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.chosen == Hands::Shared || self.is_on_trial()
    }

    /// Whether the next read is part of a trial.
    #[inline]
    pub(crate) fn is_on_trial(&self) -> bool {
        self.rest == 0
    }

    /// A trial is not to be made now, because too few processors are there for all who would.
    pub(crate) fn waives(&mut self) {
        self.rests_again(Hands::Own, self.rest_runs);
    }

    /// Who makes a read that is asked for now while so many others are shared, and so many are in
    /// flight at all; in a trial. One that is made by the caller counts as read.
    #[inline]
    pub(crate) fn enters(
        &mut self,
        weight: u64,
        others: u32,
        in_flight: impl FnOnce() -> u32,
        now_ns: impl FnOnce() -> u64,
    ) -> Hands {
        if self.trial.worth == 0 {
            self.trial.worth = worth(weight);
        }
        if self.has_ring {
            self.trial.has_in_flight(in_flight());
        }
        let goes_on = self.trial.run.as_ref().is_some_and(Run::goes_on);
        if !goes_on && !self.goes_on(now_ns()) {
            return self.chosen;
        }
        let hands = self.trial.hands();
        match hands {
            Hands::Own => self.completes(weight),
            Hands::Shared => self.trial.has_company |= others > 0,
        }
        hands
    }

    /// Goes on with the trial after a pause or the end of a run. False if it is over.
    #[cold]
    fn goes_on(&mut self, now_ns: u64) -> bool {
        let needs = self.trial.needs();
        let leads = self.trial.leads();
        let mut run = self.trial.run.unwrap_or(match self.chosen {
            Hands::Own => Run::new(now_ns, needs),
            Hands::Shared => Run::lead(now_ns, leads),
        });
        if let Some(from_ns) = run.pause_from_ns.take() {
            run.pauses_ns += now_ns - from_ns;
        }
        let is_alone = run.reads >= RUN_READS / self.trial.worth && !self.trial.has_company;
        if self.trial.hands() == Hands::Shared && is_alone {
            // Nobody can make one read at a time faster than who waits for it.
            self.tried_weight = run.weight / run.reads;
            self.rests_again(Hands::Own, self.rest_runs);
            self.rest = REST_ALONE;
            return false;
        }
        if run.reads >= run.needs {
            let before = self.trial.hands();
            if run.counts {
                self.enter(run, now_ns);
            }
            let entered = self.trial.entered;
            // A thread may be late, so that only who wins is told by then.
            if entered == HALF && run.counts && self.wins_clearly() {
                self.rests_again(Hands::Shared, REST_SHARED);
                return false;
            }
            if entered == 2 * RUNS {
                self.decide();
                return false;
            }
            run = match self.trial.hands() == before {
                true => Run::new(now_ns, needs),
                false => Run::lead(now_ns, leads),
            };
        }
        self.trial.run = Some(run);
        true
    }

    /// A read of the trial has been made, by whomever.
    #[inline]
    pub(crate) fn completes(&mut self, weight: u64) {
        if let Some(run) = &mut self.trial.run {
            run.reads += 1;
            run.weight += weight;
        }
    }

    /// Whether a pause is to be told. Where a ring makes what is not shared, one may as well be a
    /// wait for it, so it counts like everything else.
    #[inline]
    pub(crate) fn asks_for_pauses(&self) -> bool {
        let run = self.trial.run.as_ref();
        !self.has_ring && run.is_some_and(|run| run.pause_from_ns.is_none())
    }

    /// Everything that was asked for has been read.
    pub(crate) fn pauses(&mut self, now_ns: u64) {
        if let Some(run) = self.trial.run.as_mut() {
            run.pause_from_ns = Some(now_ns);
        }
    }

    /// Enters the time of a run. Pauses count too, because in them the caller uses what it has
    /// copied, but no more than twice what the copies alone take: it may have waited for something.
    fn enter(&mut self, run: Run, now_ns: u64) {
        let trial = &mut self.trial;
        let rate = |ns: u64| (ns << 20) / run.weight;
        let took_ns = now_ns - run.began_ns - run.pauses_ns;
        let (at, hands) = (trial.entered, trial.hands());
        let mut alone = trial.fastest.unwrap_or(u64::MAX);
        if hands == Hands::Own {
            alone = alone.min(rate(took_ns));
            trial.fastest = Some(alone);
        }
        let at_most = 2 * (alone.saturating_mul(run.weight) >> 20);
        let ns = rate(took_ns + run.pauses_ns.min(at_most));
        match hands {
            Hands::Own if at < BEFORE => trial.own[at] = ns,
            Hands::Own => trial.own[at - RUNS] = ns,
            Hands::Shared => trial.shared[at - BEFORE] = ns,
        }
        trial.entered += 1;
        trial.reads += run.reads;
        trial.weight += run.weight;
    }

    /// The runs of a kind that count, of so many.
    fn counted(&self, of: usize) -> Range<usize> {
        let Range { start, end } = match self.has_ring {
            true => COUNTED_OF_RING,
            false => COUNTED,
        };
        start * of / RUNS..end * of / RUNS
    }

    /// Whether half of the trial leaves no doubt that sharing wins: each run that counts took less
    /// than any alone, and all together a fifth less.
    fn wins_clearly(&mut self) -> bool {
        let half = RUNS / 2;
        let counted = self.counted(half);
        let [own, shared] = [&mut self.trial.own, &mut self.trial.shared].map(|runs| {
            runs[..half].sort_unstable();
            &runs[counted.clone()]
        });
        let sum = |runs: &[u64]| runs.iter().sum::<u64>();
        shared.last() < own.first() && sum(shared) + sum(own) / 5 <= sum(own)
    }

    /// Chooses by what the trial has shown: a tenth has to be won for the change to sharing, and
    /// half of that to stay with it.
    fn decide(&mut self) {
        let counted = self.counted(RUNS);
        let sum = |runs: &mut [u64; RUNS]| {
            runs.sort_unstable();
            runs[counted.clone()].iter().sum::<u64>()
        };
        let own = sum(&mut self.trial.own);
        let shared = sum(&mut self.trial.shared);
        let margin = match self.chosen {
            Hands::Own => own / 10,
            Hands::Shared => own / 20,
        };
        match shared + margin <= own {
            true => self.rests_again(Hands::Shared, REST_SHARED),
            false => self.loses(),
        }
    }

    /// Sharing is no use now.
    fn loses(&mut self) {
        let rest_runs = match self.chosen {
            Hands::Shared => REST_MIN,
            Hands::Own => (2 * self.rest_runs).min(REST_MAX),
        };
        self.rests_again(Hands::Own, rest_runs);
    }

    fn rests_again(&mut self, chosen: Hands, runs: u64) {
        let Trial { reads, weight, .. } = self.trial;
        let in_a_run = match self.trial.entered {
            0 => RUN_READS,
            entered => {
                self.tried_weight = weight / reads;
                worth(self.tried_weight) * reads / entered as u64
            }
        };
        self.chosen = chosen;
        self.rest_runs = runs;
        self.rest = runs * in_a_run;
        self.passed = Passed::default();
        self.trial = Trial::default();
    }
}

#[cfg(test)]
#[path = "spread_test.rs"]
mod tests;
