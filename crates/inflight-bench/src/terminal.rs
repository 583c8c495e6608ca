//! What is asked of a terminal.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Columns where nobody tells how many there are, as in a file.
const USUAL_COLUMNS: usize = 120;

/// The columns of a terminal; where there is none, those that COLUMNS tells, or the usual number.
pub(crate) fn columns(stream: impl AsFd + IsTerminal) -> usize {
    let size = stream.is_terminal().then(|| tcgetwinsize(stream));
    match size {
        Some(Ok(size)) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => told().unwrap_or(USUAL_COLUMNS),
    }
}

/// What the environment tells, as for a pipe into a pager.
fn told() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok()?.parse().ok()?;
    (columns > 0).then_some(columns)
}
