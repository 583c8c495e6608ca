//! The result: as text on stdout, or as JSON where it was asked for.
#![allow(unsafe_code)]

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, Result};
use inflight_report::Record;
use inflight_report::text::{self, Style};

/// Columns where nobody tells how many there are, as in a file.
const USUAL_COLUMNS: u16 = 120;

/// Shows the record; `-` as file means JSON on stdout, instead of the text.
pub(crate) fn show(record: &Record, export_json: Option<&Path>) -> Result<()> {
    let json = || serde_json::to_string_pretty(record).map(|text| text + "\n");
    if export_json == Some(Path::new("-")) {
        stdout().write_all(json()?.as_bytes())?;
        return Ok(());
    }
    if let Some(file) = export_json {
        fs::write(file, json()?)
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let style = Style {
        width: usize::from(columns()),
        colour: colour(),
    };
    stdout().write_all(text::screen(record, style).as_bytes())?;
    Ok(())
}

/// As the terminal and NO_COLOR and its relatives want it.
fn colour() -> bool {
    AutoStream::choice(&stdout()) != ColorChoice::Never
}

fn columns() -> u16 {
    if !stdout().is_terminal() {
        return USUAL_COLUMNS;
    }
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the kernel fills memory of the right type, if the descriptor is a terminal.
    unsafe { libc::ioctl(stdout().as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) };
    // SAFETY: the structure is made of integers and was zeroed.
    let size = unsafe { size.assume_init() };
    if size.ws_col == 0 {
        USUAL_COLUMNS
    } else {
        size.ws_col
    }
}
