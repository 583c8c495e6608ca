//! Roads in words, for people who ask.

use super::{Else, Step, in_a_poll};
use crate::op::Road;

/// One way of a transfer; see [`Explanation`](crate::fs::Explanation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// It is answered without a call, or refused.
    None,
    /// A plain system call on the thread that waits or polls.
    PlainCall,
    /// A plain system call on the thread that waits; of many, some are made by another one at the
    /// same time, where that has been measured to be faster.
    SharedCall,
    /// As [`Way::SharedCall`]; the backend where that has not been measured to be faster. What is
    /// awaited in a run loop, or on the only thread of a runtime that serves the engine, goes this
    /// way too.
    SharedCallOrBackend,
    /// A plain system call that does not wait; the backend if it would. The first one of a file
    /// that cannot be asked goes to the pool where it is awaited. A run loop that has nothing else
    /// to do may wait in the call instead, of files whose last reads were in the page cache.
    TryThenBackend,
    /// A plain system call that does not wait; a thread of the pool if it would.
    TryThenPool,
    /// A plain system call on the thread that waits. With rings, the ring of that thread if it has
    /// found that to look for the completion before it sleeps is faster, and costs no more
    /// processor time than it saves time.
    PlainCallOrRing,
    /// The ring; without rings, Linux AIO for what is direct (the backend `aio`), else the
    /// pool. On tokio's own threads those calls also have, beside the ring, direct transfers that
    /// cannot be asked not to wait and that a call only starts.
    Backend,
    /// A thread of the pool.
    Pool,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "no call",
            Self::PlainCall => "a plain call",
            Self::SharedCall => "a plain call, by this thread or by one that helps it",
            Self::SharedCallOrBackend => {
                "a plain call, by this thread or by one that helps it, or the backend"
            }
            Self::TryThenBackend => "a plain call that does not wait, else the backend",
            Self::TryThenPool => "a plain call that does not wait, else the pool",
            Self::PlainCallOrRing => "a plain call, or the ring where looking for its end pays",
            Self::Backend => "the backend",
            Self::Pool => "the pool",
        })
    }
}

/// What a road means on each host, and why it is taken.
pub(crate) struct Guide {
    pub(crate) alone: Way,
    pub(crate) batched: Way,
    pub(crate) awaited: Way,
    pub(crate) why: &'static str,
}

/// Of what needs no road.
pub(crate) fn explain_none() -> Guide {
    Guide {
        alone: Way::None,
        batched: Way::None,
        awaited: Way::None,
        why: "it is answered without the kernel",
    }
}

/// Of what is refused before the kernel is asked.
pub(crate) fn explain_refused() -> Guide {
    Guide {
        why: "it is refused without the kernel; the error of the result says why",
        ..explain_none()
    }
}

/// Of a transfer that a direct file leaves to the page cache; else as `guide`.
pub(crate) fn explain_unaligned(guide: Guide) -> Guide {
    Guide {
        why: "it is not aligned as direct I/O needs it, so it goes through the page cache",
        ..guide
    }
}

/// Of a sync.
pub(crate) fn explain_sync() -> Guide {
    Guide {
        alone: Way::PlainCall,
        batched: Way::Backend,
        awaited: Way::Pool,
        why: "one flush serves all syncs of the file that wait for it; a run loop with nothing \
              else to do makes a short one itself, and so does any task where few ask",
    }
}

/// Of a transfer of so many bytes on this road. One in `SAMPLE_EVERY` may go another way.
pub(crate) fn explain(road: Road, bytes: usize) -> Guide {
    let alone = match road {
        Road::Device => Way::PlainCallOrRing,
        _ => Way::PlainCall,
    };
    let batched = match road {
        Road::Plain | Road::Now => Way::PlainCall,
        Road::Copy | Road::CopyBlind | Road::CopySlow => Way::PlainCall,
        Road::Warm | Road::Blind | Road::Served => Way::SharedCall,
        Road::Memory => Way::SharedCallOrBackend,
        Road::CacheFirst | Road::Mixed | Road::First | Road::Ask => Way::TryThenBackend,
        Road::Backend | Road::Device | Road::Cold | Road::Asynchronous => Way::Backend,
        // One shows for all that come after it.
        Road::Pool | Road::Slow | Road::Submit => Way::Pool,
    };
    let awaited = match in_a_poll(road, bytes, || false) {
        Step::Call | Step::TimedCall => Way::PlainCall,
        Step::Try(Else::TimedCall) => Way::PlainCall,
        Step::Try(Else::Pool) => Way::TryThenPool,
        Step::Try(Else::Backend) => Way::TryThenBackend,
        Step::Pool => Way::Pool,
        Step::Backend | Step::Probe => Way::Backend,
    };
    let why = match road {
        Road::Plain => "it may wait, and a ring would hand it to a worker of the kernel",
        Road::Now => "it is wished not to wait",
        Road::Copy => "it is a copy to the page cache",
        Road::CopyBlind => "it is a copy to the page cache, and the last ones were fast",
        Road::CopySlow => "it is a copy to the page cache, but the last ones have waited",
        Road::Pool => "it ends with a flush, which threads of the pool share and a ring does not",
        Road::Backend | Road::Device => "it waits for the device",
        Road::Memory => "the device is memory, so whoever asks does the copying",
        Road::Warm => "the last reads were in the page cache",
        Road::CacheFirst => "some of the last reads were in the page cache",
        Road::First => {
            "no read in a batch, in a queue or awaited has shown yet what the page cache has"
        }
        Road::Mixed => {
            "the page cache did not have many of the last reads: a thread with several in flight \
             in its own ring hands over all but a few, if a trial has shown that to be faster than \
             asking for each"
        }
        Road::Cold => "the last reads were not in the page cache",
        Road::Ask => {
            "little is known of the file: the first ones show whether it can be asked not to wait \
             (RWF_NOWAIT), and how fast its device is"
        }
        Road::Blind => "the file cannot be asked not to wait, and the last calls were fast",
        Road::Served => {
            "another program or machine serves the file, or the kernel makes it up, so a call may \
             wait for anything; the last ones were fast"
        }
        Road::Slow | Road::Submit => {
            "the file cannot be asked not to wait, and the last calls were slow"
        }
        Road::Asynchronous => {
            "the file cannot be asked not to wait, but a call only starts such a transfer; a run \
             loop makes the only one that it has in flight itself"
        }
    };
    Guide {
        alone,
        batched,
        awaited,
        why,
    }
}
