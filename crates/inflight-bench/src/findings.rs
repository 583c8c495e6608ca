//! What the reader has to know before trusting the figures, from facts and from what happened.

use std::collections::BTreeSet;
use std::io::Error;
use std::path::Path;

use inflight_report::doctor::Status;
use inflight_report::record::{
    Access, Cell, Finding, Machine, ProfileSummary, Reread, Severity, Sync, Target,
};
use inflight_report::strategy::is_library;
use inflight_report::truth::in_memory;
use inflight_report::units::nanos;

use crate::doctor::{self, Found, Spoils};
use crate::measure::memory;
use crate::size::human;
use crate::strategy::FIO_CHECKS;

/// The name of the finding that something below answers from memory.
pub(crate) const CACHE_BELOW: &str = "cache-below";

/// The name of the finding that nothing tells what the device served.
pub(crate) const DISK_NOT_SHOWN: &str = "disk-not-shown";

/// The name of the finding that the library took another way than it would have.
pub(crate) const FALLBACK: &str = "fallback";

/// The name of the finding that the clock takes part in figures.
pub(crate) const TIMING: &str = "timing";
/// More of the median operation than this is told.
const MOST_TIMING: f64 = 0.02;

/// Everything that a finding can be made from.
pub(crate) struct Facts<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) target: &'a Target,
    pub(crate) cells: &'a [Cell],
    pub(crate) profiles: &'a [ProfileSummary],
    pub(crate) reread: Option<&'a Reread>,
    /// What the rounds say about their own steadiness.
    pub(crate) unsteady: Vec<Finding>,
    /// The cells that had no ring.
    pub(crate) blocked: Vec<Blocked>,
}

/// A cell that had no ring.
pub(crate) struct Blocked {
    pub(crate) id: String,
    pub(crate) why: String,
    /// What to do about it; can be empty.
    pub(crate) fix: &'static str,
}

impl Facts<'_> {
    /// Ids of the cells of those profiles that did I/O.
    fn of_profiles(&self, wanted: impl Fn(&ProfileSummary) -> bool) -> Vec<String> {
        self.of_cells(|_, profile| wanted(profile))
    }

    /// Ids of the cells that did I/O, by the cell and its profile.
    fn of_cells(&self, wanted: impl Fn(&Cell, &ProfileSummary) -> bool) -> Vec<String> {
        let is_wanted = |cell: &&Cell| {
            let mut profiles = self.profiles.iter();
            let profile = profiles.find(|profile| profile.name == cell.profile);
            // `null` does no I/O that could be spoiled.
            let ran = cell.strategy != "null" && cell.skipped.is_none();
            ran && profile.is_some_and(|profile| wanted(cell, profile))
        };
        let cells = self.cells.iter().filter(is_wanted);
        cells.map(|cell| cell.id.clone()).collect()
    }
}

/// Whether the page cache does not hold all that a profile reads.
fn misses(profile: &ProfileSummary) -> bool {
    profile.cold || profile.half_cached
}

/// Whether the requests of a profile get as far as the device.
fn reaches_device(profile: &ProfileSummary) -> bool {
    profile.direct || misses(profile) || profile.sync != Sync::None
}

