//! Where io_uring or locked memory is refused.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use inflight_report::doctor::{Examination, Status};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::{after, can, can_mount, doctor, examine, is_root, line, read};
use crate::support::directory;

/// Runs a command under a filter that gives this answer to these calls.
pub(crate) fn filtered(command: &mut Command, calls: &[i64], answer: SeccompAction) -> Output {
    let calls: BTreeMap<i64, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, machine).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    // A filter is the thread's own, and that of the processes it starts.
    let run = || {
        seccompiler::apply_filter(&program).unwrap();
        command.output().unwrap()
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
}

const ALL: [i64; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

fn under(calls: &[i64], answer: SeccompAction) -> (Option<i32>, Examination) {
    let directory = directory();
    let output = filtered(&mut doctor(directory.path()), calls, answer);
    (output.status.code(), read(&output))
}

#[test]
fn a_filter_that_answers_is_named() {
    for (errno, shown) in [
        (libc::EPERM, "not permitted"),
        (libc::ENOSYS, "not implemented"),
    ] {
        let answer = SeccompAction::Errno(errno.unsigned_abs());
        let (code, examination) = under(&ALL, answer);
        assert_eq!(code, Some(3));
        let found = line(&examination, "io-uring-blocked");
        assert_eq!(found.status, Status::Problem);
        assert!(found.finding.contains("seccomp filter"), "{found:?}");
        assert!(found.finding.contains(shown), "{found:?}");
        assert!(found.fix.contains("--security-opt seccomp="), "{found:?}");
        let backend = line(&examination, "backend");
        // Linux AIO, where the kernel has them.
        assert!(backend.finding.contains("threads: "), "{backend:?}");
    }
    let older = [libc::SYS_io_setup, libc::SYS_io_submit];
    let calls = [&ALL[..], &older].concat();
    let answer = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let (_, examination) = under(&calls, answer);
    let backend = line(&examination, "backend");
    assert!(backend.finding.contains("would use threads"), "{backend:?}");
    assert!(backend.finding.contains("io_submit"), "{backend:?}");
}

#[test]
fn a_filter_that_kills_does_not_kill_the_doctor() {
    let (code, examination) = under(&ALL, SeccompAction::KillProcess);
    assert_eq!(code, Some(3));
    let found = line(&examination, "io-uring-blocked");
    assert_eq!(found.status, Status::Problem);
    assert!(found.finding.contains("SIGSYS"), "{found:?}");
    assert_eq!(found.fix, "export INFLIGHT_BACKEND=threads");
    assert_eq!(line(&examination, "memlock").status, Status::Unknown);
}

#[test]
fn a_filter_that_kills_after_the_set_up_is_seen_as_well() {
    let (code, examination) = under(&ALL[1..], SeccompAction::KillProcess);
    assert_eq!(code, Some(3));
    let found = line(&examination, "io-uring-blocked");
    assert!(found.finding.contains("SIGSYS"), "{found:?}");
}

#[test]
fn a_filter_for_the_calls_after_the_set_up_is_named() {
    for calls in [&ALL[1..], &ALL[1..2], &ALL[2..]] {
        let answer = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let (code, examination) = under(calls, answer);
        assert_eq!(code, Some(3), "{calls:?}");
        let found = line(&examination, "io-uring-blocked");
        assert!(found.finding.contains("seccomp filter"), "{found:?}");
        // What a refusal hides is not what the kernel lacks.
        let features = "io-uring-features";
        assert!(examination.lines.iter().all(|line| line.id != features));
    }
}

/// The kernel's switch is one for the whole machine, so it stays as it is: a file that says so is
/// put in its place, and a filter gives the answer that it would.
#[test]
fn the_sysctl_is_told_from_a_filter() {
    let test = "the_sysctl_is_told_from_a_filter";
    let sysctl = "/proc/sys/kernel/io_uring_disabled";
    if !can_mount(test) || fs::metadata(sysctl).is_err() {
        println!("skipped: {test}: no mounts or no {sysctl}");
        return;
    }
    let directory = directory();
    for (value, told) in [("2", "switched off"), ("1", "one group")] {
        let file = directory.path().join("value");
        fs::write(&file, format!("{value}\n")).unwrap();
        let script = format!("mount --bind '{}' {sysctl}", file.display());
        let answer = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let output = filtered(&mut after(&script, directory.path()), &ALL, answer);
        let examination = read(&output);
        let found = line(&examination, "io-uring-blocked");
        assert!(found.finding.contains(told), "{found:?}");
        assert!(
            found.finding.contains("seccomp filter as well"),
            "{found:?}"
        );
        assert!(
            found.fix.starts_with("sudo sysctl kernel.io_uring_"),
            "{found:?}"
        );
    }
}

#[test]
fn little_locked_memory_is_told_where_it_binds() {
    let test = "little_locked_memory_is_told_where_it_binds";
    // Other tests of the same user may hold rings, so it is a user without any.
    let drop = [
        "--bounding-set",
        "-ipc_lock",
        "--inh-caps",
        "-ipc_lock",
        "true",
    ];
    if !is_root() || !can(test, "setpriv", &drop) || !can(test, "prlimit", &["true"]) {
        println!("skipped: {test}: needs root, setpriv and prlimit");
        return;
    }
    let directory = directory();
    let plain = doctor(directory.path());
    let mut limited = Command::new("prlimit");
    limited
        .args(["--memlock=65536:65536", "setpriv"])
        .args(&drop[..4])
        .arg(plain.get_program())
        .args(plain.get_args());
    let (_, examination) = examine(&mut limited);
    if line(&examination, "io-uring-blocked").status == Status::Problem {
        println!("skipped: {test}: not even a small ring is granted here");
        return;
    }
    let scarce = line(&examination, "memlock");
    assert_eq!(scarce.status, Status::Warning, "{scarce:?}");
    assert!(scarce.finding.contains("64 KiB"), "{scarce:?}");
    assert!(
        scarce.fix.contains("prlimit --memlock=unlimited"),
        "{scarce:?}"
    );
    let (_, examination) = examine(&mut doctor(directory.path()));
    let plenty = line(&examination, "memlock");
    assert_eq!(plenty.status, Status::Ok, "{plenty:?}");
    assert!(plenty.finding.contains("CAP_IPC_LOCK"), "{plenty:?}");
}
