//! Who serves whom where flushes take nothing, and where they do not.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::task::Wake;
use std::thread;

use super::*;

thread_local! {
    /// What happens during the next flush on this thread.
    pub(super) static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// Flushes that this thread has made.
    pub(super) static MADE: Cell<usize> = const { Cell::new(0) };
}

/// A file whose flushes are counted, and a pool of which only the calls are.
struct Counted {
    /// A flush is short where no more ask for one at a time, and nothing where any number may.
    short_for: usize,
    gathers: Arc<Mutex<Duration>>,
    /// For how many seconds a task looks, and how often it has asked.
    looks: Arc<AtomicU64>,
    looked: Arc<AtomicUsize>,
    /// How often it is asked what is usual.
    asked: Arc<AtomicUsize>,
    is_served: Arc<AtomicBool>,
    has_no_thread: Arc<AtomicBool>,
    patience: Arc<Mutex<Duration>>,
    flushes: Arc<AtomicUsize>,
    delegated: Arc<AtomicUsize>,
}

impl Flush for Counted {
    fn alone(&self, _data_only: bool) -> Answer {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        MADE.set(MADE.get() + 1);
        Answer::moved(0)
    }

    fn flush(&self, data_only: bool) -> Answer {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile();
        }
        self.alone(data_only)
    }

    fn delegate(&self, _commit: &Arc<Commit>) -> bool {
        if self.has_no_thread.load(Ordering::Relaxed) {
            return false;
        }
        self.delegated.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn is_wanted(&self) -> bool {
        false
    }

    fn gathers_for(&self, _took: Duration) -> Option<Gather> {
        let at_most = *lock(&self.gathers);
        (!at_most.is_zero()).then_some(Gather {
            at_most,
            sleeps: true,
        })
    }

    fn looks_for(&self) -> Duration {
        self.looked.fetch_add(1, Ordering::Relaxed);
        Duration::from_secs(self.looks.load(Ordering::Relaxed))
    }

    fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Relaxed)
    }

    fn patience(&self) -> Duration {
        *lock(&self.patience)
    }

    fn is_little(&self, _bytes: u64) -> bool {
        true
    }

    fn is_short(&self, _took: Duration, syncs: usize) -> bool {
        syncs <= self.short_for
    }

    fn usual(&self) -> Option<Duration> {
        // Asks the file.
        self.asked.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn was_first(&self, _took: Duration) {}

    fn count(&self, _served: usize) {}

    fn wake(&self, waker: Waker) {
        waker.wake();
    }
}

/// A file of which one flush is known, made by a thread of the pool.
pub(super) struct Site {
    pub(super) commit: Arc<Commit>,
    gathers: Arc<Mutex<Duration>>,
    /// For how many seconds a task looks, and how often it has asked.
    looks: Arc<AtomicU64>,
    looked: Arc<AtomicUsize>,
    /// How often it is asked what is usual.
    asked: Arc<AtomicUsize>,
    is_served: Arc<AtomicBool>,
    /// Whether there is no thread of the pool.
    pub(super) has_no_thread: Arc<AtomicBool>,
    /// How long a thread waits before it looks after the leader: long, unless a test says so.
    pub(super) patience: Arc<Mutex<Duration>>,
    flushes: Arc<AtomicUsize>,
    delegated: Arc<AtomicUsize>,
}

impl Site {
    fn new(takes_nothing: bool) -> Self {
        Self::short_for(if takes_nothing { usize::MAX } else { 0 })
    }

    fn short_for(short_for: usize) -> Self {
        let (flushes, delegated) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (gathers, looks) = (Arc::default(), Arc::default());
        let (looked, asked) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (is_served, has_no_thread) = (Arc::default(), Arc::default());
        let patience = Arc::new(Mutex::new(Duration::from_secs(3600)));
        let file = Counted {
            short_for,
            gathers: Arc::clone(&gathers),
            looks: Arc::clone(&looks),
            looked: Arc::clone(&looked),
            asked: Arc::clone(&asked),
            is_served: Arc::clone(&is_served),
            has_no_thread: Arc::clone(&has_no_thread),
            patience: Arc::clone(&patience),
            flushes: Arc::clone(&flushes),
            delegated: Arc::clone(&delegated),
        };
        let commit = Arc::new(Commit::new(file, true));
        let this = Self {
            commit,
            gathers,
            looks,
            looked,
            asked,
            is_served,
            has_no_thread,
            patience,
            flushes,
            delegated,
        };
        let seat = this.join(Waker::noop());
        this.commit.lead();
        assert_eq!(seat.answer(), Some(Answer::moved(0)));
        assert_eq!(this.counts(), (1, 1), "the pool is called for a task");
        this
    }

