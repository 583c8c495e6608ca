//! A context and its owner's side: push, submit, take.
#![allow(unsafe_code)]

#[cfg(feature = "tokio")]
use std::convert::Infallible;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::calls::{IoEvent, Iocb};
use super::context::Context;
use super::once;
use crate::backend::Broken;
use crate::backend::alarm::Event;
use crate::backend::threads::execute::{is_filtered, to_usize};
use crate::backend::threads::task::{Task, run};
#[cfg(feature = "tokio")]
use crate::backend::yields::Yields;
use crate::completion::Completion;
use crate::error::SetupError;
use crate::op::Op;

/// Direct transfers of one proactor.
pub(crate) struct Aio {
    /// Taken out when it is dropped.
    context: ManuallyDrop<Context>,
    /// Whether it has been tried out.
    is_sound: bool,
    /// Not submitted yet.
    queued: Vec<Task>,
    /// The same, as the kernel reads them.
    requests: Vec<Iocb>,
    /// Submitted, and not taken.
    in_kernel: usize,
    /// Where the kernel puts completions.
    places: Box<[MaybeUninit<IoEvent>]>,
    /// Completions that have been taken, to be reaped.
    taken: Vec<Completion>,
    /// Interrupts the owner's wait, once somebody has asked for that.
    event: Option<Arc<Event>>,
    /// Whether the kernel watches the event.
    listens: bool,
    /// Whether each completion signals the event.
    announces: bool,
    /// Whether what the kernel does not take is given up at once, because something else has it
    /// then.
    is_beside: bool,
    calls: u64,
    #[cfg(feature = "tokio")]
    yields: Yields,
    /// Times in a row that the kernel took nothing, with nothing in flight.
    fruitless: u32,
}

/// What comes back for the alarm. No slot has this number.
const ALARM: u64 = u64::MAX;

/// How long the kernel is given to find memory for requests, and how often.
const MEMORY_RETRY_AFTER: Duration = Duration::from_millis(1);
const FRUITLESS_MAX: u32 = 1000;

/// How long a wait lasts where the kernel does not watch the alarm.
const UNWATCHED: Duration = Duration::from_millis(1);

/// What the others learn of an operation that the kernel did not take: it has not been done.
const NOT_TAKEN: i32 = -libc::ECANCELED;

fn not_taken(user_data: u64) -> Completion {
    Completion {
        user_data,
        result: NOT_TAKEN,
        took_ns: 0,
        is_asynchronous: None,
    }
}

/// Why these calls cannot be used.
pub(crate) fn explain(cause: io::Error) -> SetupError {
    SetupError::NoAio {
        cause: Arc::new(cause),
        is_filtered: is_filtered(),
    }
}

impl Aio {
    /// For at most `capacity` operations in flight.
    ///
    /// # Errors
    ///
    /// As io_setup(2), and where the kernel cannot wait for the alarm together with transfers.
    pub(crate) fn new(capacity: u32) -> Result<Self, SetupError> {
        Self::open(capacity).map_err(explain)
    }

    fn open(capacity: u32) -> io::Result<Self> {
        // One more is the alarm's.
        let room = capacity + 1;
        let mut aio = Self {
            context: ManuallyDrop::new(Context::new(room)?),
            is_sound: false,
            queued: Vec::with_capacity(to_usize(capacity)),
            requests: Vec::with_capacity(to_usize(room)),
            in_kernel: 0,
            places: vec![MaybeUninit::uninit(); to_usize(room)].into(),
            taken: Vec::with_capacity(to_usize(room)),
            event: None,
            listens: false,
            announces: false,
            is_beside: false,
            calls: 0,
            #[cfg(feature = "tokio")]
            yields: Yields::NEW,
            fruitless: 0,
        };
        aio.try_out()?;
        aio.is_sound = true;
        aio.calls = 0;
        once::allow();
        Ok(aio)
    }

    /// The same, for transfers beside a ring; each completion signals the event.
    ///
    /// # Errors
    ///
    /// As [`Aio::new`], and where such calls may be filtered that have never been tried.
    pub(crate) fn beside_a_ring(capacity: u32, event: Arc<Event>) -> Result<Self, SetupError> {
        if !once::are_allowed() {
            return Err(explain(io::ErrorKind::PermissionDenied.into()));
        }
        let mut aio = Self::new(capacity)?;
        aio.announces = true;
        aio.event = Some(event);
        aio.is_beside = true;
        Ok(aio)
    }

