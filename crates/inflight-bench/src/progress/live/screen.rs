//! The terminal while it is the command's: another screen, and what is typed is not shown.
//!
//! Keys that send signals still send them, so Ctrl-C works as everywhere; only Ctrl-Z does
//! nothing, because a measurement that was stopped is worthless.

use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcsetattr,
};

/// Another screen without a cursor, and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// In a table of keys: none. `termios(3)`, `_POSIX_VDISABLE`.
const NO_KEY: u8 = 0;

/// How the terminal was, as long as it is ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Termios>> {
    // Nothing is half done if a thread panicked while it held the lock.
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the terminal.
///
/// # Errors
/// Whatever the terminal says; it is left as it was.
pub(super) fn enter() -> io::Result<()> {
    leave_on_panic();
    let stderr = stderr();
    let was = tcgetattr(&stderr)?;
    let mut ours = was.clone();
    ours.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
    ours.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
    *before() = Some(was);
    let entered = tcsetattr(&stderr, OptionalActions::Now, &ours);
    let entered = entered.and_then(|()| rustix::io::write(&stderr, ENTER));
    if let Err(error) = entered {
        leave();
        return Err(error.into());
    }
    Ok(())
}

/// Gives the terminal back as it was, if it is ours; what was typed is forgotten. Takes no lock of
/// stderr: whoever has that may wait for the terminal.
pub(crate) fn leave() {
    let Some(was) = before().take() else {
        return;
    };
    let stderr = stderr();
    // If the terminal is gone, nobody is left to see it.
    _ = rustix::io::write(stderr.as_fd(), LEAVE);
    _ = tcflush(stderr.as_fd(), QueueSelector::IFlush);
    _ = tcsetattr(stderr.as_fd(), OptionalActions::Now, &was);
}

/// Whether the terminal is still ours.
pub(super) fn is_ours() -> bool {
    before().is_some()
}

/// A panic of any thread is shown where it can be read.
fn leave_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let then = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            then(info);
        }));
    });
}
