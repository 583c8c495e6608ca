//! Models of shared work: `loom` runs each in every order that its threads can get into, as those
//! of the mailbox ([`super::super::mail_loom`]). `cargo xtask loom` runs them.
//!
//! What a place names is an [`UnsafeCell`] of `loom`, which refuses any access that is not ordered
//! with all others: two that work at the same place, and an owner that takes its memory back too
//! early, show whatever they write. An owner that nobody wakes is a deadlock, which `loom` reports.
//!
//! Each model says which mutations of the code make it fail; they were tried.
#![allow(unsafe_code)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::super::mail_loom::{Flag, explore};
use super::share::{Owner, Share, Side, Work};
use super::sides::{Owners, Sides};

/// Places of a table.
const PLACES: usize = 2;

/// Most reads, each with memory of its own.
const READS: usize = 4;

/// A table whose places are used again, each time for other memory.
struct Table {
    /// Which memory a place names now. The owner writes it before it shows the place.
    named: [AtomicUsize; PLACES],
    memory: [UnsafeCell<u32>; READS],
}

// SAFETY: whoever touches the memory says so to `loom`, which refuses two at a time.
unsafe impl Sync for Table {}

impl Work for Table {
    type Alarm = Flag;

    unsafe fn work(&self, place: usize, _by: Side) -> i64 {
        let named = self.named[place].load(Ordering::Relaxed);
        // SAFETY: `loom` refuses two at a time, and nothing else has this address.
        self.memory[named].with_mut(|number| unsafe { *number += 1 });
        i64::try_from(named).expect("a few")
    }
}

impl Table {
    /// How often memory has been worked at. It belongs to the owner alone, who may free it.
    fn worked(&self, at: usize) -> u32 {
        // SAFETY: as above.
        self.memory[at].with_mut(|number| unsafe { *number })
    }
}

type Shared = Arc<Share<Table>>;

fn table() -> Table {
    Table {
        named: std::array::from_fn(|_| AtomicUsize::new(0)),
        memory: std::array::from_fn(|_| UnsafeCell::new(0)),
    }
}

fn share() -> Shared {
    Arc::new(Share::new(table(), PLACES))
}

/// A thread that looks for work so many times.
fn helper(share: &Shared, times: usize) -> thread::JoinHandle<()> {
    let share = Arc::clone(share);
    thread::spawn(move || {
        for _ in 0..times {
            share.help(|_| {});
            thread::yield_now();
        }
    })
}

/// Shows a read, for which there is a place.
fn show(share: &Shared, owner: &mut Owner, at: usize) {
    let place = owner.next_place(share).expect("there is one");
    share.table().named[place].store(at, Ordering::Relaxed);
    // SAFETY: the memory is there as long as the table, and left alone until the answer is taken.
    unsafe { owner.show(share) };
}

/// Takes one answer at least, as the host does.
fn take(share: &Shared, owner: &mut Owner) {
    let mut each = |_, answer| {
        let at = usize::try_from(answer).expect("nobody has panicked");
        assert_eq!(share.table().worked(at), 1, "worked at once each");
    };
    if owner.take(share, &mut each) + owner.work(share, &mut each) == 0 {
        owner.wait(share);
        assert!(owner.take(share, &mut each) > 0, "it has waited for it");
    }
}

/// The owner shows so many reads, as many at a time as there are places, while `helpers` threads
/// come, each so many times.
fn run(reads: usize, helpers: usize, times: usize) {
    let share = share();
    let helpers: Vec<_> = (0..helpers).map(|_| helper(&share, times)).collect();
    let mut owner = Owner::new(PLACES);
    for at in 0..reads {
        while owner.next_place(&share).is_none() {
            take(&share, &mut owner);
        }
        show(&share, &mut owner, at);
    }
    while !owner.is_empty() {
        take(&share, &mut owner);
    }
    (0..reads).for_each(|at| assert_eq!(share.table().worked(at), 1));
    helpers
        .into_iter()
        .for_each(|helper| helper.join().expect("no panic"));
}

/// Somebody comes while places are shown, and used again.
///
/// Fails if what is shown is not ordered (`Relaxed` in `help` or in `show`: work at the memory of
/// another read), if the answer is not (`Relaxed` in `Claimed::answer` or in `take`:
/// an access that is not ordered), if a place still has the answer of before when it is shown (the
/// same), if nobody wakes the owner, if it says that it sleeps before it has the lock, or if what
/// it says is not ordered (`Relaxed` in either `swap`: deadlocks all).
#[test]
fn every_read_is_made_once_and_answered() {
    explore("every_read_is_made_once_and_answered", 3, || run(4, 1, 3));
}

