//! The rounds of one profile: all cells in each, then fresh rounds for the cells at the front and
//! for those that the worst regret rests on.
//!
//! Whoever is chosen for being the fastest of many looks faster than it is: luck took part in the
//! choice. So the cells that the verdict rests on run again among themselves, and are compared by
//! these rounds alone, and by turns of milliseconds where they can take turns. They may put another
//! cell in front, and with it recommend one that had none of them: then these two run again. Rounds
//! are added, of those only that cannot be told from the fastest yet, while there is time; the
//! intervals are made for so many looks. Where the command has promised when it is done, rounds
//! that do not fit are left out.
//!
//! The library's worst regret was chosen for being bad by the noise of few rounds, and its
//! reference for being fast. So these run again, too; then it may be another that is the worst, and
//! while there is time it is its turn. What is left then goes to all of its cells of which it is
//! not known whether they are within 3 %, to each in turn.

mod screen;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use inflight_report::Record;
use inflight_report::ranking::Ranking;
use inflight_report::record::{Cell, ProfileSummary};
use inflight_report::regret::{MOST_SEARCHES, to_confirm, to_settle};
use inflight_report::stats::{FEWEST_ROUNDS, MOST_LOOKS};

use crate::measure::run::{self, Place, Running, Stage, Watch};
use crate::measure::turns::{self, Ended, IN_STRETCHES};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::signals;
use crate::strategy::Job;
use crate::timetable::Timetable;

pub(crate) use screen::GRACE;

/// How the rounds of one profile go.
pub(crate) struct Course<'a> {
    /// The record without its cells.
    blank: &'a Record,
    plan: &'a Plan,
    table: Timetable<'a>,
    profile: ProfileSummary,
    /// No rounds are added after this.
    until: Instant,
    /// Where rounds must fit, none is begun that would be over after this.
    latest: Instant,
    progress: &'a Progress,
}

impl<'a> Course<'a> {
    /// The rounds of a profile, which begin now.
    pub(crate) fn new(blank: &'a Record, table: Timetable<'a>, progress: &'a Progress) -> Self {
        let end = table.planned(Instant::now(), progress.pace());
        Self {
            blank,
            plan: table.plan,
            profile: table.plan.profiles[table.number].profile.summary(),
            table,
            until: end,
            latest: end,
            progress,
        }
    }

    /// Runs all rounds. `watch` sees those of all cells.
    pub(crate) fn run(
        mut self,
        cells: &mut [Running],
        job: &Job<'_>,
        place: &Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let rounds = self.screen(cells, job, place, watch)?;
        // Fewer have no verdict that could be confirmed.
        if (rounds as usize) < FEWEST_ROUNDS || signals::interrupted() {
            return Ok(());
        }
        let end = self.table.fresh(Instant::now(), self.progress.pace());
        (self.until, self.latest) = (end.start, end.end);
        let next = self.confirm(cells, rounds, job, place)?;
        self.settle(cells, next, job, place)
    }

    /// Runs fresh rounds of the cells at the front, and of those that the worst regret rests on. So
    /// that looking often does not spoil the words, each look is at half as many rounds more as the
    /// one before. `first` is the number of the first one. Returns that of the next round.
    pub(crate) fn confirm(
        &self,
        cells: &mut [Running],
        first: u32,
        job: &Job<'_>,
        place: &Place<'_>,
    ) -> Result<u32> {
        let mut chosen = self.choose(cells, |ranking| ranking.finalists());
        if chosen.is_empty() || !self.has_time_for(chosen.len(), job, place) {
            return Ok(first);
        }
        let mut fresh = Fresh::after(first);
        let mut pick = Search {
            ask: |ranking| ranking.unconfirmed(),
            which: "that the verdict names",
            until: self.until,
            made: 0,
        };
        let mut done = 0;
        for look in 0..MOST_LOOKS {
            let begun = fresh.next;
            let more = More {
                rounds: match look {
                    0 => self.plan.rounds,
                    _ => (done / 2).max(1),
                },
                of: &chosen,
                are_added: look > 0,
            };
            self.say(&more, "at the front");
            self.rounds(cells, &more, &mut fresh, job, place)?;
            done += fresh.next - begun;
            fresh.next = self.search(cells, fresh.next, &mut pick, job, place)?;
            if look == 0 {
                let mut worst = self.worst();
                fresh.next = self.search(cells, fresh.next, &mut worst, job, place)?;
            }
            chosen = self.choose(cells, |ranking| ranking.open());
            if chosen.is_empty() || signals::interrupted() || Instant::now() >= self.until {
                break;
            }
        }
        Ok(fresh.next)
    }

