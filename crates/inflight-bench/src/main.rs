//! The `inflight` command, which is the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    inflight_bench::run(&[])
}