    fn join(&self, waker: &Waker) -> Seat {
        self.commit.join(true, &Nothing, Some(waker), None)
    }

    /// A thread that waits for whoever leads.
    pub(super) fn sleeper(&self) -> thread::JoinHandle<Answer> {
        match self.commit.enter(true, &Nothing) {
            Turn::Wait(seat) => thread::spawn(|| seat.wait()),
            Turn::Lead => panic!("two lead"),
        }
    }

    /// Flushes, and calls of the pool.
    pub(super) fn counts(&self) -> (usize, usize) {
        let count = |counted: &AtomicUsize| counted.load(Ordering::Relaxed);
        (count(&self.flushes), count(&self.delegated))
    }

    /// A thread leads, and `waits` is called before its flush is over.
    pub(super) fn led<R>(&self, waits: impl FnOnce() -> R) -> R {
        let turn = self.commit.enter(true, &Nothing);
        assert!(matches!(turn, Turn::Lead), "nobody else leads");
        let waiting = waits();
        assert_eq!(self.commit.alone(true), Answer::moved(0));
        self.commit.over();
        waiting
    }

    /// One where the pool has served two threads together, and whoever leads next waits so long for
    /// the other; with its counts.
    fn shared(gathers: Duration) -> (Self, (usize, usize)) {
        let this = Self::new(false);
        let sleepers = this.led(|| [this.sleeper(), this.sleeper()]);
        this.commit.lead();
        for sleeper in sleepers {
            assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
        }
        assert_eq!(this.counts(), (3, 2));
        assert!(this.nobody_leads());
        *lock(&this.gathers) = gathers;
        (this, (3, 2))
    }

    pub(super) fn nobody_leads(&self) -> bool {
        !lock(&self.commit.state).is_led()
    }

    /// One without a thread of the pool.
    pub(super) fn without_a_pool() -> Self {
        let this = Self::new(false);
        this.has_no_thread.store(true, Ordering::Relaxed);
        this
    }

    /// One whose threads soon look whether anybody leads.
    fn hasty() -> Self {
        let this = Self::new(false);
        *lock(&this.patience) = Duration::from_millis(1);
        this
    }
}

#[test]
fn threads_that_wait_for_nothing_are_served_by_the_one_that_has_led() {
    for (takes_nothing, counts) in [(true, (3, 1)), (false, (2, 2))] {
        let site = Site::new(takes_nothing);
        let sleeper = site.led(|| site.sleeper());
        assert_eq!(site.counts(), counts, "takes nothing: {takes_nothing}");
        if !takes_nothing {
            site.commit.lead();
        }
        assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
        assert!(site.nobody_leads());
    }
}

#[test]
fn what_another_program_serves_is_flushed_for_others_by_the_pool_alone() {
    let site = Site::new(true);
    site.is_served.store(true, Ordering::Relaxed);
    let sleeper = site.led(|| site.sleeper());
    assert_eq!(site.counts(), (2, 2), "it may take any time");
    site.commit.lead();
    assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
}

#[test]
fn a_promise_to_those_who_have_left_asks_nothing_of_their_file() {
    for (leaves, flushes, asked) in [(false, 2, 1), (true, 1, 0)] {
        let site = Site::new(false);
        // As of a file of which nothing is known.
        lock(&site.commit.state).lately = Lately::default();
        let host = HostId::new();
        let seat = site.commit.join(true, &Nothing, None, Some(host));
        let seat = match leaves {
            true => {
                drop(seat.leave());
                None
            }
            false => Some(seat),
        };
        assert_eq!(site.commit.keep_promise(host, |_, _| true), !leaves);
        assert_eq!(
            (site.counts().0, site.asked.load(Ordering::Relaxed)),
            (flushes, asked)
        );
        assert_eq!(
            seat.and_then(|seat| seat.answer()),
            (!leaves).then_some(Answer::moved(0))
        );
        assert!(site.nobody_leads());
    }
}

