//! The clock source: what it costs to ask for the time.

use super::explain::Topic;
use super::{Found, Site};

const ID: &str = "slow-clock";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "With the clock sources tsc, kvm-clock, hyperv_clocksource_tsc_page and \
        arch_sys_counter the time is read without entering the kernel, in some 20 ns. With hpet \
        or acpi_pm each reading is a system call and a slow device access, microseconds \
        together: programs that time each operation slow themselves down. The benchmark times \
        fewer operations then. The kernel switches away from tsc when it finds it unstable; dmesg \
        says why. clocksource=tsc on the kernel's command line insists on it.",
}];

/// These are read without entering the kernel.
const FAST: &[&str] = &[
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];

/// More for one reading is a burden, whatever the source.
const DEAR_NS: f64 = 200.0;

/// One line.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let machine = &site.machine;
    let Some(source) = machine.clocksource.as_deref() else {
        return vec![Found::unknown(
            ID,
            "the kernel does not tell its clock source",
        )];
    };
    let cost_ns = machine.clock_cost_ns;
    let finding = format!("reading the clock ({source}) takes {cost_ns:.0} ns");
    if FAST.contains(&source) && cost_ns <= DEAR_NS {
        return vec![Found::ok(ID, finding)];
    }
    vec![
        Found::warning(ID, finding)
            .so("Fewer operations are timed, so that the clock does not disturb them")
            .fix("the kernel parameter clocksource=tsc, where the processor allows it"),
    ]
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;

    #[test]
    fn a_slow_source_and_a_slow_reading_are_told() {
        let status = |source: &str, cost_ns| {
            let mut site = Site::in_tree(std::path::Path::new("/nowhere"), &[]);
            site.machine.clocksource = Some(source.to_owned());
            site.machine.clock_cost_ns = cost_ns;
            check(&site)[0].line.status
        };
        assert_eq!(status("tsc", 20.0), Status::Ok);
        assert_eq!(status("hpet", 20.0), Status::Warning);
        assert_eq!(status("tsc", 900.0), Status::Warning);
    }
}
