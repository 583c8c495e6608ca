//! What interrupts the wait of a ring's owner: a descriptor that the ring watches.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use io_uring::{opcode, types};

use super::{ALARM, Uring};
use crate::backend::alarm::Event;

impl Uring {
    /// What interrupts [`Uring::enter_or`].
    ///
    /// # Errors
    ///
    /// When no descriptor is left, or the ring cannot watch it.
    pub(crate) fn alarm(&mut self) -> io::Result<Arc<Event>> {
        if let Some(event) = &self.event {
            return Ok(Arc::clone(event));
        }
        let event = Arc::new(Event::new()?);
        self.event = Some(Arc::clone(&event));
        self.listen();
        // Handed over at once: the queue has places for operations only.
        self.enter(0).map_err(|failed| failed.cause)?;
        Ok(event)
    }

    /// What is to be signalled by what completes elsewhere, for whoever waits for the ring's
    /// completions: that they are announced by, or else the alarm.
    ///
    /// # Errors
    ///
    /// As [`Uring::alarm`].
    pub(crate) fn announcer(&mut self) -> io::Result<Arc<Event>> {
        match &self.announcer {
            Some(event) => Ok(Arc::clone(event)),
            None => self.alarm(),
        }
    }

    /// Has the ring watch the event, until it says that it no longer does
    /// (io_uring_enter(2), `IORING_OP_POLL_ADD`, multishot).
    pub(super) fn listen(&mut self) {
        let Some(event) = &self.event else {
            return;
        };
        let readable = u32::from(libc::POLLIN.unsigned_abs());
        let entry = opcode::PollAdd::new(types::Fd(event.raw_fd()), readable)
            .multi(!self.listens_once)
            .build()
            .user_data(ALARM);
        // SAFETY: no memory is named. If the queue is full, the next wait tries again.
        self.listens = unsafe { self.ring.submission().push(&entry) }.is_ok();
        self.listen_queued |= self.listens;
    }

    /// Has the ring watch again, which has ended with the thread that had it begin, or with a
    /// signal on old kernels. Who waits in the ring has it do so before the next wait; but who
    /// sleeps until completions come would not hear of what completes elsewhere.
    #[cold]
    pub(super) fn listen_on(&mut self) {
        self.listen();
        self.let_listen();
    }
}
