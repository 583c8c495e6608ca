//! Copies from the page cache that a caller shares with a thread of the pool, where the policy has
//! found that to be faster: that thread begins while the caller still adds to them.
//!
//! A thread that has been called looks for more work for a short while when it has found some, and
//! is then idle until it is called again. Next: [`super::reads`], [`super::share`],
//! [`crate::policy`].
#![allow(unsafe_code)]

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use super::mail::Rouser;
use super::reads::{Made, Makers, PLACES, Place, Reads, Shown};
use super::share::Side;
use super::shared::Shared;
use super::sides::{Owners, Sides};
use crate::backend::threads::execute::to_usize;
use crate::backend::threads::pool::{Pool, Run};
use crate::completion::Answer;
use crate::op::{Op, Request};
use crate::policy::{Calls, Hands, Spread, weight};

/// How long a thread that has been called looks for more work, at most: about what waking it costs.
const PATIENCE: Duration = Duration::from_micros(50);

/// How long it may look at the beginning of a trial. Later on, looking is to cost no more than what
/// it brings.
const CREDIT: Duration = Duration::from_micros(200);

/// How often it looks before it asks what time it is: about as long as a read takes.
const LOOKS: u32 = 16;

/// After so much work, in units of [`weight`], it asks whether something else waits for a thread:
/// that takes about as long as waking one.
const ASK_EVERY: u64 = 64 * weight(4096);

/// What a caller shares with the thread it calls.
struct Common {
    sides: Sides<Reads>,
    pool: Arc<Pool>,
    /// Whether a thread has been called and has not left.
    is_attended: AtomicBool,
    /// The caller is gone.
    is_closed: AtomicBool,
    /// How long that thread may look for work, in nanoseconds.
    credit_ns: AtomicU64,
    /// The processor on which the caller was when it called.
    caller_on: AtomicI32,
    /// Whether a thread that was called has found itself there, and has called another one.
    is_handed_on: AtomicBool,
    /// Whether that one was there too, and has left.
    is_in_vain: AtomicBool,
}

impl Run for Common {
    fn run(self: Arc<Self>) {
        let here = processor();
        if here == NOWHERE || here != self.caller_on.load(Relaxed) {
            self.attend();
        } else if !self.is_handed_on.swap(true, Relaxed) && self.hand_on() {
            return;
        } else {
            self.is_in_vain.store(true, Relaxed);
        }
        self.is_attended.store(false, Relaxed);
    }
}

impl Common {
    /// Helps as long as there is work, and looks for more for a while.
    fn attend(&self) {
        let mut begun = Instant::now();
        loop {
            if !self.work() {
                return;
            }
            let worked_until = Instant::now();
            let credit = Duration::from_nanos(self.credit_ns.load(Relaxed));
            let credit = (credit + (worked_until - begun)).min(CREDIT);
            let has_found = self.look(worked_until, credit.min(PATIENCE));
            begun = Instant::now();
            self.lend(credit.saturating_sub(begun - worked_until));
            if !has_found {
                return;
            }
        }
    }

    /// Lets the thread that is called look for so long.
    fn lend(&self, credit: Duration) {
        let ns = u64::try_from(credit.as_nanos()).expect("at most CREDIT");
        self.credit_ns.store(ns, Relaxed);
    }

