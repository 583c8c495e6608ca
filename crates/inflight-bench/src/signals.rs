//! Ctrl-C and its relatives. From the first cell until the results are shown, the first signal
//! lets the current cell finish and keeps what was measured; at any other time, and from the
//! second on, the test file is removed and the program ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use anyhow::{Context, Result};
use libc::SIGXFSZ;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::measure::threads::NO_THREAD;
use crate::progress::Progress;
use crate::{exit, scratch};

static MEASURING: AtomicBool = AtomicBool::new(false);
/// The first signal that came; 0 while there was none.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Has a write that makes a file longer than `ulimit -f` allows fail with `EFBIG`, where the signal
/// would end the program and leave behind what it was writing.
pub(crate) fn outlive_long_files() -> Result<()> {
    // A handler is enough: nobody asks whether it has run.
    flag::register(SIGXFSZ, Arc::default()).context("signal handlers cannot be installed")?;
    Ok(())
}

/// Starts the thread that waits for signals.
pub(crate) fn watch(progress: Arc<Progress>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .context("signal handlers cannot be installed")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let first = FIRST.compare_exchange(0, signal, SeqCst, SeqCst).is_ok();
                if first && MEASURING.load(SeqCst) {
                    acknowledge(Arc::clone(&progress));
                    continue;
                }
                let _no_more = scratch::remove_all();
                let _silent = progress.silence();
                std::process::exit(exit_code().into());
            }
        })
        .context(NO_THREAD)?;
    Ok(())
}

/// Says so on a thread of its own: stderr may be a pipe that nobody reads, and the second signal
/// must be heard nevertheless.
fn acknowledge(progress: Arc<Progress>) {
    let say = move || progress.interrupted();
    // Without a thread nothing is said; it is done all the same.
    _ = std::thread::Builder::new().spawn(say);
}

/// Whether a signal has come.
pub(crate) fn interrupted() -> bool {
    FIRST.load(SeqCst) != 0
}

/// The exit code of a run that was interrupted, by the first signal.
pub(crate) fn exit_code() -> u8 {
    exit::stopped_by(FIRST.load(SeqCst))
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
