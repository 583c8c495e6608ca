//! Each denial of `cargo xtask under` is seen to deny, by asking the kernel from inside.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .output()
        .expect("cargo built it")
}

fn probe_under(denial: &str) -> Output {
    xtask(&["under", denial, "--", env!("CARGO_BIN_EXE_xtask"), "probe"])
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn eperm_answers_eperm() {
    let output = probe_under("eperm");
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("io_uring: EPERM"), "{output:?}");
}

#[test]
fn enosys_answers_enosys() {
    let output = probe_under("enosys");
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("io_uring: ENOSYS"), "{output:?}");
}

#[test]
fn kill_kills_whoever_calls_io_uring_and_no_one_else() {
    assert_eq!(probe_under("kill").status.signal(), Some(31), "SIGSYS");
    assert!(xtask(&["under", "kill", "--", "true"]).status.success());
}

#[test]
fn memlock_binds_root_as_well() {
    let output = probe_under("memlock");
    let expected = "locked memory: 65536 bytes\n";
    assert!(stdout(&output).contains(expected), "{output:?}");
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    let output = xtask(&["under", "eperm", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let output = xtask(&["under", "eperm", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-command"));
}
