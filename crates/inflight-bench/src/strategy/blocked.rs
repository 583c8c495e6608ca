//! Setting a ring up, and the reason if there is none.
//!
//! With `INFLIGHT_BACKEND=threads` or `aio` no ring is even tried: there are sandboxes that kill
//! for it.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Unavailable;
use crate::denied::{self, Denial, Facts};
use crate::measure::host;

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
            Err(error) => return Err(explain(&error)),
            Ok(ring) => return Ok(ring),
        }
    }
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

fn explain(error: &io::Error) -> Unavailable {
    let facts = Facts {
        disabled: host::io_uring_disabled(),
        filtered: host::seccomp() == Some(2),
    };
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let Denial { finding, fix } = denied::explain(errno, &facts);
    Unavailable {
        reason: finding,
        denied: Some(fix),
    }
}
