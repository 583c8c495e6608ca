//! `cargo xtask check`: everything that must hold before a commit.
//!
//! The order is that of the cheapest failure first. Everything is built by one step, and what
//! comes after it names the same profile, features and compiler, because cargo builds anew for each
//! combination. What then mostly waits is done two at a time: see [`steps`].

mod build;
mod environments;
mod examples;
mod pages;
mod site;
mod steps;

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{models, probe, tidy};
use build::Program;
pub(crate) use build::programs;
pub(crate) use environments::LESS;
pub(crate) use pages::in_place_of_rustdoc;
use steps::{Step, Steps, tell};

/// Runs every step; the first failure ends the run and names its step.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::start();
    steps.step("format", || {
        run_to_success(cargo("fmt").args(["--all", "--check"]))
    })?;
    steps.step("tidy", tidy::run)?;
    let (mut programs, mut examples) = (Vec::new(), Vec::new());
    steps.step("lints, and build of the tests", || {
        (programs, examples) = build::run()?;
        Ok(())
    })?;
    steps.step("examples", || examples::run(&examples))?;

    let required = required();
    let mut rest = vec![Step::new("models of the mailbox", |name| {
        told(name, &mut models::loom())
    })];
    rest.extend(programs.iter().map(|program| {
        let name = format!("tests of {}", program.name);
        Step::new(name, |name| told(name, &mut tests(program, required)))
    }));
    rest.push(Step::new("documentation", pages::run));
    rest.push(Step::new("lints without features", without_features));
    rest.extend(environments::steps(&programs));
    steps.together(rest)?;
    steps.finish();
    Ok(())
}

/// Most users take the library as it is; everything else here has all features.
fn without_features(name: &str) -> Result<()> {
    let mut clippy = cargo("clippy");
    clippy.args(["--package", build::LIBRARY, "--all-targets", "--quiet"]);
    clippy.args(locked()).args(["--", "--deny", "warnings"]);
    told(name, &mut clippy)
}

/// The backend that tests must find, if the environment does not say it; what is required of the
/// machine is said first.
fn required() -> Option<&'static str> {
    if let Ok(required) = env::var("INFLIGHT_REQUIRE") {
        println!("INFLIGHT_REQUIRE={required}: another backend is a failure\n");
        return None;
    }
    match (probe::io_uring().as_str(), in_ci()) {
        (probe::ALLOWED, true) => {
            println!("INFLIGHT_REQUIRE=uring: this machine has io_uring\n");
            Some("uring")
        }
        (probe::ALLOWED, false) => None,
        (refusal, _) => {
            println!("no io_uring here ({refusal}): its tests are skipped\n");
            None
        }
    }
}

/// The tests as `cargo test` runs them.
fn tests(program: &Program, required: Option<&str>) -> Command {
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.folder);
    // Left over from an experiment, this would decide what the tests are about to find out.
    command.env_remove("INFLIGHT_BACKEND");
    command.envs(required.map(|backend| ("INFLIGHT_REQUIRE", backend)));
    command
}

/// Runs a command in the name of a step.
fn told(name: &str, command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = tell(name, command).with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
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
