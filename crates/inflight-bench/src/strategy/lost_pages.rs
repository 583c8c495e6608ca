//! Reads of a mapping whose page cannot be had: the file has become shorter, or its device fails.
//!
//! The kernel tells of it by SIGBUS (mmap(2), "SIGBUS"), which ends a program, and with it all that
//! was measured. Here such a page is replaced by one of zeros, and the stretch that met it fails.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, bail};
use libc::{c_int, c_void};

/// How many pages have been replaced.
static REPLACED: AtomicU64 = AtomicU64::new(0);
/// The size of a page, in bytes: a handler asks for nothing.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Measures, and fails if a page of a mapping was replaced meanwhile.
pub(super) fn are_noticed<R>(measure: impl FnOnce() -> Result<R>) -> Result<R> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| install().map_err(|cause| cause.raw_os_error().unwrap_or(0)))
        .map_err(io::Error::from_raw_os_error)
        .context("the handler of SIGBUS cannot be installed")?;
    let before = REPLACED.load(Relaxed);
    let measured = measure();
    // Zeros may have failed it in another way.
    match REPLACED.load(Relaxed) - before {
        0 => measured,
        pages => bail!(
            "pages of a map could not be read ({pages} of them): the file has become shorter \
             meanwhile, or its device fails. A program that reads such a map is ended by SIGBUS"
        ),
    }
}

fn install() -> io::Result<()> {
    PAGE_BYTES.store(rustix::param::page_size(), Relaxed);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid value: no flag, no signal that is held back.
    let action = unsafe { action.assume_init_mut() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = replace;
    action.sa_sigaction = handler as usize;
    // On the stack for signals, if the thread has one: its own may be what is full.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the arguments that the flag asks for, and does only what one may
    // (signal-safety(7)).
    match unsafe { libc::sigaction(libc::SIGBUS, action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn replace(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives it to a handler with `SA_SIGINFO`.
    let info = unsafe { &*info };
    if info.si_code == libc::BUS_ADRERR && replace_page(info) {
        REPLACED.fetch_add(1, Relaxed);
        return;
    }
    // As if there were no handler: what failed is tried again, and what another process has sent is
    // sent again.
    // SAFETY: it may be called in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    if info.si_code <= 0 {
        // SAFETY: as above.
        unsafe { libc::raise(signal) };
    }
}

/// Puts zeros in the place of the page that could not be had.
fn replace_page(info: &libc::siginfo_t) -> bool {
    let page_bytes = PAGE_BYTES.load(Relaxed);
    // SAFETY: the kernel tells of an address with this code (sigaction(2)).
    let address = unsafe { info.si_addr() };
    let start = address.map_addr(|address| address & !(page_bytes - 1));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the errno of the thread that is interrupted is kept.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's.
    let before = unsafe { *errno };
    // SAFETY: nothing is lost with the page, of which the kernel has just said that there is no
    // memory behind it. Who reads goes on with zeros, and the stretch fails; who writes there is
    // ended by SIGSEGV, as it would have been by this signal.
    let mapped = unsafe { libc::mmap(start, page_bytes, libc::PROT_READ, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *errno = before };
    mapped == start
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_page_that_is_gone_is_zeros_and_noticed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let (read, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice, which is left where it is.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), 1 << 20, read, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let last = start.cast::<u8>().wrapping_add((1 << 20) - 1);
        // SAFETY: it is mapped, and a page that is gone is replaced.
        let read_last = || Ok(unsafe { last.read_volatile() });
        assert_eq!(are_noticed(read_last).unwrap(), 0);
        file.set_len(0).unwrap();
        let noticed = format!("{:#}", are_noticed(read_last).unwrap_err());
        assert!(
            noticed.contains("could not be read (1 of them)"),
            "{noticed}"
        );
        assert_eq!(
            are_noticed(read_last).unwrap(),
            0,
            "the page of zeros stays"
        );
    }
}
