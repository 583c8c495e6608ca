//! The ways an operation can take, and what is seen on them. Which one it takes is decided in
//! [`crate::policy`].

/// The way one operation takes. What is awaited must not wait where it is polled, so some ways
/// part there; an operation alone that is waited for is a plain call unless it is said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// A plain system call on the calling thread; by a thread of the pool where it is awaited.
    Plain,
    /// As [`Road::Plain`], also where it is polled, because it does not wait.
    Now,
    /// A copy to the page cache: a plain call; where it is awaited, one that does not wait, and a
    /// timed one if it would, because the last ones were short.
    Copy,
    /// As [`Road::Copy`], but the file is not asked first.
    CopyBlind,
    /// As [`Road::Copy`], but the last ones have waited: a thread of the pool if it would wait.
    CopySlow,
    /// By threads of the pool.
    Pool,
    /// Through the proactor.
    Backend,
    /// Through the proactor; alone only where looking for its completion pays, else a plain system
    /// call (`docs/design/busy-polling.md`).
    Device,
    /// A direct transfer of a device that answers as fast as memory, because it is: a plain system
    /// call alone, where another thread shares them, and where it is polled by a thread that has no
    /// ring of its own or nothing else in flight (a timed one, or if it is large one of the pool);
    /// else through the proactor.
    Memory,
    /// A plain system call, of which one in a few is timed: the last ones were fast. Where it is
    /// awaited, one that does not wait, and the proactor if it would; in a run loop that has
    /// nothing else to do all but a few are plain.
    Warm,
    /// As [`Road::Warm`], of a file that cannot be asked whether it would wait: where it is
    /// awaited, every plain call is timed that is not shared.
    Blind,
    /// As [`Road::Blind`], of a file that another program or machine serves, which may need this
    /// very thread for it, or that may wait for anything: by threads of the pool where it is
    /// awaited.
    Served,
    /// A plain call that does not wait for the device; the proactor if the page cache does not
    /// have it all.
    CacheFirst,
    /// As [`Road::CacheFirst`], of a file of which nothing is known: whoever makes it learns from
    /// it, so no other thread does.
    First,
    /// As [`Road::CacheFirst`], for the first transfers of a direct file and also alone, to learn
    /// whether it can be asked not to wait, and whether its device is memory.
    Ask,
    /// As [`Road::CacheFirst`], but the page cache did not have many of the last ones: a thread
    /// with several in flight in its own ring hands over all but a few where a trial has shown that
    /// this is faster.
    Mixed,
    /// Through the proactor, but one in a few as [`Road::CacheFirst`].
    Cold,
    /// By threads of the pool, each timed: the file cannot be asked whether it would wait. On an
    /// engine of threads one in a few is a timed plain call where it is waited for.
    Slow,
    /// As [`Road::Slow`], of a direct file; made so that it shows whether the file only starts such
    /// transfers within a call.
    Submit,
    /// Through the proactor: a direct file that cannot be asked, but only starts such transfers
    /// within a call, so a worker of the kernel has soon done with each.
    Asynchronous,
}

/// What was seen of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The page cache had it all.
    Hit,
    /// One of the first reads of a direct file was answered, and took so many nanoseconds for so
    /// many bytes; or one of its first writes, and did not give up its processor meanwhile.
    Asked { ns: u64, bytes: usize },
    /// The page cache did not have it all.
    Miss,
    /// It had some, which may have been all that there is: the end of the file.
    Short,
    /// The file does not know transfers without waiting (`EOPNOTSUPP`, preadv2(2), `RWF_NOWAIT`).
    Refused,
    /// A plain call took so many nanoseconds for so many bytes.
    Took { ns: u64, bytes: usize },
    /// As [`Seen::Took`], and it is known to have waited meanwhile.
    Waited { ns: u64, bytes: usize },
    /// A plain call took long, but only because the processor was taken from it: it did not wait.
    Preempted,
    /// A plain call took so many nanoseconds for so many bytes, by a thread of the pool.
    Pooled { ns: u64, bytes: usize },
    /// A direct transfer was asynchronous, or the call that started it also waited for it.
    Started { is_asynchronous: bool },
}
