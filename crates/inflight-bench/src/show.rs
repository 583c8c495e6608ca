//! The result: as text on stdout, or in another form where that was asked for.

use std::io::{ErrorKind, Write, stdout};

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, Result};
use inflight_report::Record;
use inflight_report::text::{self, Style};

use crate::exports::{Exports, Inputs};
use crate::terminal;

/// Shows the record as text, or in the form that was asked for on stdout; then writes the files, so
/// that one that cannot be written costs nothing of what is shown.
pub(crate) fn show(record: &Record, exports: &Exports, inputs: &Inputs) -> Result<()> {
    let shown = match exports.on_stdout(record)? {
        Some(form) => print(&form),
        None => print(&text::screen(record, style())),
    };
    exports.write_files(record, inputs)?;
    shown
}

/// Writes to stdout; a reader that has seen enough, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("stdout cannot be written"),
    }
}

/// How the terminal is to be written to.
pub(crate) fn style() -> Style {
    Style {
        width: terminal::columns(stdout()),
        colour: colour(),
    }
}

/// As the terminal and NO_COLOR and its relatives want it.
fn colour() -> bool {
    AutoStream::choice(&stdout()) != ColorChoice::Never
}
