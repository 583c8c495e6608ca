//! What the reader has to know before trusting the figures, from facts and from what happened.

use inflight_report::record::{Cell, Finding, Machine, Severity, Target};
use inflight_report::truth;

use crate::measure::host;
use crate::size::human;

/// Everything that a finding can be made from.
pub(crate) struct Facts<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) target: &'a Target,
    pub(crate) cells: &'a [Cell],
    /// Ids of direct cells, and of cached ones.
    pub(crate) direct: Vec<String>,
    pub(crate) cached: Vec<String>,
    /// Ids of the cells that had no ring, and why.
    pub(crate) blocked: Vec<(String, String)>,
}

/// All findings, the worst first.
pub(crate) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        in_memory(facts),
        io_uring_blocked(facts),
        not_registered(facts),
        queue_too_short(facts),
        pseudo_device(facts),
        cache_too_small(facts),
        slow_clock(facts),
    ]
    .into_iter()
    .flatten()
    .collect();
    findings.sort_by_key(|finding| match finding.severity {
        Severity::Blocker => 0,
        Severity::Warning => 1,
        Severity::Hint => 2,
    });
    findings
}

fn in_memory(facts: &Facts<'_>) -> Option<Finding> {
    let fs = &facts.target.fs;
    (truth::in_memory(facts.target) && !facts.direct.is_empty()).then(|| Finding {
        id: "tmpfs-target".to_owned(),
        severity: Severity::Blocker,
        what: format!("{} is on {fs}: this is memory, no disk", facts.target.path),
        why_it_matters: "Direct reads of it are accepted, but no device is involved: what is \
            measured is copying memory"
            .to_owned(),
        fix: "name a directory on a disk, such as your home directory or /var/tmp".to_owned(),
        affects: facts.direct.clone(),
    })
}

fn io_uring_blocked(facts: &Facts<'_>) -> Option<Finding> {
    let (_, why) = facts.blocked.first()?;
    Some(Finding {
        id: "io-uring-blocked".to_owned(),
        severity: Severity::Warning,
        what: why.clone(),
        why_it_matters: "Nothing can be said about io_uring here; the other ways were measured"
            .to_owned(),
        fix: "allow io_uring as described, if you decide about this machine".to_owned(),
        affects: facts.blocked.iter().map(|(id, _)| id.clone()).collect(),
    })
}

fn not_registered(facts: &Facts<'_>) -> Option<Finding> {
    let refused = |cell: &&Cell| {
        let mode = cell.effective.get("registered-buffers");
        mode.is_some_and(|mode| mode.starts_with("no"))
    };
    let affects: Vec<String> = facts
        .cells
        .iter()
        .filter(refused)
        .map(|cell| cell.id.clone())
        .collect();
    let limit = facts
        .machine
        .memlock_bytes
        .map_or("unlimited".to_owned(), human);
    (!affects.is_empty()).then(|| Finding {
        id: "buffers-not-registered".to_owned(),
        severity: Severity::Warning,
        what: format!("Buffers could not be registered; locked memory is limited to {limit}"),
        why_it_matters: "io_uring ran without registered buffers, which costs processor time"
            .to_owned(),
        fix: "raise the limit of locked memory: `ulimit -l`, or LimitMEMLOCK in systemd".to_owned(),
        affects,
    })
}

fn queue_too_short(facts: &Facts<'_>) -> Option<Finding> {
    let device = facts.target.stack.first()?;
    let requests = device.nr_requests?;
    let deeper = |cell: &&Cell| facts.direct.contains(&cell.id) && cell.depth > requests;
    let affects: Vec<String> = facts
        .cells
        .iter()
        .filter(deeper)
        .map(|cell| cell.id.clone())
        .collect();
    (!affects.is_empty()).then(|| Finding {
        id: "depth-above-nr-requests".to_owned(),
        severity: Severity::Hint,
        what: format!("{} takes {requests} requests at a time", device.name),
        why_it_matters: "Deeper queues wait before the device, and submitting can block".to_owned(),
        fix: format!("/sys/block/{}/queue/nr_requests may be raised", device.name),
        affects,
    })
}

fn pseudo_device(facts: &Facts<'_>) -> Option<Finding> {
    let is_pseudo = |name: &str| {
        ["loop", "zram", "ram"]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    let device = facts
        .target
        .stack
        .iter()
        .find(|device| is_pseudo(&device.name))?;
    (!facts.direct.is_empty()).then(|| Finding {
        id: "pseudo-device".to_owned(),
        severity: Severity::Hint,
        what: format!(
            "{} is no disk of its own, but made of a file or of memory",
            device.name
        ),
        why_it_matters: "Its speed says nothing about a disk; software costs show well on it"
            .to_owned(),
        fix: String::new(),
        affects: facts.direct.clone(),
    })
}

fn cache_too_small(facts: &Facts<'_>) -> Option<Finding> {
    let available_bytes = host::memory_available_bytes()?;
    // The file is cached already when this is asked, and cached pages count as available.
    let too_small = facts.target.size_bytes > available_bytes;
    (too_small && !facts.cached.is_empty()).then(|| Finding {
        id: "page-cache-too-small".to_owned(),
        severity: Severity::Warning,
        what: format!(
            "The test data has {}, but only {} of memory are available",
            human(facts.target.size_bytes),
            human(available_bytes)
        ),
        why_it_matters: "The data does not stay in the page cache".to_owned(),
        fix: "choose a smaller --size".to_owned(),
        affects: facts.cached.clone(),
    })
}

fn slow_clock(facts: &Facts<'_>) -> Option<Finding> {
    let clock = facts.machine.clocksource.as_deref()?;
    // These are read without entering the kernel.
    let fast = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "arch_sys_counter",
    ];
    let cost_ns = facts.machine.clock_cost_ns;
    (!fast.contains(&clock) || cost_ns > 200.0).then(|| Finding {
        id: "slow-clock".to_owned(),
        severity: Severity::Hint,
        what: format!("Reading the clock ({clock}) takes {cost_ns:.0} ns"),
        why_it_matters: "Fewer operations are timed, so that the clock does not disturb them"
            .to_owned(),
        fix: "the kernel parameter clocksource=tsc, where the processor allows it".to_owned(),
        affects: Vec::new(),
    })
}