    /// Whether there is an answer, and whether a descriptor can be waited for (Linux 4.19).
    fn try_out(&mut self) -> io::Result<()> {
        let event = Event::new()?;
        event.signal();
        self.listen_to(&event)?;
        while self.listens {
            self.take(1, None).map_err(|broken| broken.cause)?;
        }
        Ok(())
    }

    /// Queues a transfer; the kernel sees it at the next turn. `may_wait`: its file cannot be asked
    /// not to. False if it is something else.
    ///
    /// # Safety
    ///
    /// The addresses in the operation stay valid until its completion has been reaped, and no more
    /// than the capacity are in flight.
    #[must_use]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op, may_wait: bool) -> bool {
        // What would wait is for the pool.
        let flags = if may_wait { 0 } else { libc::RWF_NOWAIT };
        let Some(request) = Iocb::transfer(user_data, op, flags) else {
            return false;
        };
        let request = match &self.event {
            Some(event) if self.announces => request.signals(event.raw_fd()),
            _ => request,
        };
        self.requests.push(request);
        self.queued.push(Task {
            user_data,
            op: *op,
            submitted: false,
        });
        true
    }

    /// Submits what is queued, and waits until `at_least` completions can be reaped, or a signal
    /// comes.
    ///
    /// # Errors
    ///
    /// When the kernel refuses in a way that another try will not change.
    #[inline]
    pub(crate) fn turn(&mut self, at_least: usize) -> Result<(), Broken> {
        let is_alone = self.queued.len() == 1 && self.in_kernel == 0 && self.taken.is_empty();
        if at_least > 0
            && is_alone
            && let Some(task) = self.queued.pop()
        {
            // There is nothing else to wait for, so one call will do.
            self.requests.clear();
            self.taken.push(run(&task));
            return Ok(());
        }
        self.submit()?;
        self.take_for(at_least, None)
    }

    /// As [`Aio::turn`], but it also comes back when the alarm is rung, and when the time is over.
    /// `is_idle`: there is only the alarm to wait for.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn turn_or(
        &mut self,
        at_least: usize,
        at_most: Option<Duration>,
        is_idle: bool,
    ) -> Result<(), Broken> {
        self.submit()?;
        if at_least == 0 || !self.taken.is_empty() {
            return self.take_for(0, None);
        }
        if self.is_watched_elsewhere(at_most) {
            return self.take_for(at_least, at_most);
        }
        if let Some(event) = self.event.clone() {
            if is_idle && self.in_kernel == 0 {
                event.wait(at_most);
                return Ok(());
            }
            if !self.listens && self.listen_to(&event).is_err() {
                let at_most = at_most.map_or(UNWATCHED, |at_most| at_most.min(UNWATCHED));
                return self.take_for(at_least, Some(at_most));
            }
        }
        self.take_for(at_least, at_most)
    }

    /// What interrupts [`Aio::turn_or`].
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub(crate) fn alarm(&mut self) -> io::Result<Arc<Event>> {
        if let Some(event) = &self.event {
            return Ok(Arc::clone(event));
        }
        let event = Arc::new(Event::new()?);
        self.event = Some(Arc::clone(&event));
        Ok(event)
    }

    /// Whether the owner has its completions announced, and waits for a moment only: whoever
    /// watches the event looks after what else there is.
    #[cfg(feature = "tokio")]
    fn is_watched_elsewhere(&self, at_most: Option<Duration>) -> bool {
        self.announces && at_most.is_some_and(|at_most| at_most <= UNWATCHED)
    }

    #[cfg(not(feature = "tokio"))]
    fn is_watched_elsewhere(&self, _at_most: Option<Duration>) -> bool {
        false
    }

    /// A descriptor that becomes readable with each completion from now on, and by the alarm.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(crate) fn watched(&mut self) -> io::Result<OwnedFd> {
        let event = self.alarm()?;
        self.announces = true;
        event.try_clone_to_owned()
    }

    /// Whether completions wait to be reaped.
    pub(crate) fn has_completed(&self) -> bool {
        !self.taken.is_empty() || self.context.has_completed()
    }

    /// Has the kernel watch the event until it has been signalled once.
    fn listen_to(&mut self, event: &Event) -> io::Result<()> {
        let request = Iocb::readable(ALARM, event.raw_fd());
        let mut request = request.ok_or(io::ErrorKind::InvalidInput)?;
        self.calls += 1;
        // SAFETY: no memory is named.
        let taken = unsafe { self.context.submit(std::slice::from_mut(&mut request)) }?;
        self.listens = taken == 1;
        Ok(())
    }

    /// Submits what is queued, as far as the kernel takes it.
    fn submit(&mut self) -> Result<(), Broken> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        let mut submitted = Ok(());
        while from < self.requests.len() {
            self.calls += 1;
            // SAFETY: whoever has pushed the operations keeps what they name until their
            // completions have been reaped.
            match unsafe { self.context.submit(&mut self.requests[from..]) } {
                Ok(taken) => {
                    from += taken;
                    self.in_kernel += taken;
                    self.fruitless = 0;
                }
                // io_submit(2): no room or no memory now.
                Err(cause) if cause.raw_os_error() == Some(libc::EAGAIN) => {
                    if self.is_beside {
                        self.give_up(from);
                        from = self.requests.len();
                    } else if self.in_kernel == 0 {
                        submitted = self.wait_for_memory(cause);
                    }
                    break;
                }
                // The first one is refused.
                Err(_) => {
                    let refused = self.queued[from].user_data;
                    self.taken.push(not_taken(refused));
                    from += 1;
                }
            }
        }
        self.requests.drain(..from);
        self.queued.drain(..from);
        submitted
    }

    /// Gives up what is queued, from this place on.
    #[cold]
    fn give_up(&mut self, from: usize) {
        let refused = self.queued[from..].iter();
        self.taken
            .extend(refused.map(|task| not_taken(task.user_data)));
    }

    #[cold]
    fn wait_for_memory(&mut self, cause: io::Error) -> Result<(), Broken> {
        if self.fruitless == FRUITLESS_MAX {
            return Err(Broken {
                cause,
                may_pass: true,
            });
        }
        self.fruitless += 1;
        thread::sleep(MEMORY_RETRY_AFTER);
        Ok(())
    }

    /// Looks until one can be taken, or the time is over. True if one can.
    #[cfg(feature = "tokio")]
    pub(crate) fn look(&mut self, at_most: Duration) -> bool {
        let (taken, context) = (&self.taken, &self.context);
        let is_there = || Ok(!taken.is_empty() || context.has_completed());
        let looked: Result<bool, Infallible> = self.yields.look(at_most, is_there);
        looked.unwrap_or_else(|never| match never {})
    }

    /// Whether such calls may be made now.
    pub(crate) fn are_allowed() -> bool {
        once::are_allowed()
    }

    /// Takes what has completed, and waits until so many can be reaped.
    ///
    /// # Errors
    ///
    /// As [`Aio::turn`].
    pub(crate) fn take_for(
        &mut self,
        at_least: usize,
        at_most: Option<Duration>,
    ) -> Result<(), Broken> {
        // With something to be submitted yet nobody is to wait for the alarm alone.
        let listens = self.listens && self.queued.is_empty();
        let can_come = self.in_kernel + usize::from(listens);
        let at_least = at_least.saturating_sub(self.taken.len()).min(can_come);
        if at_least > 0 || self.context.has_completed() {
            self.take(at_least, at_most)?;
        }
        Ok(())
    }

    fn take(&mut self, at_least: usize, at_most: Option<Duration>) -> Result<(), Broken> {
        self.calls += 1;
        let at_most = match at_least {
            0 => Some(Duration::ZERO),
            _ => at_most,
        };
        let count = match self.context.take(at_least, &mut self.places, at_most) {
            Ok(count) => count,
            Err(cause) if cause.raw_os_error() == Some(libc::EINTR) => 0,
            Err(cause) => {
                return Err(Broken {
                    cause,
                    may_pass: false,
                });
            }
        };
        for place in &self.places[..count] {
            // SAFETY: the kernel has filled so many.
            let event = unsafe { place.assume_init_ref() };
            if event.data == ALARM {
                self.listens = false;
                if let Some(event) = &self.event {
                    event.take_back();
                }
                continue;
            }
            self.in_kernel -= 1;
            self.taken.push(Completion {
                user_data: event.data,
                // A transfer is at most MAX_RW_COUNT.
                result: i32::try_from(event.result).unwrap_or(-libc::EIO),
                took_ns: 0,
                is_asynchronous: None,
            });
        }
        Ok(())
    }

    /// The completions that are there.
    pub(crate) fn reap(&mut self) -> std::vec::Drain<'_, Completion> {
        self.taken.drain(..)
    }

    /// Queued operations that the kernel has not taken yet.
    pub(crate) fn unsubmitted(&self) -> u32 {
        u32::try_from(self.queued.len()).expect("at most the capacity")
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        if self.listens
            && let Some(event) = self.event.clone()
        {
            // Only an idle context can be kept.
            event.signal();
            let _ = self.take(1, Some(UNWATCHED));
        }
        let is_idle = self.in_kernel == 0 && !self.listens && self.is_sound;
        // SAFETY: taken here only, and `self` is not used any more.
        let context = unsafe { ManuallyDrop::take(&mut self.context) };
        context.give_up(is_idle);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::{AsRawFd, RawFd};
    use std::time::Instant;

    use super::super::read_of;
    use super::*;
    use crate::backend::threads::execute::is_filtered;

    /// `None`, with the reason said, where the kernel has none.
    fn aio(capacity: u32) -> Option<Aio> {
        if is_filtered() {
            eprintln!("skipped: asynchronous calls: they may be filtered");
            return None;
        }
        let refusal = match Aio::new(capacity) {
            Ok(aio) => return Some(aio),
            Err(refusal) => refusal,
        };
        eprintln!("skipped: asynchronous calls: {refusal}");
        None
    }

    /// A file whose reads need not wait, and its content.
    fn cached() -> (File, Vec<u8>) {
        let content: Vec<u8> = (0..=250).cycle().take(64 * 100).collect();
        let mut file = tempfile::tempfile().expect("the temporary directory can be written");
        file.write_all(&content).expect("there is room");
        (file, content)
    }

    #[test]
    fn what_the_kernel_refuses_keeps_nothing_else_from_being_done() {
        const COUNT: usize = 64;
        let Some(mut aio) = aio(64) else {
            return;
        };
        let (file, content) = cached();
        let mut bufs = vec![[0_u8; 100]; COUNT];
        for _ in 0..3 {
            for (number, buf) in bufs.iter_mut().enumerate() {
                // A descriptor that nobody has, now and then, and first and last.
                let is_bad = number % 9 == 0;
                let fd = if is_bad { RawFd::MAX } else { file.as_raw_fd() };
                let op = read_of(fd, buf, number as u64 * 100);
                // SAFETY: the buffers outlive the loop below, which waits for all.
                assert!(unsafe { aio.push(number as u64, &op, true) });
            }
            let mut seen = [false; COUNT];
            while seen.contains(&false) {
                let left = seen.iter().filter(|seen| !**seen).count();
                aio.turn(left).expect("it goes on");
                for completion in aio.reap() {
                    let number = usize::try_from(completion.user_data).expect("a few");
                    assert!(!std::mem::replace(&mut seen[number], true), "{number}");
                    let expected = if number % 9 == 0 { NOT_TAKEN } else { 100 };
                    assert_eq!(completion.result, expected, "{number}");
                }
            }
            assert_eq!((aio.in_kernel, aio.unsubmitted()), (0, 0));
            for (number, buf) in bufs.iter_mut().enumerate() {
                let is_read = buf[..] == content[number * 100..][..100];
                assert_eq!(is_read, number % 9 != 0, "{number}");
                buf.fill(255);
            }
        }
    }

    #[test]
    fn what_is_no_transfer_is_not_taken() {
        let Some(mut aio) = aio(8) else {
            return;
        };
        for op in [
            Op::Nop,
            Op::Sync {
                fd: 0,
                data_only: true,
            },
        ] {
            // SAFETY: it names no memory.
            assert!(!unsafe { aio.push(1, &op, false) });
        }
        aio.turn(1).expect("there is nothing to wait for");
        assert_eq!(aio.reap().count(), 0);
    }

    #[test]
    fn the_alarm_interrupts_a_wait_whatever_is_in_flight() {
        let Some(mut aio) = aio(8) else {
            return;
        };
        let alarm = aio.alarm().expect("there is a descriptor");
        for is_idle in [true, false, true, false, false] {
            let theirs = Arc::clone(&alarm);
            let rings = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                theirs.signal();
            });
            aio.turn_or(1, None, is_idle).expect("it goes on");
            rings.join().expect("it does not panic");
            // What was rung for an earlier wait may be found by a later one.
            aio.turn(0).expect("it goes on");
        }
        let begun = Instant::now();
        let soon = Duration::from_millis(3);
        aio.turn_or(1, Some(soon), false).expect("it goes on");
        assert!(begun.elapsed() >= soon);
    }
}
