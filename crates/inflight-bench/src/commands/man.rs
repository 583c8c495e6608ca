//! `inflight man [COMMAND]`: the manual pages, made of the flags and their help.

use anyhow::Result;
use clap::Args;
use clap_mangen::Man;

use crate::cli;
use crate::exit::{self, usage};
use crate::show;
use crate::strategy::Strategy;

/// The flags of `inflight man`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The page of this command, instead of the one that lists them.
    command: Option<String>,
}

/// Prints a page to stdout, as roff: `inflight man bench | man -l -`.
pub(crate) fn print(flags: &Flags, known: &[&'static dyn Strategy]) -> Result<u8> {
    let mut command = cli::command(known);
    // Names the subcommands `inflight-bench` and so on, as the first page refers to them.
    command.build();
    let page = match &flags.command {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                usage(format!(
                    "there is no command `{name}`: `inflight --help` lists them"
                ))
            })?
        }
    };
    let mut text = Vec::new();
    let source = concat!("inflight ", env!("CARGO_PKG_VERSION"));
    Man::new(page).source(source).render(&mut text)?;
    show::print(&String::from_utf8(text)?)?;
    Ok(exit::DONE)
}
