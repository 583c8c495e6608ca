//! What a thread of the pool has begun is seen through there: a ring that can have no worker of the
//! kernel would refuse the next step, and nobody would try it again. And what becomes of a ring
//! that breaks.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::Proactor;
use crate::backend::Backend;
use crate::backend::faulty::{Faults, Faulty};
use crate::backend::threads::pool::Pool;
use crate::op::{Iovecs, KINDS, Op, Request, Span, Wishes};

const CONTENT: &[u8; 4] = b"abcd";

/// A proactor with a pool, beside such a ring.
fn beside(faults: Faults) -> Proactor {
    let ring = Backend::Faulty(Box::new(Faulty::new(faults)));
    Proactor::new(ring, 8, [true; KINDS]).with_pool(Arc::new(Pool::new(1)))
}

/// Bytes moved by a request for the pool, and how many calls it took there, beside a ring that
/// refuses everything.
fn moved(request: &Request) -> (usize, u64) {
    let mut proactor = beside(Faults::new(1).errors(libc::ECANCELED, 1000));
    // SAFETY: the caller keeps the memory until this returns, and the answer has come by then.
    unsafe { proactor.push(1, request) };
    let answer = proactor.turn_for_one(None).0;
    assert_eq!(answer.errno(), None);
    (answer.bytes(), proactor.tally().pool_calls.get())
}

/// Has the pool read the content of a file into more than that, all of it if it can.
fn assert_read_to_the_end(op: Op) {
    let request = Request {
        whole: true,
        ..Request::simple(op).aside()
    };
    let all_and_then_the_end = (CONTENT.len(), 2);
    assert_eq!(moved(&request), all_and_then_the_end);
}

fn span(buf: &mut [u8]) -> Span {
    Span {
        start: buf.as_mut_ptr(),
        len: buf.len(),
        arena: None,
    }
}

fn write(file: &File, buf: &mut [u8], wishes: Wishes) -> Request {
    let (fd, offset) = (file.as_raw_fd(), 0);
    let span = span(buf);
    Request::simple(Op::WriteAt {
        fd,
        span,
        offset,
        wishes,
    })
}

#[test]
fn a_hint_that_is_refused_in_the_pool_is_left_out_there() {
    // Files in memory refuse hints about the page cache.
    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        return println!("skipped: /dev/shm cannot be written");
    };
    let mut buf = *CONTENT;
    let request = write(&file, &mut buf, Wishes::DONT_CACHE).aside();
    let (bytes, _) = moved(&request);
    assert_eq!(bytes, CONTENT.len());
}

#[test]
fn the_sync_behind_a_write_of_the_pool_is_made_there_also_behind_one_in_parts() {
    let file = tempfile::tempfile().expect("there is room");
    let mut buf = *CONTENT;
    let request = write(&file, &mut buf, Wishes::THEN_SYNC).aside();
    assert_eq!(moved(&request), (CONTENT.len(), 2));
    let in_parts = Request {
        limit_bytes: 2,
        ..request
    };
    assert_eq!(moved(&in_parts), (CONTENT.len(), 3));
}

#[test]
fn a_list_that_is_to_be_filled_is_read_on_in_the_pool() {
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(CONTENT).expect("there is room");
    let mut bufs = [[0_u8; 3]; 2];
    let mut iovecs = bufs.each_mut().map(|buf| libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    });
    let op = Op::ReadVectoredAt {
        fd: file.as_raw_fd(),
        iovecs: Iovecs {
            first: iovecs.as_mut_ptr(),
            count: 2,
        },
        offset: 0,
        wishes: Wishes::NONE,
    };
    assert_read_to_the_end(op);
    assert_eq!(bufs, [*b"abc", *b"d\0\0"]);
}

#[test]
fn a_short_transfer_of_the_pool_is_resumed_there() {
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(CONTENT).expect("there is room");
    let mut buf = [0_u8; 8];
    let op = Op::ReadAt {
        fd: file.as_raw_fd(),
        span: span(&mut buf),
        offset: 0,
        wishes: Wishes::NONE,
    };
    assert_read_to_the_end(op);
    assert_eq!(&buf, b"abcd\0\0\0\0");
}

/// A proactor beside a ring that can have no worker for this kind of operation.
fn unserved(kind: &'static str) -> Proactor {
    beside(Faults::new(1).refuse(kind, libc::ECANCELED))
}

#[test]
fn what_the_kernel_has_no_worker_for_is_the_pools_until_the_ring_is_tried_again() {
    let mut proactor = unserved("nop");
    let mut do_some = |count: u32| {
        for token in 0..count {
            // SAFETY: no memory is involved.
            unsafe { proactor.push(token, &Request::simple(Op::Nop)) };
            assert_eq!(proactor.turn_for_one(None).0.errno(), None);
        }
        let tally = proactor.tally();
        (tally.retries.get(), tally.pool_calls.get())
    };
    assert_eq!(do_some(256), (1, 256));
    assert_eq!(do_some(1), (2, 257));
    assert_eq!(proactor.tally().plain_calls.get(), 0);
}

#[test]
fn syncs_behind_writes_are_the_pools_too_while_the_kernel_has_no_worker_for_them() {
    let file = tempfile::tempfile().expect("there is room");
    let mut buf = *CONTENT;
    let request = Request {
        whole: true,
        ..write(&file, &mut buf, Wishes::THEN_SYNC)
    };
    let mut proactor = unserved("fsync");
    for token in 0..3 {
        // SAFETY: the buffer is there, and not looked at, until the answer has come.
        unsafe { proactor.push(token, &request) };
        assert_eq!(proactor.turn_for_one(None).0.bytes(), CONTENT.len());
    }
    let tally = proactor.tally();
    assert_eq!((tally.retries.get(), tally.pool_calls.get()), (1, 3));
}

#[test]
fn a_ring_that_breaks_leaves_nothing_in_flight_when_an_answer_is_refused_with_a_panic() {
    let mut buf = *CONTENT;
    let file = tempfile::tempfile().expect("there is room");
    let in_parts = Request {
        limit_bytes: 2,
        ..write(&file, &mut buf, Wishes::NONE)
    };
    let mut proactor = beside(Faults::new(1).break_after(0));
    // SAFETY: the buffer is there, and not looked at, until the answers have come.
    unsafe { proactor.push(0, &in_parts) };
    for token in 1..4 {
        // SAFETY: no memory is involved.
        unsafe { proactor.push(token, &Request::simple(Op::Nop)) };
    }
    let mut told = Vec::new();
    let turned = catch_unwind(AssertUnwindSafe(|| {
        proactor.turn(u32::MAX, |token, _| {
            told.push(token);
            resume_unwind(Box::new("bang"));
        });
    }));
    assert!(turned.is_err() && told.len() == 1);
    assert_eq!(proactor.in_flight(), 0);
    // The others are told of theirs.
    proactor.turn(u32::MAX, |token, _| told.push(token));
    told.sort_unstable();
    assert_eq!((told, proactor.is_idle()), (vec![0, 1, 2, 3], true));
}
