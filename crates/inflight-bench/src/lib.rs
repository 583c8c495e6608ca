//! The `inflight` command: which way of doing I/O is fastest on this disk, by how much, and how
//! sure that is.
//!
//! This library is the command; its program only calls [`run`]. It is a library so that ways of
//! reading which should not be part of the command, because of what they depend on, can be
//! measured by the same loop, in the same rounds as its own: each is a [`TaskStrategy`], and
//! `peers/` at the root of the repository has some. Nothing else is public.
//!
//! In order of flow: `cli` reads flags; `commands` are those that measure nothing. For `bench`,
//! `plan` turns flags and the `profile`s into cells, `target` makes the test data, `measure` runs
//! each `strategy` on the `work` of its profile and fills a record, `show` hands it to the reports
//! of `inflight-report`. Only `progress`, `show` and the commands print.

mod cli;
mod commands;
mod doctor;

mod profile;
mod size;
mod work;

mod plan;

mod leftover;
mod scratch;
mod target;

mod measure;
mod strategy;

mod assemble;
mod bench;
mod confirm;
mod denied;
mod dry_run;
mod explain;
mod exports;
mod findings;
mod progress;
mod reread;
mod show;
mod terminal;
mod text;
mod timetable;

mod exit;
mod signals;

#[cfg(feature = "certainty")]
mod certainty;

use std::process::ExitCode;

use cli::Command;
use inflight_report::text::clean;
use strategy::Strategy;

pub use strategy::tasks::{ReadJob, Task, TaskStrategy};
pub use strategy::{Modes, modes};

/// Runs the command with the arguments of this process; `extra` strategies can be chosen, and are
/// by default, like its own.
#[must_use]
pub fn run(extra: &'static [TaskStrategy]) -> ExitCode {
    let known = strategy::known(extra);
    let command = cli::parse(&known);
    match signals::outlive_long_files().and_then(|()| dispatch(command, &known)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // What a record or a name contains is not to control the terminal.
            let told = format!("{error:#}");
            let told: Vec<String> = told.split('\n').map(clean).collect();
            anstream::eprintln!("inflight: {}", told.join("\n"));
            ExitCode::from(exit::code_of(&error))
        }
    }
}

/// Measures how often the words of the command are wrong, and how far its figures are from fio's,
/// as `benches/certainty.rs` says.
///
/// # Errors
///
/// An argument that is not understood, or what cannot be measured here.
#[cfg(feature = "certainty")]
#[doc(hidden)]
pub fn certainty(args: &[String]) -> anyhow::Result<()> {
    certainty::run(args)
}

/// Runs one subcommand and returns the exit code.
fn dispatch(command: Command, known: &[&'static dyn Strategy]) -> anyhow::Result<u8> {
    match command {
        Command::Bench(flags) => {
            let options = flags.into_options(known)?;
            match options.dry_run {
                true => dry_run::print(&options),
                false => bench::bench(&options),
            }
        }
        Command::Compare(flags) => commands::compare::compare(&flags),
        Command::Merge(flags) => commands::merge::merge(&flags),
        Command::Show(flags) => commands::show::show(&flags),
        Command::Doctor(flags) => doctor::run(&flags),
        Command::Completions(flags) => commands::completions::print(&flags, known),
        Command::Man(flags) => commands::man::print(&flags, known),
    }
}
