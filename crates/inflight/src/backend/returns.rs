//! Returns behind a system call, on processors where the first of them is dear.
//!
//! A processor foresees where a function returns to by a stack of its own, to which each call adds
//! an entry. On processors on which others could lead it astray there, Linux keeps what its own
//! returns find on that stack from being used (on AMD: "Safe RET"). The first return of the program
//! behind a system call then takes 160 to 220 ns more on a Zen 4 here, a quarter of a read of 4 KiB
//! from the page cache; whoever calls `pread` of the C library has one. If a program that makes the
//! call itself adds entries of its own first, it is 10 to 20 ns. Why it is as many as that, and why
//! it takes four entries or more, is not known; `docs/design/roads.md` has the figures.
//!
//! Elsewhere such entries are in the way of the right ones. So whether they pay is tried, once.
//!
//! # Source
//!
//! Linux, Documentation/admin-guide/hw-vuln/srso.rst.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Whether returns are dear here: [`UNKNOWN`], [`CHEAP`] or [`DEAR`].
static RETURNS: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;
const CHEAP: u8 = 1;
const DEAR: u8 = 2;

/// Makes the next returns of this thread cheap, if it is known that they would be dear. Called
/// where a system call has been made, before anything returns.
#[inline(always)]
pub(super) fn ease() {
    if RETURNS.load(Relaxed) == DEAR {
        entries::add();
    }
}

/// Tries whether the returns behind a system call are dear here, unless that is known. Threads may
/// try at the same time: nobody waits for another one, which a forked child would do for ever.
pub(crate) fn find_out() {
    if RETURNS.load(Relaxed) == UNKNOWN {
        let are_dear = entries::may_be_added() && try_both();
        RETURNS.store(if are_dear { DEAR } else { CHEAP }, Relaxed);
    }
}

/// Calls of a trial, and trials of each kind: the fastest one was not disturbed.
const CALLS: u32 = 32;
const TRIALS: u32 = 4;

/// What is saved must be more than the right entries are worth where they are not lost, about 5 ns
/// for each return, and altogether more than a coarse clock may be off by. The call that is tried
/// is a short one: it saves 54 ns here, a third of what a read does.
const WORTH_FROM: Duration = Duration::from_nanos(25).saturating_mul(CALLS);

fn is_worth_it(as_they_are: Duration, eased: Duration) -> bool {
    as_they_are > eased + WORTH_FROM
}

/// Whether some system calls with returns behind them take less at best if these are eased.
fn try_both() -> bool {
    let mut fastest = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIALS {
        fastest.0 = fastest.0.min(time(called::<false>));
        fastest.1 = fastest.1.min(time(called::<true>));
    }
    is_worth_it(fastest.0, fastest.1)
}

fn time(called: fn()) -> Duration {
    let begun = Instant::now();
    for _ in 0..CALLS {
        black_box(called)();
    }
    begun.elapsed()
}

/// A system call that does nothing, and one return behind it. It is one that the standard library's
/// locks make too, so that where threads may be started it is on each filter's list.
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
    use std::arch::{asm, naked_asm};

    /// Adds eight entries: as deep as what is awaited or taken from a queue is called, and a few
    /// functions of the program.
    #[inline(always)]
    pub(super) fn add() {
        // SAFETY: it uses the stack as any function does (there is no `nostack` here), leaves it as
        // it was, and changes no register but the one that is named, and flags.
        unsafe {
            asm!("call {calls}", calls = sym calls, out("r11") _);
        }
    }

    /// The call of this is the first entry. It calls on without returning, takes what that has
    /// pushed off the stack, and goes back by a jump, because a return would use the last entry up.
    ///
    /// Wherever a signal handler interrupts it, the `.cfi` lines tell how to walk the stack.
    #[unsafe(naked)]
    extern "C" fn calls() {
        naked_asm!(
            ".cfi_startproc",
            ".rept 7",
            "call 2f",
            "ud2",
            "2:",
            ".cfi_adjust_cfa_offset 8",
            ".endr",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "pop r11",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, r11",
            "jmp r11",
            ".cfi_endproc",
        );
    }

    /// Not where the processor keeps another stack, by which it checks where returns go: what was
    /// called and is never returned from stays there.
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
    fn only_what_saves_more_than_it_may_cost_is_worth_it() {
        let ns = |each: u64| Duration::from_nanos(each) * CALLS;
        assert!(is_worth_it(ns(250), ns(200)));
        assert!(!is_worth_it(ns(225), ns(200)));
        assert!(!is_worth_it(ns(200), ns(250)));
    }

    #[test]
    fn it_is_found_out_and_then_known() {
        find_out();
        let found = RETURNS.load(Relaxed);
        assert!(matches!(found, CHEAP | DEAR));
        if found == DEAR {
            assert!(entries::may_be_added());
        }
        RETURNS.store(CHEAP, Relaxed);
        find_out();
        assert_eq!(RETURNS.swap(found, Relaxed), CHEAP, "not tried again");
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
        if !entries::may_be_added() {
            return println!("skipped: the processor checks where returns go");
        }
        for levels in [0, 1, 7, 8, 9, 100] {
            assert_eq!(deep(levels), levels);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri), not(loom)))]
#[path = "returns_test.rs"]
mod walks;
