//! The rounds of one profile: all cells in each, then fresh rounds for the cells at the front.
//!
//! Whoever is chosen for being the fastest of many looks faster than it is: luck took part in the
//! choice. So the cells that the verdict rests on run again among themselves, and are compared by
//! these rounds alone. Rounds are added while the words are "cannot tell yet" and there is time.
//! Looking again after each addition makes an interval a little less sure than its level says; the
//! zone of no difference, which has to be left too, is wider than that.

use std::time::Instant;

use anyhow::Result;
use inflight_report::Record;
use inflight_report::ranking::Ranking;
use inflight_report::record::ProfileSummary;

use crate::measure::run::{self, Place, Running, Stage, Watch};
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
        let screening = Stage {
            blocks: 0..self.plan.rounds,
            confirms: false,
        };
        let mut all: Vec<&mut Running> = cells.iter_mut().collect();
        run::run(&mut all, job, place, &screening, watch)?;
        match self.plan.confirms() && !signals::interrupted() {
            true => self.confirm(cells, job, place),
            false => Ok(()),
        }
    }

    fn confirm(&self, cells: &mut [Running], job: &Job<'_>, place: &Place<'_>) -> Result<()> {
        let chosen = self.rank(cells, |ranking| {
            let finalists = ranking.finalists().into_iter();
            finalists.map(|cell| cell.id.clone()).collect::<Vec<_>>()
        });
        if chosen.is_empty() {
            return Ok(());
        }
        let rounds = self.plan.rounds;
        let mut blocks = rounds..rounds.saturating_mul(2);
        loop {
            self.progress.say(&format!(
                "{}: {} fresh rounds of the {} cells at the front",
                self.profile.name,
                blocks.len(),
                chosen.len()
            ));
            let stage = Stage {
                blocks: blocks.clone(),
                confirms: true,
            };
            let at_front = |running: &&mut Running| chosen.contains(&running.cell.id);
            let mut front: Vec<&mut Running> = cells.iter_mut().filter(at_front).collect();
            run::run(&mut front, job, place, &stage, &mut Quiet)?;
            let open = self.rank(cells, |ranking| ranking.is_open());
            if !open || signals::interrupted() || Instant::now() >= self.until {
                return Ok(());
            }
            blocks = blocks.end..blocks.end.saturating_add(rounds / 2);
        }
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
struct Quiet;

impl Watch for Quiet {
    fn cell_done(&mut self, _block: u32, _running: &Running) {}

    fn block_done(&mut self, _block: u32) {}

    fn stopped(&self) -> bool {
        signals::interrupted()
    }
}
