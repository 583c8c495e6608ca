//! How the time of a run is shared out: planned rounds come first.
//!
//! Without all its planned rounds a profile has no verdict, and fresh rounds only make one surer.
//! So fresh rounds get what the planned rounds of this and of later profiles do not need, going by
//! how long those that are done really took.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::plan::{Limit, Plan};
use crate::progress::Pace;

/// When the rounds of one profile have to be over.
pub(crate) struct Timetable<'a> {
    pub(crate) plan: &'a Plan,
    /// The profile's.
    pub(crate) number: usize,
    /// When those of all profiles have to.
    pub(crate) end: Instant,
    /// What it will take to bring the data of later profiles into the page cache.
    pub(crate) reading: Duration,
}

impl Timetable<'_> {
    /// The end of the planned rounds: the others need what theirs take, or their share if there is
    /// not enough for all.
    pub(crate) fn planned(&self, now: Instant, pace: Pace) -> Instant {
        let profiles = &self.plan.profiles;
        let left = self.end.saturating_duration_since(now);
        let own = self.plan.planned_of(&profiles[self.number..=self.number]);
        let others = self.plan.planned_of(&profiles[self.number + 1..]);
        let share = left.saturating_sub(self.reading.min(left / 2));
        let share = share.mul_f64(part(own, others));
        now + share.max(left.saturating_sub(self.needed(others, pace)))
    }

    /// The end of fresh rounds, after all planned ones of the profile: none are added after the
    /// begin, and none may be over after the end where all must fit.
    pub(crate) fn fresh(&self, now: Instant, pace: Pace) -> Range<Instant> {
        let profiles = &self.plan.profiles;
        let later = &profiles[self.number + 1..];
        let left = self.end.saturating_duration_since(now);
        let spare = left.saturating_sub(self.needed(self.plan.planned_of(later), pace));
        let own = self.plan.fresh_of(&profiles[self.number..=self.number]);
        let others = self.plan.fresh_of(later);
        let share = spare.mul_f64(part(own, others));
        // What the others need is left to them, no more.
        let latest = share.max(spare.saturating_sub(pace.of(others)));
        now + share..now + latest
    }

    /// What later profiles need for their planned rounds: a quarter more than it seems, because the
    /// pace of other profiles is not theirs.
    fn needed(&self, planned: Duration, pace: Pace) -> Duration {
        pace.of(planned) * 5 / 4 + self.reading
    }
}

/// How long a run will take of which so much is planned: what is said before it begins.
pub(crate) fn told(plan: &Plan, planned: Duration) -> String {
    let told = format!("about {}, after the test data was made", minutes(planned));
    match plan.limit {
        Limit::None => told,
        _ if !plan.adds() => told,
        // What is planned is run in any case, and may leave no time for more.
        Limit::Asked(limit) if minutes(limit.max(planned)) == minutes(planned) => told,
        Limit::Asked(limit) => format!(
            "{told}, and up to {} where fresh rounds can tell more",
            minutes(limit)
        ),
        Limit::Promised(limit) => format!(
            "{told}; where fresh rounds can tell more, they go on until {} from now",
            minutes(limit)
        ),
    }
}

/// As people say it, rounded up.
fn minutes(time: Duration) -> String {
    match time.as_secs() + u64::from(time.subsec_nanos() > 0) {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

/// The part of both that is for the one.
fn part(own: Duration, others: Duration) -> f64 {
    own.div_duration_f64((own + others).max(Duration::from_nanos(1)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::strategy::STRATEGIES;

    /// What `--quick` plans for the default profiles.
    fn quick() -> Plan {
        plan(&["--quick"])
    }

    fn plan(args: &[&str]) -> Plan {
        let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args)).unwrap();
        let Command::Bench(flags) = cli.command else {
            unreachable!("{:?}", cli.command);
        };
        Plan::new(&flags.into_options(STRATEGIES).unwrap(), 2).unwrap()
    }

    /// Runs all profiles, each at so many times what was planned and the second after a second of
    /// reading, fresh rounds for as long as they may; says which part of the planned rounds each
    /// profile had time for.
    fn run(plan: &Plan, left: Duration, slower: [f64; 4]) -> Vec<f64> {
        let mut now = Instant::now();
        let end = now + left;
        let mut pace = Pace::default();
        let profiles = slower.into_iter().enumerate();
        let parts = profiles.map(|(number, slower)| {
            let reading = Duration::from_secs(if number == 0 { 1 } else { 0 });
            let table = Timetable {
                plan,
                number,
                end,
                reading,
            };
            let planned = plan.planned_of(&plan.profiles[number..=number]);
            let needed = planned.mul_f64(slower);
            let took = needed.min(table.planned(now, pace).saturating_duration_since(now));
            pace.ran(planned.mul_f64(took.div_duration_f64(needed)), took);
            now += took;
            now = table.fresh(now, pace).end + reading;
            assert!(now <= end + Duration::from_millis(1), "it ends in time");
            took.div_duration_f64(needed)
        });
        parts.collect()
    }

    #[test]
    fn fresh_rounds_leave_time_for_all_planned_rounds_of_later_profiles() {
        let plan = quick();
        let left = Duration::from_secs(19);
        let planned = plan.planned_of(&plan.profiles);
        let all = 0.9 * left.div_duration_f64(planned);
        for slower in [[1.0; 4], [1.3; 4], [all; 4], [1.0, 1.2, 1.2, 1.2]] {
            let parts = run(&plan, left, slower);
            let whole = parts.iter().all(|part| *part > 0.99);
            assert!(whole, "{slower:?}: {parts:?}");
        }
    }

    #[test]
    fn where_not_all_fit_each_profile_has_its_share() {
        let plan = quick();
        let half = plan.planned_of(&plan.profiles) / 2;
        let parts = run(&plan, half + Duration::from_secs(1), [1.0; 4]);
        assert!(parts.iter().all(|part| *part > 0.45), "{parts:?}");
    }

    #[test]
    fn what_is_said_before_it_begins_includes_fresh_rounds() {
        let of = |args| told(&plan(args), Duration::from_secs(10));
        let planned = "about 10 s, after the test data was made";
        assert_eq!(of(&["--rounds", "8"]), planned);
        assert_eq!(of(&["--quick", "--rate", "1k"]), planned);
        let until = "; where fresh rounds can tell more, they go on until 23 s from now";
        let short = ["--quick", "--profile", "durable-append"];
        assert_eq!(of(&short), format!("{planned}{until}"));
        let up_to = ", and up to 5 min where fresh rounds can tell more";
        assert_eq!(of(&["--max-time", "299"]), format!("{planned}{up_to}"));
        for no_more in [&["--max-time", "3"], &["--max-time", "10"]] {
            assert_eq!(of(no_more), planned, "{no_more:?}");
        }
        let up_to = ", and up to 11 s where fresh rounds can tell more";
        assert_eq!(of(&["--max-time", "11"]), format!("{planned}{up_to}"));
    }

    #[test]
    fn the_last_profile_has_all_that_is_left() {
        let plan = quick();
        let (now, number) = (Instant::now(), plan.profiles.len() - 1);
        let end = now + Duration::from_secs(3);
        let table = Timetable {
            plan: &plan,
            number,
            end,
            reading: Duration::ZERO,
        };
        assert_eq!(table.planned(now, Pace::default()), end);
        assert_eq!(table.fresh(now, Pace::default()), end..end);
    }
}
