//! `cargo xtask loom`, `miri` and `sanitize`: every order of a few threads, every rule of memory.
//!
//! loom and Miri run tests beside the code that the other tests cannot replace. loom replaces the
//! locks and tries the orders one after the other; Miri interprets the program and knows when a
//! pointer may not be used any more. Neither knows io_uring: what the kernel does is the business
//! of `crates/inflight/tests/torture`. The sanitizers run all tests, and see what the program does
//! beside the kernel.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

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
    // The policy, and when a processor is yielded, are arithmetic without a pointer, with more
    // rounds than Miri gets done.
    command.args(["--", "--skip", "policy::", "--skip", "backend::yields"]);
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

/// What is looked for while the tests run.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Memory that is used after it was freed, or beyond its end. One test of `buffers::pools`
    /// fails, because no address is given out again, and one of `direct::memory`, because calls
    /// take too long then to be taken for those of memory.
    Address,
    /// Two threads at the same bytes. Needs the component rust-src. Some places within tokio are
    /// reported, because what the kernel passes on from one thread to another is not seen. Tests of
    /// `direct::memory` and `awaited::memory` fail, because calls take too long.
    Thread,
}

/// Runs the tests of the library with these names, or all, on the nightly toolchain.
pub(crate) fn sanitize(sanitizer: Sanitizer, names: &[String]) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(crate::repository());
    command.args(["run", "nightly", "cargo", "test", "--package", "inflight"]);
    command.args(["--lib", "--tests", "--no-fail-fast", "--all-features"]);
    // What is built for this machine's own use, as macros, is not looked at.
    command.args(["--target", "host-tuple"]);
    command.args(locked());
    let (name, directory) = match sanitizer {
        Sanitizer::Address => ("address", "asan"),
        Sanitizer::Thread => {
            // Else what the standard library does for threads is not seen.
            command.arg("-Zbuild-std");
            ("thread", "tsan")
        }
    };
    command.env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    // Tests forget memory on purpose, and engines with their threads.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    // Children of a fork start threads in some.
    command.env("TSAN_OPTIONS", "report_thread_leaks=0:die_after_fork=0");
    command.env("CARGO_TARGET_DIR", target(directory));
    command.arg("--").args(names);
    if matches!(sanitizer, Sanitizer::Address) {
        // It needs freed memory to come back, which the sanitizer puts off.
        command.args(["--skip", "a_new_pool_at_the_address_of_a_dead_one"]);
    }
    command
}
