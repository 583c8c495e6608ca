//! What interrupts a backend that waits: other threads have something for its owner.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::threads::lane::Bell;

/// Interrupts one backend; may be rung from any thread.
#[derive(Clone)]
pub(crate) enum Alarm {
    /// An eventfd that the backend waits for with everything else.
    Event(Arc<Event>),
    /// The condition variable that the owner of a lane sleeps on.
    Bell(Bell),
}

impl Alarm {
    /// Interrupts the wait that is going on, or the next one.
    pub(crate) fn ring(&self) {
        match self {
            Self::Event(event) => event.signal(),
            Self::Bell(bell) => bell.ring(),
        }
    }
}

/// An eventfd.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// # Errors
    ///
    /// As eventfd(2): no descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn try_clone_to_owned(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    pub(super) fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the eight bytes are valid. It fails only when the counter is full (eventfd(2)),
        // and then whoever waits for it has been woken long ago.
        let _ = unsafe { libc::write(self.raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Waits until it has been signalled, a signal comes, or the time is over, and takes the
    /// signals back.
    pub(crate) fn wait(&self, at_most: Option<Duration>) {
        wait_readable(self.raw_fd(), at_most);
        self.take_back();
    }

    /// Takes the signals back.
    pub(super) fn take_back(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the eight bytes are ours to be filled. It fails when there was no signal.
        let _ = unsafe { libc::read(self.raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// Waits until a descriptor is readable, a signal comes, or the time is over.
#[cfg(not(miri))]
pub(super) fn wait_readable(fd: libc::c_int, at_most: Option<Duration>) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = at_most.map(|at_most| libc::timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one entry, and a time or none. A failure is a signal, after which the caller looks
    // again.
    let _ = unsafe { libc::ppoll(&raw mut poll, 1, limit, std::ptr::null()) };
}

/// As above for Miri, which has no ppoll(2): as if a signal came after a millisecond.
#[cfg(miri)]
pub(super) fn wait_readable(_fd: libc::c_int, at_most: Option<Duration>) {
    let moment = Duration::from_millis(1);
    std::thread::sleep(at_most.map_or(moment, |at_most| at_most.min(moment)));
}