/// All findings, the worst first.
pub(crate) fn all(mut facts: Facts<'_>, found: Vec<Found>) -> Vec<Finding> {
    let mut findings = std::mem::take(&mut facts.unsteady);
    let facts = &facts;
    let from_facts = [
        no_backend(facts),
        io_uring_blocked(facts),
        fallback(facts),
        not_registered(facts),
        queue_too_short(facts),
        cache_too_small(facts),
        cache_below(facts),
        disk_not_shown(facts),
        timing_shows(facts),
    ];
    findings.extend(from_facts.into_iter().flatten());
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
    let has_ring = |cell: &Cell| {
        let names = ["uring", "inflight"];
        names.iter().any(|name| cell.strategy.starts_with(name))
    };
    let reads_ahead = |profile: &ProfileSummary| {
        profile.access == Access::SequentialRead && !profile.direct && !profile.cached
    };
    let has_map = |cell: &Cell| ["mmap", "inflight-mapped"].contains(&cell.strategy.as_str());
    let affects = match found.spoils {
        Spoils::Everything => Vec::new(),
        Spoils::Direct => facts.of_profiles(|profile| profile.direct),
        Spoils::Device => facts.of_profiles(reaches_device),
        Spoils::Syncs => facts.of_profiles(|profile| profile.sync != Sync::None),
        Spoils::ReadAhead => facts.of_profiles(reads_ahead),
        Spoils::ColdMaps => facts.of_cells(|cell, profile| misses(profile) && has_map(cell)),
        Spoils::Buffered => facts.of_profiles(|profile| !profile.direct),
        Spoils::Rings => facts.of_cells(|cell, _| has_ring(cell)),
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
    let of_library = no_backend(facts).map_or_else(Vec::new, |finding| finding.affects);
    let blocked = facts.blocked.iter();
    let blocked: Vec<&Blocked> = blocked
        .filter(|cell| !of_library.contains(&cell.id))
        .collect();
    let first = blocked.first()?;
    Some(Finding {
        id: "io-uring-blocked".to_owned(),
        severity: Severity::Warning,
        what: first.why.clone(),
        why_it_matters: "Nothing can be said about io_uring here; the other ways were measured"
            .to_owned(),
        fix: first.fix.to_owned(),
        affects: blocked.iter().map(|cell| cell.id.clone()).collect(),
    })
}

/// Where the library has no engine for any of its cells, so that every program that uses it fails.
fn no_backend(facts: &Facts<'_>) -> Option<Finding> {
    let library = || {
        let cells = facts.cells.iter();
        cells.filter(|cell| is_library(&cell.strategy))
    };
    let is_first = |blocked: &&Blocked| library().any(|cell| cell.id == blocked.id);
    let first = facts.blocked.iter().find(is_first)?;
    if library().any(|cell| !cell.rounds.is_empty()) {
        return None;
    }
    // What is awaited says the same, in its own words: not every reason is one of rings.
    let is_so = |cell: &&Cell| {
        let skipped = cell.skipped.as_ref();
        skipped.is_some_and(|skipped| skipped.reason == first.why)
    };
    Some(Finding {
        id: doctor::BACKEND.to_owned(),
        severity: Severity::Blocker,
        what: doctor::no_file(&first.why),
        why_it_matters: doctor::NO_FILE_SO.to_owned(),
        fix: doctor::NO_FILE_FIX.to_owned(),
        affects: library()
            .filter(is_so)
            .map(|cell| cell.id.clone())
            .collect(),
    })
}

/// What the library gave up in these rows, in its own words.
fn fallback(facts: &Facts<'_>) -> Option<Finding> {
    let told = |cell: &Cell| cell.effective.get("fallbacks").cloned();
    let reasons: BTreeSet<String> = facts.cells.iter().filter_map(told).collect();
    let cells = facts.cells.iter().filter(|cell| told(cell).is_some());
    let what = reasons.into_iter().collect::<Vec<_>>().join("; or: ");
    (!what.is_empty()).then(|| Finding {
        id: FALLBACK.to_owned(),
        severity: Severity::Hint,
        what: format!("The library could not do all as it would have: {what}"),
        why_it_matters: "Its figures are those of what it did instead".to_owned(),
        fix: String::new(),
        affects: cells.map(|cell| cell.id.clone()).collect(),
    })
}

fn not_registered(facts: &Facts<'_>) -> Option<Finding> {
    let refused = |cell: &Cell| {
        let mode = cell.effective.get("registered-buffers")?;
        mode.strip_prefix("no: ").map(str::to_owned)
    };
    let why = facts.cells.iter().find_map(refused)?;
    let cells = facts.cells.iter().filter(|cell| refused(cell).is_some());
    let affects = cells.map(|cell| cell.id.clone()).collect();
    let (what, fix) = match is_no_memory(&why) {
        true => (
            facts.machine.memlock_bytes.map_or_else(
                || why.clone(),
                |limit| format!("locked memory is limited to {}", human(limit)),
            ),
            "raise the limit of locked memory: `ulimit -l`, or LimitMEMLOCK in systemd",
        ),
        false if facts.machine.seccomp == Some(2) => (
            format!("a seccomp filter may have refused io_uring_register ({why})"),
            "allow io_uring_setup, io_uring_enter and io_uring_register in the filter",
        ),
        false => (why, ""),
    };
    Some(Finding {
        id: "buffers-not-registered".to_owned(),
        severity: Severity::Warning,
        what: format!("Buffers could not be registered; {what}"),
        why_it_matters: "io_uring ran without registered buffers, which costs processor time"
            .to_owned(),
        fix: fix.to_owned(),
        affects,
    })
}

/// Whether this is how ENOMEM is told, as it is where the limit of locked memory is reached.
fn is_no_memory(why: &str) -> bool {
    why.contains(&Error::from_raw_os_error(libc::ENOMEM).to_string())
}

fn queue_too_short(facts: &Facts<'_>) -> Option<Finding> {
    let device = facts.target.stack.first()?;
    let requests = device.nr_requests?;
    let is_deeper = |cell: &Cell| cell.depth > requests;
    let affects = facts.of_cells(|cell, profile| profile.direct && is_deeper(cell));
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
    // What is memory as a whole takes none beside.
    let room = memory::room(Path::new("/")).filter(|_| !in_memory(facts.target))?;
    let too_small = facts.target.size_bytes > room.bytes;
    let cached = facts.of_profiles(|profile| profile.cached);
    (too_small && !cached.is_empty()).then(|| Finding {
        id: "page-cache-too-small".to_owned(),
        severity: Severity::Warning,
        what: format!(
            "The test data has {}, but only {room}",
            human(facts.target.size_bytes)
        ),
        why_it_matters: "The data does not stay in the page cache".to_owned(),
        fix: "choose a smaller --size".to_owned(),
        affects: cached,
    })
}

fn cache_below(facts: &Facts<'_>) -> Option<Finding> {
    // What is memory as a whole has none below: the target is the finding.
    if in_memory(facts.target) {
        return None;
    }
    let found = facts.reread.filter(|found| found.cached)?;
    let [first, second] = [found.ns_first, found.ns_second].map(|ns| nanos(ns as f64));
    Some(Finding {
        id: CACHE_BELOW.to_owned(),
        severity: Severity::Warning,
        what: format!(
            "A cache below this machine answers: blocks read past the page cache took {first}, and \
             {second} when they were read again"
        ),
        why_it_matters: "Figures are of that cache, as far as it holds the test data: of a \
                         hypervisor, a controller, or a file that a device is made of"
            .to_owned(),
        fix: "choose a --size that is larger than the cache, or switch it off".to_owned(),
        affects: facts.of_profiles(|profile| profile.access.reads() && reaches_device(profile)),
    })
}

/// Where nothing shows that a device was read: what is read may be memory, or a hole in a file.
fn disk_not_shown(facts: &Facts<'_>) -> Option<Finding> {
    let is_known = |cell: &Cell| cell.rounds.iter().any(|round| round.device_bytes.is_some());
    // A program that measures itself does not tell.
    let is_ours = |cell: &Cell| !FIO_CHECKS.contains(&cell.strategy.as_str());
    let reads = |profile: &ProfileSummary| profile.access.reads() && reaches_device(profile);
    let affects = facts.of_cells(|cell, profile| is_ours(cell) && reads(profile));
    let mut cells = facts.cells.iter().filter(|cell| affects.contains(&cell.id));
    (!affects.is_empty() && !cells.any(is_known)).then(|| Finding {
        id: DISK_NOT_SHOWN.to_owned(),
        severity: Severity::Warning,
        what: "Nothing shows that the disk was read: the kernel does not tell how much this \
               process fetched from devices (/proc/self/io)"
            .to_owned(),
        why_it_matters: "What is in memory, or was never written, cannot be told from a disk"
            .to_owned(),
        fix: "mount /proc where this runs".to_owned(),
        affects,
    })
}

/// Where timing takes part in what is timed.
fn timing_shows(facts: &Facts<'_>) -> Option<Finding> {
    let cost_ns = facts.machine.timing_cost_ns;
    let share = |cell: &Cell| {
        let latency = cell
            .latency
            .as_ref()
            .filter(|_| cell.rate_per_s.is_none())?;
        Some(cost_ns / f64::from(latency.sample_every.max(1)) / latency.ns_p50.max(1) as f64)
    };
    let affects = facts.of_cells(|cell, _| share(cell).is_some_and(|share| share > MOST_TIMING));
    let of_these = facts.cells.iter().filter(|cell| affects.contains(&cell.id));
    let worst = of_these.filter_map(share).max_by(f64::total_cmp)?;
    Some(Finding {
        id: TIMING.to_owned(),
        severity: Severity::Hint,
        what: format!(
            "Timing takes up to {:.1} % of the median operation ({} for each that is timed)",
            worst * 100.0,
            nanos(cost_ns)
        ),
        why_it_matters: "These rows are up to that much faster without it".to_owned(),
        fix: "read differences of a few per cent among very fast operations with care".to_owned(),
        affects,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlannedCell;
    use crate::profile::load;
    use crate::strategy::{ALONE, Modes, STRATEGIES};
    use inflight_report::record::{Latency, LatencyClock, Round};

    fn cells(profiles: &[ProfileSummary]) -> Vec<Cell> {
        let of_profile = |profile: &ProfileSummary| {
            let begin = |strategy: &&'static dyn crate::strategy::Strategy| {
                let planned = PlannedCell::new(*strategy, ALONE);
                planned.begin(&profile.name, Modes::new()).cell
            };
            STRATEGIES.iter().map(begin).collect::<Vec<_>>()
        };
        profiles.iter().flat_map(of_profile).collect()
    }

    /// What a check finds of these cells, on a machine of which nothing else is known.
    fn with_facts(
        cells: &[Cell],
        profiles: &[ProfileSummary],
        check: fn(&Facts<'_>) -> Option<Finding>,
    ) -> Option<Finding> {
        check(&Facts {
            machine: &Machine::default(),
            target: &Target::default(),
            cells,
            profiles,
            reread: None,
            unsteady: Vec::new(),
            blocked: Vec::new(),
        })
    }

    #[test]
    fn direct_rows_of_which_nobody_counts_the_device_are_named_and_those_of_fio_are_not() {
        let of = |name: &str| load(&[name.to_owned()]).unwrap().remove(0).summary();
        let profiles = [of("direct-random-read"), of("cached-random-read")];
        let mut cells = cells(&profiles);
        let found = |cells: &[Cell]| with_facts(cells, &profiles, disk_not_shown);
        let affects = found(&cells).unwrap().affects;
        assert!(affects.contains(&"direct-random-read/pread/1".to_owned()));
        let is_right = |id: &String| id.starts_with("direct") && !id.contains("/fio");
        assert!(affects.iter().all(is_right), "{affects:?}");
        let counted = cells.iter_mut().find(|cell| cell.strategy == "uring");
        counted.unwrap().rounds.push(Round {
            device_bytes: Some(0),
            ..Round::default()
        });
        assert!(found(&cells).is_none());
    }

    #[test]
    fn all_that_the_library_gave_up_is_told_with_the_rows() {
        let profiles = [load(&["cached-random-read".to_owned()])
            .unwrap()
            .remove(0)
            .summary()];
        let mut cells = cells(&profiles);
        let found = |cells: &[Cell]| with_facts(cells, &profiles, fallback);
        assert!(found(&cells).is_none());
        for (cell, reason) in cells.iter_mut().zip(["no ring", "no hint", "no ring"]) {
            let told = ("fallbacks".to_owned(), reason.to_owned());
            cell.effective.extend([told]);
        }
        let found = found(&cells).unwrap();
        assert!(found.what.ends_with(": no hint; or: no ring"), "{found:?}");
        assert_eq!(found.affects.len(), 3);
    }

    #[test]
    fn rows_in_which_timing_shows_are_named_and_those_timed_seldom_are_not() {
        let profiles = [load(&["cached-random-read".to_owned()])
            .unwrap()
            .remove(0)
            .summary()];
        let mut cells = cells(&profiles);
        let timed = |ns_p50, sample_every| Latency {
            clock: LatencyClock::Closed,
            sample_every,
            samples: 9_000,
            ns_p50,
            ns_p99: None,
            ns_p999: None,
            ns_max: ns_p50,
            hist_v2_b64: String::new(),
        };
        for cell in &mut cells {
            cell.latency = match &*cell.strategy {
                "null" => Some(timed(10, 1)),
                "uring" => Some(timed(1_000, 1)),
                "pread" => Some(timed(1_000, 4)),
                _ => None,
            };
        }
        let found = timing_shows(&Facts {
            machine: &Machine {
                timing_cost_ns: 60.0,
                ..Machine::default()
            },
            target: &Target::default(),
            cells: &cells,
            profiles: &profiles,
            reread: None,
            unsteady: Vec::new(),
            blocked: Vec::new(),
        });
        let found = found.unwrap();
        assert_eq!(found.affects, ["cached-random-read/uring/1"]);
        assert!(found.what.contains("6.0 %"), "{}", found.what);
    }

    #[test]
    fn a_cache_below_is_not_told_of_what_is_memory_as_a_whole() {
        let found = |fs: &str| {
            let target = Target {
                fs: fs.to_owned(),
                ..Target::default()
            };
            let reread = Reread {
                profile: String::new(),
                blocks: 8,
                ns_first: 2,
                ns_second: 1,
                ratio: 2.0,
                lo: 2.0,
                hi: 2.0,
                level: 0.96,
                cached: true,
            };
            let told = cache_below(&Facts {
                machine: &Machine::default(),
                target: &target,
                cells: &[],
                profiles: &[],
                reread: Some(&reread),
                unsteady: Vec::new(),
                blocked: Vec::new(),
            });
            told.is_some()
        };
        assert!(found("ext4") && !found("tmpfs"));
    }

    #[test]
    fn each_kind_of_finding_spoils_its_own_rows() {
        let names = "direct-random-read,cached-random-read,cold-random-read,durable-append,\
                     buffered-sequential-read";
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let profiles = load(&names).unwrap();
        let profiles: Vec<ProfileSummary> = profiles.iter().map(|one| one.summary()).collect();
        let cells = cells(&profiles);
        let facts = Facts {
            machine: &Machine::default(),
            target: &Target::default(),
            cells: &cells,
            profiles: &profiles,
            reread: None,
            unsteady: Vec::new(),
            blocked: Vec::new(),
        };
        let spoiled = |spoils| {
            let found = Found::warning("scheduler", "").spoils(spoils);
            let affects = tied(&facts, found).map(|finding| finding.affects);
            let affects = affects.unwrap_or_default();
            assert!(affects.iter().all(|id| !id.contains("/null/")));
            let profile = |id: &String| id.split('/').next().unwrap_or("").to_owned();
            let mut profiles: Vec<String> = affects.iter().map(profile).collect();
            profiles.dedup();
            (profiles.join(" "), affects)
        };
        assert_eq!(spoiled(Spoils::Direct).0, "direct-random-read");
        let (device, all) = (spoiled(Spoils::Device).0, spoiled(Spoils::Everything).0);
        let first = "direct-random-read cold-random-read durable-append buffered-sequential-read";
        assert!(
            device.starts_with(first) && !device.contains("cached"),
            "{device}"
        );
        assert_eq!(all, "", "no rows are named where all are meant");
        assert_eq!(spoiled(Spoils::Syncs).0, "durable-append");
        assert!(
            spoiled(Spoils::ReadAhead)
                .0
                .starts_with("buffered-sequential-read")
        );
        let maps = spoiled(Spoils::ColdMaps).1;
        let is_map = |id: &String| id.ends_with("/mmap/1") || id.ends_with("/inflight-mapped/1");
        assert!(maps.contains(&"cold-random-read/mmap/1".to_owned()));
        let cached = |id: &String| id.starts_with("cached");
        assert!(maps.iter().all(|id| is_map(id) && !cached(id)), "{maps:?}");
        assert_eq!(spoiled(Spoils::Nothing).0, "");
    }
}
