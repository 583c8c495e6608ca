//! The ways an operation can take, and what is seen on them. Which one it takes is decided in
//! [`crate::policy`].

/// The way one operation of a batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// A plain system call on the calling thread.
    Plain,
    /// As [`Road::Plain`], also where nobody may wait, because it does not.
    Now,
    /// Through the proactor.
    Backend,
    /// Through the proactor, also alone: it is past the page cache, where a ring serves even one
    /// request at a time as well or better (`docs/design/roads.md`).
    Device,
    /// A plain system call, of which one in a few is timed: the last ones were fast.
    Warm,
    /// As [`Road::Warm`], of a file that cannot be asked whether the page cache has it.
    Blind,
    /// A plain call that does not wait for the device; the proactor if the page cache does not
    /// have it all.
    CacheFirst,
    /// As [`Road::CacheFirst`], once for a direct file and also alone, to learn whether it can be
    /// read without waiting.
    Ask,
    /// Through the proactor, but one in a few as [`Road::CacheFirst`].
    Cold,
    /// Through the proactor, but one in a few is a timed plain call: the file cannot
    /// be asked whether the page cache has it.
    Slow,
}

/// What was seen of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The page cache had it all.
    Hit,
    /// The page cache did not have it all.
    Miss,
    /// The file cannot be read without waiting (`EOPNOTSUPP`, preadv2(2), `RWF_NOWAIT`).
    Refused,
    /// A plain call took so many nanoseconds for so many bytes.
    Took { ns: u64, bytes: usize },
}
