//! The `inflight` command: which way of doing I/O is fastest on this disk, by how much, and how
//! sure that is.
//!
//! In order of flow: [`cli`] reads flags, [`plan`] turns them and the [`profile`]s into cells,
//! [`target`] makes the test data, [`measure`] runs each [`strategy`] and fills a record,
//! [`show`] hands it to the reports of `inflight-report`. Only [`progress`] and [`show`] print.

mod cli;
mod profile;
mod size;

mod plan;

mod leftover;
mod scratch;
mod target;

mod measure;
mod strategy;

mod assemble;
mod bench;
mod findings;
mod progress;
mod show;

mod exit;
mod signals;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli::Command::Bench(flags) = cli::Cli::parse().command;
    match flags
        .into_options()
        .and_then(|options| bench::bench(&options))
    {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            anstream::eprintln!("inflight: {error:#}");
            ExitCode::from(exit::code_of(&error))
        }
    }
}
