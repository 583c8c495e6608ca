//! Where requests are submitted, and completions come from.
#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::calls::{self, IoEvent, Iocb};
use crate::fork::Process;

/// A context, owned by one thread at a time.
#[derive(Debug)]
pub(super) struct Context {
    id: c_ulong,
    /// Most requests in flight.
    room: u32,
    /// A forked child has none of its parent's.
    by: Process,
    /// Where the kernel shows how many completions there are.
    shown: NonNull<Shown>,
}

// SAFETY: what is shown is read by atomic loads, while the context is there.
unsafe impl Send for Context {}

/// The head of the ring of completions, which is at the address that is the context's id. Programs
/// may look at it: `struct aio_ring` of Linux, `fs/aio.c`, as libaio does.
#[derive(Debug)]
#[repr(C)]
struct Shown {
    id: AtomicU32,
    count: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: AtomicU32,
}

/// `AIO_RING_MAGIC`.
const MAGIC: u32 = 0xa10a_10a1;

/// Contexts in which nothing is in flight, for whoever needs one next: to end one waits for other
/// processors of the machine.
static KEPT: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// Most requests that the contexts which are kept have room for. It is taken out of what all
/// processes have together (`fs.aio-max-nr`).
const KEPT_ROOM_MAX: u32 = 4096;

impl Context {
    /// One for so many requests.
    ///
    /// # Errors
    ///
    /// As io_setup(2), and where completions are not shown as Linux does.
    pub(super) fn new(room: u32) -> io::Result<Self> {
        let by = Process::this();
        if let Some(kept) = take_kept(|kept| kept.by == by && kept.room == room) {
            return Ok(kept);
        }
        let id = calls::set_up(room).or_else(|cause| {
            // What this process keeps may be what is lacking.
            let mut has_ended = false;
            while let Some(kept) = take_kept(|kept| kept.by == by) {
                calls::destroy(kept.id);
                has_ended = true;
            }
            match has_ended {
                true => calls::set_up(room),
                false => Err(cause),
            }
        })?;
        let Some(shown) = shown_at(id) else {
            calls::destroy(id);
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel does not show how many have completed",
            ));
        };
        Ok(Self {
            id,
            room,
            by,
            shown,
        })
    }

    /// As [`calls::submit`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn submit(&mut self, requests: &mut [Iocb]) -> io::Result<usize> {
        // SAFETY: passed on from the caller.
        unsafe { calls::submit(self.id, requests) }
    }

    /// As [`calls::take`].
    pub(super) fn take(
        &mut self,
        at_least: usize,
        places: &mut [MaybeUninit<IoEvent>],
        at_most: Option<Duration>,
    ) -> io::Result<usize> {
        calls::take(self.id, at_least, places, at_most)
    }

    /// Whether there are completions to be taken.
    pub(super) fn has_completed(&self) -> bool {
        // SAFETY: it is there as long as the context, which ends when `self` does.
        let shown = unsafe { self.shown.as_ref() };
        // What they say is read by the kernel, when they are taken.
        shown.head.load(Ordering::Relaxed) != shown.tail.load(Ordering::Relaxed)
    }

    /// Gives it up. `is_idle`: nothing is in flight.
    pub(super) fn give_up(self, is_idle: bool) {
        let by = Process::this();
        if self.by != by {
            return;
        }
        // In a forked child it may be held by a thread that is not there.
        if is_idle && let Ok(mut kept) = KEPT.try_lock() {
            // The others are its parent's.
            kept.retain(|kept| kept.by == by);
            let room: u32 = kept.iter().map(|kept| kept.room).sum();
            if room.saturating_add(self.room) <= KEPT_ROOM_MAX {
                return kept.push(self);
            }
        }
        calls::destroy(self.id);
    }
}

/// Takes one of the contexts that are kept.
fn take_kept(suits: impl Fn(&Context) -> bool) -> Option<Context> {
    // As above.
    let mut kept = KEPT.try_lock().ok()?;
    let place = kept.iter().position(suits)?;
    Some(kept.swap_remove(place))
}

/// The head of the ring of a context. `None` where there is none, as in sandboxes that have the
/// calls of their own.
fn shown_at(id: c_ulong) -> Option<NonNull<Shown>> {
    let address = usize::try_from(id).ok()?;
    let mut resident = [0_u8; 1];
    let start = std::ptr::with_exposed_provenance_mut::<libc::c_void>(address);
    // SAFETY: it writes one byte, for the one page that the head is in, and fails if nothing is
    // mapped there, or no page begins there.
    let answer = unsafe { libc::mincore(start, size_of::<Shown>(), resident.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    let shown = NonNull::new(start.cast::<Shown>())?;
    // SAFETY: a page is mapped there, which begins there.
    let magic = unsafe { shown.as_ref() }.magic.load(Ordering::Relaxed);
    (magic == MAGIC).then_some(shown)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::backend::threads::execute::is_filtered;

    /// A size that nobody else asks for.
    const ROOM: u32 = 77;

    #[test]
    fn an_idle_context_is_used_again() {
        let Some(first) = (!is_filtered()).then(|| Context::new(ROOM)) else {
            return eprintln!("skipped: asynchronous calls: they may be filtered");
        };
        let first = match first {
            Ok(first) => first,
            Err(refusal) => return eprintln!("skipped: asynchronous calls: {refusal}"),
        };
        assert!(!first.has_completed());
        let id = first.id;
        first.give_up(true);
        let again = Context::new(ROOM).expect("it is there");
        assert_eq!(again.id, id);
        again.give_up(false);
    }
}
