//! `cargo xtask check`: everything that must hold before a commit.
//!
//! The order is that of the cheapest failure first. Every step uses the same profile, features and
//! set of packages, because cargo builds anew for each combination: the tests that run again in
//! [`environments`] are the very programs that the test step ran.

mod binaries;
mod environments;
mod site;
mod steps;

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{models, probe, tidy};
use steps::Steps;

/// The targets with tests: libraries, programs and `tests/`. Examples are built by clippy.
const TESTS: [&str; 6] = [
    "test",
    "--workspace",
    "--all-features",
    "--lib",
    "--bins",
    "--tests",
];

/// Runs every step; the first failure ends the run and names its step.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::start();
    steps.step("format", || {
        run_to_success(cargo("fmt").args(["--all", "--check"]))
    })?;
    steps.step("tidy", tidy::run)?;
    steps.step("clippy", || {
        let everything = ["--workspace", "--all-targets", "--all-features"];
        run_to_success(
            cargo("clippy")
                .args(everything)
                .args(locked())
                .args(["--", "-Dwarnings"]),
        )
    })?;

    let mut programs = Vec::new();
    steps.step("build the tests", || {
        programs = binaries::build()?;
        Ok(())
    })?;
    steps.step("tests", tests)?;
    steps.step("models of the mailbox", models::loom)?;
    steps.step("tests in documentation", || {
        let doc_tests = ["--workspace", "--all-features", "--doc"];
        run_to_success(cargo("test").args(doc_tests).args(locked()))
    })?;
    steps.step("documentation", || {
        let own = ["--workspace", "--no-deps", "--all-features"];
        // With examples, the dependencies have the features that clippy has checked them with.
        run_to_success(
            cargo("doc")
                .args(own)
                .args(["--lib", "--bins", "--examples"])
                .args(locked())
                .env("RUSTDOCFLAGS", "-Dwarnings"),
        )
    })?;

    environments::run(&mut steps, &programs)?;
    steps.finish();
    Ok(())
}

/// The tests as a user runs them; what they require of the machine is said first.
fn tests() -> Result<()> {
    let mut command = cargo_tests();
    // Left over from an experiment, this would decide what the tests are about to find out.
    command.env_remove("INFLIGHT_BACKEND");
    match env::var("INFLIGHT_REQUIRE") {
        Ok(required) => println!("INFLIGHT_REQUIRE={required}: another backend is a failure"),
        Err(_) => match (probe::io_uring().as_str(), in_ci()) {
            (probe::ALLOWED, true) => {
                println!("INFLIGHT_REQUIRE=uring: this machine has io_uring");
                command.env("INFLIGHT_REQUIRE", "uring");
            }
            (probe::ALLOWED, false) => {}
            (refusal, _) => println!("no io_uring here ({refusal}): its tests are skipped"),
        },
    }
    run_to_success(&mut command)
}

/// `cargo test` for every target of [`TESTS`].
fn cargo_tests() -> Command {
    let (subcommand, arguments) = TESTS
        .split_first()
        .expect("TESTS begins with the subcommand");
    let mut command = cargo(subcommand);
    command.args(arguments).args(locked());
    command
}

/// The cargo that runs this program, at the root of the repository.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(crate::repository()).arg(subcommand);
    command
}

/// CI builds what the lock file says, and fails if that is not what the manifests say.
pub(crate) fn locked() -> Option<&'static str> {
    let lock_file = crate::repository().join("Cargo.lock");
    (in_ci() && lock_file.exists()).then_some("--locked")
}

fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

pub(crate) fn run_to_success(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot run cargo")?;
    let subcommand = command.get_args().next().unwrap_or_default().display();
    ensure!(status.success(), "cargo {subcommand}: {status}");
    Ok(())
}
