//! What is asked of a single transfer beyond moving its bytes.
//!
//! `dsync`, `no_wait` and `then_sync` change what the answer means: refused, they are an error. The
//! others are hints: a refused one is left out, and the transfer is carried out all the same.
//! The reasons are in `docs/design/wishes.md`.

/// Which requests a device is to serve first (ioprio_set(2)); see
/// [`WriteAt::priority`](crate::fs::WriteAt::priority).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Before others: somebody waits for it. The highest that needs no privilege
    /// (`IOPRIO_CLASS_BE`, level 0).
    Latency,
    /// After others: much of it, and nobody waits (`IOPRIO_CLASS_BE`, level 7).
    Throughput,
}

/// The wishes of one transfer, and marks of what has become of it. The flags that the kernel has
/// are its own bits, so that they need no translation (preadv2(2), `RWF_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes(u16);

impl Wishes {
    pub(crate) const NONE: Self = Self(0);
    /// `RWF_DSYNC`.
    pub(crate) const DSYNC: Self = Self(0x02);
    /// `RWF_NOWAIT`.
    pub(crate) const NO_WAIT: Self = Self(0x08);
    /// `RWF_DONTCACHE`.
    pub(crate) const DONT_CACHE: Self = Self(0x80);
    /// [`Priority::Latency`].
    const LATENCY: Self = Self(0x01);
    /// [`Priority::Throughput`].
    const THROUGHPUT: Self = Self(0x04);
    /// Followed by fdatasync, once all has been written.
    pub(crate) const THEN_SYNC: Self = Self(0x10);
    /// A mark: a hint has been left out.
    pub(crate) const UNHEARD: Self = Self(0x20);
    /// A mark: it goes through the page cache because it does not fit direct I/O.
    pub(crate) const UNALIGNED: Self = Self(0x100);

    /// By the backend, whatever is known of the file.
    pub(crate) const BY_BACKEND: Self = Self(0x40);

    const RWF: u16 = Self::DSYNC.0 | Self::NO_WAIT.0 | Self::DONT_CACHE.0;
    const PRIORITIES: u16 = Self::LATENCY.0 | Self::THROUGHPUT.0;
    const HINTS: u16 = Self::DONT_CACHE.0 | Self::PRIORITIES;

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn has(self, wish: Self) -> bool {
        self.0 & wish.0 != 0
    }

    pub(crate) fn with(self, wish: Self) -> Self {
        Self(self.0 | wish.0)
    }

    /// The last one counts.
    pub(crate) fn with_priority(self, priority: Priority) -> Self {
        self.without_priority().with(match priority {
            Priority::Latency => Self::LATENCY,
            Priority::Throughput => Self::THROUGHPUT,
        })
    }

    pub(crate) fn without(self, wish: Self) -> Self {
        Self(self.0 & !wish.0)
    }

    /// What is asked, without the marks.
    pub(crate) fn asked(self) -> Self {
        self.without(Self::UNHEARD).without(Self::UNALIGNED)
    }

    pub(crate) fn only(self, wish: Self) -> Self {
        Self(self.0 & wish.0)
    }

    pub(crate) fn has_priority(self) -> bool {
        self.0 & Self::PRIORITIES != 0
    }

    pub(crate) fn without_priority(self) -> Self {
        Self(self.0 & !Self::PRIORITIES)
    }

    pub(crate) fn has_hints(self) -> bool {
        self.0 & Self::HINTS != 0
    }

    /// The rest, with the mark that a hint is missing.
    pub(crate) fn without_hints(self) -> Self {
        Self(self.0 & !Self::HINTS).with(Self::UNHEARD)
    }

    /// As preadv2(2) and a submission queue entry take it.
    #[inline(always)]
    pub(crate) fn rwf(self) -> i32 {
        i32::from(self.0 & Self::RWF)
    }

    /// As ioprio_set(2) and a submission queue entry take it; 0 is no priority of its own.
    #[inline(always)]
    pub(crate) fn ioprio(self) -> u16 {
        /// `IOPRIO_CLASS_BE` above `IOPRIO_CLASS_SHIFT`, ioprio_set(2).
        const BEST_EFFORT: u16 = 2 << 13;
        match self.0 & Self::PRIORITIES {
            0 => 0,
            latency if latency == Self::LATENCY.0 => BEST_EFFORT,
            _ => BEST_EFFORT | 7,
        }
    }
}

/// Whether an errno may mean that a hint is refused. Some of them mean other things too: then the
/// transfer without the hint says so.
pub(crate) fn may_refuse_hint(errno: i32) -> bool {
    // EPERM: ioprio_set(2), and filters.
    matches!(
        errno,
        libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_kernel() {
        let flags = [
            (Wishes::DSYNC, libc::RWF_DSYNC),
            (Wishes::NO_WAIT, libc::RWF_NOWAIT),
            (Wishes::DONT_CACHE, libc::RWF_DONTCACHE),
            (Wishes::THEN_SYNC, 0),
            (Wishes::UNHEARD, 0),
            (Wishes::UNALIGNED, 0),
        ];
        for (wish, flag) in flags {
            assert_eq!(wish.with_priority(Priority::Latency).rwf(), flag);
        }
    }

    #[test]
    fn what_is_asked_is_without_marks() {
        let marks = Wishes::UNHEARD.with(Wishes::UNALIGNED);
        assert_eq!(marks.asked(), Wishes::NONE);
        assert_eq!(marks.with(Wishes::DSYNC).asked(), Wishes::DSYNC);
    }

    #[test]
    fn leaving_hints_out_keeps_what_changes_the_meaning() {
        let all = Wishes::DSYNC
            .with(Wishes::NO_WAIT)
            .with(Wishes::THEN_SYNC)
            .with(Wishes::DONT_CACHE)
            .with_priority(Priority::Throughput);
        let rest = all.without_hints();
        assert!(!rest.has_hints() && rest.has(Wishes::UNHEARD) && rest.has(Wishes::THEN_SYNC));
        assert_eq!(rest.rwf(), libc::RWF_DSYNC | libc::RWF_NOWAIT);
        assert_eq!((all.ioprio(), rest.ioprio()), (0x4007, 0));
        assert_eq!(all.with_priority(Priority::Latency).ioprio(), 0x4000);
    }
}
