//! Counters of those who work, where the measuring thread can read them at any moment.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU64, fence};
use std::thread::yield_now;

use crate::measure::meter::Counters;

/// The counters of one writer, a thread or a task. Aligned, so that two of them never write to the
/// same pair of cache lines.
///
/// A reader must not see the operations of one moment with the bytes of another, and the writer
/// must not wait for a reader: a sequence lock (Boehm, "Can seqlocks get along with programming
/// language memory models?", MSPC 2012) gives both.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Published {
    /// Odd while the counters are written.
    version: AtomicU64,
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    errno: AtomicI32,
    short: AtomicU64,
    syscalls: AtomicU64,
    wrong: AtomicU64,
}

impl Published {
    /// Only the thread or task whose counters these are may call this.
    pub(crate) fn store(&self, counters: &Counters) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.ops.store(counters.ops, Relaxed);
        self.bytes.store(counters.bytes, Relaxed);
        self.errors.store(counters.errors, Relaxed);
        self.errno.store(counters.errno, Relaxed);
        self.short.store(counters.short, Relaxed);
        self.syscalls.store(counters.syscalls, Relaxed);
        self.wrong.store(counters.wrong, Relaxed);
        self.version.store(version + 2, Release);
    }

    pub(crate) fn load(&self) -> Counters {
        loop {
            let before = self.version.load(Acquire);
            let counters = Counters {
                ops: self.ops.load(Relaxed),
                bytes: self.bytes.load(Relaxed),
                errors: self.errors.load(Relaxed),
                errno: self.errno.load(Relaxed),
                short: self.short.load(Relaxed),
                syscalls: self.syscalls.load(Relaxed),
                wrong: self.wrong.load(Relaxed),
            };
            fence(Acquire);
            if before.is_multiple_of(2) && self.version.load(Relaxed) == before {
                return counters;
            }
            // The writer may have been taken off its processor in the middle.
            yield_now();
        }
    }
}

/// What all of them have counted.
pub(crate) fn sum(all: &[Published]) -> Counters {
    let each = all.iter().map(Published::load);
    each.fold(Counters::default(), |sum, counters| sum.plus(&counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU8;
    use std::thread::scope;

    #[test]
    fn counters_are_read_as_of_one_moment() {
        let published = Published::default();
        let done = AtomicU8::new(0);
        scope(|scope| {
            scope.spawn(|| {
                for ops in 0..200_000 {
                    let bytes = ops * 4096;
                    published.store(&Counters {
                        ops,
                        bytes,
                        ..Counters::default()
                    });
                }
                done.store(1, Relaxed);
            });
            while done.load(Relaxed) == 0 {
                let seen = published.load();
                assert_eq!(seen.bytes, seen.ops * 4096);
            }
        });
    }
}
