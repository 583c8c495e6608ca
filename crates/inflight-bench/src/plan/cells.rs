//! The cells of a profile: what each strategy has for its depths, at each rate.

use super::PlannedCell;
use crate::cli::{Options, QUICK_DEPTH};
use crate::profile::Profile;
use crate::strategy::{Shape, Strategy, threads};

/// All cells, those with a reason against them included.
pub(super) fn of(profile: &Profile, options: &Options, cpus: u32) -> Vec<PlannedCell> {
    let rates: Vec<Option<u64>> = match options.rates.as_slice() {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    let of_strategy = |&strategy: &&'static dyn Strategy| {
        let shapes = shapes(strategy, profile, options, cpus).into_iter();
        let at_each = |(shape, refused)| {
            let cell = move |rate_per_s: &Option<u64>| PlannedCell {
                strategy,
                shape,
                rate_per_s: *rate_per_s,
                refused,
            };
            rates.iter().map(cell).collect::<Vec<_>>()
        };
        shapes.flat_map(at_each).collect::<Vec<_>>()
    };
    options.strategies.iter().flat_map(of_strategy).collect()
}

/// The shapes of a strategy, with those that it cannot have though they were asked for.
fn shapes(
    strategy: &'static dyn Strategy,
    profile: &Profile,
    options: &Options,
    cpus: u32,
) -> Vec<(Shape, Option<&'static str>)> {
    let mut profile = profile.clone();
    let mut beyond = Vec::new();
    // The depths of a profile are for all strategies: one with fewer threads does what it can.
    if let (Some(_), Some(most)) = (&options.depths, strategy.most_threads()) {
        let depths = &mut profile.asked.queue_depths;
        beyond = depths.extract_if(.., |depth| *depth > most).collect();
    }
    let shapes = match options.rates.is_empty() {
        true => strategy.shapes(&profile, cpus),
        false => strategy.open_shapes(&profile, cpus),
    };
    // To start more threads than this takes longer than they would be measured.
    let few = options.quick && options.rates.is_empty();
    let fits = |shape: &Shape| !few || shape.threads <= QUICK_DEPTH;
    let fit = shapes.into_iter().filter(fits).map(|shape| (shape, None));
    let beyond = beyond.into_iter().map(|depth| {
        let threads = depth;
        (Shape { depth, threads }, Some(threads::TOO_MANY))
    });
    fit.chain(beyond).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Plan;
    use crate::cli::{Cli, Command};
    use crate::strategy::STRATEGIES;

    /// The cells of these flags: their depth, and why they cannot be.
    fn cells(args: &[&str]) -> Vec<(u32, Option<&'static str>)> {
        let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args)).unwrap();
        let Command::Bench(flags) = cli.command else {
            unreachable!("{:?}", cli.command);
        };
        let plan = Plan::new(&flags.into_options(STRATEGIES).unwrap(), 2).unwrap();
        let planned = &plan.profiles[0];
        let cells = planned.cells.iter();
        let told = cells.map(|cell| (cell.shape.depth, cell.unfit(&planned.profile)));
        told.collect()
    }

    #[test]
    fn more_threads_than_there_may_be_are_refused_where_they_were_asked_for() {
        let many = Some("more than 128 threads");
        for strategy in ["threads", "inflight-threads"] {
            for more in [&[][..], &["--rate", "1k"], &["--quick"]] {
                let of = |depths| {
                    let flags = ["--profile", "cached-random-read", "--strategy", strategy];
                    cells(&[&flags[..], &["--depth", depths], more].concat())
                };
                assert_eq!(of("256"), [(256, many)], "{strategy} {more:?}");
                let some = of("1,4,129,256");
                assert_eq!(some, [(2, None), (4, None), (129, many), (256, many)]);
            }
        }
        // One thread has them all in flight.
        let flags = ["--strategy", "uring", "--profile", "cached-random-read"];
        assert_eq!(
            cells(&[&flags[..], &["--depth", "256"]].concat()),
            [(256, None)]
        );
        // The depths of a profile are for all strategies.
        let flags = ["--strategy", "threads", "--profile", "cold-range-read"];
        let usual = cells(&flags);
        assert_eq!(
            usual.last().map(|(depth, _)| *depth),
            Some(128),
            "{usual:?}"
        );
    }
}
