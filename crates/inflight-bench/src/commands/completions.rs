//! `inflight completions SHELL`: what a shell needs to complete the flags.

use anyhow::Result;
use clap::{Args, ValueEnum};
use clap_complete::aot;

use crate::cli;
use crate::exit;
use crate::show;
use crate::strategy::Strategy;

/// The flags of `inflight completions`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The shell.
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions to stdout.
pub(crate) fn print(flags: &Flags, known: &[&'static dyn Strategy]) -> Result<u8> {
    let shell = match flags.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut text = Vec::new();
    aot::generate(shell, &mut cli::command(known), "inflight", &mut text);
    show::print(&String::from_utf8(text)?)?;
    Ok(exit::DONE)
}
