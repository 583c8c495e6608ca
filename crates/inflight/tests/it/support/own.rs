//! Tests in processes of their own, and forks.
//!
//! Whatever changes the whole process, or counts what there is in it, runs in this binary, started
//! again for one test. What hangs there or in a forked child is ended by an alarm, so that it
//! fails.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::{Duration, Instant};

use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use super::{patience, say};

/// Set in a process that [`rerun`] has started.
const OWN_PROCESS: &str = "INFLIGHT_TEST_OWN_PROCESS";

/// Runs `body` in a process of its own, which is this test of the module `module_path!()`, started
/// again.
pub(crate) fn in_own_process(module: &str, test: &str, body: impl FnOnce()) {
    in_process_of(rerun(module, test), body);
}

/// As [`in_own_process`], by a command from [`rerun`] that may say more of the process.
pub(crate) fn in_process_of(mut command: Command, body: impl FnOnce()) {
    if is_rerun() {
        set_alarm(alarm_seconds());
        return body();
    }
    let output = command.output().expect("this binary can be started");
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let has_passed = out.contains("test result: ok. 1 passed;");
    assert!(has_passed, "there is no such test: {command:?}\n{out}");
    err.lines()
        .filter(|line| line.starts_with("skipped:") || line.starts_with("awaited:"))
        .for_each(say);
}

/// This binary, to run one test of a module in a process of its own.
pub(crate) fn rerun(module: &str, test: &str) -> Command {
    let (_, module) = module.split_once("::").expect("tests are in modules");
    let mut command = Command::new(env::current_exe().expect("this binary has a path"));
    command.arg(format!("{module}::{test}"));
    command.args(["--exact", "--test-threads=1", "--nocapture"]);
    command.env(OWN_PROCESS, "1");
    command
}

/// Whether this process is one that [`rerun`] has started.
pub(crate) fn is_rerun() -> bool {
    env::var_os(OWN_PROCESS).is_some()
}

/// After so many a process that hangs is ended; longer than any takes on a slow machine.
pub(crate) fn alarm_seconds() -> u32 {
    u32::try_from(5 * patience().as_secs()).expect("some minutes")
}

/// Ends this process after so many seconds.
pub(crate) fn set_alarm(seconds: u32) {
    // SAFETY: no memory is involved.
    unsafe { libc::alarm(seconds) };
}

/// From here on, a call that has this number at this place answers EIO on this thread and those it
/// starts.
pub(crate) fn fails_with(call: i64, place: u8, number: i32) {
    let number = u64::try_from(number).expect("it is not negative");
    let condition = SeccompCondition::new(place, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number)
        .expect("it is sound");
    let rule = SeccompRule::new(vec![condition]).expect("it is sound");
    let rules = BTreeMap::from([(call, vec![rule])]);
    let action = SeccompAction::Errno(libc::EIO.unsigned_abs());
    let arch = env::consts::ARCH.try_into().expect("it is sound");
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, action, arch).expect("it is sound");
    let program: seccompiler::BpfProgram = filter.try_into().expect("it is sound");
    apply_filter(&program).expect("it is sound");
}

/// Forks and runs `body` in the child, which has to end with 0: without a panic. Where the child
/// starts threads, [`settle`] first.
pub(crate) fn in_forked_child(body: impl FnOnce()) {
    let child = fork();
    if child == 0 {
        end_child(catch_unwind(AssertUnwindSafe(body)).is_ok());
    }
    let status = end_of(child);
    assert!(status.success(), "the child: {status}");
}

/// Forks, and yields the number of the child, or 0 in the child, which has an alarm.
pub(crate) fn fork() -> libc::pid_t {
    let seconds = alarm_seconds();
    // SAFETY: no memory is involved; what the child may do with this library is what is tested.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        set_alarm(seconds);
    }
    child
}

/// A waker that forks when it is cloned, keeps the child's number there, and comes back in both.
pub(crate) fn forks_when_cloned(child: &'static AtomicI32) -> Waker {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), |_| ());
    fn clone(child: *const ()) -> RawWaker {
        let pid = fork();
        // SAFETY: only `forks_when_cloned` uses it, with one that lasts.
        unsafe { &*child.cast::<AtomicI32>() }.store(pid, Ordering::SeqCst);
        RawWaker::new(Waker::noop().data(), Waker::noop().vtable())
    }
    let child: *const AtomicI32 = child;
    // SAFETY: what is cloned is the waker of nobody, and the others do nothing.
    unsafe { Waker::from_raw(RawWaker::new(child.cast(), &VTABLE)) }
}

/// Ends a forked child, without the exit handlers, which belong to the parent.
pub(crate) fn end_child(is_well: bool) -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::_exit(i32::from(!is_well)) }
}

/// Waits for a child to end.
pub(crate) fn end_of(child: libc::pid_t) -> ExitStatus {
    let mut status = 0;
    loop {
        // SAFETY: `status` is ours to be filled.
        let answer = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if answer == child {
            return ExitStatus::from_raw(status);
        }
        let cause = io::Error::last_os_error();
        assert_eq!(cause.kind(), io::ErrorKind::Interrupted, "{cause}");
    }
}

/// Waits until all other threads sleep, so that a child may be forked that starts threads.
///
/// A thread that starts or ends takes a lock that the standard library has for all of them
/// (`thread_info` of its `stack_overflow`). A child that is forked at this moment has it locked for
/// ever, and a thread that it starts waits for it.
pub(crate) fn settle() {
    let begun = Instant::now();
    let mut before = None;
    loop {
        let now = others_asleep();
        if now.is_some() && now == before {
            return;
        }
        assert!(begun.elapsed() < patience(), "the other threads are busy");
        before = now;
        thread::sleep(Duration::from_millis(1));
    }
}

/// The other threads of this process, if all of them sleep.
fn others_asleep() -> Option<Vec<PathBuf>> {
    let this = fs::read_link("/proc/thread-self").expect("procfs is there");
    let tasks = fs::read_dir("/proc/self/task").expect("procfs is there");
    let tasks = tasks.map(|task| task.expect("it can be listed").path());
    let others = tasks.filter(|task| task.file_name() != this.file_name());
    let asleep = |task: PathBuf| {
        // One that is gone meanwhile has just ended. See proc_pid_stat(5): the name may be any.
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        let (_, state) = stat.rsplit_once(") ")?;
        state.starts_with('S').then_some(task)
    };
    others.map(asleep).collect()
}