    /// Runs fresh rounds, from this number on, of each of the library's cells of which it is not
    /// known whether it is within 3 %, while there is time. Each look at one is at half as many
    /// rounds more as the one before, as in [`Course::confirm`].
    fn settle(
        &self,
        cells: &mut [Running],
        mut next: u32,
        job: &Job<'_>,
        place: &Place<'_>,
    ) -> Result<()> {
        let mut looks: BTreeMap<String, Looks> = BTreeMap::new();
        while Instant::now() < self.until && !signals::interrupted() {
            let looked = |road: &Cell| looks.get(&road.id).map_or(0, |looks| looks.taken);
            let chosen = self.choose(cells, |ranking| to_settle(ranking, looked));
            let Some(road) = chosen.first() else {
                break;
            };
            let looks = looks.entry(road.clone()).or_default();
            let more = More {
                rounds: match looks.taken {
                    0 => self.plan.rounds,
                    _ => (looks.rounds / 2).max(1),
                },
                of: &chosen,
                are_added: true,
            };
            looks.taken += 1;
            looks.rounds += more.rounds;
            let mut fresh = Fresh::after(next);
            self.say(&more, "that may be within 3 % or not");
            self.rounds(cells, &more, &mut fresh, job, place)?;
            next = fresh.next;
        }
        Ok(())
    }

    /// For those that the worst regret rests on, until half of what is left for the profile is
    /// over: the rest is for those that cannot be told apart yet.
    fn worst(&self) -> Search {
        let now = Instant::now();
        Search {
            ask: to_confirm,
            which: "with the worst regret",
            until: now + self.until.saturating_duration_since(now) / 2,
            made: 0,
        }
    }

    /// Runs fresh rounds, from this number on, of the cells that are looked for, until there are
    /// none any more, or no time. Returns the number of the next round.
    fn search(
        &self,
        cells: &mut [Running],
        next: u32,
        search: &mut Search,
        job: &Job<'_>,
        place: &Place<'_>,
    ) -> Result<u32> {
        let mut next = next;
        while search.made < MOST_SEARCHES {
            let chosen = self.choose(cells, search.ask);
            let is_late = search.made > 0 && Instant::now() >= search.until;
            let is_late = is_late || !self.has_time_for(chosen.len(), job, place);
            if chosen.is_empty() || is_late || signals::interrupted() {
                break;
            }
            // Other cells than those at the front may take other turns.
            let mut fresh = Fresh::after(next);
            let more = More {
                rounds: self.plan.rounds,
                of: &chosen,
                are_added: search.made > 0,
            };
            self.say(&more, search.which);
            self.rounds(cells, &more, &mut fresh, job, place)?;
            search.made += 1;
            next = fresh.next;
        }
        Ok(next)
    }

    /// Whether a first fresh round of so many cells is likely to be over in time.
    fn has_time_for(&self, cells: usize, job: &Job<'_>, place: &Place<'_>) -> bool {
        let stretches = if place.ground.stays() {
            IN_STRETCHES
        } else {
            1
        };
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        let planned = self.plan.fresh_round(job.warmup, stretches) * cells;
        self.fits(self.progress.pace().of(planned))
    }

    fn say(&self, more: &More<'_>, which: &str) {
        let (rounds, cells) = (more.rounds, more.of.len());
        let profile = &self.profile.name;
        let what = format!("{profile}: {rounds} fresh rounds of the {cells} cells {which}");
        let left = self.table.end.saturating_duration_since(Instant::now());
        self.progress.fresh(&what, self.plan.adds().then_some(left));
    }

