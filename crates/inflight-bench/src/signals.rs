//! Ctrl-C and its relatives. While a measurement runs, the first signal lets the current cell
//! finish and keeps the results; at any other time, and from the second on, the test file is
//! removed and the program ends at once.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{exit, scratch};

static MEASURING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Starts the thread that waits for signals.
pub(crate) fn watch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .context("signal handlers cannot be installed")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                let first = !INTERRUPTED.swap(true, SeqCst);
                if first && MEASURING.load(SeqCst) {
                    // If stderr is gone, nobody wanted to read this.
                    _ = writeln!(
                        std::io::stderr(),
                        "\ninterrupted: finishing the current cell"
                    );
                    continue;
                }
                scratch::remove_and_exit(exit::INTERRUPTED);
            }
        })?;
    Ok(())
}

/// Whether a signal has come.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(SeqCst)
}

/// From now until dropped, the first signal does not end the program at once.
pub(crate) struct Patience;

impl Patience {
    pub(crate) fn begin() -> Self {
        MEASURING.store(true, SeqCst);
        Self
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        MEASURING.store(false, SeqCst);
    }
}
