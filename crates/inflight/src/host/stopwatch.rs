//! Plain calls of which it is to be known whether they waited.

use std::cell::Cell;
use std::time::Instant;

use crate::backend::threads::execute::{execute_request, switches};
use crate::completion::Answer;
use crate::op::{Prepare, Request, Seen, SeenOf};
use crate::policy::{LONG_NS, Samples, WATCHED_AFTER_LONG, WATCHED_CALLS, is_fast};

/// After so many fast ones in a row, a thread times one call in so many: two looks at a clock cost
/// a twentieth of a cached read of 4 KiB. What becomes slow meanwhile is noticed less than twice as
/// many calls later ([`Samples`]).
const TRUSTED_AFTER: u32 = 256;
const TRUSTED_EVERY: u32 = 4;

thread_local! {
    /// Timed calls of this thread that are still watched.
    static WATCHED: Cell<u32> = const { Cell::new(0) };
    /// Timed calls of this thread that were fast, since one was not.
    static FAST: Cell<u32> = const { Cell::new(0) };
    /// Which calls are timed once those have been enough.
    static TIMED: Cell<Samples<TRUSTED_EVERY>> = const { Cell::new(Samples::new()) };
}

/// How long ago that was.
pub(super) fn nanoseconds_since(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// As [`time`], but of a thread whose calls have all been fast only few are timed.
#[inline]
#[allow(unsafe_code)]
pub(super) fn time_some<O: Prepare>(operation: &mut O, request: &Request) -> Answer {
    if FAST.get() < TRUSTED_AFTER {
        return time(operation, request);
    }
    let mut timed = TIMED.get();
    let is_timed = timed.takes_next();
    TIMED.set(timed);
    match is_timed {
        true => time(operation, request),
        // SAFETY: as in `time`.
        false => unsafe { execute_request(request) },
    }
}

/// Makes a plain call, and lets the operation learn how long it took.
///
/// A call that waits gives up the processor; one that is slow without having done so was
/// preempted, which says nothing of the file. The question costs a system call, so it is asked
/// only after a slow call.
#[allow(unsafe_code)]
pub(super) fn time<O: Prepare>(operation: &mut O, request: &Request) -> Answer {
    let watched = WATCHED.get();
    let before = match watched {
        0 => None,
        _ => switches(),
    };
    let begun = Instant::now();
    // SAFETY: the addresses point into what the operation owns or has borrowed, and it is over
    // when this returns.
    let answer = unsafe { execute_request(request) };
    let ns = nanoseconds_since(begun);
    let bytes = answer.bytes();
    let mut seen = Seen::Took { ns, bytes };
    if is_fast(ns, bytes) {
        WATCHED.set(watched.saturating_sub(1));
        FAST.set(FAST.get().saturating_add(1));
    } else {
        FAST.set(0);
        seen = match before.is_some() {
            true if before == switches() => Seen::Preempted,
            true => Seen::Waited { ns, bytes },
            false => seen,
        };
        let more = match seen {
            Seen::Preempted => 0,
            _ if ns > LONG_NS => WATCHED_AFTER_LONG,
            _ => WATCHED_CALLS,
        };
        WATCHED.set(watched.saturating_sub(1).max(more));
    }
    operation.note(SeenOf::new(seen, &request.op));
    answer
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;
    use crate::op::{Op, Prepared, Span, Wishes};

    /// Keeps what is seen of it.
    #[derive(Default)]
    struct Watched(RefCell<Vec<Seen>>);

    impl Prepare for Watched {
        type Output = ();

        fn prepare(&mut self) -> Prepared {
            Prepared::answered(Answer::moved(0))
        }

        fn note(&self, seen: SeenOf) {
            self.0.borrow_mut().push(seen.seen);
        }

        fn finish(self, _answer: Answer) {}
    }

    fn read_of(file: &fs::File, buf: &mut [u8]) -> Request {
        let span = Span {
            start: buf.as_mut_ptr(),
            len: buf.len(),
            arena: None,
        };
        Request::simple(Op::ReadAt {
            fd: file.as_raw_fd(),
            span,
            offset: 0,
            wishes: Wishes::NONE,
        })
    }

    #[test]
    fn a_call_that_computes_for_long_has_not_waited() {
        // Random bytes are computed, at less than one in a nanosecond on most processors.
        let file = fs::File::open("/dev/urandom").expect("it is there");
        let mut buf = vec![0; 1 << 20];
        let request = read_of(&file, &mut buf);
        let mut operation = Watched::default();
        assert_eq!(time(&mut operation, &request).bytes(), buf.len());
        assert_eq!(time(&mut operation, &request).bytes(), buf.len());
        match operation.0.into_inner()[..] {
            [Seen::Took { ns, bytes }, second] if !is_fast(ns, bytes) => {
                // The first one is judged by its time, the next ones are watched.
                assert!(
                    second == Seen::Preempted
                        || matches!(second, Seen::Took { ns, bytes } if is_fast(ns, bytes))
                );
            }
            _ => eprintln!("skipped: slow calls that do not wait: random bytes are fast here"),
        }
    }

    #[test]
    fn few_are_timed_where_all_are_fast_and_all_after_a_slow_one() {
        let [zeros, random] = ["/dev/zero", "/dev/urandom"].map(|name| {
            let file = fs::File::open(name).expect("it is there");
            (file, vec![0; 4 << 20])
        });
        let (mut fast_buf, mut slow_buf) = (vec![0; 512], random.1);
        let fast = read_of(&zeros.0, &mut fast_buf);
        let slow = read_of(&random.0, &mut slow_buf);
        let mut operation = Watched::default();
        let mut timed = |count, request| {
            (0..count).for_each(|_| _ = time_some(&mut operation, request));
            operation.0.borrow_mut().drain(..).len()
        };
        let begun = Instant::now();
        assert_eq!(timed(128, &fast), 128);
        if begun.elapsed() > Duration::from_micros(128 * 5) {
            // As on a processor that is interpreted.
            return eprintln!("skipped: how few are timed: system calls take long here");
        }
        // On a busy machine some seem slow, and what comes after those is timed.
        assert!((0..100).any(|_| timed(16 << 10, &fast) < 8 << 10));
        // One of them is timed, unless computers have become much faster.
        timed(8, &slow);
        assert_eq!(timed(128, &fast), 128);
    }

    #[test]
    fn a_call_that_waits_is_known_to_once_it_is_watched() {
        use std::io::Write;

        let mut file = tempfile::tempfile().expect("there is room");
        let request = Request::simple(Op::Sync {
            fd: file.as_raw_fd(),
            data_only: false,
        });
        let mut operation = Watched::default();
        for _ in 0..8 {
            file.write_all(&[1; 4096]).expect("there is room");
            time(&mut operation, &request);
        }
        let seen = operation.0.into_inner();
        let is_slow =
            |seen: &Seen| !matches!(seen, Seen::Took { ns, bytes } if is_fast(*ns, *bytes));
        match seen.iter().position(is_slow) {
            Some(first) if first < 4 => {
                let later = &seen[first + 1..];
                let has_waited = |seen: &Seen| matches!(seen, Seen::Waited { .. });
                assert!(later.iter().any(has_waited), "{seen:?}");
            }
            _ => eprintln!("skipped: calls that wait: files are not on a device here"),
        }
    }
}
