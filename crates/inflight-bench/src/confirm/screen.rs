//! The rounds of all cells, and who goes on where there is not time for all of them.
//!
//! On a busy machine a round takes several times as long as planned, and no interval can be told
//! of fewer than [`FEWEST_ROUNDS`]. So after each round those cells that the verdict needs least
//! rest from then on, until the others have time for that many: enough rounds of some cells say
//! more than too few of all. The first round may not take all of the time either, so those without
//! which there is nothing to compare come first in it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use inflight_report::ranking::{self, Ranking};
use inflight_report::record::Cell;
use inflight_report::stats::FEWEST_ROUNDS;
use inflight_report::stats::rate;

use super::{Course, Quiet};
use crate::measure::run::{self, Place, Running, Stage, Watch};
use crate::plan::PlannedCell;
use crate::strategy::Job;

/// Without somebody to compare it with, a cell says little.
const FEWEST_CELLS: usize = 2;
/// The cells that a verdict needs most: the plain loop, the fastest, and the best of another
/// strategy.
const MOST_NEEDED: usize = 3;
/// Rounds that are added where those have completed nothing in one.
const MOST_MADE_UP: u32 = 3;
/// The part of a profile's time that the first round may take before it is cut short: with all of
/// their rounds to come, cells that run as planned need half of that.
const PART_OF_FIRST: u32 = 3;
/// When the time of all profiles has been over for so long, no other is begun: of one round alone
/// nothing can be told.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

impl Course<'_> {
    /// Runs the rounds of all cells, or as many as there is time for. Returns how many it ran.
    pub(crate) fn screen(
        &self,
        cells: &mut [Running],
        job: &Job<'_>,
        place: &Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<u32> {
        let mut resting = BTreeSet::new();
        for block in 0..self.plan.rounds {
            let mut in_time = InTime {
                watch,
                end: self.end_of_first(Instant::now()).filter(|_| block == 0),
            };
            let took = round(block, cells, &resting, job, place, &mut in_time)?;
            let not_begun = cells.iter().filter(|one| one.cell.rounds.is_empty());
            resting.extend(not_begun.map(|one| one.cell.id.clone()));
            let takes = self.rest(cells, &mut resting, took, block + 1);
            if watch.stopped() || !self.fits(takes) {
                return Ok(block + 1);
            }
        }
        self.make_up(cells, &resting, job, place, watch)
    }

    /// Runs rounds beyond those that were planned where cells that the verdict needs have completed
    /// nothing in one, because something else had the processors for all of it: such a round is
    /// none for them. Returns how many there are now.
    fn make_up(
        &self,
        cells: &mut [Running],
        resting: &BTreeSet<String>,
        job: &Job<'_>,
        place: &Place<'_>,
        watch: &dyn Watch,
    ) -> Result<u32> {
        let mut next = self.plan.rounds;
        let mut takes = Duration::ZERO;
        let confirms = self.plan.leaves_out() && self.plan.confirms();
        while confirms && next < self.plan.rounds + MOST_MADE_UP && !watch.stopped() {
            let order = self.choose(cells, |ranking: &Ranking<'_>| ranking.by_need());
            if missing(cells, &order, next) == 0 || !self.fits(takes) {
                break;
            }
            takes = round(next, cells, resting, job, place, &mut Quiet)?;
            next += 1;
        }
        Ok(next)
    }

    /// When the first round is cut short, if it ever is.
    fn end_of_first(&self, begun: Instant) -> Option<Instant> {
        let part = self.latest.saturating_duration_since(begun) / PART_OF_FIRST;
        // One has to be run for anything to be told.
        self.plan
            .leaves_out()
            .then_some(begun + part.max(GRACE / 4))
    }

    /// Whether there is time for another round that takes so long.
    pub(super) fn fits(&self, takes: Duration) -> bool {
        !self.plan.leaves_out() || Instant::now() + takes <= self.latest
    }

    /// Lets cells rest for which there is not time, after so many rounds, of which the last took so
    /// long. Returns how long the next one will take.
    fn rest(
        &self,
        cells: &[Running],
        resting: &mut BTreeSet<String>,
        took: Duration,
        done: u32,
    ) -> Duration {
        if !self.plan.leaves_out() {
            return took;
        }
        let order = self.choose(cells, |ranking: &Ranking<'_>| match ranking.ranked[..] {
            // Where nothing counts, nobody is needed more than others.
            [] => Vec::new(),
            _ => ranking.by_need(),
        });
        let left = self.latest.saturating_duration_since(Instant::now());
        let needed = took * missing(cells, &order, done);
        if needed <= left {
            return took;
        }
        let going = order.iter().filter(|id| !resting.contains(*id));
        let going: Vec<(&String, Duration)> = going
            .filter_map(|id| Some((id, self.planned(cells, id)?)))
            .collect();
        if going.is_empty() {
            return took;
        }
        let all: Duration = going.iter().map(|(_, planned)| *planned).sum();
        let mut room = all.mul_f64(left.div_duration_f64(needed.max(Duration::from_nanos(1))));
        let (mut kept, mut rested) = (0, BTreeSet::new());
        for (id, planned) in &going {
            if *planned <= room || kept < FEWEST_CELLS {
                room = room.saturating_sub(*planned);
                kept += 1;
            } else {
                rested.insert((*id).clone());
            }
        }
        let of_kept = going.iter().filter(|(id, _)| !rested.contains(*id));
        let planned: Duration = of_kept.map(|(_, planned)| *planned).sum();
        if !rested.is_empty() {
            let profile = &self.profile.name;
            self.progress.say(&format!(
                "{profile}: rounds take longer than planned; {kept} of {} cells go on, so that \
                 there are enough of these in time",
                going.len()
            ));
        }
        resting.append(&mut rested);
        took.mul_f64(planned.div_duration_f64(all.max(Duration::from_nanos(1))))
    }

    /// What is planned of the cell of this name.
    fn planned(&self, cells: &[Running], id: &str) -> Option<Duration> {
        let running = cells.iter().find(|running| running.cell.id == id)?;
        let profile = &self.plan.profiles[self.table.number].profile;
        Some(self.plan.takes(profile, &PlannedCell::of(running)))
    }
}

