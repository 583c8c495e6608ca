//! Noticing a fork.
//!
//! A child shares the parent's rings (the descriptor is inherited, what it submits completes in
//! the parent) and has none of its threads. A handler counts forks in the child, so that asking
//! costs one load. A child made by the bare system call, without the C library's handlers, is not
//! noticed; its ring memory is not mapped (`MADV_DONTFORK`), so it cannot harm the parent.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and the first one that called [`watch`].
#[inline]
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count forks.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a forked child. It can
        // fail for want of memory only; forks then go unnoticed, as those by the bare call do.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}
