//! Whether the direct writes of a file meet a device.
//!
//! Where the device is memory, a direct write is a copy, and may be shared like a read
//! ([`Road::Memory`]). The reads of a file do not show that of its writes, nor the other way round:
//! a hole is read without a device, and what is written may end in a cache. So the first writes are
//! made without waiting for what they would have to wait for before the device, like the first
//! reads, and it is seen whether the call gave up its processor. One that did has waited; one that
//! did not has done the work itself.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use super::{ASK_AGAIN_NS, ASKED_MAX, ASKED_MAX_BYTES, FORGIVEN_AT, is_fast};
use crate::op::{Road, Seen};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DirectWrites {
    /// [`UNKNOWN`], [`WAIT`] or [`MEMORY`].
    state: AtomicU8,
    /// How many have been asked in vain, or [`ONE_LARGE`]. Of memory: fast calls in a row, less
    /// than before after a slow one.
    streak: AtomicI32,
}

const UNKNOWN: u8 = 0;
const WAIT: u8 = 1;
const MEMORY: u8 = 2;

/// A large one has seemed to meet no device. It takes two in a row: a thread may lose its processor
/// for as long as the device is at work, and is then not seen to wait.
const ONE_LARGE: i32 = -1;

/// What one write that was asked has shown of others on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    Memory,
    Waited,
    /// It took long, or would have waited for something.
    Unclear,
}