    /// Works until there is nothing to do for a moment. False if something else waits for a thread.
    fn work(&self) -> bool {
        let (mut looks, mut weight) = (0, 0);
        while looks < LOOKS {
            if !self.help(&mut weight) {
                looks += 1;
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            if weight >= ASK_EVERY {
                weight = 0;
                if self.pool.is_wanted() {
                    return false;
                }
            }
        }
        true
    }

    /// Helps once, and adds what that weighs. False if nothing is left.
    #[inline]
    fn help(&self, weight: &mut u64) -> bool {
        self.sides
            .help(|reads, place| *weight += reads.place(place).weight())
    }

    /// Looks for more work. False if there is none, or something else to do.
    fn look(&self, from: Instant, patience: Duration) -> bool {
        loop {
            for _ in 0..LOOKS {
                if self.help(&mut 0) {
                    return true;
                }
                std::hint::spin_loop();
            }
            let is_over = from.elapsed() >= patience || self.is_closed.load(Relaxed);
            if is_over || self.pool.is_wanted() {
                return false;
            }
        }
    }

    /// Has another thread come. The scheduler wakes a thread where it was last, also if that is
    /// where the caller runs and another processor has nothing to do (it does not look for one
    /// while they are busy altogether: `kernel/sched/fair.c`, `select_idle_cpu`); another thread
    /// was elsewhere, and a new one is put where there is least to do.
    #[cold]
    fn hand_on(self: &Arc<Self>) -> bool {
        self.pool.give_share(Arc::clone(self) as _).is_ok()
    }

    /// Calls a thread.
    #[cold]
    fn call(self: &Arc<Self>) {
        self.is_attended.store(true, Relaxed);
        self.is_handed_on.store(false, Relaxed);
        self.caller_on.store(processor(), Relaxed);
        if self.pool.give_share(Arc::clone(self) as _).is_err() {
            self.is_attended.store(false, Relaxed);
        }
    }
}

/// What a caller shares, and what it has learned of sharing.
pub(super) struct Gathered {
    spread: Spread,
    /// Whether reads are shared now, or may be; see [`Gathered::push`].
    is_open: bool,
    /// Made for the first trial.
    common: Option<Arc<Common>>,
    owner: Owners,
    /// Whose reads the places are, of each side.
    tokens: [Box<[u32]>; 2],
    makers: Makers,
    /// Of all whose answers have not been taken.
    weight: u64,
    calls: Calls,
    /// Processors that this thread may use, when that has been asked.
    processors: usize,
    born: Instant,
}

impl Gathered {
    pub(super) fn new() -> Self {
        Self {
            spread: Spread::default(),
            is_open: false,
            common: None,
            owner: Owners::default(),
            tokens: Default::default(),
            makers: Makers::new(),
            weight: 0,
            calls: Calls::default(),
            processors: 0,
            born: Instant::now(),
        }
    }

    /// Whether [`Gathered::push`] is to be asked.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether reads are made alone and shared in turn, to find out what is faster.
    #[cfg(feature = "tokio")]
    pub(super) fn is_on_trial(&self) -> bool {
        self.is_open && self.spread.is_on_trial()
    }

    /// Whether the answers of all that is shared have been taken.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.owner.is_empty()
    }

    /// Whether there is no place for another read.
    pub(super) fn is_full(&self) -> bool {
        to_usize(self.owner.len()) == PLACES
    }

    /// The caller has made so many reads one by one, while nothing is to be shared.
    #[inline]
    pub(super) fn passed(&mut self, shared: &Shared, reads: u32) {
        if !self.is_open && self.spread.passes(u64::from(reads)) {
            self.open_trial(shared);
        }
    }

    #[cold]
    fn open_trial(&mut self, shared: &Shared) {
        if self.processors == 0 {
            self.processors = thread::available_parallelism().map_or(1, NonZero::get);
        }
        if 2 * shared.callers.hear() > self.processors {
            self.spread.waives();
            self.is_open = false;
            return;
        }
        let common = self.common.get_or_insert_with(|| {
            self.owner = Owners::new(PLACES);
            self.tokens = [vec![0; PLACES].into(), vec![0; PLACES].into()];
            Arc::new(Common {
                sides: Sides::new(Reads::new, PLACES),
                pool: Arc::clone(shared.pool()),
                is_attended: AtomicBool::new(false),
                is_closed: AtomicBool::new(false),
                credit_ns: AtomicU64::new(0),
                caller_on: AtomicI32::new(NOWHERE),
                is_handed_on: AtomicBool::new(false),
                is_in_vain: AtomicBool::new(false),
            })
        });
        // What a trial is to show is what another thread brings if it comes.
        common.is_in_vain.store(false, Relaxed);
        self.calls = Calls::default();
        common.lend(CREDIT);
        self.is_open = true;
    }

    /// Shares a read, unless the caller is to make it, or there is no place.
    ///
    /// # Safety
    ///
    /// As for [`Gathered::show`].
    #[inline]
    pub(super) unsafe fn push<'r>(
        &mut self,
        shared: &Shared,
        token: u32,
        request: &'r Request,
        shown: impl FnOnce(&'r Request) -> Shown<'r>,
    ) -> bool {
        let wants = self.wants(shared, request);
        if wants {
            // SAFETY: passed on from the caller.
            unsafe { self.show(token, &shown(request)) };
        }
        wants
    }

    /// Whether a read is to be shown, for which there is a place then; else the caller is to make
    /// it now.
    #[inline]
    pub(super) fn wants(&mut self, shared: &Shared, request: &Request) -> bool {
        let Op::ReadAt { span, .. } = request.op else {
            return false;
        };
        self.hands(shared, weight(span.len as u64)) == Hands::Shared && !self.is_full()
    }

