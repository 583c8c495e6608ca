//! `cargo xtask probe`: what this environment grants to a program, in three lines.
//!
//! [`crate::check`] runs it inside every environment before the tests, because an environment that
//! denies nothing proves nothing.

use std::fs;
use std::io;

use anyhow::{Context, Result};

use crate::sys;

/// Printed for io_uring when the kernel would consider a ring.
pub(crate) const ALLOWED: &str = "allowed";

/// Prints io_uring, locked memory and user, one per line.
pub(crate) fn run() -> Result<()> {
    println!("io_uring: {}", io_uring());
    let limits = fs::read_to_string("/proc/self/limits").context("/proc/self/limits")?;
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    println!(
        "{}",
        locked_memory(&limits, &status).context("locked memory")?
    );
    println!(
        "user: {}",
        effective_user(&status).context("no Uid in /proc/self/status")?
    );
    Ok(())
}

/// `allowed`, or the name of the refusal.
pub(crate) fn io_uring() -> String {
    match sys::io_uring_refusal() {
        None => ALLOWED.to_owned(),
        Some(refusal) => errno_name(&refusal),
    }
}

fn errno_name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "EPERM".to_owned(),
        Some(libc::ENOSYS) => "ENOSYS".to_owned(),
        _ => error.to_string(),
    }
}

/// The hard limit, or `unlimited` for a process that the kernel does not count.
///
/// # Source
/// proc_pid_limits(5), proc_pid_status(5); capabilities(7): CAP_IPC_LOCK is bit 14.
fn locked_memory(limits: &str, status: &str) -> Option<String> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"))?;
    let hard = line.split_whitespace().nth(4)?;
    let capabilities = field(status, "CapEff:")?.split_whitespace().next()?;
    let exempt = u64::from_str_radix(capabilities, 16).ok()? & (1 << 14) != 0;
    let note = if exempt {
        " (CAP_IPC_LOCK: not counted)"
    } else {
        ""
    };
    Some(format!("locked memory: {hard} bytes{note}"))
}

fn effective_user(status: &str) -> Option<&str> {
    field(status, "Uid:")?.split_whitespace().nth(1)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str =
        "Max locked memory         65536                65536                bytes";

    #[test]
    fn locked_memory_is_the_hard_limit() {
        let status = "Uid:\t0\t65534\t0\t0\nCapEff:\t000001ffffffbfff\n";
        assert_eq!(
            locked_memory(LIMITS, status).unwrap(),
            "locked memory: 65536 bytes"
        );
        assert_eq!(effective_user(status), Some("65534"));
    }

    #[test]
    fn a_process_that_is_not_counted_is_told_apart() {
        let status = "CapEff:\t000001ffffffffff\n";
        assert!(
            locked_memory(LIMITS, status)
                .unwrap()
                .contains("not counted")
        );
    }
}