/// Runs the round of this number, of those that do not rest. Returns how long it took.
fn round(
    number: u32,
    cells: &mut [Running],
    resting: &BTreeSet<String>,
    job: &Job<'_>,
    place: &Place<'_>,
    watch: &mut dyn Watch,
) -> Result<Duration> {
    let begun = Instant::now();
    let goes_on = |running: &&mut Running| !resting.contains(&running.cell.id);
    let mut going: Vec<&mut Running> = cells.iter_mut().filter(goes_on).collect();
    let stage = Stage {
        blocks: number..number + 1,
        confirms: false,
    };
    run::run(&mut going, job, place, &stage, watch)?;
    Ok(begun.elapsed())
}

/// How many rounds are missing, after so many, until those that the verdict needs most have enough
/// in which they completed something.
fn missing(cells: &[Running], order: &[String], done: u32) -> u32 {
    let full = |id: &String| {
        let running = cells.iter().find(|running| running.cell.id == *id);
        running.map_or(0, |running| {
            running.cell.rounds.iter().filter_map(rate).count()
        })
    };
    let fewest = order.iter().take(MOST_NEEDED).map(full).min();
    let fewest = fewest.unwrap_or(done as usize);
    u32::try_from(FEWEST_ROUNDS.saturating_sub(fewest)).expect("a few")
}

/// Watches on behalf of another, and stops at the end of the time, if there is one.
struct InTime<'w> {
    watch: &'w mut dyn Watch,
    end: Option<Instant>,
}

impl Watch for InTime<'_> {
    fn cell_done(&mut self, block: u32, running: &Running) {
        self.watch.cell_done(block, running);
    }

    fn block_done(&mut self, block: u32) {
        self.watch.block_done(block);
    }

    fn stopped(&self) -> bool {
        self.watch.stopped() || self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn rank(&self, cell: &Cell) -> u32 {
        self.end.map_or(0, |_| ranking::need(&cell.strategy))
    }
}

#[cfg(test)]
mod tests {
    use inflight_report::record::Round;

    use super::super::tests::{Pretended, begin, done, measure, plan};
    use super::*;
    use crate::cli::DEFAULT_ROUNDS;
    use crate::measure::run::Stretch;
    use crate::strategy::{Shape, Strategy};

    /// How many rounds a profile is given that has no time left.
    fn rounds_without_time(args: &[&str]) -> usize {
        let plan = plan(args);
        let mut cells = begin(&plan, &plan.profiles[0].cells);
        measure(&plan, Instant::now(), |course, job, place| {
            course.screen(&mut cells, job, place, &mut Quiet).unwrap();
        });
        cells[0].cell.rounds.len()
    }

