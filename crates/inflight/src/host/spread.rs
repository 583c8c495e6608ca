//! Copies from the page cache that a caller gathers, to make them in one run: alone, or together
//! with a thread of the pool where the policy has found that to be faster.
//!
//! A thread that has been called looks for more work for a short while when it has found some, and
//! is then idle until it is called again. Next: [`super::share`], [`crate::policy`].
#![allow(unsafe_code)]

use std::num::NonZero;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::share::{Share, Work};
use super::shared::Shared;
use super::stopwatch::time;
use crate::backend::threads::execute::{execute_request, to_usize};
use crate::backend::threads::pool::{Pool, Run};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Request, Span, TRANSFER_MAX_BYTES, Wishes};
use crate::policy::{Hands, Spread, weight};

/// Most reads in one run; of more, one run follows the other.
const PLACES: usize = 256;

/// How long a thread that has been called looks for more work, at most: about what waking it costs.
const PATIENCE: Duration = Duration::from_micros(50);

/// How long it may look at the beginning of a trial. Later on, looking is to cost no more than what
/// it brings.
const CREDIT: Duration = Duration::from_micros(200);

/// How often it looks before it asks what time it is.
const LOOKS: u32 = 16;

/// How long a caller that has not been heard of still counts as one.
const HEARD_OF: Duration = Duration::from_secs(1);

/// The reads of a run. The caller writes here what is to be done before it shows the table, and
/// reads the answers when all are done; that is what orders the accesses.
struct Reads {
    places: Box<[Place; PLACES]>,
    answers: Box<[AtomicI64; PLACES]>,
}

#[derive(Default)]
struct Place {
    start: AtomicPtr<u8>,
    len: AtomicUsize,
    offset: AtomicU64,
    fd: AtomicI32,
    whole: AtomicBool,
}

impl Reads {
    fn new() -> Self {
        Self {
            places: Box::new(std::array::from_fn(|_| Place::default())),
            answers: Box::new(std::array::from_fn(|_| AtomicI64::new(0))),
        }
    }
}

impl Work for Reads {
    #[inline]
    unsafe fn work(&self, place: u32) {
        let at = to_usize(place);
        let place = &self.places[at];
        let span = Span {
            start: place.start.load(Relaxed),
            len: place.len.load(Relaxed),
            arena: None,
        };
        let op = Op::ReadAt {
            fd: place.fd.load(Relaxed),
            span,
            offset: place.offset.load(Relaxed),
            wishes: Wishes::NONE,
        };
        let request = Request {
            op,
            whole: place.whole.load(Relaxed),
            limit_bytes: TRANSFER_MAX_BYTES,
            aside: false,
        };
        // SAFETY: passed on from the caller.
        let answer = unsafe { execute_request(&request) };
        self.answers[at].store(answer.to_number(), Relaxed);
    }
}

/// What a caller shares with the thread it calls.
struct Common {
    share: Share<Reads>,
    pool: Arc<Pool>,
    /// Whether a thread has been called and has not left.
    is_attended: AtomicBool,
    /// The caller is gone.
    is_closed: AtomicBool,
    /// How long that thread may look for work, in nanoseconds.
    credit_ns: AtomicU64,
}

impl Run for Common {
    fn run(self: Arc<Self>) {
        self.attend();
        self.is_attended.store(false, Relaxed);
    }
}

