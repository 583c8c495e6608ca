//! Whether this process may have rings, who says no, and what its rings can do.

use inflight_report::doctor::Status;

use super::explain::Topic;
use super::probe::Ring;
use super::{Found, Site};
use crate::denied::{self, Denial, Facts};
use crate::measure::host;

const BLOCKED: &str = "io-uring-blocked";
const FEATURES: &str = "io-uring-features";
pub(crate) const CHOICE: &str = "backend";

/// What follows where the library has no engine.
pub(crate) const NO_FILE_SO: &str =
    "A program that uses the library fails here: what is demanded cannot be had";
/// Nothing else can demand anything of a program that leaves the choice to the library.
pub(crate) const NO_FILE_FIX: &str = "unset INFLIGHT_BACKEND";

/// What is found where the library has no engine, in its own words.
pub(crate) fn no_file(why: &str) -> String {
    format!("no file can be opened: {why}")
}

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: BLOCKED,
        text: "A ring was asked for in a child process, also where INFLIGHT_BACKEND is \
            `threads`. EPERM with kernel.io_uring_disabled=2 is \
            the administrator's word; with 1, a ring needs CAP_SYS_ADMIN or the group in \
            kernel.io_uring_group. EPERM or ENOSYS without it, under a seccomp filter, is the \
            default of container runtimes: give the container a profile that allows \
            io_uring_setup, io_uring_enter and io_uring_register (Docker: --security-opt \
            seccomp=FILE; Kubernetes: securityContext.seccompProfile of type Localhost). A filter \
            can also kill whoever asks: then set INFLIGHT_BACKEND=threads, so that nothing asks. \
            io_uring widens what an attacker can reach in the kernel, so on a machine that others \
            share, whoever is responsible for it decides. Without it the library uses \
            Linux AIO for direct transfers, where that is allowed, and \
            threads for everything else.",
    },
    Topic {
        id: FEATURES,
        text: "Each set-up flag was tried, and the kernel was asked for its operations; the \
            version was not looked at. DEFER_TASKRUN (Linux 6.1) lets a ring's owner say when \
            completions are processed: without it the library does not use io_uring by itself. \
            SINGLE_ISSUER, COOP_TASKRUN, SUBMIT_ALL and NO_SQARRAY save a few percent each. An \
            operation that the kernel lacks is done by threads.",
    },
    Topic {
        id: CHOICE,
        text: "What the library would use in a program that is started here, and why, in its own \
            words. The environment variable INFLIGHT_BACKEND (auto, uring, aio, threads) has the \
            last word over what a program asks for; where it asks for what cannot be had, or for \
            what is no backend, nothing is used instead and no file can be opened. In a program, \
            Engine::backend tells the same.",
    },
];

/// Blocked or not, the features, and what the library makes of it.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let status = site.text("proc/self/status").unwrap_or_default();
    let facts = Facts {
        disabled: site
            .line("proc/sys/kernel/io_uring_disabled")
            .and_then(|text| text.parse().ok()),
        filtered: host::field(&status, "Seccomp:") == Some("2"),
    };
    let ring = site.ring();
    let judged = judge(ring, &facts);
    let usable = judged.line.status == Status::Ok;
    let mut found = vec![judged];
    if usable {
        found.push(features(ring));
    }
    found.push(choice(ring));
    found
}

fn judge(ring: &Ring, facts: &Facts) -> Found {
    let setup = ring.errno("setup");
    if ring.killed_by() == Some(libc::SIGSYS) {
        let finding = "io_uring kills whoever calls it (SIGSYS): a seccomp filter does that";
        return Found::problem(BLOCKED, finding)
            .so("A program that only tries io_uring dies of it")
            .fix("export INFLIGHT_BACKEND=threads");
    }
    // The kernel has been asked for its operations by io_uring_register, which is as old as rings.
    let asked = match setup {
        Some(Ok(())) => ring
            .errno("operations")
            .filter(|asked| is_denied(*asked))
            .or(setup),
        setup => setup,
    };
    match asked {
        Some(Ok(())) => Found::ok(BLOCKED, "this process may use io_uring"),
        Some(Err(errno)) => refused(errno, facts),
        None => {
            let why = ring
                .failure()
                .unwrap_or_else(|| "it said nothing".to_owned());
            Found::unknown(
                BLOCKED,
                format!("the process that was to ask failed: {why}"),
            )
        }
    }
}

