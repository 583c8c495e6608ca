//! Work that a thread shares with others, which may come or not, while it goes on adding to it.
//!
//! The owner writes what is to be done to a place of a table, shows that place to whoever looks,
//! and works itself whenever it wants an answer. Everybody, the owner too, claims places in the
//! order in which they were shown, so the owner never waits for somebody who has not come: only
//! when nothing is left to be claimed does it wait for an answer, of a place that another has
//! claimed. A place is used again when its answer has been taken.
//!
//! What is shown is counted in numbers that never come again. One says where it ends; the owner
//! alone writes it, so to show a place takes no locked instruction, which would have to wait until
//! the other processor has let go of all that was written before. The other says what is claimed,
//! and only grows; so whoever has changed it has a claim on what had been shown when it looked.
//!
//! What deliberately is not here: what the work is, who is called, and whether that pays. Next:
//! [`super::spread`].
#![allow(unsafe_code)]

use std::collections::VecDeque;

use super::super::mail::Rouse;
use crate::backend::threads::execute::to_usize;
use crate::sync::lock_explored as lock;
use crate::sync::{AtomicBool, AtomicI64, AtomicU64, Condvar, Mutex, Ordering, PoisonError};

/// A table whose places are worked through by several threads.
pub(super) trait Work {
    /// What calls an owner away from another wait than [`Owner::wait`].
    type Alarm: Rouse;

    /// Does the work of one place, as the owner or as another thread, and returns the answer,
    /// which is not [`NONE`]. Must not panic.
    ///
    /// # Safety
    ///
    /// Nobody else works at this place, and what it names stays valid until this returns.
    unsafe fn work(&self, place: usize, by: Side) -> i64;
}

/// Who works at a place, or is to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Side {
    /// The owner.
    #[default]
    Near,
    /// Another thread.
    Far,
}

/// No answer yet.
const NONE: i64 = i64::MIN;

/// What is answered by a thread that has panicked, which it must not.
const BROKEN: i64 = -(libc::EIO as i64);

/// On a cache line that it shares with nothing.
#[repr(align(128))]
struct Line<T>(T);

/// What everybody sees; see the module.
pub(super) struct Share<W: Work> {
    table: W,
    /// Of each place, its answer once another thread has worked at it.
    answers: Box<[AtomicI64]>,
    /// The number of the next work that is shown.
    end: Line<AtomicU64>,
    /// The number of the first work that nobody has claimed.
    first: Line<AtomicU64>,
    /// Whether the owner sleeps until somebody has done more.
    sleeps: Line<AtomicBool>,
    /// Held by an owner that falls asleep, and by whoever wakes it: what it sleeps on, if that is
    /// not `told`.
    sleep: Mutex<Option<W::Alarm>>,
    told: Condvar,
}

/// Most places claimed at a time.
const CLAIM_MAX: u64 = 8;

/// How often the owner looks whether others are done before it sleeps: they have claimed what takes
/// a few microseconds, and waking up takes longer than that.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 256 };

impl<W: Work> Share<W> {
    /// Of so many places, a power of two.
    pub(super) fn new(table: W, places: usize) -> Self {
        assert!(places.is_power_of_two());
        Self {
            table,
            answers: (0..places).map(|_| AtomicI64::new(NONE)).collect(),
            end: Line(AtomicU64::new(0)),
            first: Line(AtomicU64::new(0)),
            sleeps: Line(AtomicBool::new(false)),
            sleep: Mutex::new(None),
            told: Condvar::new(),
        }
    }

    pub(super) fn table(&self) -> &W {
        &self.table
    }

    fn place(&self, number: u64) -> usize {
        let last = self.answers.len() as u64 - 1;
        usize::try_from(number & last).expect("less than there are places")
    }

    /// Claims some of what is left before this number, which has been shown: half of it, so that in
    /// the end nobody waits long for another.
    #[inline]
    fn claim(&self, end: u64) -> Option<Claim> {
        let mut first = self.first.0.load(Ordering::Relaxed);
        loop {
            // Others may have claimed what has been shown since.
            let left = end.checked_sub(first).filter(|left| *left > 0)?;
            let next = first + left.div_ceil(2).min(CLAIM_MAX);
            let claimed = self.first.0.compare_exchange_weak(
                first,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => return Some(Claim { first, end: next }),
                Err(now) => first = now,
            }
        }
    }

