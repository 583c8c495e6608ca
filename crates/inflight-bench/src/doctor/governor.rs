//! How the processors choose their frequency.

use std::collections::BTreeMap;

use super::explain::Topic;
use super::{Found, Site};
use crate::measure::host::cpu_list;

const ID: &str = "governor";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "A frequency governor slows processors down when they seem idle, and waiting for a \
        disk seems idle: figures then depend on what ran just before, and few operations in \
        flight look slower than many. `performance` keeps the frequency up. With the drivers \
        intel_pstate and amd-pstate-epp, `powersave` is the ordinary dynamic mode and costs \
        little; with others it pins the lowest frequency. In a virtual machine the host decides, \
        and nothing is seen here. The setting lasts until the next start.",
}];

/// Drivers whose `powersave` goes up to the full frequency when there is work.
const DYNAMIC: &[&str] = &["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

/// One line for all processors, or one for each governor if they differ.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let online = site.line("sys/devices/system/cpu/online");
    let mut governors: BTreeMap<(String, String), u32> = BTreeMap::new();
    for cpu in cpu_list(online.as_deref().unwrap_or("0")) {
        let of = |what| site.line(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{what}"));
        if let Some(governor) = of("scaling_governor") {
            let driver = of("scaling_driver").unwrap_or_default();
            *governors.entry((governor, driver)).or_default() += 1;
        }
    }
    if governors.is_empty() {
        let seen = "no frequency governor is seen here";
        let host = "; in a virtual machine the host decides";
        let host = if site.machine.virtualised { host } else { "" };
        return vec![Found::unknown(ID, format!("{seen}{host}"))];
    }
    let judged = governors.iter();
    judged
        .map(|((governor, driver), cpus)| judge(governor, driver, *cpus))
        .collect()
}

fn judge(governor: &str, driver: &str, cpus: u32) -> Found {
    let finding = format!("the governor is {governor} on {cpus} processors");
    if governor == "performance" {
        return Found::ok(ID, finding);
    }
    let pinned = governor == "powersave" && !DYNAMIC.contains(&driver);
    let found = match pinned {
        true => Found::warning(ID, finding).so("The processors stay at their lowest frequency"),
        false => Found::note(ID, finding)
            .so("Processors that wait for a disk slow down, so figures vary more than they must"),
    };
    found.fix("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn governors_are_judged_by_their_driver() {
        let cpu = |n, what| format!("sys/devices/system/cpu/cpu{n}/cpufreq/scaling_{what}");
        let tree = Tree::of(&[
            ("sys/devices/system/cpu/online", "0-2\n"),
            (&cpu(0, "governor"), "powersave\n"),
            (&cpu(0, "driver"), "acpi-cpufreq\n"),
            (&cpu(1, "governor"), "powersave\n"),
            (&cpu(1, "driver"), "intel_pstate\n"),
            (&cpu(2, "governor"), "performance\n"),
        ]);
        let found = check(&tree.site(&[]));
        let status: Vec<Status> = found.iter().map(|found| found.line.status).collect();
        assert_eq!(status, [Status::Ok, Status::Warning, Status::Note]);
    }

    #[test]
    fn a_machine_without_governor_is_not_judged() {
        let found = check(&Tree::of(&[]).site(&[]));
        assert_eq!(found[0].line.status, Status::Unknown);
    }
}
