//! The test backend: plain system calls whose completions come late, out of order, short, failed
//! or twice, as a seed decides. Compiled with the feature `faulty` only.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::Broken;
use super::alarm::Event;
use super::threads::execute::{execute, to_usize};
use crate::completion::Completion;
use crate::op::Op;

/// Which faults the test backend makes. The same seed makes the same faults.
///
/// Probabilities are in thousandths of the operations handed over. An operation that is to fail
/// is not executed.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    seed: u64,
    short_per_mille: u32,
    stray_per_mille: u32,
    failures: Vec<Failure>,
    breaks_after: Option<u64>,
    loses: bool,
    hold: Option<Arc<AtomicBool>>,
}

#[derive(Clone, Debug)]
struct Failure {
    errno: i32,
    /// `None`: every kind.
    kind: Option<&'static str>,
    when: When,
}

#[derive(Clone, Copy, Debug)]
enum When {
    PerMille(u32),
    Nth(u64),
}

impl Faults {
    /// Late and reordered completions, but no other fault yet.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The same faults at another place in their sequence.
    pub(crate) fn later(mut self, number: u64) -> Self {
        self.seed = self.seed.wrapping_add(number);
        self
    }

    /// Transfers of more than one byte move fewer than asked, those of lists of buffers too. Direct
    /// ones stop at a block, as devices do.
    pub fn short_transfers(mut self, per_mille: u32) -> Self {
        self.short_per_mille = per_mille;
        self
    }

    /// Completions that come twice, or for nothing.
    pub fn strays(mut self, per_mille: u32) -> Self {
        self.stray_per_mille = per_mille;
        self
    }

    /// Operations fail with `errno`.
    pub fn errors(mut self, errno: i32, per_mille: u32) -> Self {
        self.failures.push(Failure {
            errno,
            kind: None,
            when: When::PerMille(per_mille),
        });
        self
    }

    /// Operations of one kind (`read`, `write`, `readv`, `writev`, `fsync`, `fallocate`, `statx`,
    /// `nop`) all fail with `errno`; of another name, none.
    pub fn refuse(mut self, kind: &'static str, errno: i32) -> Self {
        self.failures.push(Failure {
            errno,
            kind: Some(kind),
            when: When::PerMille(1000),
        });
        self
    }

    /// The `n`th operation handed over on a thread, counted from 0, fails with `errno`.
    pub fn fail_nth(mut self, n: u64, errno: i32) -> Self {
        self.failures.push(Failure {
            errno,
            kind: None,
            when: When::Nth(n),
        });
        self
    }

    /// Once `n` operations have been handed over on a thread, the backend cannot be entered any
    /// more, as a ring under a new seccomp filter.
    pub fn break_after(mut self, n: u64) -> Self {
        self.breaks_after = Some(n);
        self
    }

    /// The backend says that completions have been lost, as a ring whose queue has overflowed.
    pub fn lose_completions(mut self) -> Self {
        self.loses = true;
        self
    }

    /// While this is true, nothing is executed: what has been handed over stays in flight, as on a
    /// device that does not answer.
    pub fn hold_while(mut self, hold: &Arc<AtomicBool>) -> Self {
        self.hold = Some(Arc::clone(hold));
        self
    }
}

/// Whether a descriptor goes past the page cache, where transfers are whole blocks.
fn is_direct(fd: RawFd) -> bool {
    if cfg!(miri) {
        // It cannot be asked there, and no file is.
        return false;
    }
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_DIRECT != 0
}

/// The first `len` bytes of a list of buffers.
fn truncate(list: &mut Vec<libc::iovec>, mut len: usize) {
    for iovec in &mut *list {
        iovec.iov_len = iovec.iov_len.min(len);
        len -= iovec.iov_len;
    }
    while list.last().is_some_and(|iovec| iovec.iov_len == 0) {
        list.pop();
    }
}

/// How often a backend that holds looks whether it still has to.
const HOLD_STEP: Duration = Duration::from_millis(1);

/// An operation that has been handed over.
enum Held {
    /// Executed, and not told yet.
    Told(Completion),
    /// Of no operation, or of one that has been told.
    Stray(Completion),
    /// To be executed when it is let go.
    Waits(u64, Short),
}

/// An operation that may be shorter than it was asked for, with a list of buffers of its own if so.
struct Short {
    op: Op,
    _list: Vec<libc::iovec>,
}

/// Where direct transfers stop, in bytes: at a multiple of this, which fits every device in use.
const BLOCK: u64 = 4096;

/// See the module.
pub(crate) struct Faulty {
    faults: Faults,
    random: u64,
    handed_over: u64,
    held: Vec<Held>,
    /// Can be reaped.
    released: Vec<Completion>,
    event: Option<Arc<Event>>,
}

impl Faulty {
    pub(crate) fn new(faults: Faults) -> Self {
        let random = faults.seed;
        Self {
            faults,
            random,
            handed_over: 0,
            held: Vec::new(),
            released: Vec::new(),
            event: None,
        }
    }