/// Whether this is how a filter answers; a kernel before 5.6 does not know the question (EINVAL).
fn is_denied(answer: Result<(), i32>) -> bool {
    matches!(answer, Err(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

fn refused(errno: i32, facts: &Facts) -> Found {
    let Denial { finding, fix } = denied::explain(errno, facts);
    Found::problem(BLOCKED, finding)
        .so(
            "What is not cached takes threads instead, but for direct transfers where io_submit \
            is allowed: a higher cost for each operation",
        )
        .fix(fix)
}

fn features(ring: &Ring) -> Found {
    let (flags, operations) = (ring.lacks("flag"), ring.lacks("operation"));
    let mut missing: Vec<&str> = flags.clone();
    missing.extend(&operations);
    if missing.is_empty() {
        return Found::ok(FEATURES, "rings can do all that is of use for disks");
    }
    let finding = format!("rings lack {}", missing.join(", "));
    let newer = "a newer kernel: 6.1 for defer-taskrun, 6.6 for no-sqarray";
    if flags.contains(&"defer-taskrun") {
        return Found::warning(FEATURES, finding)
            .so("The library does without rings unless it is told INFLIGHT_BACKEND=uring")
            .fix(newer);
    }
    Found::note(FEATURES, finding)
        .so("What is missing is done another way, a little slower")
        .fix(newer)
}

fn choice(ring: &Ring) -> Found {
    match ring.library() {
        Some(("uring", why)) => Found::ok(CHOICE, format!("the library would use io_uring: {why}")),
        Some(("aio", why)) => {
            let finding = format!("the library would use io_submit, and threads: {why}");
            Found::note(CHOICE, finding).so(
                "Direct transfers are as fast as by a ring; syncs, and what is neither direct \
                    nor cached, take threads",
            )
        }
        Some(("none", why)) => Found::problem(CHOICE, no_file(why))
            .so(NO_FILE_SO)
            .fix(NO_FILE_FIX),
        Some((_, why)) => Found::note(CHOICE, format!("the library would use threads: {why}")),
        None => Found::unknown(CHOICE, "what the library would use was not found out")
            .so("The process that asked did not live to tell"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Facts = Facts {
        disabled: Some(0),
        filtered: false,
    };

    #[test]
    fn a_refusal_is_a_problem_with_a_fix() {
        let found = judge(&Ring::said(&format!("setup={}\n", libc::EPERM), 0), &FREE);
        assert_eq!(found.line.status, Status::Problem);
        assert!(found.line.finding.contains("no sysctl") && !found.line.fix.is_empty());
    }

    #[test]
    fn being_killed_half_way_is_told_from_a_failure() {
        let half = format!("setup=ok\noperations={}\n", libc::EPERM);
        let half = judge(&Ring::said(&half, 0), &FREE);
        assert_eq!(half.line.status, Status::Problem, "{half:?}");
        let killed = judge(&Ring::said("setup=ok\n", libc::SIGSYS), &FREE);
        assert_eq!(killed.line.status, Status::Problem);
        assert!(killed.line.fix.contains("INFLIGHT_BACKEND=threads"));
        let failed = judge(&Ring::said("", 1 << 8), &FREE);
        assert_eq!(failed.line.status, Status::Unknown);
        assert!(failed.line.finding.contains("exit status: 1"), "{failed:?}");
    }

    #[test]
    fn a_library_without_an_engine_is_a_problem() {
        let found = choice(&Ring::said("backend none=nothing is demanded\n", 0));
        assert_eq!(found.line.status, Status::Problem);
        assert_eq!(
            found.line.finding,
            "no file can be opened: nothing is demanded"
        );
        let found = choice(&Ring::said("backend threads=asked for\n", 0));
        assert_eq!(found.line.status, Status::Note);
        assert!(
            found
                .line
                .finding
                .starts_with("the library would use threads")
        );
    }

    #[test]
    fn what_rings_lack_is_named() {
        let old = "setup=ok\nflag submit-all=ok\nflag defer-taskrun=22\noperation read=ok\n";
        let found = features(&Ring::said(old, 0));
        assert_eq!(found.line.status, Status::Warning);
        assert_eq!(found.line.finding, "rings lack defer-taskrun");
        let new = "flag submit-all=ok\noperation statx=no\n";
        let found = features(&Ring::said(new, 0));
        assert_eq!(found.line.status, Status::Note);
        assert!(found.line.finding.contains("statx"));
    }
}