    /// Shows a read that is [wanted](Gathered::wants).
    ///
    /// # Safety
    ///
    /// What the request names stays valid, and nobody else uses it, until its answer has been taken
    /// or [`Gathered::withdraw`] returns. The other descriptor stays open as long.
    #[inline]
    pub(super) unsafe fn show(&mut self, token: u32, read: &Shown<'_>) {
        let common = self.common.as_ref().expect("made before it is open");
        let is_attended = common.is_attended.load(Relaxed);
        let side = match is_attended {
            true => *self.makers.of(read.address()),
            false => Side::Near,
        };
        let at = self.owner.next_place(&common.sides, side);
        let at = at.expect("there is one where a read is wanted");
        self.weight += common.sides.table(side).write(at, read);
        self.tokens[side.index()][at] = token;
        let is_called_for = self.calls.shows(self.weight);
        if is_called_for && !is_attended && self.calls.calls(common.is_in_vain.swap(false, Relaxed))
        {
            common.call();
        }
        // Last, because a read that has been shown is in flight: after a panic from here it would
        // count as one that is not.
        // SAFETY: passed on from the caller.
        unsafe { self.owner.show(&common.sides, side) };
    }

    /// By whom a read is made.
    #[inline]
    fn hands(&mut self, shared: &Shared, weight: u64) -> Hands {
        if !self.spread.is_on_trial() {
            if !self.spread.passes(1) {
                return Hands::Shared;
            }
            self.open_trial(shared);
            if !self.is_open {
                return Hands::Own;
            }
        }
        let born = self.born;
        let hands = self.spread.enters(weight, || nanoseconds_since(born));
        self.is_open = self.spread.is_open();
        hands
    }

    /// The caller has nothing more to do until the program asks for more.
    #[inline(always)]
    pub(super) fn pauses(&mut self) {
        if self.is_open && self.spread.is_on_trial() {
            self.spread.pauses(nanoseconds_since(self.born));
        }
    }

    /// Takes answers of what is shared, and hands each to `each`, with its token and place: those
    /// that are there, else one at least, which the caller makes itself unless all are being made.
    /// None if nothing is shared.
    #[inline]
    pub(super) fn take_some(&mut self, each: &mut impl FnMut(u32, Answer, &Place)) -> Made {
        let mut made = self.take_now(each);
        if made.helped + made.own == 0
            && let Some(common) = &self.common
        {
            self.owner.wait(&common.sides);
            made = self.take_now(each);
        }
        made
    }

    /// As [`Gathered::take_some`], but none if all are being made.
    #[inline]
    pub(super) fn take_now(&mut self, each: &mut impl FnMut(u32, Answer, &Place)) -> Made {
        let Self {
            spread,
            common,
            owner,
            tokens,
            makers,
            weight,
            ..
        } = self;
        let Some(common) = common else {
            return Made::default();
        };
        let sides = &common.sides;
        let mut each = |maker, side: Side, at: usize, answer| {
            let place = sides.table(side).place(at);
            let completed = place.weight();
            *weight -= completed;
            spread.completes(completed);
            *makers.of(place.address()) = maker;
            each(tokens[side.index()][at], Answer::from_number(answer), place);
        };
        let helped = owner.take(sides, &mut |side, at, answer| {
            each(Side::Far, side, at, answer)
        });
        let own = match helped {
            0 => owner.work(sides, &mut |side, at, answer| {
                each(Side::Near, side, at, answer)
            }),
            _ => 0,
        };
        Made { own, helped }
    }

    /// Has the alarm rung by whoever makes what is shared, once that is over. True if some of it is
    /// over already.
    pub(super) fn watch(&mut self, alarm: Rouser) -> bool {
        match &self.common {
            Some(common) => self.owner.watch(&common.sides, alarm),
            None => true,
        }
    }

    /// Takes back what is shared. When this returns nobody is at work at it, and its answers are
    /// gone.
    #[inline]
    pub(super) fn withdraw(&mut self) {
        if !self.owner.is_empty() {
            self.withdraw_all();
        }
        self.weight = 0;
    }

    #[cold]
    fn withdraw_all(&mut self) {
        if let Some(common) = &self.common {
            self.owner.withdraw(&common.sides);
        }
    }
}

/// Where no thread is.
const NOWHERE: i32 = -1;

/// The processor on which this thread is, or [`NOWHERE`] where that cannot be told, as by Miri.
fn processor() -> i32 {
    if cfg!(miri) {
        return NOWHERE;
    }
    // SAFETY: no memory is involved.
    unsafe { libc::sched_getcpu() }
}