    #[test]
    fn rounds_that_do_not_fit_are_left_out_where_an_end_was_promised() {
        let usual = DEFAULT_ROUNDS as usize;
        assert_eq!(rounds_without_time(&[]), 1, "one is always run");
        assert_eq!(rounds_without_time(&["--rounds", "7"]), 7);
        assert_eq!(rounds_without_time(&["--max-time", "1"]), usual);
    }

    fn slowly(ops: u64) -> Result<Stretch> {
        std::thread::sleep(Duration::from_millis(20));
        done(ops)
    }

    const PLAIN: Pretended = Pretended {
        name: "pread",
        measure: |_| slowly(10_000),
    };
    const SLOW: Pretended = Pretended {
        name: "tokio",
        measure: |job| slowly(u64::from(job.depth) * 1_000),
    };
    const RING: Pretended = Pretended {
        name: "uring",
        measure: |_| slowly(100_000),
    };

    #[test]
    fn where_not_all_fit_those_that_a_verdict_needs_have_enough_rounds() {
        // A round takes 0.4 seconds.
        let rounds = rounds_within(Duration::from_millis(1_500));
        assert!(rounds[..4].iter().all(|done| *done <= 1), "{rounds:?}");
        let most = rounds.iter().copied().max().unwrap();
        // A busy machine is slower still.
        assert!((2..=FEWEST_ROUNDS).contains(&most), "{rounds:?}");
        assert_eq!(rounds[18..], [most; 2], "{rounds:?}");
    }

    const PROMPT: Pretended = Pretended {
        name: "pread",
        measure: |_| done(10_000),
    };
    /// Completes nothing in one round of four: seeds are odd.
    const HELD_UP: Pretended = Pretended {
        name: "uring",
        measure: |job| done(if job.seed % 8 == 1 { 0 } else { 100_000 }),
    };

    #[test]
    fn rounds_in_which_nothing_was_completed_are_made_up_for() {
        let full = |rounds: &[Round]| rounds.iter().filter_map(rate).count();
        let (mut made_up, long) = (0, Duration::from_secs(60));
        for seed in 1..=40 {
            let mut cells = screened(&[at(&PROMPT, 1), at(&HELD_UP, 32)], long, seed);
            let [plain, held_up] = [0, 1].map(|at| std::mem::take(&mut cells[at].cell.rounds));
            assert_eq!(plain.len(), held_up.len());
            let missed = held_up.len() - full(&held_up);
            assert!(full(&held_up) >= FEWEST_ROUNDS || missed > MOST_MADE_UP as usize);
            made_up += plain.len() - FEWEST_ROUNDS;
        }
        assert!(made_up > 0, "some were held up");
    }

    #[test]
    fn where_not_even_one_round_fits_those_that_a_verdict_needs_come_first() {
        let rounds = rounds_within(Duration::from_millis(900));
        assert!(rounds[..4].iter().all(|done| *done <= 1), "{rounds:?}");
        assert!(rounds.contains(&0), "{rounds:?}");
        let most = rounds.iter().copied().max().unwrap();
        assert!(most > 1, "{rounds:?}");
        assert_eq!(rounds[18..], [most; 2], "{rounds:?}");
    }

    /// The rounds of 18 slow cells, from the slowest on, of the plain loop, and of a fast one, in
    /// so much time.
    fn rounds_within(time: Duration) -> Vec<usize> {
        let slow = (1..=18).map(|depth| at(&SLOW, depth));
        let planned: Vec<PlannedCell> = slow.chain([at(&PLAIN, 1), at(&RING, 32)]).collect();
        let cells = screened(&planned, time, 0);
        cells.iter().map(|cell| cell.cell.rounds.len()).collect()
    }

    fn at(strategy: &'static dyn Strategy, depth: u32) -> PlannedCell {
        PlannedCell::new(strategy, Shape { depth, threads: 1 })
    }

    /// Cells after as many rounds as there is time for.
    fn screened(planned: &[PlannedCell], time: Duration, seed: u64) -> Vec<Running> {
        let plan = plan(&["--quick"]);
        let mut cells = begin(&plan, planned);
        measure(&plan, Instant::now() + time, |course, job, place| {
            let job = Job {
                seed,
                ..job.clone()
            };
            course.screen(&mut cells, &job, place, &mut Quiet).unwrap();
        });
        cells
    }
}