impl Common {
    /// Helps as long as there is work, and looks for more for a while.
    fn attend(&self) {
        let mut begun = Instant::now();
        loop {
            while self.share.help() {
                if self.pool.is_wanted() {
                    return;
                }
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

    /// Looks for more work. False if there is none, or something else to do.
    fn look(&self, from: Instant, patience: Duration) -> bool {
        loop {
            for _ in 0..LOOKS {
                if self.share.has_more() {
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

    /// Calls a thread, unless one is there.
    fn call(self: &Arc<Self>) {
        if self.is_attended.load(Relaxed) {
            return;
        }
        self.is_attended.store(true, Relaxed);
        if self.pool.give_share(Arc::clone(self) as _).is_err() {
            self.is_attended.store(false, Relaxed);
        }
    }
}

/// What a caller gathers, and what it has learned of sharing.
pub(super) struct Gathered {
    spread: Spread,
    /// Whether reads are gathered now; see [`Gathered::start`].
    is_open: bool,
    /// Made for the first trial.
    common: Option<Arc<Common>>,
    /// Processors that this thread may use, when that has been asked.
    processors: usize,
    born: Instant,
    /// Whose reads the places are.
    tokens: Vec<u32>,
    /// Reads that the caller makes itself, because they are samples.
    samples: Vec<(u32, Request)>,
    weight: u64,
}

/// Callers of an engine that have been heard of lately: where there are as many as processors, none
/// of them is to take another's.
#[derive(Default)]
pub(crate) struct Callers(Mutex<Vec<(thread::ThreadId, Instant)>>);

impl Callers {
    /// This thread is heard of. How many have been lately.
    fn hear(&self) -> usize {
        let (this, now) = (thread::current().id(), Instant::now());
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|(thread, at)| *thread != this && now - *at < HEARD_OF);
        heard.push((this, now));
        heard.len()
    }
}

impl Gathered {
    pub(super) fn new() -> Self {
        Self {
            spread: Spread::default(),
            is_open: false,
            common: None,
            processors: 0,
            born: Instant::now(),
            tokens: Vec::new(),
            samples: Vec::new(),
            weight: 0,
        }
    }

    /// Whether reads are to be gathered.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether nothing has been gathered.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == PLACES
    }

    /// The caller has made so many reads one by one.
    #[inline]
    pub(super) fn passed(&mut self, shared: &Shared, reads: u32) {
        if self.spread.rests(u64::from(reads)) {
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
            self.tokens.reserve_exact(PLACES);
            self.samples.reserve_exact(PLACES);
            Arc::new(Common {
                share: Share::new(Reads::new()),
                pool: Arc::clone(shared.pool()),
                is_attended: AtomicBool::new(false),
                is_closed: AtomicBool::new(false),
                credit_ns: AtomicU64::new(0),
            })
        });
        common.lend(CREDIT);
        self.is_open = true;
    }

    /// Gathers a read, if it can be. There is a place.
    #[inline]
    pub(super) fn push(&mut self, token: u32, request: &Request) -> bool {
        let Op::ReadAt {
            fd, span, offset, ..
        } = request.op
        else {
            return false;
        };
        let common = self.common.as_ref().expect("made before it is open");
        let reads = common.share.table();
        let place = &reads.places[self.tokens.len()];
        place.start.store(span.start, Relaxed);
        place.len.store(span.len, Relaxed);
        place.offset.store(offset, Relaxed);
        place.fd.store(fd, Relaxed);
        place.whole.store(request.whole, Relaxed);
        self.tokens.push(token);
        self.weight += weight(span.len as u64);
        true
    }

    /// Gathers a read that the caller is to make itself, if it can be.
    pub(super) fn push_sample(&mut self, token: u32, request: &Request) -> bool {
        let is_read = matches!(request.op, Op::ReadAt { .. });
        if is_read {
            self.samples.push((token, *request));
        }
        is_read
    }

    /// How many reads have been gathered.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.samples.len()
    }

    /// Forgets what has been gathered, and has not been run.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.samples.clear();
        self.weight = 0;
    }

    /// Makes the reads that have been gathered, and hands each to `each`. Returns how many another
    /// thread has made.
    ///
    /// # Safety
    ///
    /// What was gathered is still valid, and nobody else uses it until this returns or unwinds.
    pub(super) unsafe fn run(&mut self, shared: &Shared, mut each: impl FnMut(u32, Made)) -> u32 {
        let common = Arc::clone(self.common.as_ref().expect("something was gathered"));
        let count = u32::try_from(self.tokens.len()).expect("at most PLACES");
        let reads = self.len() as u64;
        let is_on_trial = self.spread.is_on_trial();
        let hands = match is_on_trial {
            false => self.spread.hands(reads, self.weight),
            true => self.spread.begins(self.now_ns(), reads, self.weight),
        };
        // SAFETY: passed on from the caller.
        let helped = unsafe { self.work(&common, hands, count, &mut each) };
        if is_on_trial {
            let now_ns = self.now_ns();
            self.spread.ends(now_ns);
            self.is_open = self.spread.gathers();
        } else if self.spread.is_on_trial() {
            self.open_trial(shared);
        }
        let answers = &common.share.table().answers;
        for (token, answer) in self.tokens.iter().zip(answers.iter()) {
            let answer = Answer::from_number(answer.load(Relaxed));
            each(*token, Made::Answered(answer));
        }
        self.clear();
        helped
    }

    /// Works through what has been gathered. Returns how many places another thread has claimed.
    ///
    /// # Safety
    ///
    /// As for [`Gathered::run`].
    unsafe fn work(
        &self,
        common: &Arc<Common>,
        hands: Hands,
        count: u32,
        each: &mut impl FnMut(u32, Made),
    ) -> u32 {
        let mut samples = || {
            for (token, request) in &self.samples {
                each(*token, Made::Sample(*request));
            }
        };
        if hands == Hands::Own {
            for place in 0..count {
                // SAFETY: passed on from the caller; nothing is shown to others.
                unsafe { common.share.table().work(place) };
            }
            samples();
            return 0;
        }
        // SAFETY: passed on from the caller; this does not return or unwind without dropping it.
        let mut shown = unsafe { common.share.show(count) };
        common.call();
        samples();
        shown.work(count)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if let Some(common) = &self.common {
            common.is_closed.store(true, Relaxed);
        }
    }
}

/// A read of a run.
pub(super) enum Made {
    Answered(Answer),
    /// It is a sample, which the caller makes now.
    Sample(Request),
}

impl Made {
    /// The answer for the read, which is that of this operation.
    #[inline]
    pub(super) fn answer<O: Prepare>(self, operation: &mut O) -> Answer {
        match self {
            Self::Answered(answer) => answer,
            Self::Sample(request) => time(operation, &request),
        }
    }
}
