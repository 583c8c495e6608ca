//! The course of the rounds of one profile, from the loop that measures to what shows it.

use std::time::{Duration, Instant};

use inflight_report::{noun, stats, strategy};

use super::event::{Done, Event, Outcome, Shown};
use super::{Progress, nanos};
use crate::measure::run::{Running, Watch};
use crate::plan::{Plan, PlannedCell, PlannedProfile};
use crate::signals;

/// Watches the rounds of one profile.
pub(crate) struct Rounds<'a> {
    progress: &'a Progress,
    plan: &'a Plan,
    profile: &'a PlannedProfile,
    noun: &'static str,
    /// What the plan says about cells that had no turn yet, here and in later profiles.
    planned: Duration,
    /// When the last cell ended.
    last: Instant,
    /// No rounds are added after this.
    end: Instant,
}

impl<'a> Rounds<'a> {
    /// The rounds of the profile of this number, which begin now; none are added to those of any
    /// profile after `end`.
    pub(crate) fn begin(
        progress: &'a Progress,
        plan: &'a Plan,
        number: usize,
        end: Instant,
    ) -> Self {
        let profile = &plan.profiles[number];
        Self {
            progress,
            plan,
            profile,
            noun: noun::of(&profile.profile.summary()).many,
            planned: plan.expected_of(&plan.profiles[number..]),
            last: Instant::now(),
            end,
        }
    }

    /// Takes a cell that had its turn from what is left.
    fn account(&mut self, running: &Running, ran: bool) {
        let cell = PlannedCell::of(running);
        let planned = self.plan.takes(&self.profile.profile, &cell);
        let now = Instant::now();
        if ran {
            let took = now - self.last;
            self.progress.state().pace.ran(planned, took);
        }
        self.last = now;
        self.planned = self.planned.saturating_sub(planned);
    }

    fn left_ns(&self) -> u64 {
        let planned = self.progress.pace().of(self.planned);
        let until_end = self.end.saturating_duration_since(Instant::now());
        nanos(self.plan.at_most(planned, until_end))
    }
}

impl Watch for Rounds<'_> {
    fn cell_done(&mut self, block: u32, running: &Running) {
        let cell = &running.cell;
        let round = cell.rounds.last().filter(|round| round.block == block);
        self.account(running, round.is_some());
        let outcome = match (round, &cell.skipped) {
            (Some(round), _) => Outcome::Ran {
                ops: round.ops,
                bytes: round.bytes,
                errors: round.errors,
                duration_ns: round.duration_ns,
                ns_p50: running.latencies.ns_p50(),
                ns_p99: running.latencies.ns_p99(),
            },
            (None, Some(skipped)) if block == 0 => Outcome::Skipped {
                skipped: &skipped.reason,
            },
            // It was said in the first round.
            (None, _) => return,
        };
        self.progress.tell(&Event::Cell(Done {
            id: &cell.id,
            profile: &self.profile.profile.name,
            round: block + 1,
            rounds: self.plan.rounds,
            outcome,
            left_ns: self.left_ns(),
            shown: Shown {
                name: strategy::name_at_depth(cell, self.profile.profile.asked.access),
                noun: self.noun,
                rates: cell.rounds.iter().filter_map(stats::rate).collect(),
                heat: running.heat.last().map(String::as_str),
            },
        }));
    }

    fn block_done(&mut self, block: u32) {
        self.progress.tell(&Event::Round {
            profile: &self.profile.profile.name,
            round: block + 1,
            rounds: self.plan.rounds,
            left_ns: self.left_ns(),
        });
    }

    fn stopped(&self) -> bool {
        signals::interrupted()
    }
}
