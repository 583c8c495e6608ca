//! Facts about the machine, from `/proc` and `/sys`. What the kernel does not tell is absent.
#![allow(unsafe_code)]

use std::fs::read_to_string;
use std::mem::MaybeUninit;

use inflight_report::record::Machine;

use crate::measure::clock::Clock;
use crate::measure::sampling;

/// Everything that is stored about the machine.
pub(crate) fn machine(clock: Clock) -> Machine {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu_line(&cpuinfo, "flags").unwrap_or_default();
    Machine {
        kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        cpus: cpus(),
        cpu_model: cpu_line(&cpuinfo, "model name"),
        clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_cost_ns: clock.cost_ps() as f64 / 1_000.0,
        timing_cost_ns: sampling::cost_ps(clock) as f64 / 1_000.0,
        governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memlock_bytes: memlock_bytes(),
        io_uring_disabled: io_uring_disabled(),
        seccomp: seccomp(),
        virtualised: flags.split(' ').any(|flag| flag == "hypervisor"),
    }
}

/// Logical processors this process may use.
pub(crate) fn cpus() -> u32 {
    std::thread::available_parallelism()
        .ok()
        .and_then(|count| u32::try_from(count.get()).ok())
        .unwrap_or(1)
}

/// `kernel.io_uring_disabled`; absent before Linux 6.6.
pub(crate) fn io_uring_disabled() -> Option<u32> {
    line("/proc/sys/kernel/io_uring_disabled")?.parse().ok()
}

/// The seccomp mode of this process: 2 is a filter.
pub(crate) fn seccomp() -> Option<u32> {
    let status = read_to_string("/proc/self/status").ok()?;
    field(&status, "Seccomp:")?.parse().ok()
}

/// The value of a line of `/proc/self/status`, by its name and colon.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// The soft limit of locked memory; absent when unlimited.
pub(crate) fn memlock_bytes() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the pointer is to writable memory of the right type, for this call only.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so the kernel has filled the structure.
    let limit = unsafe { limit.assume_init() };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The processors or nodes of a list as `0-3,8`. Source: cpuset(7), List format.
pub(crate) fn cpu_list(text: &str) -> Vec<u32> {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The first line of a small file, trimmed; absent when there is none.
pub(crate) fn line(path: impl AsRef<std::path::Path>) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn cpu_line(cpuinfo: &str, key: &str) -> Option<String> {
    let (_, value) = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_processors() {
        let machine = machine(Clock::start());
        assert!(machine.kernel.contains('.'));
        assert!(machine.cpus >= 1);
        assert!(machine.clock_cost_ns > 0.0);
        assert!(machine.timing_cost_ns > machine.clock_cost_ns);
        assert!(machine.seccomp.is_some());
    }

    #[test]
    fn a_list_of_processors_is_read() {
        assert_eq!(cpu_list("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(cpu_list("0"), [0]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn a_processor_line_is_found_by_its_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpu_line(text, "model name").as_deref(), Some("Some CPU"));
        assert_eq!(cpu_line(text, "flags").as_deref(), Some("fpu hypervisor"));
        assert_eq!(cpu_line(text, "bugs"), None);
    }
}
