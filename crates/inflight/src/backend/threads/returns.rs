//! Returns behind a system call, on processors where the first of them is dear.
//!
//! A processor foresees where a function returns to by a stack of its own, to which each call adds
//! an entry. Linux guards its own returns against being led astray (on AMD: "Safe RET"), and where
//! it cannot have that stack cleaned when it leaves, the entries behind a system call are the
//! kernel's. The first return of the program then goes to an address that it may not even fetch
//! from, and takes 150 to 220 ns on a Zen 4 here: a quarter of a read of 4 KiB from the page cache.
//! Nobody who calls `pread` of the C library gets around that return, but a program that makes the
//! call itself may add entries of its own first. `docs/design/roads.md` has the figures.
//!
//! Elsewhere such entries are in the way of the right ones. So whether they pay is tried, once.
//!
//! # Source
//!
//! Linux, Documentation/admin-guide/hw-vuln/srso.rst; `srso_alias_safe_ret` in
//! arch/x86/lib/retpoline.S.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Whether entries are to be added.
static ARE_DEAR: AtomicBool = AtomicBool::new(false);

/// Makes the next returns of this thread cheap, if it is known that they would be dear. Called
/// where a system call has been made, before anything returns.
#[inline(always)]
pub(super) fn ease() {
    if ARE_DEAR.load(Relaxed) {
        entries::add();
    }
}

/// Tries whether the returns behind a system call are dear here, the first time that it is called.
pub(crate) fn find_out() {
    static TRIED: Once = Once::new();
    TRIED.call_once(|| {
        if entries::may_be_added() {
            let (as_they_are, eased) = try_both();
            ARE_DEAR.store(is_worth_it(as_they_are, eased), Relaxed);
        }
    });
}

/// Calls of a trial, and trials of each kind: the fastest one was not disturbed.
const CALLS: u32 = 8;
const TRIALS: u32 = 8;

/// What is saved must be more than a reading of the clock may be off by. A call as short as the one
/// that is tried saves a third of what a read does.
const WORTH_FROM: Duration = Duration::from_nanos(10).saturating_mul(CALLS);

fn is_worth_it(as_they_are: Duration, eased: Duration) -> bool {
    as_they_are > eased + WORTH_FROM
}

/// What some system calls with returns behind them take at best, as they are and eased.
fn try_both() -> (Duration, Duration) {
    let mut fastest = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIALS {
        fastest.0 = fastest.0.min(time(called::<false>));
        fastest.1 = fastest.1.min(time(called::<true>));
    }
    fastest
}

fn time(called: fn()) -> Duration {
    let begun = Instant::now();
    for _ in 0..CALLS {
        black_box(called)();
    }
    begun.elapsed()
}

/// A system call that does nothing, and one return behind it. No filter takes offence at it: the
/// standard library's locks make it as well.
#[inline(never)]
fn called<const EASED: bool>() {
    /// Nobody waits here.
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    let _ = black_box(futex::wake(&NOBODY, futex::Flags::PRIVATE, 1));
    if EASED {
        entries::add();
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod entries {
    use std::arch::asm;

    /// Adds eight entries: as deep as what is awaited or taken from a queue is called, and a few
    /// functions of the program.
    ///
    /// A signal handler that walks the stack by the tables of the compiler does not know where it
    /// is for these few instructions.
    #[inline(always)]
    pub(super) fn add() {
        // SAFETY: what is pushed is taken off the stack again, and nobody returns there. Without
        // `nostack` nothing of the function is below the stack pointer.
        unsafe {
            asm!(
                "call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: call 2f",
                "ud2",
                "2: add rsp, 64",
            );
        }
    }

    /// Not where the processor keeps another stack to check returns by: calls without a return are
    /// forbidden there.
    ///
    /// # Source
    ///
    /// AMD64 Architecture Programmer's Manual, volume 3, RDSSP: it leaves its operand as it is
    /// where there is no such stack.
    pub(super) fn may_be_added() -> bool {
        let mut shadow_stack = 0_u64;
        // SAFETY: no memory is involved.
        unsafe {
            asm!("rdsspq {}", inout(reg) shadow_stack, options(nomem, nostack, preserves_flags));
        }
        shadow_stack == 0
    }
}

/// Other processors have not been seen to need it.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod entries {
    #[inline(always)]
    pub(super) fn add() {}

    pub(super) fn may_be_added() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_saves_more_than_the_clock_is_off_by_is_worth_it() {
        let ns = Duration::from_nanos;
        assert!(is_worth_it(ns(2_000), ns(1_900)));
        assert!(!is_worth_it(ns(2_000), ns(1_920)));
        assert!(!is_worth_it(ns(2_000), ns(2_100)));
    }

    /// How deep functions are called here, with entries added at the bottom.
    #[inline(never)]
    fn deep(levels: u64) -> u64 {
        if levels == 0 {
            entries::add();
            return 0;
        }
        black_box(deep(levels - 1)) + 1
    }

    #[test]
    fn functions_return_to_where_they_were_called_whatever_was_added() {
        for levels in [0, 1, 7, 8, 9, 100] {
            assert_eq!(deep(levels), levels);
        }
    }

    #[test]
    fn it_is_tried_once() {
        find_out();
        let found = ARE_DEAR.load(Relaxed);
        ARE_DEAR.store(!found, Relaxed);
        find_out();
        assert_eq!(ARE_DEAR.load(Relaxed), !found);
        ARE_DEAR.store(found, Relaxed);
    }
}