    /// Runs some more fresh rounds of the cells that were chosen, or as many as there is time for.
    fn rounds(
        &self,
        cells: &mut [Running],
        more: &More<'_>,
        fresh: &mut Fresh,
        job: &Job<'_>,
        place: &Place<'_>,
    ) -> Result<()> {
        let is_chosen = |running: &&mut Running| more.of.contains(&running.cell.id);
        let mut front: Vec<&mut Running> = cells.iter_mut().filter(is_chosen).collect();
        for left in (0..more.rounds).rev() {
            let begun = Instant::now();
            if self.block(&mut front, job, place, fresh)? == Ended::Late {
                let profile = &self.profile.name;
                let told = "a round by turns was not over in time, and is left out";
                self.progress.say(&format!("{profile}: {told}"));
                break;
            }
            fresh.next += 1;
            let took = begun.elapsed();
            fresh.fastest = fresh.fastest.min(took);
            fresh.by_turns &= !self.takes_too_long(fresh.fastest, job.warmup, front.len(), left);
            let is_late = more.are_added && Instant::now() >= self.until;
            if is_late || !self.fits(took) {
                break;
            }
        }
        Ok(())
    }

    /// Whether a fresh round of so many cells takes much longer than planned even at its fastest,
    /// and those that are left would not fit into the profile's time. Where there are many more
    /// threads than processors, it takes them long to rest after each turn.
    fn takes_too_long(&self, took: Duration, warmup: Duration, cells: usize, left: u32) -> bool {
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        let planned = self.plan.fresh_round(warmup, IN_STRETCHES) * cells;
        took > planned * 2 && Instant::now() + took * left > self.until
    }

    /// One fresh round: those who can take turns do if they are to, the others run one after the
    /// other.
    fn block(
        &self,
        front: &mut [&mut Running],
        job: &Job<'_>,
        place: &Place<'_>,
        fresh: &Fresh,
    ) -> Result<Ended> {
        let by_turns = fresh.by_turns;
        let stage = Stage {
            blocks: fresh.next..fresh.next + 1,
            confirms: true,
        };
        let (mut in_turn, mut alone): (Vec<&mut Running>, Vec<&mut Running>) = front
            .iter_mut()
            .map(|cell| &mut **cell)
            .partition(|cell| by_turns && turns::can_take(cell, job, place));
        let pace = turns::Pace::of(&in_turn, job).filter(|_| in_turn.len() > 1);
        let latest = self.plan.leaves_out().then_some(self.latest);
        let ended = match pace {
            Some(pace) if !signals::interrupted() => {
                turns::measure(&mut in_turn, job, place, pace, &stage, latest).ok()
            }
            _ => None,
        };
        match ended {
            Some(Ended::Late) => return Ok(Ended::Late),
            Some(Ended::Whole) => {}
            // Also those who are refused what all of them together need, as locked memory.
            None => alone.append(&mut in_turn),
        }
        run::run(&mut alone, job, place, &stage, &mut Quiet)?;
        Ok(Ended::Whole)
    }

    /// Asks the report which of the cells, as they are now, are to run next.
    fn choose(
        &self,
        cells: &[Running],
        ask: impl for<'r> FnOnce(&Ranking<'r>) -> Vec<&'r Cell>,
    ) -> Vec<String> {
        let record = Record {
            cells: cells.iter().map(|running| running.cell.clone()).collect(),
            ..self.blank.clone()
        };
        let chosen = ask(&Ranking::new(&record, &self.profile)).into_iter();
        chosen.map(|cell| cell.id.clone()).collect()
    }
}

/// Fresh rounds that are to be run.
struct More<'a> {
    rounds: u32,
    of: &'a [String],
    /// Whether they end when no more may be added.
    are_added: bool,
}

/// What fresh rounds are run for until the report asks for no more: those that have run may have
/// put other cells in that place.
struct Search {
    ask: for<'r> fn(&Ranking<'r>) -> Vec<&'r Cell>,
    which: &'static str,
    /// No further one is begun after this.
    until: Instant,
    made: u32,
}

/// How often one of the library's cells has been looked at, and the fresh rounds of that.
#[derive(Default)]
struct Looks {
    taken: u32,
    rounds: u32,
}

/// Fresh rounds of some cells while they run.
struct Fresh {
    /// The number of the next one.
    next: u32,
    /// Whether those who can take turns do.
    by_turns: bool,
    /// What the fastest of them took.
    fastest: Duration,
}

impl Fresh {
    /// None yet, after so many rounds of all kinds.
    fn after(rounds: u32) -> Self {
        Self {
            next: rounds,
            by_turns: true,
            fastest: Duration::MAX,
        }
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

#[cfg(test)]
mod tests;
