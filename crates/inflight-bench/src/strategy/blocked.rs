//! Why a ring cannot be set up: sysctl, seccomp and memlock told apart, each with its remedy.
//!
//! With `INFLIGHT_BACKEND=threads` no ring is even tried: there are sandboxes that kill for it.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Unavailable;
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
        Some(backend) if backend == "threads" => {
            let reason = "io_uring was not tried, because INFLIGHT_BACKEND is `threads`".to_owned();
            Err(Unavailable {
                reason,
                io_uring_blocked: true,
            })
        }
        _ => Ok(()),
    }
}

fn explain(error: &io::Error) -> Unavailable {
    let facts = Facts {
        disabled: host::io_uring_disabled(),
        filtered: host::seccomp() == Some(2),
        memlock_bytes: host::memlock_bytes(),
    };
    Unavailable {
        reason: reason(error, &facts),
        io_uring_blocked: true,
    }
}

struct Facts {
    disabled: Option<u32>,
    filtered: bool,
    memlock_bytes: Option<u64>,
}

fn reason(error: &io::Error, facts: &Facts) -> String {
    match (error.raw_os_error(), facts.disabled) {
        (Some(libc::EPERM), Some(2)) => "io_uring is switched off on this machine: \
            `sysctl kernel.io_uring_disabled=0` allows it"
            .to_owned(),
        (Some(libc::EPERM), Some(1)) => "io_uring is allowed to one group only: \
            `sysctl kernel.io_uring_disabled=0`, or join the group in kernel.io_uring_group"
            .to_owned(),
        (Some(libc::EPERM | libc::ENOSYS | libc::EACCES), _) if facts.filtered => format!(
            "io_uring is blocked by a seccomp filter ({error}), as container runtimes set by \
             default: allow io_uring_setup, io_uring_enter and io_uring_register in its profile"
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            format!("io_uring is forbidden ({error}), probably by a security module")
        }
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring".to_owned(),
        (Some(libc::ENOMEM), _) => {
            let limit = match facts.memlock_bytes {
                Some(bytes) => format!("RLIMIT_MEMLOCK is {bytes} bytes"),
                None => "memory is short".to_owned(),
            };
            format!("io_uring got no memory ({limit}): raise it with `ulimit -l`")
        }
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(errno: i32, disabled: Option<u32>, filtered: bool) -> String {
        let facts = Facts {
            disabled,
            filtered,
            memlock_bytes: Some(65536),
        };
        reason(&io::Error::from_raw_os_error(errno), &facts)
    }

    #[test]
    fn causes_are_told_apart() {
        assert!(told(libc::EPERM, Some(2), true).contains("sysctl kernel.io_uring_disabled=0"));
        assert!(told(libc::EPERM, Some(1), false).contains("io_uring_group"));
        assert!(told(libc::EPERM, Some(0), true).contains("seccomp"));
        assert!(told(libc::ENOSYS, None, true).contains("seccomp"));
        assert!(told(libc::ENOSYS, None, false).contains("no io_uring"));
        assert!(told(libc::EPERM, Some(0), false).contains("security module"));
        assert!(told(libc::ENOMEM, Some(0), false).contains("65536"));
    }
}
