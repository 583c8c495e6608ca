//! What a report knows about strategies: their names, and which of two is the simpler one.
//!
//! A name that is not known here is shown as it is, and counts as the least simple.

use crate::record::{Access, Cell, ProfileSummary};

/// Does no I/O: it measures the harness.
pub(crate) const NULL: &str = "null";
/// One plain system call at a time, on one thread.
pub(crate) const PREAD: &str = "pread";
/// Plain system calls on several threads.
pub(crate) const THREADS: &str = "threads";
/// Writes as much as there are clients, and flushes once: nobody is told.
const ONE_FLUSH: &str = "one-flush";
/// Copies nothing, and reports no I/O errors.
pub(crate) const MMAP: &str = "mmap";
/// The library on files whose user has promised that nobody changes them.
pub(crate) const MAPPED: &str = "inflight-mapped";
/// The library's blocking calls on one thread: a queue where several are in flight.
pub(crate) const INFLIGHT: &str = "inflight";
/// The same on several threads, each of which waits for one operation at a time.
pub(crate) const INFLIGHT_THREADS: &str = "inflight-threads";
/// A ring without extras.
pub(crate) const URING: &str = "uring";
/// A ring with registered buffers and files.
pub(crate) const URING_TUNED: &str = "uring-tuned";
/// A tuned ring that looks for completions instead of sleeping.
pub(crate) const URING_BUSY: &str = "uring-busy";
/// A plain ring that asks the device for completions.
pub(crate) const URING_IOPOLL: &str = "uring-iopoll";
/// A plain ring whose entries a thread of the kernel takes.
pub(crate) const URING_SQPOLL: &str = "uring-sqpoll";
/// Linux AIO (io_submit(2)).
pub(crate) const LIBAIO: &str = "libaio";
/// Another program, as an outside check.
pub(crate) const FIO: &str = "fio";
/// The same, one plain system call at a time.
pub(crate) const FIO_PSYNC: &str = "fio-psync";

/// Simplest first: among equals the reader is told to keep the one that is earlier here.
const BY_SIMPLICITY: [&str; 16] = [
    PREAD,
    "preadv2-nowait",
    THREADS,
    "tokio",
    INFLIGHT,
    INFLIGHT_THREADS,
    MAPPED,
    "inflight-async-1",
    "inflight-async",
    "inflight-local",
    LIBAIO,
    URING,
    URING_TUNED,
    URING_IOPOLL,
    URING_BUSY,
    URING_SQPOLL,
];

/// Place in the order of simplicity, from 0.
pub(crate) fn simplicity(strategy: &str) -> usize {
    let known = BY_SIMPLICITY.iter().position(|name| *name == strategy);
    known.unwrap_or(BY_SIMPLICITY.len())
}

/// Whether the strategy is a hand-written ring.
pub(crate) fn is_ring(strategy: &str) -> bool {
    [URING, URING_TUNED].contains(&strategy)
}

/// Whether what it measures is this program's to answer for: nothing is where there is no I/O, or
/// where another program does it.
pub(crate) fn is_judged(strategy: &str) -> bool {
    ![NULL, FIO, FIO_PSYNC].contains(&strategy)
}

/// Whether the strategy is shown but never recommended, whatever it measured.
pub(crate) fn only_shown(strategy: &str) -> bool {
    [MMAP, MAPPED, ONE_FLUSH].contains(&strategy) || !is_judged(strategy)
}

/// Why a strategy whose figures may be the best is not for everybody.
pub(crate) fn condition(strategy: &str) -> Option<&'static str> {
    match strategy {
        MMAP => Some("copies nothing and reports no I/O errors"),
        ONE_FLUSH => Some("serves nobody: it is what one flush for all would allow"),
        MAPPED => Some("only for files that nobody changes while they are open"),
        _ => None,
    }
}

/// Whether the strategy is one of the library's roads.
#[must_use]
pub fn is_library(strategy: &str) -> bool {
    strategy == INFLIGHT || strategy.starts_with("inflight-")
}

/// Whether it is the library as a program uses it that waits for results.
pub(crate) fn is_blocking(strategy: &str) -> bool {
    [INFLIGHT, INFLIGHT_THREADS].contains(&strategy)
}

/// Whether it is the library as a program uses it that awaits results.
pub(crate) fn is_awaited(strategy: &str) -> bool {
    is_library(strategy) && !is_blocking(strategy) && strategy != MAPPED
}

/// Whether it has a thread for each operation in flight: their number then says the depth.
pub(crate) fn is_threads(strategy: &str) -> bool {
    [PREAD, THREADS, INFLIGHT_THREADS].contains(&strategy)
}

/// What plain calls are called by what they do; the strategy is `pread` whatever that is.
pub(crate) fn plain_call(access: Access) -> &'static str {
    match (access.reads(), access.writes()) {
        (true, true) => "pread/pwrite",
        (false, true) => "pwrite",
        (_, false) => "pread",
    }
}

/// What is done in the profile that a cell belongs to.
pub(crate) fn access_of(cell: &Cell, profiles: &[ProfileSummary]) -> Access {
    let mut profiles = profiles.iter();
    let own = profiles.find(|profile| profile.name == cell.profile);
    own.map_or_else(Access::default, |profile| profile.access)
}

/// The name that people read, without the depth.
pub(crate) fn name(cell: &Cell, access: Access) -> String {
    let plain = match cell.strategy.as_str() {
        NULL => "null (no I/O)",
        PREAD | THREADS => {
            return format!("{}, {}", plain_call(access), threads(cell.threads));
        }
        "tokio" => "tokio pool",
        ONE_FLUSH => "pwrite, one flush for all",
        INFLIGHT_THREADS => INFLIGHT,
        MAPPED => "inflight, mapped",
        "inflight-local" => "inflight, run loop",
        "inflight-async" => "inflight, tokio",
        "inflight-async-1" => "inflight, tokio, 1 thread",
        "preadv2-nowait" => "preadv2, not waiting first",
        LIBAIO => "Linux AIO",
        URING_BUSY => "io_uring, never asleep",
        URING_IOPOLL => "io_uring, polled",
        URING_SQPOLL => "io_uring, kernel thread",
        URING => "io_uring",
        URING_TUNED => "io_uring, tuned",
        FIO => "fio io_uring (check)",
        FIO_PSYNC => "fio psync (check)",
        other => other,
    };
    if cell.threads > 1 {
        format!("{plain}, {}", threads(cell.threads))
    } else {
        plain.to_owned()
    }
}

/// The name with what tells it from its neighbours: the depth, where there is a choice of one.
#[must_use]
pub fn name_at_depth(cell: &Cell, access: Access) -> String {
    match is_threads(&cell.strategy) {
        true => name(cell, access),
        false => format!("{} at depth {}", name(cell, access), cell.depth),
    }
}

fn threads(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} thread{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_is_neither_waited_for_nor_mapped() {
        let awaited = ["inflight-local", "inflight-async", "inflight-async-1"];
        assert!(awaited.into_iter().all(is_awaited));
        let others = [INFLIGHT, INFLIGHT_THREADS, MAPPED, URING, "tokio"];
        assert!(!others.into_iter().any(is_awaited));
    }
}