/// Two come at a time, so that the one that wakes the owner is not always the one it waits for.
///
/// Fails if a claim is made without comparing (worked at twice), if an owner that is woken does not
/// look whether it was for this (nothing is taken), and if it does not say again that it sleeps
/// (deadlock).
#[test]
fn two_who_help_claim_different_places() {
    explore("two_who_help_claim_different_places", 3, || run(2, 2, 1));
}

/// A panic of the owner unwinds while somebody works.
///
/// Fails if what nobody has claimed is not taken back (worked at after it), or what has been is not
/// waited for (an access that is not ordered).
#[test]
fn what_is_withdrawn_is_left_alone() {
    explore("what_is_withdrawn_is_left_alone", 3, || {
        let share = share();
        let helper = helper(&share, 2);
        let mut owner = Owner::new(PLACES);
        show(&share, &mut owner, 0);
        show(&share, &mut owner, 1);
        owner.withdraw(&share);
        let worked = (0..2).map(|at| share.table().worked(at)).sum::<u32>();
        assert!(owner.is_empty());
        // It can be used again.
        show(&share, &mut owner, 2);
        take(&share, &mut owner);
        assert_eq!(share.table().worked(2), 1);
        let after = (0..2).map(|at| share.table().worked(at)).sum::<u32>();
        assert_eq!(worked, after, "worked at after it had been taken back");
        helper.join().expect("no panic");
    });
}

/// An owner that waits for other things too is called by its alarm, also after it has been called
/// away and has begun to wait again, and when it sleeps on the answers alone in between.
///
/// Fails if the owner does not say that it sleeps, if nobody rings the alarm, and if `watch` does
/// not look whether the answer has come (deadlocks all); and if it still says that it sleeps when
/// it has found one (nothing is due to it).
#[test]
fn an_owner_that_waits_elsewhere_is_called() {
    explore("an_owner_that_waits_elsewhere_is_called", 3, || {
        let share = share();
        let alarm = Flag::new();
        let helper = helper(&share, 3);
        let mut owner = Owner::new(PLACES);
        for at in 0..3 {
            show(&share, &mut owner, at);
            let mut each = |_, answer| assert_eq!(Ok(at), usize::try_from(answer));
            while owner.take(&share, &mut each) + owner.work(&share, &mut each) == 0 {
                match at {
                    1 => owner.wait(&share),
                    _ if owner.watch(&share, alarm.clone()) => {
                        assert!(owner.is_due(&share), "nobody would look after it");
                    }
                    _ => alarm.wait(),
                }
            }
            assert_eq!(share.table().worked(at), 1);
        }
        helper.join().expect("no panic");
    });
}

/// An owner of two sides, each with reads, whose other thread goes from one side to the other.
///
/// Fails if the owner waits on a side on which nobody owes anything, or on none (nothing is taken).
#[test]
fn an_owner_of_two_sides_waits_for_what_is_owed() {
    explore("an_owner_of_two_sides_waits_for_what_is_owed", 3, || {
        let sides = Arc::new(Sides::new(table, PLACES));
        let helper = thread::spawn({
            let sides = Arc::clone(&sides);
            move || {
                for _ in 0..2 {
                    sides.help(|_, _| {});
                    thread::yield_now();
                }
            }
        });
        let mut owners = Owners::new(PLACES);
        for side in [Side::Far, Side::Near] {
            let place = owners.next_place(&sides, side).expect("there is one");
            sides.table(side).named[place].store(0, Ordering::Relaxed);
            // SAFETY: the memory is there as long as the table, and left alone until the answer is
            // taken.
            unsafe { owners.show(&sides, side) };
        }
        while !owners.is_empty() {
            let mut each = |side, _, _| assert_eq!(sides.table(side).worked(0), 1);
            if owners.take(&sides, &mut each) + owners.work(&sides, &mut each) == 0 {
                owners.wait(&sides);
                assert!(owners.take(&sides, &mut each) > 0, "it has waited for it");
            }
        }
        helper.join().expect("no panic");
    });
}
