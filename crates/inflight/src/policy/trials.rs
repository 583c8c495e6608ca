//! Which of two ways is taken: runs of the one and of the other in turn decide.
//!
//! Plain data of whoever owns a proactor; it is told the time.

use super::pairs::Pairs;

/// One of two ways to do the same, of which one is better here and the other one there.
pub(crate) trait Rival: Copy + Eq {
    /// The two ways, each with so many thousandths of the time it needs: if the other one needs no
    /// more than that, it is taken.
    const BOTH: [(Self, u64); 2];
    /// How many have to be done in a run, and before it until what the last one has left is gone.
    const RUN: u32;
    const BEFORE_RUN: u32;
    /// How many are done before the first trial.
    const FIRST: u32;
}

/// So much of a pause counts, in which a program uses what it has read: the device may have nothing
/// to do meanwhile, because all of it came together. A longer one is none of the device's.
const PAUSE_COUNTED_NS: u64 = 200_000;

/// Pairs of runs in a trial. The slower half of each kind is left out: in those, something else has
/// had the device, or the processor.
const PAIRS: usize = 6;
const COUNTED: usize = PAIRS / 2;

/// Runs between trials: more and more as long as nothing changes.
const REST_MIN: u32 = 64;
const REST_MAX: u32 = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Trials<R> {
    chosen: R,
    /// How many have to be done until something is to be decided.
    left: u32,
    rest_runs: u32,
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Trial {
    pairs: Pairs<PAIRS>,
    /// When the run that is on began; `None` before that.
    began_ns: Option<u64>,
}

impl Trial {
    const NEW: Self = Self {
        pairs: Pairs::NONE,
        began_ns: None,
    };

    /// What the other way needs, in thousandths of what the chosen one does.
    fn ratio(&self) -> u64 {
        let (chosen_ns, other_ns) = self.pairs.fastest(COUNTED);
        other_ns.saturating_mul(1000) / chosen_ns.max(1)
    }
}

impl<R: Rival> Trials<R> {
    /// With this choice until the first trial.
    pub(crate) const fn new(chosen: R) -> Self {
        Self {
            chosen,
            left: R::FIRST,
            rest_runs: REST_MIN,
            trial: None,
        }
    }

    /// The trial, if there is one, cannot be gone on with.
    pub(crate) fn give_up(&mut self) {
        if self.trial.take().is_some() {
            self.left = R::FIRST;
        }
    }

    /// So many more have been done. True if [`Trials::goes_on`] is to be asked.
    #[inline]
    pub(crate) fn completes(&mut self, count: u32) -> bool {
        self.left = self.left.saturating_sub(count);
        self.left == 0
    }

    /// The way to be taken from now on.
    #[cold]
    pub(crate) fn goes_on(&mut self, now_ns: u64) -> R {
        if self.left > 0 {
            return self.now();
        }
        let trial = self.trial.get_or_insert(Trial::NEW);
        match trial.began_ns.take() {
            None => {
                trial.began_ns = Some(now_ns);
                self.left = R::RUN;
            }
            Some(began_ns) => {
                trial.pairs.enter(now_ns.saturating_sub(began_ns));
                self.left = R::BEFORE_RUN;
            }
        }
        if trial.pairs.are_all_made() {
            let ratio = trial.ratio();
            self.decide(ratio);
            self.left = self.rest_runs * R::RUN;
        }
        self.now()
    }

    /// Whether [`Trials::paused`] is to be told of pauses.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        let trial = self.trial.as_ref();
        trial.is_some_and(|trial| trial.began_ns.is_some())
    }

    /// There was no crowd in flight for so long.
    pub(crate) fn paused(&mut self, ns: u64) {
        if let Some(began_ns) = self.trial.as_mut().and_then(|it| it.began_ns.as_mut()) {
            *began_ns += ns.saturating_sub(PAUSE_COUNTED_NS);
        }
    }

    /// Both ways, the chosen one first.
    fn chosen_first(&self) -> [(R, u64); 2] {
        let [first, second] = R::BOTH;
        match self.chosen == first.0 {
            true => [first, second],
            false => [second, first],
        }
    }

    fn now(&self) -> R {
        match &self.trial {
            Some(trial) if !trial.pairs.is_as_chosen() => self.chosen_first()[1].0,
            _ => self.chosen,
        }
    }

    /// The trial is over, and has shown this.
    fn decide(&mut self, ratio: u64) {
        self.trial = None;
        let [(_, yields_at), (other, _)] = self.chosen_first();
        if ratio <= yields_at {
            self.chosen = other;
            self.rest_runs = REST_MIN;
        } else {
            self.rest_runs = (2 * self.rest_runs).min(REST_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AtOnce;
    use super::*;

    /// A program that keeps so many in flight; how long each takes by the way they are handed over.
    /// Returns how many of so many were handed over a few at a time.
    fn run(
        rule: &mut Trials<AtOnce>,
        now_ns: &mut u64,
        count: u32,
        mut took_ns: impl FnMut(AtOnce) -> u64,
    ) -> u32 {
        let (mut way, mut few) = (rule.chosen, 0);
        for _ in 0..count {
            *now_ns += took_ns(way);
            few += u32::from(way == AtOnce::Few);
            if rule.completes(1) {
                way = rule.goes_on(*now_ns);
            }
        }
        few
    }

    fn by(all: u64, few: u64) -> impl Fn(AtOnce) -> u64 {
        move |way| match way {
            AtOnce::All => all,
            AtOnce::Few => few,
        }
    }

    #[test]
    fn few_at_a_time_have_to_win_to_stay_and_clearly_to_come_back() {
        let (mut rule, mut now_ns) = (Trials::new(AtOnce::Few), 0);
        let mut run = |took_ns: (u64, u64)| {
            run(&mut rule, &mut now_ns, 10_000_000, by(took_ns.0, took_ns.1));
            rule.chosen
        };
        assert_eq!(run((1000, 900)), AtOnce::Few);
        assert_eq!(run((1000, 1010)), AtOnce::All);
        assert_eq!(run((1000, 970)), AtOnce::All);
        assert_eq!(run((1000, 940)), AtOnce::Few);
        assert_eq!(run((1000, 970)), AtOnce::Few);
    }

    #[test]
    fn pauses_of_the_program_decide_nothing() {
        for (all, few, chosen) in [(1000, 1050, AtOnce::All), (1000, 900, AtOnce::Few)] {
            for every in [1499, 3001, 5003, 7001] {
                let (mut rule, mut now_ns, mut pauses) = (Trials::new(AtOnce::Few), 0, 0_u64);
                for _ in 0..1_000_000 / every {
                    run(&mut rule, &mut now_ns, every, by(all, few));
                    pauses += 1;
                    let pause_ns = (pauses * 7919) % 50_000_000;
                    now_ns += pause_ns;
                    if rule.is_timed() {
                        rule.paused(pause_ns);
                    }
                }
                assert_eq!(rule.chosen, chosen, "{all}, {few}, one in {every}");
            }
        }
    }

    #[test]
    fn what_a_program_does_with_a_wave_counts() {
        let (mut rule, mut now_ns) = (Trials::new(AtOnce::Few), 0);
        for _ in 0..100_000 {
            // One by one the device is at work while the program is, but not all at once.
            let waits = rule.now() == AtOnce::All;
            run(&mut rule, &mut now_ns, 16, by(1000, 1000));
            if waits {
                now_ns += 10_000;
                rule.paused(10_000);
            }
        }
        assert_eq!(rule.chosen, AtOnce::Few);
    }

    #[test]
    fn what_does_not_win_is_tried_less_and_less() {
        let (mut rule, mut now_ns) = (Trials::new(AtOnce::Few), 0);
        let tried = [(); 4].map(|()| run(&mut rule, &mut now_ns, 4_000_000, by(1000, 1010)));
        assert!(u64::from(tried[3]) * 50 < 4_000_000, "{tried:?}");
        assert!(tried[1] < tried[0] / 4, "{tried:?}");
    }

    #[test]
    fn what_happens_beside_a_trial_decides_nothing() {
        for (all, few, chosen) in [(1000, 1050, AtOnce::All), (1000, 900, AtOnce::Few)] {
            for every in [11_003, 22_003, 33_007] {
                let (mut rule, mut now_ns, mut count) = (Trials::new(AtOnce::Few), 0, 0_u32);
                let held_up = |way| {
                    count += 1;
                    by(all, few)(way) * if count.is_multiple_of(every) { 1000 } else { 1 }
                };
                run(&mut rule, &mut now_ns, 1_000_000, held_up);
                assert_eq!(rule.chosen, chosen, "{all}, {few}, one in {every}");
            }
        }
    }
}