    /// A number below `bound`, from SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    fn failure(&mut self, op: &Op) -> Option<i32> {
        for at in 0..self.faults.failures.len() {
            let Failure { errno, kind, when } = self.faults.failures[at].clone();
            if kind.is_some_and(|kind| kind != op.name()) {
                continue;
            }
            let fails = match when {
                When::PerMille(per_mille) => self.happens(per_mille),
                When::Nth(n) => n == self.handed_over,
            };
            if fails {
                return Some(errno);
            }
        }
        None
    }

    /// Executes an operation at once and holds its completion back.
    ///
    /// # Safety
    ///
    /// The addresses in the operation are valid.
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op) {
        let result = match self.failure(op) {
            Some(errno) => -errno,
            None => {
                // SAFETY: passed on from the caller.
                let short = unsafe { self.shortened(*op) };
                if self.faults.hold.is_some() {
                    self.handed_over += 1;
                    return self.held.push(Held::Waits(user_data, short));
                }
                // SAFETY: passed on from the caller; a shorter span is part of the span.
                unsafe { execute(&short.op) }
            }
        };
        self.handed_over += 1;
        self.held.push(Held::Told(Completion {
            user_data,
            result,
            took_ns: 0,
            is_asynchronous: None,
        }));
        if self.happens(self.faults.stray_per_mille) {
            let unknown = Completion {
                took_ns: 0,
                is_asynchronous: None,
                user_data: self.below(u64::MAX),
                result: 1,
            };
            self.held.push(Held::Stray(unknown));
            self.held.push(Held::Stray(Completion {
                user_data,
                result,
                took_ns: 0,
                is_asynchronous: None,
            }));
        }
    }

    /// # Safety
    ///
    /// The list of buffers in the operation is valid, if it has one.
    unsafe fn shortened(&mut self, mut op: Op) -> Short {
        let mut list = Vec::new();
        if let Op::ReadVectoredAt { iovecs, .. } | Op::WriteVectoredAt { iovecs, .. } = &mut op {
            let count = to_usize(iovecs.count);
            // SAFETY: passed on from the caller; an empty one has an address too.
            list.extend_from_slice(unsafe { slice::from_raw_parts(iovecs.first, count) });
            iovecs.first = list.as_mut_ptr();
        }
        let lens = list.iter().map(|iovec| iovec.iov_len);
        let len = op.span().map_or_else(|| lens.sum(), |span| span.len) as u64;
        if len > 1 && self.happens(self.faults.short_per_mille) {
            let mut fewer = self.below(len - 1) + 1;
            if op.fd().is_some_and(is_direct) {
                fewer = if fewer < BLOCK {
                    len
                } else {
                    fewer / BLOCK * BLOCK
                };
            }
            let fewer = usize::try_from(fewer).expect("at most a usize");
            match &mut op {
                Op::ReadVectoredAt { iovecs, .. } | Op::WriteVectoredAt { iovecs, .. } => {
                    truncate(&mut list, fewer);
                    iovecs.count = u32::try_from(list.len()).expect("as many as before");
                }
                _ => op = op.part(0, fewer),
            }
        }
        Short { op, _list: list }
    }

    pub(crate) fn turn(&mut self, at_least: u32) -> Result<(), Broken> {
        if self
            .faults
            .breaks_after
            .is_some_and(|after| self.handed_over > after)
        {
            // As a ring does whose operations have not been taken. They were executed here, and
            // are so again: reads and positioned writes of the same bytes yield the same.
            return Err(Broken {
                cause: io::Error::from_raw_os_error(libc::EPERM),
                may_pass: false,
            });
        }
        if self.holds() {
            if at_least > 0 {
                thread::sleep(HOLD_STEP);
            }
            return Ok(());
        }
        let held = self.held.len() as u64;
        let more = self.below(held + 1);
        for _ in 0..(u64::from(at_least) + more).min(held) {
            let any = self.below(self.held.len() as u64);
            let any = usize::try_from(any).expect("below a usize");
            let released = match self.held.swap_remove(any) {
                Held::Told(completion) => completion,
                Held::Stray(completion) => {
                    self.note_told(&completion);
                    completion
                }
                Held::Waits(user_data, short) => {
                    // SAFETY: it has not completed, so that its addresses are valid.
                    let result = unsafe { execute(&short.op) };
                    Completion {
                        user_data,
                        result,
                        took_ns: 0,
                        is_asynchronous: None,
                    }
                }
            };
            self.released.push(released);
        }
        Ok(())
    }

    /// If this stray is of an operation that is held, it tells its end, and that is the stray.
    fn note_told(&mut self, stray: &Completion) {
        for held in &mut self.held {
            if let Held::Told(told) = *held
                && told.user_data == stray.user_data
            {
                *held = Held::Stray(told);
            }
        }
    }

    fn holds(&self) -> bool {
        let hold = self.faults.hold.as_ref();
        hold.is_some_and(|hold| hold.load(Ordering::Acquire))
    }

    /// As [`super::Backend::alarm`].
    pub(crate) fn alarm(&mut self) -> io::Result<Arc<Event>> {
        if self.event.is_none() {
            self.event = Some(Arc::new(Event::new()?));
        }
        Ok(Arc::clone(self.event.as_ref().expect("it was just made")))
    }

    /// As [`super::Backend::turn_or`].
    pub(crate) fn turn_or(
        &mut self,
        at_least: u32,
        at_most: Option<Duration>,
        is_idle: bool,
    ) -> Result<(), Broken> {
        match &self.event {
            Some(event) if is_idle => event.wait(at_most),
            Some(event) if at_least > 0 && self.holds() => {
                let step = at_most.map_or(HOLD_STEP, |at_most| at_most.min(HOLD_STEP));
                event.wait(Some(step));
                return Ok(());
            }
            _ => {}
        }
        self.turn(at_least)
    }

    /// As [`super::Backend::unsubmitted`].
    pub(crate) fn unsubmitted(&self) -> u32 {
        let is_operation = |held: &&Held| !matches!(held, Held::Stray(_));
        u32::try_from(self.held.iter().filter(is_operation).count()).unwrap_or(u32::MAX)
    }

    /// As [`super::Backend::reap`].
    pub(crate) fn reap(&mut self, each: impl FnMut(Completion)) -> bool {
        self.released.drain(..).for_each(each);
        !self.faults.loses
    }
}