    /// Works at what somebody else shows, and names each place to `each` before. False if nothing
    /// is left.
    #[inline]
    pub(super) fn help(&self, mut each: impl FnMut(usize)) -> bool {
        // Whoever claims a place sees the table as it was when the place was shown.
        let Some(claim) = self.claim(self.end.0.load(Ordering::Acquire)) else {
            return false;
        };
        let mut claimed = Claimed { share: self, claim };
        while !claimed.claim.is_empty() {
            let place = self.place(claimed.claim.first);
            each(place);
            // SAFETY: it has been claimed by this thread alone. Who has shown it waits for its
            // answer.
            let answer = unsafe { self.table.work(place, Side::Far) };
            claimed.answer(answer);
        }
        true
    }
}

/// Work that somebody has claimed.
#[derive(Clone, Copy)]
struct Claim {
    first: u64,
    end: u64,
}

impl Claim {
    fn len(self) -> u32 {
        u32::try_from(self.end - self.first).expect("no more than there are places")
    }

    fn is_empty(self) -> bool {
        self.first == self.end
    }
}

/// What a thread that helps has claimed, and not answered. Dropped when it is done, also by a
/// panic: nobody is to wait for ever.
struct Claimed<'s, W: Work> {
    share: &'s Share<W>,
    claim: Claim,
}

impl<W: Work> Claimed<'_, W> {
    #[inline]
    fn answer(&mut self, answer: i64) {
        let place = self.share.place(self.claim.first);
        self.claim.first += 1;
        // From here on the place is the owner's, and what it names.
        self.share.answers[place].store(answer, Ordering::Release);
    }
}

impl<W: Work> Drop for Claimed<'_, W> {
    #[inline]
    fn drop(&mut self) {
        while !self.claim.is_empty() {
            self.answer(BROKEN);
        }
        // An owner that says that it sleeps after this sees the answers.
        if self.share.sleeps.0.swap(false, Ordering::Release) {
            // It has the lock until it waits.
            let mut held = lock(&self.share.sleep);
            match held.take() {
                None => self.share.told.notify_one(),
                Some(alarm) => {
                    drop(held);
                    alarm.ring();
                }
            }
        }
    }
}

/// The owner's side of a share: plain data, always used with the same one.
#[derive(Default)]
pub(super) struct Owner {
    /// The number of the next work that is shown.
    end: u64,
    /// Of what comes before this number it is known who has claimed it.
    known: u64,
    /// What others have claimed, in order, without what has been taken.
    theirs: VecDeque<Claim>,
}

impl Owner {
    /// With room for so many places.
    pub(super) fn new(places: usize) -> Self {
        Self {
            theirs: VecDeque::with_capacity(places),
            ..Self::default()
        }
    }

