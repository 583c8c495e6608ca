//! `cargo xtask loom` and `cargo xtask miri`: every order of a few threads, every rule of memory.
//!
//! Both run tests beside the code that the other tests cannot replace. loom replaces the locks and
//! tries the orders one after the other; Miri interprets the program and knows when a pointer may
//! not be used any more. Neither knows io_uring: what the kernel does is the business of
//! `crates/inflight/tests/torture`.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::check::{cargo, locked};
use crate::target;

/// The models, in a target directory of their own: their flag is another build of everything.
pub(crate) fn loom() -> Command {
    let mut command = cargo("test");
    command.args(["--package", "inflight", "--lib"]);
    command.args(locked());
    command.args(["_loom::", "--", "--nocapture"]);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target("loom"));
    command
}

/// Runs the tests beside the code under Miri, with so many seeds for its choices.
pub(crate) fn miri(seeds: u32) -> Result<()> {
    let nightly = ["run", "nightly", "cargo", "miri"];
    let mut version = Command::new("rustup");
    let version = version.args(nightly).arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        bail!(
            "no Miri here: rustup toolchain install nightly --component miri --component rust-src"
        );
    }
    let mut command = Command::new("rustup");
    command.current_dir(crate::repository()).args(nightly);
    command.args([
        "test",
        "--package",
        "inflight",
        "--features",
        "faulty",
        "--lib",
    ]);
    command.args(locked());
    // The policy is arithmetic without a pointer, with more rounds than Miri gets done.
    command.args(["--", "--skip", "policy::"]);
    // The clock and the temporary directory are those of this machine.
    let seeds = format!("-Zmiri-disable-isolation -Zmiri-many-seeds=0..{seeds}");
    command.env("MIRIFLAGS", seeds);
    // Asking for a ring is a system call that Miri does not know.
    command.env("INFLIGHT_BACKEND", "threads");
    command.env("CARGO_TARGET_DIR", target("miri"));
    let status = command.status().context("cannot run rustup")?;
    if !status.success() {
        bail!("cargo miri: {status}");
    }
    Ok(())
}
