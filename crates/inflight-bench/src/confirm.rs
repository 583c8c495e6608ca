//! The rounds of one profile: all cells in each, then fresh rounds for the cells at the front.
//!
//! Whoever is chosen for being the fastest of many looks faster than it is: luck took part in the
//! choice. So the cells that the verdict rests on run again among themselves, and are compared by
//! these rounds alone, and by turns of milliseconds where they can take turns. Rounds are added, of
//! those only that cannot be told from the fastest yet, while there is time; an interval of turns
//! is made for so many looks, one of whole rounds is a little less sure than its level says.

use std::time::{Duration, Instant};

use anyhow::Result;
use inflight_report::Record;
use inflight_report::ranking::Ranking;
use inflight_report::record::{Cell, ProfileSummary};
use inflight_report::stats::MOST_LOOKS;

use crate::measure::run::{self, Place, Running, Stage, Watch};
use crate::measure::turns;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::progress::Progress;
use crate::signals;
use crate::strategy::Job;

/// How the rounds of one profile go.
pub(crate) struct Course<'a> {
    /// The record without its cells.
    blank: &'a Record,
    plan: &'a Plan,
    profile: ProfileSummary,
    /// No rounds are added after this.
    until: Instant,
    progress: &'a Progress,
}

impl<'a> Course<'a> {
    /// The rounds of `profile`; none are added after `until`.
    pub(crate) fn new(
        blank: &'a Record,
        plan: &'a Plan,
        profile: &Profile,
        until: Instant,
        progress: &'a Progress,
    ) -> Self {
        Self {
            blank,
            plan,
            profile: profile.summary(),
            until,
            progress,
        }
    }

    /// Runs all rounds. `watch` sees those of all cells.
    pub(crate) fn run(
        &self,
        cells: &mut [Running],
        job: &Job<'_>,
        place: &Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        self.screen(cells, job, place, watch)?;
        match self.plan.confirms() && !signals::interrupted() {
            true => self.confirm(cells, job, place),
            false => Ok(()),
        }
    }

    /// Runs the rounds of all cells.
    pub(crate) fn screen(
        &self,
        cells: &mut [Running],
        job: &Job<'_>,
        place: &Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let screening = Stage {
            blocks: 0..self.plan.rounds,
            confirms: false,
        };
        let mut all: Vec<&mut Running> = cells.iter_mut().collect();
        run::run(&mut all, job, place, &screening, watch)
    }

    /// Runs fresh rounds of the cells at the front.
    pub(crate) fn confirm(
        &self,
        cells: &mut [Running],
        job: &Job<'_>,
        place: &Place<'_>,
    ) -> Result<()> {
        let ids = |cells: Vec<&Cell>| cells.into_iter().map(|cell| cell.id.clone()).collect();
        let mut chosen: Vec<String> = self.rank(cells, |ranking| ids(ranking.finalists()));
        if chosen.is_empty() {
            return Ok(());
        }
        let rounds = self.plan.rounds;
        let mut blocks = rounds..rounds.saturating_mul(2);
        let mut by_turns = true;
        for _look in 0..MOST_LOOKS {
            self.progress.say(&format!(
                "{}: {} fresh rounds of the {} cells at the front",
                self.profile.name,
                blocks.len(),
                chosen.len()
            ));
            let at_front = |running: &&mut Running| chosen.contains(&running.cell.id);
            let mut front: Vec<&mut Running> = cells.iter_mut().filter(at_front).collect();
            for block in blocks.clone() {
                let begun = Instant::now();
                Self::block(&mut front, job, place, block, by_turns)?;
                let left = blocks.end - block - 1;
                by_turns &= !self.takes_too_long(begun.elapsed(), front.len(), left);
            }
            chosen = self.rank(cells, |ranking| ids(ranking.open()));
            if chosen.is_empty() || signals::interrupted() || Instant::now() >= self.until {
                break;
            }
            blocks = blocks.end..blocks.end.saturating_add(rounds / 2);
        }
        Ok(())
    }

    /// Whether a fresh round of so many cells took much longer than planned, and those that are
    /// left would not fit into the profile's time. Where there are many more threads than
    /// processors, it takes them long to rest after each turn.
    fn takes_too_long(&self, took: Duration, cells: usize, left: u32) -> bool {
        let planned = self.plan.fresh_round() * u32::try_from(cells).unwrap_or(u32::MAX);
        took > planned * 2 && Instant::now() + took * left > self.until
    }

    /// One fresh round: those who can take turns do if they are to, the others run one after the
    /// other.
    fn block(
        front: &mut [&mut Running],
        job: &Job<'_>,
        place: &Place<'_>,
        block: u32,
        by_turns: bool,
    ) -> Result<()> {
        let stage = Stage {
            blocks: block..block + 1,
            confirms: true,
        };
        let (mut in_turn, mut alone): (Vec<&mut Running>, Vec<&mut Running>) = front
            .iter_mut()
            .map(|cell| &mut **cell)
            .partition(|cell| by_turns && turns::can_take(cell, job, place));
        let pace = turns::Pace::of(&in_turn, job).filter(|_| in_turn.len() > 1);
        let done = match pace {
            Some(pace) if !signals::interrupted() => {
                turns::measure(&mut in_turn, job, place, pace, &stage).is_ok()
            }
            _ => false,
        };
        // Also those who are refused what all of them together need, as locked memory.
        if !done {
            alone.append(&mut in_turn);
        }
        run::run(&mut alone, job, place, &stage, &mut Quiet)
    }

    /// Asks the report about the cells as they are now.
    fn rank<T>(&self, cells: &[Running], ask: impl FnOnce(&Ranking<'_>) -> T) -> T {
        let record = Record {
            cells: cells.iter().map(|running| running.cell.clone()).collect(),
            ..self.blank.clone()
        };
        ask(&Ranking::new(&record, &self.profile))
    }
}

/// The few cells at the front are announced once, not one by one.
pub(crate) struct Quiet;

impl Watch for Quiet {
    fn cell_done(&mut self, _block: u32, _running: &Running) {}

    fn block_done(&mut self, _block: u32) {}

    fn stopped(&self) -> bool {
        signals::interrupted()
    }
}