fn nanoseconds_since(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if let Some(common) = &self.common {
            common.is_closed.store(true, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::callers::HEARD_OF;
    use super::super::reads::Manner;
    use super::*;
    use crate::op::{Span, Wishes};

    /// Keeps a thread of the pool until it is let go.
    struct Busy {
        begun: Sender<()>,
        let_go: Mutex<Receiver<()>>,
    }

    impl Run for Busy {
        fn run(self: Arc<Self>) {
            self.begun.send(()).expect("the test waits for it");
            let let_go = self.let_go.lock().expect("nobody has panicked");
            let _ = let_go.recv();
        }
    }

    const SHOWN: usize = 16;

    /// What a thread that helps says when reads of so many bytes are shown, and how many of them it
    /// leaves.
    fn helps<R>(
        pool: &Arc<Pool>,
        bytes: usize,
        help: impl FnOnce(&Arc<Common>) -> R,
    ) -> (R, usize) {
        let common = Arc::new(Common {
            sides: Sides::new(Reads::new, PLACES),
            pool: Arc::clone(pool),
            is_attended: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
            credit_ns: AtomicU64::new(0),
            caller_on: AtomicI32::new(NOWHERE),
            is_handed_on: AtomicBool::new(false),
            is_in_vain: AtomicBool::new(false),
        });
        let (mut owner, mut memory) = (Owners::new(PLACES), vec![0; bytes]);
        for _ in 0..SHOWN {
            let at = owner
                .next_place(&common.sides, Side::Near)
                .expect("there are more");
            let span = Span {
                start: memory.as_mut_ptr(),
                len: memory.len(),
                arena: None,
            };
            // There is no such file.
            let read = Request::simple(Op::ReadAt {
                fd: -1,
                span,
                offset: 0,
                wishes: Wishes::NONE,
            });
            let shown = Shown {
                request: &read,
                twin: None,
                manner: Manner::Call,
            };
            common.sides.table(Side::Near).write(at, &shown);
            // SAFETY: the memory is there until all are answered, and nobody touches it.
            unsafe { owner.show(&common.sides, Side::Near) };
        }
        let said = help(&common);
        let mut left = 0;
        while owner.work(&common.sides, &mut |_, _, _| left += 1) > 0 {}
        owner.withdraw(&common.sides);
        (said, left)
    }

    /// Keeps this thread on one processor: which.
    fn stay() -> i32 {
        let here = processor();
        // SAFETY: all zeros is a set of none.
        let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let number = usize::try_from(here).expect("the kernel tells");
        // SAFETY: the set has room for the number of a processor.
        unsafe { libc::CPU_SET(number, &mut only) };
        // SAFETY: the set is there until the call returns.
        let kept = unsafe { libc::sched_setaffinity(0, size_of_val(&only), &raw const only) };
        assert_eq!(kept, 0, "a thread may stay where it is");
        here
    }

    /// Whether who comes hands it on, whether that was in vain, and how many reads are left.
    /// Threads of the pool that are started are where this one is.
    fn comes(pool: &Arc<Pool>, caller_on: i32) -> ((bool, bool), usize) {
        helps(pool, 4096, |common| {
            common.caller_on.store(caller_on, Relaxed);
            Arc::clone(common).run();
            // The one that it is handed on to leaves as well.
            while common.is_attended.load(Relaxed) {
                thread::yield_now();
            }
            let is_handed_on = common.is_handed_on.load(Relaxed);
            (is_handed_on, common.is_in_vain.load(Relaxed))
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has one processor")]
    fn who_is_put_on_the_processor_of_the_caller_hands_it_on_or_leaves() {
        thread::spawn(|| {
            let here = stay();
            let pool = Arc::new(Pool::new(2));
            assert_eq!(comes(&pool, here + 1), ((false, false), 0));
            assert_eq!(comes(&pool, NOWHERE), ((false, false), 0));
            assert_eq!(comes(&pool, here), ((true, true), SHOWN));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn who_helps_leaves_soon_when_another_waits_for_a_thread() {
        let pool = Arc::new(Pool::new(1));
        assert_eq!(helps(&pool, 1 << 20, |common| common.work()), (true, 0));
        let (begun, has_begun) = channel();
        let (go, let_go) = channel();
        let busy = Busy {
            begun: begun.clone(),
            let_go: Mutex::new(let_go),
        };
        pool.give_flush(Arc::new(busy)).expect("a thread starts");
        has_begun.recv().expect("it begins");
        let (_, let_go) = channel();
        let let_go = Mutex::new(let_go);
        let waits = Busy { begun, let_go };
        pool.give_flush(Arc::new(waits)).expect("it is queued");
        let (goes_on, left) = helps(&pool, 1 << 20, |common| common.work());
        assert!(!goes_on && left >= SHOWN / 2, "{left} of large ones left");
        // What is over in a moment is not asked for.
        assert_eq!(helps(&pool, 4096, |common| common.work()), (true, 0));
        drop(go);
        assert_eq!(pool.close(Instant::now() + 60 * HEARD_OF), 0);
    }
}