#[test]
fn who_comes_while_others_are_served_is_left_to_the_pool() {
    let site = Site::new(true);
    let commit = Arc::clone(&site.commit);
    let sleeper = site.led(|| {
        let late = move || drop(commit.join(true, &Nothing, Some(Waker::noop()), None));
        MEANWHILE.set(Some(Box::new(late)));
        site.sleeper()
    });
    assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
    assert_eq!(site.counts(), (3, 2), "one more round is served");
    site.commit.lead();
    assert_eq!(site.counts(), (4, 2));
    assert!(site.nobody_leads());
}

#[test]
fn tasks_that_wait_for_nothing_are_woken_by_the_pool() {
    let site = Site::new(true);
    let seat = site.led(|| site.join(Waker::noop()));
    assert_eq!((site.counts(), seat.answer()), ((2, 2), None));
    site.commit.lead();
    assert_eq!(seat.answer(), Some(Answer::moved(0)));
    assert!(site.nobody_leads());
}

/// Asks whether somebody leads while it wakes.
struct Looks(Arc<Commit>, AtomicUsize);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let is_led = lock(&self.0.state).is_led();
        self.1.store(1 + usize::from(is_led), Ordering::Relaxed);
    }
}

#[test]
fn nobody_leads_while_those_are_woken_who_waited_for_nothing() {
    for (takes_nothing, looked) in [(true, 1), (false, 2)] {
        let site = Site::new(takes_nothing);
        let looks = Arc::new(Looks(Arc::clone(&site.commit), AtomicUsize::new(0)));
        let seat = site.join(&Waker::from(Arc::clone(&looks)));
        site.commit.lead();
        assert_eq!(looks.1.load(Ordering::Relaxed), looked, "{takes_nothing}");
        assert_eq!(seat.answer(), Some(Answer::moved(0)));
        assert!(site.nobody_leads());
    }
}

/// A thread that waits for nothing else asks for a flush.
fn asks(commit: &Arc<Commit>) -> thread::JoinHandle<Answer> {
    let commit = Arc::clone(commit);
    thread::spawn(move || match commit.enter_alone(true, &Nothing) {
        Turn::Wait(seat) => seat.wait(),
        Turn::Lead => panic!("it waits for others first"),
    })
}

#[test]
fn threads_that_were_served_together_make_one_flush_for_both_without_the_pool() {
    // Longer than anybody takes to come.
    let (site, (flushes, delegated)) = Site::shared(Duration::from_secs(60));
    for round in 1..=3 {
        let both = [asks(&site.commit), asks(&site.commit)];
        for thread in both {
            assert_eq!(thread.join().expect("no panic"), Answer::moved(0));
        }
        assert_eq!(site.counts(), (flushes + round, delegated));
        assert!(site.nobody_leads());
    }
}

#[test]
fn one_that_waits_in_vain_for_others_makes_the_flush_and_waits_no_more() {
    let (site, (flushes, delegated)) = Site::shared(Duration::from_millis(1));
    let alone = asks(&site.commit).join().expect("no panic");
    assert_eq!(
        (alone, site.counts()),
        (Answer::moved(0), (flushes + 1, delegated))
    );
    site.led(|| ());
    assert_eq!(site.counts(), (flushes + 2, delegated));
    assert!(site.nobody_leads());
}

#[test]
fn tasks_that_come_while_a_thread_gathers_are_left_to_the_pool_with_it() {
    let (site, (flushes, delegated)) = Site::shared(Duration::from_secs(60));
    let thread = asks(&site.commit);
    while site.nobody_leads() {
        thread::yield_now();
    }
    let task = site.join(Waker::noop());
    while site.counts().1 == delegated {
        thread::yield_now();
    }
    assert_eq!(site.counts(), (flushes, delegated + 1));
    // The pool would wait for them to come back.
    *lock(&site.gathers) = Duration::ZERO;
    site.commit.lead();
    assert_eq!(task.answer(), Some(Answer::moved(0)));
    assert_eq!(thread.join().expect("no panic"), Answer::moved(0));
    assert_eq!(site.counts(), (flushes + 1, delegated + 1));
}

/// What a task in a poll is told.
fn at_once(commit: &Arc<Commit>) -> Option<Answer> {
    let task = Asker {
        may_wait: true,
        is_host: false,
    };
    commit.at_once(true, task).map(|(answer, _)| answer)
}

/// After so many short ones, flushes are made where they are asked for.
const SHORT: usize = 32;

