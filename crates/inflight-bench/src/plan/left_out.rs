//! What a short run leaves out of its profiles, to be said once: no row tells of it.

use std::collections::BTreeSet;

use super::PlannedProfile;
use crate::strategy::Shape;

/// Depths on one thread, and pools by the number of their threads.
#[derive(Default)]
pub(crate) struct LeftOut {
    depths: BTreeSet<u32>,
    pools: BTreeSet<u32>,
}

impl LeftOut {
    /// Takes note of what a profile has and `kept` has not.
    pub(super) fn note(&mut self, whole: &PlannedProfile, kept: &PlannedProfile) {
        let kept: Vec<String> = kept.runs().map(|cell| cell.id("")).collect();
        for cell in whole.runs().filter(|cell| !kept.contains(&cell.id(""))) {
            match cell.shape {
                Shape {
                    depth,
                    threads: ..2,
                } => self.depths.insert(depth),
                Shape { threads, .. } => self.pools.insert(threads),
            };
        }
    }

    /// In words, by the flag that asked for it; nothing where nothing is left out.
    pub(crate) fn told(&self, quick: bool) -> Option<String> {
        let list = |numbers: &BTreeSet<u32>| {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            numbers.join(", ")
        };
        let depths = format!("depths in between ({})", list(&self.depths));
        let pools = format!("pools of {} threads", list(&self.pools));
        let both = [(depths, &self.depths), (pools, &self.pools)];
        let said = both.into_iter().filter(|(_, numbers)| !numbers.is_empty());
        let said: Vec<String> = said.map(|(words, _)| words).collect();
        let flag = if quick { "--quick" } else { "--rate" };
        (!said.is_empty()).then(|| format!("{flag} leaves out {}", said.join(" and ")))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};
    use crate::plan::Plan;
    use crate::strategy::STRATEGIES;

    fn told(args: &[&str]) -> Option<String> {
        let cli = Cli::try_parse_from(["inflight", "bench"].iter().chain(args)).unwrap();
        let Command::Bench(flags) = cli.command else {
            unreachable!("{:?}", cli.command);
        };
        let options = flags.into_options(STRATEGIES).unwrap();
        let plan = Plan::new(&options, 2).unwrap();
        plan.left_out.told(options.quick)
    }

    #[test]
    fn what_a_short_run_leaves_out_is_said() {
        let between = "--quick leaves out depths in between (4, 16, 64)";
        let usual = format!("{between} and pools of 4, 16, 64, 128 threads");
        assert_eq!(told(&["--quick"]), Some(usual));
        assert_eq!(
            told(&["--quick", "--strategy", "uring"]),
            Some(between.to_owned())
        );
        // What was asked for by its number is left out, too, where it is too much for the time.
        let asked = ["--quick", "--strategy", "uring,threads", "--depth", "4,64"];
        let pools = Some("--quick leaves out pools of 64 threads".to_owned());
        assert_eq!(told(&asked), pools);
        let rate = told(&["--rate", "1k", "--strategy", "uring"]);
        assert_eq!(rate, Some(between.replace("--quick", "--rate")));
        for all in [
            &[][..],
            &["--quick", "--strategy", "pread"],
            &["--depth", "4,64"],
        ] {
            assert_eq!(told(all), None, "{all:?}");
        }
        let one = ["--quick", "--profile", "durable-append"];
        assert_eq!(told(&one), None, "it has one depth");
    }
}
