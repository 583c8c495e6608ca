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
                let entered = *ENTERED.get_or_init(|| enter().map_err(|error| errno_of(&error)));
                return match entered {
                    Ok(()) => Ok(ring),
                    Err(errno) => Err(explained(errno)),
                };
            }
        }
    }
}

/// Whether rings may be entered: a filter can allow the set-up and refuse the rest.
static ENTERED: OnceLock<Result<(), i32>> = OnceLock::new();

/// A ring of its own is entered, as who has one with a thread of the kernel need not.
fn enter() -> io::Result<()> {
    IoUring::new(1)?.submit().map(|_| ())
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
