//! Setting a ring up, and the reason if there is none.
//!
//! With `INFLIGHT_BACKEND=threads` or `aio` no ring is even tried: there are sandboxes that kill
//! for it.

use std::io;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use io_uring::IoUring;

use super::Unavailable;
use crate::denied::{self, Denial, Facts};

/// Sets a ring up. The kernel refunds the memory of closed rings late, so that ENOMEM is
/// tried again for a moment before it counts.
pub(crate) fn open_ring<T>(set_up: impl Fn() -> io::Result<T>) -> Result<T, Unavailable> {
    check_allowed()?;
    let mut tries = 0;
    loop {
        match set_up() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && tries < 5 => {
                tries += 1;
                sleep(Duration::from_millis(1 << tries));
            }
            Err(error) => return Err(explained(errno_of(&error))),
            Ok(ring) => {
                return match *NOT_ENTERED.get_or_init(refuses_to_be_entered) {
                    None => Ok(ring),
                    Some(errno) => Err(explained(errno)),
                };
            }
        }
    }
}

/// Why rings cannot be entered, if they cannot: a filter can allow the set-up and refuse the rest.
static NOT_ENTERED: OnceLock<Option<i32>> = OnceLock::new();

/// A ring of its own is entered, as who has one with a thread of the kernel need not. Where there
/// is no memory for it, nothing has been refused.
fn refuses_to_be_entered() -> Option<i32> {
    let ring = IoUring::new(1).ok()?;
    ring.submit().err().map(|error| errno_of(&error))
}

/// Refuses where the user has forbidden io_uring, as the library does.
pub(crate) fn check_allowed() -> Result<(), Unavailable> {
    match std::env::var_os("INFLIGHT_BACKEND") {
        Some(backend) if backend == "threads" || backend == "aio" => {
            let backend = backend.display();
            let reason = format!("io_uring was not tried, because INFLIGHT_BACKEND is `{backend}`");
            Err(Unavailable {
                reason,
                denied: Some("unset INFLIGHT_BACKEND"),
            })
        }
        _ => Ok(()),
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn explained(errno: i32) -> Unavailable {
    let Denial { finding, fix } = denied::explain(errno, &Facts::of_process());
    Unavailable {
        reason: finding,
        denied: Some(fix),
    }
}
