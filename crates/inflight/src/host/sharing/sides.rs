//! Two [shares](super::share) of one owner: what is best worked at by the owner, and what by
//! others.
//!
//! A block that a thread has written is in the caches of its processor, and another that writes it
//! next has to fetch it from there. So whoever has made a read into some memory is to make the next
//! one into it too; but nobody goes without work while there is any.
#![allow(unsafe_code)]

use super::share::{Owner, Share, Side, Work};

impl Side {
    #[inline]
    pub(super) fn index(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

/// The owner looks at what is for others before its own once in so many times: they may have been
/// kept from coming.
const FAR_FIRST_EVERY: u32 = 32;

/// What everybody sees.
pub(super) struct Sides<W: Work> {
    near: Share<W>,
    far: Share<W>,
}

impl<W: Work> Sides<W> {
    /// Of so many places each, a power of two.
    pub(super) fn new(table: impl Fn() -> W, places: usize) -> Self {
        Self {
            near: Share::new(table(), places),
            far: Share::new(table(), places),
        }
    }

    pub(super) fn table(&self, side: Side) -> &W {
        self.side(side).table()
    }

    #[inline]
    fn side(&self, side: Side) -> &Share<W> {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// Works at what somebody else shows, and names each place to `each` before. False if nothing
    /// is left.
    #[inline]
    pub(super) fn help(&self, mut each: impl FnMut(&W, usize)) -> bool {
        let Self { near, far } = self;
        far.help(|place| each(far.table(), place)) || near.help(|place| each(near.table(), place))
    }
}

/// The owner's side of both: plain data, always used with the same ones.
#[derive(Default)]
pub(super) struct Owners {
    near: Owner,
    far: Owner,
    /// How often it has looked for something to work at.
    looked: u32,
}

impl Owners {
    /// With room for so many places on each side.
    pub(super) fn new(places: usize) -> Self {
        Self {
            near: Owner::new(places),
            far: Owner::new(places),
            looked: 0,
        }
    }

    /// Whether no answer is awaited.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }

    /// How many answers are awaited.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.near.len() + self.far.len()
    }

    #[inline]
    fn side(&mut self, side: Side) -> &mut Owner {
        match side {
            Side::Near => &mut self.near,
            Side::Far => &mut self.far,
        }
    }

    /// As [`Owner::next_place`].
    #[inline]
    pub(super) fn next_place<W: Work>(&mut self, sides: &Sides<W>, side: Side) -> Option<usize> {
        self.side(side).next_place(sides.side(side))
    }

    /// As [`Owner::show`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub(super) unsafe fn show<W: Work>(&mut self, sides: &Sides<W>, side: Side) {
        // SAFETY: passed on from the caller.
        unsafe { self.side(side).show(sides.side(side)) };
    }

    /// As [`Owner::unclaimed`], on both sides.
    pub(super) fn unclaimed<W: Work>(&self, sides: &Sides<W>, mut each: impl FnMut(&W, usize)) {
        for (owner, share) in [(&self.near, &sides.near), (&self.far, &sides.far)] {
            let places = owner.unclaimed(share);
            places.for_each(|place| each(share.table(), place));
        }
    }

    /// As [`Owner::take`].
    #[inline]
    pub(super) fn take<W: Work>(
        &mut self,
        sides: &Sides<W>,
        each: &mut impl FnMut(Side, usize, i64),
    ) -> u32 {
        let mut from = |side| {
            let share = sides.side(side);
            let owner = self.side(side);
            owner.take(share, &mut |place, answer| each(side, place, answer))
        };
        from(Side::Far) + from(Side::Near)
    }

    /// As [`Owner::work`].
    #[inline]
    pub(super) fn work<W: Work>(
        &mut self,
        sides: &Sides<W>,
        each: &mut impl FnMut(Side, usize, i64),
    ) -> u32 {
        self.looked = self.looked.wrapping_add(1);
        let order = match self.looked.is_multiple_of(FAR_FIRST_EVERY) {
            true => [Side::Far, Side::Near],
            false => [Side::Near, Side::Far],
        };
        for side in order {
            let (owner, share) = (self.side(side), sides.side(side));
            let worked = owner.work(share, &mut |place, answer| each(side, place, answer));
            if worked > 0 {
                return worked;
            }
        }
        0
    }

    /// The side on which others owe an answer, if they owe one. Asked when nothing is left to be
    /// worked at.
    fn owing(&self) -> Option<Side> {
        let sides = [(Side::Far, &self.far), (Side::Near, &self.near)];
        let owing = sides.into_iter().find(|(_, owner)| !owner.is_empty());
        owing.map(|(side, _)| side)
    }

    /// Waits until an answer that others owe has come; at once if they owe none.
    pub(super) fn wait<W: Work>(&mut self, sides: &Sides<W>) {
        if let Some(side) = self.owing() {
            self.side(side).wait(sides.side(side));
        }
    }

    /// As [`Owner::watch`], on both sides: what is over on one is not to wait for the other.
    pub(super) fn watch<W: Work>(&mut self, sides: &Sides<W>, alarm: &W::Alarm) -> bool {
        let mut is_there = self.is_empty();
        for side in [Side::Far, Side::Near] {
            let (owner, share) = (self.side(side), sides.side(side));
            if !owner.is_empty() {
                is_there |= owner.watch(share, alarm.clone());
            }
        }
        is_there
    }

    /// As [`Owner::is_due`], on any side.
    #[cfg(feature = "tokio")]
    pub(super) fn is_due<W: Work>(&self, sides: &Sides<W>) -> bool {
        self.near.is_due(&sides.near) || self.far.is_due(&sides.far)
    }

    /// As [`Owner::withdraw`], on both sides.
    pub(super) fn withdraw<W: Work>(&mut self, sides: &Sides<W>) {
        for side in [Side::Near, Side::Far] {
            self.side(side).withdraw(sides.side(side));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::super::super::mail::Rouse;
    use super::*;

    /// Answers with the number of its place, and ten more for another thread.
    struct Numbers;

    /// Counts how often it is rung.
    #[derive(Clone, Default)]
    struct Counting(Rc<Cell<u32>>);

    impl Rouse for Counting {
        fn ring(&self) {
            self.0.update(|rung| rung + 1);
        }
    }

    impl Work for Numbers {
        type Alarm = Counting;

        unsafe fn work(&self, place: usize, by: Side) -> i64 {
            let place = i64::try_from(place).expect("a few");
            match by {
                Side::Near => place,
                Side::Far => place + 10,
            }
        }
    }

    const PLACES: usize = 4;

    fn both() -> (Sides<Numbers>, Owners) {
        (Sides::new(|| Numbers, PLACES), Owners::new(PLACES))
    }

    fn show(sides: &Sides<Numbers>, owners: &mut Owners, side: Side) {
        owners.next_place(sides, side).expect("there is one");
        // SAFETY: the place names nothing.
        unsafe { owners.show(sides, side) };
    }

    /// Takes what others have answered.
    fn take(sides: &Sides<Numbers>, owners: &mut Owners) -> Vec<(Side, i64)> {
        let mut answers = Vec::new();
        owners.take(sides, &mut |side, _, answer| answers.push((side, answer)));
        answers
    }

    /// Works at what is left to be claimed, once.
    fn work(sides: &Sides<Numbers>, owners: &mut Owners) -> Vec<(Side, i64)> {
        let mut answers = Vec::new();
        owners.work(sides, &mut |side, _, answer| answers.push((side, answer)));
        answers
    }

    #[test]
    fn each_works_at_its_own_first_and_then_at_the_others() {
        let (sides, mut owners) = both();
        for side in [Side::Near, Side::Near, Side::Far, Side::Far] {
            show(&sides, &mut owners, side);
        }
        assert!(sides.help(|_, _| {}));
        assert_eq!(take(&sides, &mut owners), [(Side::Far, 10)]);
        assert_eq!(work(&sides, &mut owners), [(Side::Near, 0)]);
        assert!(sides.help(|_, _| {}) && sides.help(|_, _| {}) && !sides.help(|_, _| {}));
        assert_eq!(
            take(&sides, &mut owners),
            [(Side::Far, 11), (Side::Near, 11)]
        );
        show(&sides, &mut owners, Side::Far);
        assert_eq!(work(&sides, &mut owners), [(Side::Far, 2)]);
        assert!(owners.is_empty());
    }

    #[test]
    fn what_nobody_has_claimed_is_known_of_both_sides() {
        let (sides, mut owners) = both();
        let unclaimed = |owners: &Owners| {
            let mut places = Vec::new();
            owners.unclaimed(&sides, |_, place| places.push(place));
            places
        };
        assert_eq!(unclaimed(&owners), []);
        for side in [Side::Near, Side::Near, Side::Far, Side::Far] {
            show(&sides, &mut owners, side);
        }
        assert_eq!(unclaimed(&owners), [0, 1, 0, 1]);
        assert_eq!(work(&sides, &mut owners), [(Side::Near, 0)]);
        assert!(sides.help(|_, _| {}));
        assert_eq!(unclaimed(&owners), [1, 1]);
    }

    #[test]
    fn what_is_for_others_is_made_though_nobody_comes_and_there_is_always_something_else() {
        let (sides, mut owners) = both();
        show(&sides, &mut owners, Side::Far);
        let after = (1..=2 * FAR_FIRST_EVERY).find(|_| {
            if owners.near.is_empty() {
                show(&sides, &mut owners, Side::Near);
            }
            work(&sides, &mut owners) == [(Side::Far, 0)]
        });
        assert_eq!(after, Some(FAR_FIRST_EVERY));
    }

    #[test]
    fn an_owner_waits_for_whatever_others_owe() {
        for side in [Side::Near, Side::Far] {
            let (sides, mut owners) = both();
            let alarm = Counting::default();
            assert!(owners.watch(&sides, &alarm), "nobody owes anything");
            owners.wait(&sides);
            show(&sides, &mut owners, side);
            assert!(sides.help(|_, _| {}));
            assert!(owners.watch(&sides, &alarm), "it is there");
            owners.wait(&sides);
            assert_eq!(take(&sides, &mut owners), [(side, 10)]);
        }
    }

    /// Whether an owner that has nothing left to do may sleep.
    fn sleeps(sides: &Sides<Numbers>, owners: &mut Owners, alarm: &Counting) -> bool {
        assert_eq!(take(sides, owners), []);
        assert_eq!(work(sides, owners), []);
        !owners.watch(sides, alarm)
    }

    #[test]
    fn an_owner_that_waits_elsewhere_is_called_by_one_while_another_is_slow() {
        let (sides, mut owners) = both();
        let alarm = Counting::default();
        show(&sides, &mut owners, Side::Far);
        show(&sides, &mut owners, Side::Near);
        sides.far.help(|_| {
            // The slow one has begun.
            sides
                .near
                .help(|_| assert!(sleeps(&sides, &mut owners, &alarm)));
            assert_eq!(alarm.0.get(), 1);
            assert_eq!(take(&sides, &mut owners), [(Side::Near, 10)]);
        });
        assert_eq!(alarm.0.get(), 2);
        assert_eq!(take(&sides, &mut owners), [(Side::Far, 10)]);
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn nothing_is_due_to_an_owner_that_will_be_called() {
        for side in [Side::Near, Side::Far] {
            let (sides, mut owners) = both();
            let alarm = Counting::default();
            assert!(!owners.is_due(&sides), "nothing is shown");
            (0..3).for_each(|_| show(&sides, &mut owners, side));
            assert!(owners.is_due(&sides), "nobody has come");
            let mut made = 0;
            assert!(sides.help(|_, _| {
                made += 1;
                if made == 1 {
                    assert!(owners.is_due(&sides), "one is left");
                    assert_eq!(work(&sides, &mut owners), [(side, 2)]);
                    assert!(!owners.is_due(&sides), "all are being made");
                    assert!(sleeps(&sides, &mut owners, &alarm));
                }
                // Of the second, when the first has been made.
                assert!(!owners.is_due(&sides), "it sleeps until both are");
            }));
            assert_eq!((made, alarm.0.get()), (2, 1));
            assert!(owners.is_due(&sides), "they are to be taken");
            // It comes, and looks once more before it sleeps.
            assert!(owners.watch(&sides, &alarm));
            assert!(owners.is_due(&sides), "they still are");
            assert_eq!(take(&sides, &mut owners), [(side, 10), (side, 11)]);
            assert!(!owners.is_due(&sides), "all have been taken");
        }
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn what_has_been_made_is_due_to_an_owner_that_nobody_calls() {
        let (sides, mut owners) = both();
        (0..3).for_each(|_| show(&sides, &mut owners, Side::Near));
        let mut made = 0;
        assert!(sides.help(|_, _| {
            if made == 0 {
                assert_eq!(work(&sides, &mut owners), [(Side::Near, 2)]);
            }
            assert_eq!(owners.is_due(&sides), made > 0);
            made += 1;
        }));
        assert!(owners.is_due(&sides));
    }

    #[test]
    fn what_is_withdrawn_is_left_alone_on_both_sides() {
        let (sides, mut owners) = both();
        for side in [Side::Near, Side::Far, Side::Far] {
            show(&sides, &mut owners, side);
        }
        assert!(sides.help(|_, _| {}));
        owners.withdraw(&sides);
        assert!(owners.is_empty() && !sides.help(|_, _| {}));
        assert_eq!(take(&sides, &mut owners), []);
    }
}
