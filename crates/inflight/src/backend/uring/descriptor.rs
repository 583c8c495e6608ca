//! Rings that their thread has registered, which saves a look-up in each enter
//! (io_uring_register(2), `IORING_REGISTER_RING_FDS`).
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use io_uring::IoUring;

// Not exported by the `io-uring` crate, whose `Submitter` forgets the index when it goes out of
// scope; numbers from `include/uapi/linux/io_uring.h`.
const IORING_REGISTER_RING_FDS: libc::c_uint = 20;
const IORING_UNREGISTER_RING_FDS: libc::c_uint = 21;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// The index of the ring among those that this thread has registered.
pub(super) fn register(ring: &IoUring) -> Option<u32> {
    let fd = u64::try_from(ring.as_raw_fd()).ok()?;
    // u32::MAX lets the kernel choose the index.
    ring_descriptors(ring, IORING_REGISTER_RING_FDS, u32::MAX, fd)
}

/// Takes it back: the thread's table would keep the ring alive.
pub(super) fn unregister(ring: &IoUring, index: u32) {
    ring_descriptors(ring, IORING_UNREGISTER_RING_FDS, index, 0);
}

fn ring_descriptors(ring: &IoUring, call: libc::c_uint, offset: u32, data: u64) -> Option<u32> {
    let mut update = RsrcUpdate {
        offset,
        reserved: 0,
        data,
    };
    let fd = ring.as_raw_fd();
    // SAFETY: `update` is one entry of the form that this call takes, and ours to be filled.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            fd,
            call,
            &raw mut update,
            1_u32,
        )
    };
    (answer == 1).then_some(update.offset)
}