    /// Whether no answer is awaited.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.known == self.end && self.theirs.is_empty()
    }

    /// How many answers are awaited.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        let oldest = self.theirs.front().map_or(self.known, |claim| claim.first);
        let awaited = Claim {
            first: oldest,
            end: self.end,
        };
        awaited.len()
    }

    /// The place that is shown next, which the owner may write to; `None` until the oldest answer
    /// has been taken.
    #[inline]
    pub(super) fn next_place<W: Work>(&self, share: &Share<W>) -> Option<usize> {
        (to_usize(self.len()) < share.answers.len()).then(|| share.place(self.end))
    }

    /// Lets everybody work at the next place.
    ///
    /// # Safety
    ///
    /// There is a next place, and what it names stays valid, and is left alone, until its answer
    /// has been taken or [`Owner::withdraw`] returns.
    #[inline]
    pub(super) unsafe fn show<W: Work>(&mut self, share: &Share<W>) {
        let place = share.place(self.end);
        share.answers[place].store(NONE, Ordering::Relaxed);
        self.end += 1;
        share.end.0.store(self.end, Ordering::Release);
    }

    /// The places that nobody has claimed. Others may meanwhile.
    pub(super) fn unclaimed<'s, W: Work>(
        &self,
        share: &'s Share<W>,
    ) -> impl Iterator<Item = usize> + use<'s, W> {
        let first = share.first.0.load(Ordering::Relaxed);
        (first..self.end).map(|number| share.place(number))
    }

    /// Takes the answers that others have, each with its place. Returns how many.
    #[inline]
    pub(super) fn take<W: Work>(
        &mut self,
        share: &Share<W>,
        each: &mut impl FnMut(usize, i64),
    ) -> u32 {
        let mut taken = 0;
        while let Some(number) = self.oldest() {
            let place = share.place(number);
            let answer = share.answers[place].load(Ordering::Acquire);
            if answer == NONE {
                break;
            }
            self.forget_oldest();
            taken += 1;
            each(place, answer);
        }
        taken
    }

    /// The oldest whose answer has not been taken: if nobody has claimed it, it has none.
    #[inline]
    fn oldest(&self) -> Option<u64> {
        match self.theirs.front() {
            Some(claim) => Some(claim.first),
            None => (self.known != self.end).then_some(self.known),
        }
    }

    #[inline]
    fn forget_oldest(&mut self) {
        let Some(claim) = self.theirs.front_mut() else {
            self.known += 1;
            return;
        };
        claim.first += 1;
        if claim.is_empty() {
            self.theirs.pop_front();
        }
    }

    /// Claims some of what is left and works at it. Returns how many places; none if nothing is
    /// left.
    #[inline]
    pub(super) fn work<W: Work>(
        &mut self,
        share: &Share<W>,
        each: &mut impl FnMut(usize, i64),
    ) -> u32 {
        let Some(claim) = share.claim(self.end) else {
            self.learn(self.end);
            return 0;
        };
        self.learn(claim.first);
        self.known = claim.end;
        for number in claim.first..claim.end {
            let place = share.place(number);
            // SAFETY: it has been claimed by this thread alone, and is valid until this returns.
            let answer = unsafe { share.table.work(place, Side::Near) };
            each(place, answer);
        }
        claim.len()
    }

    /// What the owner has not claimed before this number has been claimed by others.
    #[inline]
    fn learn(&mut self, until: u64) {
        let first = std::mem::replace(&mut self.known, until);
        if first != until {
            self.theirs.push_back(Claim { first, end: until });
        }
    }

    /// Waits until the next answer that others owe has come; at once if they owe none.
    pub(super) fn wait<W: Work>(&mut self, share: &Share<W>) {
        let Some(answer) = self.owed(share) else {
            return;
        };
        let before = lock(&share.sleep).take();
        drop(before);
        let mut held = lock(&share.sleep);
        loop {
            // Who has answered before this is seen below, and who comes after it sees this.
            share.sleeps.0.swap(true, Ordering::Acquire);
            if answer.load(Ordering::Relaxed) != NONE {
                return;
            }
            held = share
                .told
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the alarm rung when others have answered, for an owner that is about to wait for other
    /// things too and asks again when it has been called. True if the next answer that they owe has
    /// come already, or they owe none.
    pub(super) fn watch<W: Work>(&mut self, share: &Share<W>, alarm: W::Alarm) -> bool {
        let Some(answer) = self.owed(share) else {
            return true;
        };
        let before = lock(&share.sleep).replace(alarm);
        drop(before);
        // As in `wait`.
        share.sleeps.0.swap(true, Ordering::Acquire);
        let is_there = answer.load(Ordering::Relaxed) != NONE;
        if is_there {
            // It does not sleep, and perhaps nobody comes who would say so. A store would hide from
            // the next look what others have answered before.
            share.sleeps.0.swap(false, Ordering::Acquire);
        }
        is_there
    }

    /// Whether there is something for the owner to do: work that nobody has claimed, or an answer
    /// that can be taken, unless whoever owes the next ones [rings](Owner::watch) when they are
    /// complete. What others are at work at may take them long.
    #[cfg(any(feature = "tokio", all(test, loom)))]
    pub(super) fn is_due<W: Work>(&self, share: &Share<W>) -> bool {
        let has_come = |number| {
            let answer = &share.answers[share.place(number)];
            answer.load(Ordering::Relaxed) != NONE
        };
        let is_left = share.first.0.load(Ordering::Relaxed) < self.end;
        let is_called = share.sleeps.0.load(Ordering::Relaxed);
        is_left || !is_called && self.oldest().is_some_and(has_come)
    }

    /// The next answer that others owe, if they owe one that does not come within a moment.
    fn owed<'s, W: Work>(&self, share: &'s Share<W>) -> Option<&'s AtomicI64> {
        let claim = self.theirs.front()?;
        // That it is there is all that is asked here; what comes with it is ordered by `take`.
        let answer = &share.answers[share.place(claim.first)];
        for _ in 0..LOOKS {
            if answer.load(Ordering::Relaxed) != NONE {
                return None;
            }
            std::hint::spin_loop();
        }
        Some(answer)
    }

    /// Takes back what nobody has claimed, and waits for the rest; the answers are dropped.
    pub(super) fn withdraw<W: Work>(&mut self, share: &Share<W>) {
        let first = share.first.0.swap(self.end, Ordering::Relaxed);
        self.learn(first);
        self.known = self.end;
        while !self.theirs.is_empty() {
            self.wait(share);
            self.take(share, &mut |_, _| {});
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::thread;

    use super::*;

    const PLACES: usize = 8;

    /// Answers with the numbers that its places have been given, or panics at one of them.
    #[derive(Default)]
    struct Table {
        numbers: [AtomicI64; PLACES],
        panics_at: Option<i64>,
    }

    /// Nobody in tests sleeps on it.
    #[derive(Clone)]
    struct Silent;

    impl Rouse for Silent {
        fn ring(&self) {}
    }

    impl Work for Table {
        type Alarm = Silent;

        unsafe fn work(&self, place: usize, _by: Side) -> i64 {
            let number = self.numbers[place].load(Ordering::Relaxed);
            if self.panics_at == Some(number) {
                resume_unwind(Box::new("planned"));
            }
            number
        }
    }

    fn show(share: &Share<Table>, owner: &mut Owner, number: i64) {
        let place = owner.next_place(share).expect("there is one");
        share.table.numbers[place].store(number, Ordering::Relaxed);
        // SAFETY: the place names nothing.
        unsafe { owner.show(share) };
    }

    /// Takes one answer at least, as the host does.
    fn take(share: &Share<Table>, owner: &mut Owner, answers: &mut Vec<i64>) {
        let mut each = |_, answer| answers.push(answer);
        if owner.take(share, &mut each) + owner.work(share, &mut each) == 0 {
            owner.wait(share);
        }
    }

    #[test]
    fn a_panic_while_helping_is_an_error_that_nobody_waits_for() {
        let panics_at = Some(1);
        let table = Table {
            panics_at,
            ..Table::default()
        };
        let share = Share::new(table, PLACES);
        let mut owner = Owner::new(PLACES);
        (0..8).for_each(|number| show(&share, &mut owner, number));
        // Four of the eight.
        let helped = catch_unwind(AssertUnwindSafe(|| share.help(|_| {})));
        assert!(helped.is_err());
        let mut answers = [NONE; PLACES];
        let mut each = |place: usize, answer| answers[place] = answer;
        for _ in 0..PLACES {
            owner.take(&share, &mut each);
            owner.work(&share, &mut each);
        }
        assert_eq!(answers, [0, BROKEN, BROKEN, BROKEN, 4, 5, 6, 7]);
    }

    #[test]
    fn everything_is_answered_once_while_somebody_helps() {
        const SHOWN: i64 = 2000;
        const LOOKS_MAX: u32 = 1 << 20;
        let share = Share::new(Table::default(), PLACES);
        let mut owner = Owner::new(PLACES);
        let mut answers = Vec::new();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..LOOKS_MAX {
                    share.help(|_| {});
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::yield_now();
                }
            });
            for number in 0..SHOWN {
                while owner.next_place(&share).is_none() {
                    take(&share, &mut owner, &mut answers);
                }
                show(&share, &mut owner, number);
            }
            while !owner.is_empty() {
                take(&share, &mut owner, &mut answers);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        answers.sort_unstable();
        assert!(answers.into_iter().eq(0..SHOWN));
    }
}
