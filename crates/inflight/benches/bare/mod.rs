//! No-ops in a ring as they are written by hand, for what is compared with them.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use io_uring::{IoUring, opcode};

/// A ring of 128 places with the flags of the library's own.
pub(crate) fn ring() -> IoUring {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_no_sqarray()
        .build(128)
        .unwrap()
}

/// So many no-ops, with one entry into the kernel for each batch.
pub(crate) fn nops(ring: &mut IoUring, ops: usize, batch: usize) {
    let (mut submitter, mut queue, mut completions) = ring.split();
    submitter.register_ring_fd().unwrap();
    for _ in 0..ops / batch {
        for at in 0..batch {
            let entry = opcode::Nop::new().build().user_data(at as u64);
            // SAFETY: a no-op touches no memory.
            unsafe { queue.push(&entry).unwrap() };
        }
        queue.sync();
        submitter.submit_and_wait(batch).unwrap();
        completions.sync();
        for entry in &mut completions {
            assert!(entry.result() >= 0);
            black_box(entry.user_data());
        }
        // What has been seen has to be published before the next entry into the kernel, which
        // takes it for ready otherwise.
        completions.sync();
    }
    submitter.unregister_ring_fd().unwrap();
}