impl DirectWrites {
    /// The road of one, of a file that is not known to refuse to be asked.
    #[inline]
    pub(super) fn road(&self) -> Road {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => Road::Ask,
            MEMORY => Road::Memory,
            _ => Road::Device,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.state.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Learns from one.
    pub(super) fn note(&self, seen: Seen) -> Shown {
        let state = self.state.load(Ordering::Relaxed);
        let before = self.streak.load(Ordering::Relaxed);
        let (next, streak, shown) = match (state, seen) {
            (MEMORY, Seen::Asked { .. }) => (MEMORY, before, Shown::Nothing),
            (_, Seen::Asked { ns, bytes }) if is_work(ns, bytes) => {
                match bytes <= ASKED_MAX_BYTES || before == ONE_LARGE {
                    true => (MEMORY, FORGIVEN_AT / 2, Shown::Memory),
                    false => (state, ONE_LARGE, Shown::Nothing),
                }
            }
            (UNKNOWN | WAIT, Seen::Waited { .. }) => (WAIT, 0, Shown::Waited),
            // That may be for another reason: the thread was preempted, or there are no blocks yet.
            (UNKNOWN, Seen::Asked { .. } | Seen::Miss) if before + 1 < ASKED_MAX => {
                (UNKNOWN, before + 1, Shown::Unclear)
            }
            (UNKNOWN | WAIT, Seen::Asked { .. } | Seen::Miss) => (WAIT, 0, Shown::Unclear),
            // What it has begun is made once more, and what refuses does so again.
            (UNKNOWN, Seen::Short | Seen::Refused) => (WAIT, 0, Shown::Nothing),
            // Those of the pool may be others: they made the file grow, or were not aligned.
            (MEMORY, Seen::Took { ns, bytes } | Seen::Waited { ns, bytes }) => {
                match is_fast(ns, bytes) {
                    true => (MEMORY, (before + 1).min(FORGIVEN_AT), Shown::Nothing),
                    false if before < FORGIVEN_AT / 2 => (WAIT, 0, Shown::Nothing),
                    false => (MEMORY, before - FORGIVEN_AT / 2, Shown::Nothing),
                }
            }
            _ => (state, before, Shown::Nothing),
        };
        // In the steady state nothing changes, and the cache line stays shared.
        if streak != before {
            self.streak.store(streak, Ordering::Relaxed);
        }
        if next != state {
            self.state.store(next, Ordering::Relaxed);
        }
        shown
    }
}

/// Whether a write that has not given up its processor has taken no longer than what it had to do.
/// Most of the first ones of a file on memory take 10 to 30 us for 4 KiB here, the next ones 4, and
/// 128 KiB take 70; one that took longer may have lost its processor while the device was at work.
fn is_work(ns: u64, bytes: usize) -> bool {
    ns <= ASK_AGAIN_NS + 2 * bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4096;
    const DONE: Seen = asked(20_000, BYTES);
    const PREEMPTED: Seen = asked(90_000, BYTES);
    const WAITED: Seen = Seen::Waited {
        ns: 7_000,
        bytes: BYTES,
    };
    const FAST: Seen = took(9_000);
    const SLOW: Seen = took(90_000);

    const fn asked(ns: u64, bytes: usize) -> Seen {
        Seen::Asked { ns, bytes }
    }

    const fn took(ns: u64) -> Seen {
        Seen::Took { ns, bytes: BYTES }
    }

    fn after(seen: &[Seen]) -> (Road, Shown) {
        let writes = DirectWrites::default();
        let shown = seen.iter().map(|seen| writes.note(*seen)).last();
        (writes.road(), shown.unwrap_or(Shown::Nothing))
    }

    #[test]
    fn the_first_ones_show_whether_they_meet_a_device() {
        let (memory, drive) = ((Road::Memory, Shown::Memory), (Road::Device, Shown::Waited));
        let (again, unclear) = ((Road::Ask, Shown::Unclear), (Road::Device, Shown::Unclear));
        let large = |ns| asked(ns, 128 << 10);
        let in_vain = usize::try_from(ASKED_MAX).expect("a few");
        let cases: [(&[Seen], (Road, Shown)); 15] = [
            (&[], (Road::Ask, Shown::Nothing)),
            (&[DONE], memory),
            // However fast it was.
            (&[WAITED], drive),
            (&[PREEMPTED], again),
            (&[PREEMPTED, Seen::Miss, DONE], memory),
            (&vec![PREEMPTED; in_vain], unclear),
            (&vec![Seen::Miss; in_vain], unclear),
            (&[large(200_000)], (Road::Ask, Shown::Nothing)),
            (&[large(200_000); 2], memory),
            (&[large(200_000), large(900_000)], again),
            (&[large(200_000), DONE], memory),
            (&[Seen::Refused], (Road::Device, Shown::Nothing)),
            (&[WAITED, DONE], memory),
            (&[WAITED, WAITED], drive),
            (&[WAITED, PREEMPTED], unclear),
        ];
        for (seen, expected) in cases {
            assert_eq!(after(seen), expected, "after {seen:?}");
        }
    }

    #[test]
    fn what_seemed_to_be_memory_is_a_device_when_most_writes_wait() {
        let road = |seen: &[&[Seen]]| {
            let seen = seen.concat();
            after(&[&[DONE], &seen[..]].concat()).0
        };
        let fast = &[FAST; 8];
        // One may be slow, as the first ones of a file are.
        assert_eq!(road(&[&[SLOW]]), Road::Memory);
        assert_eq!(road(&[&[SLOW; 2]]), Road::Device);
        assert_eq!(road(&[fast, &[SLOW; 2]]), Road::Memory);
        assert_eq!(road(&[fast, &[SLOW; 2], &[FAST; 4], &[SLOW]]), Road::Memory);
        assert_eq!(road(&[fast, &[SLOW; 3]]), Road::Device);
        // Those of the pool may be others.
        let (ns, bytes) = (90_000, BYTES);
        let pooled = Seen::Pooled { ns, bytes };
        assert_eq!(road(&[&[pooled; 9]]), Road::Memory);
        // Who was preempted has not waited.
        assert_eq!(road(&[&[Seen::Preempted; 9]]), Road::Memory);
        // Only to be asked again brings it back.
        assert_eq!(road(&[&[SLOW; 2], &[FAST; 9]]), Road::Device);
        assert_eq!(road(&[&[SLOW, SLOW, DONE]]), Road::Memory);
    }
}
