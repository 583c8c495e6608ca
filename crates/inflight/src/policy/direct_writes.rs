//! Whether the direct writes of a file meet a device.
//!
//! Where the device is memory, a direct write is a copy, and may be shared like a read
//! ([`Road::Memory`]). The reads of a file do not show that of its writes, nor the other way round:
//! a hole is read without a device, and what is written may end in a cache. Only a call that has
//! not given up its processor did the work itself, so that is asked of the first ones, which are
//! made without waiting like the first reads.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use super::{ASK_AGAIN_NS, ASKED_MAX, FORGIVEN_AT, MEMORY_NS, is_fast};
use crate::op::{Road, Seen};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DirectWrites {
    /// [`UNKNOWN`], [`WAIT`] or [`MEMORY`].
    state: AtomicU8,
    /// How many have been asked in vain. Of memory: fast calls in a row, less than before after a
    /// slow one.
    streak: AtomicI32,
}

const UNKNOWN: u8 = 0;
const WAIT: u8 = 1;
const MEMORY: u8 = 2;

/// What one write that was asked has shown of others on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    Memory,
    /// It waited for the device, or took its time.
    Slow,
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
        let streak = self.streak.load(Ordering::Relaxed);
        let (next, streak, shown) = match seen {
            Seen::Asked { ns, bytes } if ns <= MEMORY_NS + bytes as u64 => {
                (MEMORY, streak.max(0), Shown::Memory)
            }
            Seen::Asked { ns, bytes } if state == UNKNOWN => {
                let is_over = streak + 1 >= ASKED_MAX || ns > ASK_AGAIN_NS + 2 * bytes as u64;
                match is_over {
                    true => (WAIT, 0, Shown::Slow),
                    false => (UNKNOWN, streak + 1, Shown::Nothing),
                }
            }
            Seen::Waited { .. } if state == UNKNOWN => (WAIT, 0, Shown::Slow),
            // That may be for another reason: there are no blocks yet, or the time of the last write
            // has to be kept.
            Seen::Miss | Seen::Short if state == UNKNOWN => match streak + 1 >= ASKED_MAX {
                true => (WAIT, 0, Shown::Nothing),
                false => (UNKNOWN, streak + 1, Shown::Nothing),
            },
            Seen::Took { ns, bytes } | Seen::Waited { ns, bytes } | Seen::Pooled { ns, bytes }
                if state == MEMORY =>
            {
                match is_fast(ns, bytes) {
                    true => (MEMORY, (streak + 1).min(FORGIVEN_AT), Shown::Nothing),
                    false if streak < FORGIVEN_AT / 2 => (WAIT, 0, Shown::Nothing),
                    false => (MEMORY, streak - FORGIVEN_AT / 2, Shown::Nothing),
                }
            }
            Seen::Asked { .. } | Seen::Waited { .. } => (state, streak, Shown::Slow),
            _ => (state, streak, Shown::Nothing),
        };
        // In the steady state nothing changes, and the cache line stays shared.
        if streak != self.streak.load(Ordering::Relaxed) {
            self.streak.store(streak, Ordering::Relaxed);
        }
        if next != state {
            self.state.store(next, Ordering::Relaxed);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_LIKE: Seen = Seen::Asked {
        ns: 7_000,
        bytes: 4096,
    };
    const FIRST: Seen = Seen::Asked {
        ns: 20_000,
        bytes: 4096,
    };
    const WAITED: Seen = Seen::Waited {
        ns: 7_000,
        bytes: 4096,
    };
    const FAST: Seen = Seen::Took {
        ns: 9_000,
        bytes: 4096,
    };
    const SLOW: Seen = Seen::Took {
        ns: 90_000,
        bytes: 4096,
    };

    fn after(seen: &[Seen]) -> (Road, Shown) {
        let writes = DirectWrites::default();
        let shown = seen.iter().map(|seen| writes.note(*seen)).last();
        (writes.road(), shown.unwrap_or(Shown::Nothing))
    }

    #[test]
    fn the_first_ones_show_whether_they_meet_a_device() {
        let (memory, drive) = ((Road::Memory, Shown::Memory), (Road::Device, Shown::Slow));
        let large = |ns| Seen::Asked {
            ns,
            bytes: 128 << 10,
        };
        let cases: [(&[Seen], (Road, Shown)); 12] = [
            (&[], (Road::Ask, Shown::Nothing)),
            (&[MEMORY_LIKE], memory),
            // However fast it was.
            (&[WAITED], drive),
            (&[FIRST], (Road::Ask, Shown::Nothing)),
            (&[FIRST, MEMORY_LIKE], memory),
            (&[FIRST; ASKED_MAX as usize], drive),
            (&[large(100_000)], memory),
            (&[large(1_000_000)], drive),
            (&[Seen::Miss, Seen::Miss, MEMORY_LIKE], memory),
            (
                &[Seen::Miss; ASKED_MAX as usize],
                (Road::Device, Shown::Nothing),
            ),
            (&[WAITED, MEMORY_LIKE], memory),
            (&[WAITED, WAITED], drive),
        ];
        for (seen, expected) in cases {
            assert_eq!(after(seen), expected, "after {seen:?}");
        }
    }

    #[test]
    fn what_seemed_to_be_memory_is_a_device_when_most_writes_wait() {
        let road = |seen: &[&[Seen]]| {
            let seen = seen.concat();
            after(&[&[MEMORY_LIKE], &seen[..]].concat()).0
        };
        assert_eq!(road(&[&[SLOW]]), Road::Device);
        assert_eq!(road(&[&[FAST; 8], &[SLOW; 2]]), Road::Memory);
        assert_eq!(
            road(&[&[FAST; 8], &[SLOW; 2], &[FAST; 4], &[SLOW]]),
            Road::Memory
        );
        assert_eq!(road(&[&[FAST; 8], &[SLOW; 3]]), Road::Device);
        // Who was preempted has not waited.
        assert_eq!(road(&[&[Seen::Preempted; 9]]), Road::Memory);
        // Only to be asked again brings it back.
        assert_eq!(road(&[&[SLOW], &[FAST; 9]]), Road::Device);
        assert_eq!(road(&[&[SLOW, MEMORY_LIKE]]), Road::Memory);
    }
}
