//! A thread of the pool that makes copies which a caller shares with it.
//!
//! A thread that has been called looks for more work for a short while when it has found some, and
//! is then idle until it is called again. Next: [`super::shown`], [`super::share`].
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::time::{Duration, Instant};

use super::shown::{PLACES, Places};
use super::sides::Sides;
use crate::backend::threads::pool::{Pool, Run};
use crate::policy::weight;

/// How long a thread that has been called looks for more work, at most: about what waking it costs.
const PATIENCE: Duration = Duration::from_micros(50);

/// How long it may look at the beginning of a trial. Later on, looking is to cost no more than what
/// it brings.
pub(super) const CREDIT: Duration = Duration::from_micros(200);

/// How often it looks before it asks what time it is: about as long as a read takes.
const LOOKS: u32 = 16;

/// After so much work, in units of [`weight`], it asks whether something else waits for a thread:
/// that takes about as long as waking one.
const ASK_EVERY: u64 = 64 * weight(4096);

/// At most so often one is started in place of another: on a busy machine each may be late.
const START_EVERY: Duration = Duration::from_millis(20);

/// What a caller shares with the thread it calls.
pub(super) struct Common {
    pub(super) sides: Sides<Places>,
    pool: Arc<Pool>,
    /// Whether a thread has been called and has not left.
    pub(super) is_attended: AtomicBool,
    /// The caller is gone.
    pub(super) is_closed: AtomicBool,
    /// How long that thread may look for work, in nanoseconds.
    credit_ns: AtomicU64,
    /// The processor on which the caller was when it called.
    caller_on: AtomicI32,
    /// Whether a thread that was called has found itself there, and another one takes its place.
    is_handed_on: AtomicBool,
    /// Whether that one was there too, and has left.
    pub(super) is_in_vain: AtomicBool,
    born: Instant,
    /// When a thread was started last in place of another, in nanoseconds from `START_EVERY` before
    /// this was made.
    started_ns: AtomicU64,
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
    pub(super) fn new(pool: &Arc<Pool>, is_attended: bool) -> Self {
        Self {
            sides: Sides::new(Places::new, PLACES),
            pool: Arc::clone(pool),
            is_attended: AtomicBool::new(is_attended),
            is_closed: AtomicBool::new(false),
            credit_ns: AtomicU64::new(0),
            caller_on: AtomicI32::new(NOWHERE),
            is_handed_on: AtomicBool::new(false),
            is_in_vain: AtomicBool::new(false),
            born: Instant::now(),
            started_ns: AtomicU64::new(0),
        }
    }

    /// Starts a thread in place of another by `start`, unless that was done a moment ago. Whether
    /// it was started.
    fn start_in_place(&self, start: impl FnOnce() -> bool) -> bool {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = ns(START_EVERY + self.born.elapsed());
        let is_time = now_ns.saturating_sub(self.started_ns.load(Relaxed)) >= ns(START_EVERY);
        let is_started = is_time && start();
        if is_started {
            self.started_ns.store(now_ns, Relaxed);
        }
        is_started
    }

    /// Helps as long as there is work, and looks for more for a while.
    fn attend(&self) {
        let mut begun = Instant::now();
        loop {
            if !self.work() {
                return;
            }
            let worked_until = Instant::now();
            let credit = Duration::from_nanos(self.credit_ns.load(Relaxed));
            let credit = (credit + worked_until.duration_since(begun)).min(CREDIT);
            let has_found = self.look(worked_until, credit.min(PATIENCE));
            begun = Instant::now();
            self.lend(credit.saturating_sub(begun.duration_since(worked_until)));
            if !has_found {
                return;
            }
        }
    }

    /// Lets the thread that is called look for so long.
    pub(super) fn lend(&self, credit: Duration) {
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
            .help(|places, place| *weight += places.place(place).weight())
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

    /// Has a new thread come in place of this one: it is put where there is least to do. One that
    /// is woken is put where it was last, also if another processor has nothing to do (none is
    /// looked for while they are busy altogether: `kernel/sched/fair.c`, `select_idle_cpu`).
    #[cold]
    fn hand_on(self: &Arc<Self>) -> bool {
        self.start_in_place(|| self.pool.replace_this(Arc::clone(self) as _).is_ok())
    }

    /// Calls a thread.
    #[cold]
    pub(super) fn call(self: &Arc<Self>) {
        self.is_attended.store(true, Relaxed);
        self.is_handed_on.store(false, Relaxed);
        self.caller_on.store(processor(), Relaxed);
        if self.pool.give_share(Arc::clone(self) as _).is_err() {
            self.is_attended.store(false, Relaxed);
        }
    }

    /// The thread that was called should be here. Has a new one come if it has not begun: the
    /// scheduler may have it wait for the very processor on which the caller is.
    #[cold]
    pub(super) fn call_again(self: &Arc<Self>) {
        self.start_in_place(|| self.pool.hurry_share(&(Arc::clone(self) as _)));
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::super::callers::HEARD_OF;
    use super::super::share::Side;
    use super::super::shown::{Manner, Shown};
    use super::super::sides::Owners;
    use super::*;
    use crate::op::{Op, Request, Span, Wishes};

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
        let common = Arc::new(Common::new(pool, true));
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
                fd: i32::MAX,
                span,
                offset: 0,
                wishes: Wishes::NONE,
            });
            // SAFETY: it has no list of buffers.
            let shown = unsafe { Shown::of(&read, None, Manner::Call) };
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
    fn one_that_could_not_be_started_is_no_reason_to_wait_and_one_that_was_is() {
        let common = Common::new(&Arc::new(Pool::new(1)), false);
        let started = [false, true, true].map(|can| common.start_in_place(|| can));
        // Unless this machine stood still meanwhile.
        let is_late = common.born.elapsed() >= START_EVERY;
        assert_eq!(started[..2], [false, true]);
        assert!(!started[2] || is_late);
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
