//! Models of shared work: `loom` runs each in every order that its threads can get into, as those
//! of the mailbox ([`super::mail_loom`]). `cargo xtask loom` runs them.
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

use super::mail_loom::explore;
use super::share::{Share, Work};

/// Places of a table.
const PLACES: usize = 3;

/// A table that is shown several times, each time for other memory.
struct Table {
    /// Which memory the places name now. The owner writes it before it shows the table.
    shown: AtomicUsize,
    memory: [[UnsafeCell<u32>; PLACES]; 2],
}

// SAFETY: whoever touches the memory says so to `loom`, which refuses two at a time.
unsafe impl Sync for Table {}

impl Work for Table {
    unsafe fn work(&self, place: u32) {
        let shown = self.shown.load(Ordering::Relaxed);
        let place = usize::try_from(place).expect("a few");
        let memory = &self.memory[shown][place];
        // SAFETY: `loom` refuses two at a time, and nothing else has this address.
        memory.with_mut(|number| unsafe { *number += 1 });
    }
}

/// The owner shows `counts` places, one time after the other, while `helpers` threads come, each so
/// many times.
fn run(counts: &[u32], helpers: usize, times: usize) {
    let memory = || std::array::from_fn(|_| UnsafeCell::new(0));
    let share = Arc::new(Share::new(Table {
        shown: AtomicUsize::new(0),
        memory: [memory(), memory()],
    }));
    let helpers: Vec<_> = (0..helpers)
        .map(|_| {
            let share = Arc::clone(&share);
            thread::spawn(move || {
                for _ in 0..times {
                    share.help();
                    thread::yield_now();
                }
            })
        })
        .collect();
    for (at, count) in counts.iter().enumerate() {
        let table = share.table();
        table.shown.store(at, Ordering::Relaxed);
        // SAFETY: the memory is there as long as the table.
        let mut shown = unsafe { share.show(*count) };
        let others = shown.work(*count);
        drop(shown);
        assert!(others <= *count);
        // From here on it belongs to the owner alone, who may free it.
        for (place, memory) in (0..).zip(&table.memory[at]) {
            // SAFETY: as above.
            let number = memory.with_mut(|number| unsafe { *number });
            assert_eq!(number, u32::from(place < *count), "worked at once each");
        }
    }
    helpers
        .into_iter()
        .for_each(|helper| helper.join().expect("no panic"));
}

/// Somebody comes while the table is shown twice.
///
/// Fails if the claim or what it sees is not ordered (`Relaxed` in `claim` or in `show`: work at
/// the memory of the first time), if what was done is not (`Relaxed` in the drop of a claim, or
/// where the owner says that it sleeps: an access that is not ordered), if the count is not set
/// back (the same), if `wait` returns at once (the same), if nobody wakes the owner, or if it says
/// that it sleeps before it has the lock (deadlock).
#[test]
fn nobody_works_at_what_is_not_shown_any_more() {
    explore("nobody_works_at_what_is_not_shown_any_more", 3, || {
        run(&[2, 1], 1, 2);
    });
}

/// Two come at a time.
///
/// Fails if a claim is made without comparing (worked at twice).
#[test]
fn two_who_help_claim_different_places() {
    explore("two_who_help_claim_different_places", 2, || {
        run(&[3], 2, 1);
    });
}

/// A panic of the owner unwinds while somebody works.
///
/// Fails if dropping what is shown does not take back what nobody has claimed (worked at after it),
/// or does not wait (an access that is not ordered).
#[test]
fn what_is_dropped_early_is_taken_back() {
    explore("what_is_dropped_early_is_taken_back", 3, || {
        let memory = || std::array::from_fn(|_| UnsafeCell::new(0));
        let share = Arc::new(Share::new(Table {
            shown: AtomicUsize::new(0),
            memory: [memory(), memory()],
        }));
        let other = Arc::clone(&share);
        let helper = thread::spawn(move || {
            other.help();
            other.help();
        });
        // SAFETY: as in `run`.
        drop(unsafe { share.show(2) });
        let worked = share.table().memory[0]
            .iter()
            // SAFETY: as in `run`.
            .map(|memory| memory.with_mut(|number| unsafe { *number }))
            .sum::<u32>();
        assert!(worked <= 2);
        helper.join().expect("no panic");
    });
}
