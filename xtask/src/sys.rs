//! The few system calls that no dependency of this crate makes for it, each behind a safe function.
//!
//! This is the only file of `xtask` with `unsafe`.
#![allow(unsafe_code)]

use std::io;

/// Asks the kernel for a ring without making one: `None` if it would consider the request.
///
/// Zero entries at a null address are refused with EFAULT or EINVAL by a kernel that offers
/// io_uring to this process, so any other error is the refusal itself. Under a filter that kills,
/// this call does not return.
///
/// # Source
/// io_uring_setup(2), ERRORS.
pub(crate) fn io_uring_refusal() -> Option<io::Error> {
    // SAFETY: the null address makes the kernel fail before it reads or writes any memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_setup,
            0_u32,
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
    debug_assert_eq!(result, -1, "no ring has zero entries");
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL) => None,
        _ => Some(error),
    }
}

/// Whether the kernel has Linux AIO (io_setup(2)): one that does refuses the
/// null address.
pub(crate) fn has_aio() -> bool {
    let nowhere = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel reads the address first, and fails at that.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, nowhere) };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Lowers the soft and the hard limit of locked memory, also for the commands started from here.
pub(crate) fn limit_locked_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` outlives the call, which only reads it.
    answer(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) })
}

/// Keeps CAP_IPC_LOCK from every command started from here, also from root's.
///
/// The kernel does not count the locked memory of a process with this capability, so that without
/// this call the limit would mean nothing to root.
///
/// # Source
/// capabilities(7), "Capability bounding set"; PR_CAPBSET_DROP(2const).
pub(crate) fn drop_ipc_lock() -> io::Result<()> {
    /// CAP_IPC_LOCK in linux/capability.h, which the `libc` crate does not carry.
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    // SAFETY: PR_CAPBSET_DROP takes a number and touches no memory of this process.
    answer(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) })
}

/// Whether this process acts as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn answer(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