fn after_short_ones(short_for: usize) -> Site {
    let site = Site::short_for(short_for);
    for _ in 1..SHORT {
        drop(site.join(Waker::noop()));
        site.commit.lead();
    }
    site
}

#[test]
fn a_task_that_finds_a_flush_of_nothing_looks_for_its_end() {
    // One that looks for ever, and one that does not at all.
    for (looks, answer) in [(u64::MAX, Some(Answer::moved(0))), (0, None)] {
        let site = after_short_ones(usize::MAX);
        let (commit, beside) = (Arc::clone(&site.commit), Arc::new(Mutex::new(None)));
        let (looked, other) = (Arc::clone(&site.looked), Arc::clone(&beside));
        site.looks.store(looks, Ordering::Relaxed);
        MEANWHILE.set(Some(Box::new(move || {
            let task = thread::spawn(move || at_once(&commit));
            // The flush is not over before the task has found it.
            while looked.load(Ordering::Relaxed) == 0 && !task.is_finished() {
                thread::yield_now();
            }
            *lock(&other) = Some(task);
        })));
        assert_eq!(at_once(&site.commit), Some(Answer::moved(0)));
        let task = lock(&beside).take().expect("it was started");
        assert_eq!(task.join().expect("no panic"), answer);
        let flushes = SHORT + 1 + usize::from(answer.is_some());
        assert_eq!(site.counts(), (flushes, SHORT), "the pool is not called");
        assert!(site.nobody_leads());
    }
}

#[test]
fn a_task_looks_for_no_flush_that_takes_time_or_that_others_wait_for() {
    for (short_for, waits, looked) in [(usize::MAX, false, 1), (usize::MAX, true, 0), (1, false, 0)]
    {
        let site = after_short_ones(short_for);
        let commit = Arc::clone(&site.commit);
        MEANWHILE.set(Some(Box::new(move || {
            if waits {
                drop(commit.join(true, &Nothing, Some(Waker::noop()), None));
            }
            assert_eq!(at_once(&commit), None);
        })));
        assert_eq!(at_once(&site.commit), Some(Answer::moved(0)));
        let counted = site.looked.load(Ordering::Relaxed);
        assert_eq!(counted, looked, "{short_for}, {waits}");
    }
}

#[test]
fn a_thread_makes_the_flush_that_the_pool_does_not_come_to() {
    let site = Site::hasty();
    let sleepers = site.led(|| [site.sleeper(), site.sleeper()]);
    for sleeper in sleepers {
        assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
    }
    assert_eq!(site.counts(), (3, 2), "one for both");
    assert!(site.nobody_leads());
    // Whoever was called comes in the end.
    site.commit.lead();
    assert_eq!(site.counts(), (3, 2));
    assert!(site.nobody_leads());
}

#[test]
fn a_thread_that_the_pool_does_not_come_to_wakes_no_tasks() {
    let site = Site::hasty();
    let sleepers = || [site.sleeper(), site.sleeper()];
    let (task, sleepers) = site.led(|| (site.join(Waker::noop()), sleepers()));
    for sleeper in sleepers {
        assert_eq!(sleeper.join().expect("no panic"), Answer::moved(0));
    }
    assert_eq!((site.counts(), task.answer()), ((4, 2), None));
    // It has been called once, and is still to come.
    site.commit.lead();
    assert_eq!(task.answer(), Some(Answer::moved(0)));
    assert_eq!(site.counts(), (5, 2));
    assert!(site.nobody_leads());
}

/// A waker that waits for a thread which waits for a sync.
pub(super) struct Blocks(pub(super) Arc<Commit>);

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let commit = Arc::clone(&self.0);
        let waits = thread::spawn(move || match commit.enter(true, &Nothing) {
            Turn::Wait(seat) => seat.wait(),
            Turn::Lead => panic!("two lead"),
        });
        assert_eq!(waits.join().expect("no panic"), Answer::moved(0));
    }
}

#[test]
fn a_waker_may_wait_for_a_thread_that_waits_for_a_sync() {
    let site = Site::hasty();
    let commit = Arc::clone(&site.commit);
    let task = site.join(&Waker::from(Arc::new(Blocks(commit))));
    site.commit.lead();
    assert_eq!(task.answer(), Some(Answer::moved(0)));
    assert_eq!(site.counts(), (3, 2));
    assert!(site.nobody_leads());
}
