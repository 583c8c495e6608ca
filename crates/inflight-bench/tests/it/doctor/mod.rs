//! `inflight doctor`: each condition is made for real where this machine allows it, and the line is
//! looked for.

mod bench;
mod fuse;
pub(crate) mod groups;
pub(crate) mod places;
mod plain;
pub(crate) mod refused;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use inflight_report::doctor::{Examination, Line, Status};

use crate::support::{inflight, stderr};

/// An examination of a place, as JSON.
fn doctor(target: &Path) -> Command {
    let mut command = inflight();
    command
        .arg("doctor")
        .arg(target)
        .arg("--json")
        .stdin(Stdio::null());
    command
}

/// What an examination said.
fn read(output: &Output) -> Examination {
    let read = serde_json::from_slice(&output.stdout);
    read.unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

fn examine(command: &mut Command) -> (i32, Examination) {
    let output = command.output().unwrap();
    (output.status.code().unwrap(), read(&output))
}

/// The line with this id that is not ok, or else the one that is.
fn line<'a>(examination: &'a Examination, id: &str) -> &'a Line {
    let of_it = || examination.lines.iter().filter(|line| line.id == id);
    let bad = of_it().find(|line| line.status != Status::Ok);
    let found = bad.or_else(|| of_it().next());
    found.unwrap_or_else(|| panic!("no line on {id}: {examination:?}"))
}

fn names(examination: &Examination) -> Vec<&str> {
    let stack = &examination.target.stack;
    stack.iter().map(|device| device.name.as_str()).collect()
}

pub(crate) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// Whether a command is there and can do what it is asked; says so if not.
pub(crate) fn can(test: &str, program: &str, args: &[&str]) -> bool {
    let tried = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output();
    let works = tried.is_ok_and(|output| output.status.success());
    if !works {
        println!(
            "skipped: {test}: `{program} {}` does not work here",
            args.join(" ")
        );
    }
    works
}

/// An examination after a few commands in a mount namespace of its own: what they mount, nobody
/// else sees, and it is gone with the process.
fn after(script: &str, target: &Path) -> Command {
    let doctor = doctor(target);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(format!("{script}\nexec \"$0\" \"$@\""))
        .arg(doctor.get_program())
        .args(doctor.get_args())
        .stdin(Stdio::null());
    command
}

/// Whether mount namespaces can be made.
pub(crate) fn can_mount(test: &str) -> bool {
    can(
        test,
        "unshare",
        &["--mount", "--propagation", "private", "true"],
    )
}
