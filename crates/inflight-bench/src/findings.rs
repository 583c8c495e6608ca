//! What the reader has to know before trusting the figures, from facts and from what happened.

use inflight_report::doctor::Status;
use inflight_report::record::{Cell, Finding, Machine, Severity, Target};

use crate::doctor::{self, Found, Spoils};
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
pub(crate) fn all(facts: &Facts<'_>, found: Vec<Found>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        io_uring_blocked(facts),
        not_registered(facts),
        queue_too_short(facts),
        cache_too_small(facts),
    ]
    .into_iter()
    .flatten()
    .collect();
    for found in found {
        // What happened in the run says more than what a check expected of it.
        let known = findings.iter().any(|finding| finding.id == found.line.id);
        findings.extend(tied(facts, found).filter(|_| !known));
    }
    findings.sort_by_key(|finding| match finding.severity {
        Severity::Blocker => 0,
        Severity::Warning => 1,
        Severity::Hint => 2,
    });
    let explained = |finding: &Finding| doctor::is_explained(&finding.id);
    debug_assert!(findings.iter().all(explained), "{findings:?}");
    findings
}

/// What a check found, tied to the cells that it spoils; nothing if there are none.
fn tied(facts: &Facts<'_>, found: Found) -> Option<Finding> {
    let ids = |wanted: &dyn Fn(&Cell) -> bool| {
        // `null` does no I/O that could be spoiled.
        let cells = facts.cells.iter().filter(|cell| cell.strategy != "null");
        let cells = cells.filter(|cell| wanted(cell));
        cells.map(|cell| cell.id.clone()).collect::<Vec<_>>()
    };
    let is_direct = |cell: &Cell| facts.direct.contains(&cell.id);
    let has_ring = |cell: &Cell| {
        let names = ["uring", "inflight"];
        names.iter().any(|name| cell.strategy.starts_with(name))
    };
    let affects = match found.spoils {
        Spoils::Everything => Vec::new(),
        Spoils::Direct => ids(&is_direct),
        Spoils::Buffered => ids(&|cell| !is_direct(cell)),
        Spoils::Rings => ids(&has_ring),
        Spoils::Nothing => return None,
    };
    if affects.is_empty() && found.spoils != Spoils::Everything {
        return None;
    }
    let line = found.line;
    Some(Finding {
        id: line.id,
        severity: match line.status {
            Status::Problem => Severity::Blocker,
            Status::Warning => Severity::Warning,
            Status::Ok | Status::Note | Status::Unknown => Severity::Hint,
        },
        what: line.finding,
        why_it_matters: line.consequence,
        fix: line.fix,
        affects,
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
