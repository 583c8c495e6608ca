//! Transfers that are made by the older calls beside a ring: who tells of them, and what becomes of
//! those that are not taken.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use super::Proactor;
use crate::backend::Backend;
use crate::backend::aio::queue::Aio;
use crate::backend::uring::probe;
use crate::backend::uring::ring::Uring;
use crate::op::{KINDS, Op, Request, Span, Wishes};

const CAPACITY: u32 = 8;
const BLOCK: usize = 4096;

/// As direct transfers need it.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// What a runtime with one thread has, or with several, and what it sleeps on. `None`, with the
/// reason said, where there is no ring, or there are no such calls.
fn lane(is_alone: bool) -> Option<(Proactor, OwnedFd)> {
    if !Aio::are_allowed() {
        eprintln!("skipped: older calls: they may be filtered");
        return None;
    }
    if let Err(why) = Aio::new(CAPACITY) {
        eprintln!("skipped: older calls: {why}");
        return None;
    }
    let opened = match probe::open_shared(CAPACITY) {
        Ok(opened) => opened,
        Err(why) => {
            eprintln!("skipped: a ring: {why}");
            return None;
        }
    };
    let mut ring = Uring::shared(opened.ring);
    let watched = match is_alone {
        true => ring.watched(),
        false => ring.watched_if_announced(),
    };
    let ring = Backend::Uring(Box::new(ring));
    let mut proactor = Proactor::new(ring, CAPACITY, [true; KINDS]).announced();
    assert!(proactor.alarm().is_ok());
    Some((proactor, watched.expect("a descriptor is left")))
}

/// Its answers, once there is one; who owns it sleeps until it is told, as a runtime does.
pub(crate) fn answered(proactor: &mut Proactor, watched: &OwnedFd) -> Vec<(u32, usize)> {
    let mut told = Vec::new();
    while told.is_empty() {
        proactor.announce(false);
        proactor.turn(0, |token, answer| told.push((token, answer.bytes())));
        proactor.announce(true);
        if told.is_empty() && !proactor.has_work() {
            assert!(is_readable_soon(watched.as_raw_fd()), "nobody tells of it");
        }
    }
    told
}

fn read_of(fd: RawFd, buf: &mut [u8]) -> Request {
    let span = Span {
        start: buf.as_mut_ptr(),
        len: buf.len(),
        arena: None,
    };
    Request::simple(Op::ReadAt {
        fd,
        span,
        offset: 0,
        wishes: Wishes::NONE,
    })
}

/// A read that a call only starts.
fn started(fd: RawFd, buf: &mut [u8]) -> Request {
    Request {
        submitted: true,
        ..read_of(fd, buf)
    }
}

/// A file past the page cache, with a block of these bytes. `None`, with the reason said, if there
/// can be none.
fn direct_file(byte: u8) -> Option<File> {
    let mut named = tempfile::NamedTempFile::new().expect("there is room");
    named.write_all(&[byte; BLOCK]).expect("there is room");
    named.as_file().sync_all().expect("there is room");
    let mut options = OpenOptions::new();
    match options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(named.path())
    {
        Ok(file) => Some(file),
        Err(why) => {
            eprintln!("skipped: a direct file: {why}");
            None
        }
    }
}

/// Whether there is something within ten seconds.
fn is_readable_soon(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut poll, 1, 10_000) == 1 }
}

#[test]
fn they_are_made_without_an_enter_of_the_ring() {
    let Some((mut proactor, _watched)) = lane(true) else {
        return;
    };
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(&[7; BLOCK]).expect("there is room");
    let mut bufs = [[0; BLOCK]; 3];
    let mut enters = 0;
    let mut told = Vec::new();
    for (token, buf) in (0..).zip(&mut bufs) {
        // SAFETY: the buffers are there, and not looked at, until the answers have come.
        unsafe { proactor.push(token, &started(file.as_raw_fd(), buf)) };
        enters = proactor.backend.enters();
        assert!(proactor.older.is_busy() && !proactor.is_idle());
    }
    while told.len() < bufs.len() {
        proactor.turn(1, |token, answer| told.push((token, answer.bytes())));
    }
    told.sort_unstable();
    assert_eq!(told, [(0, BLOCK), (1, BLOCK), (2, BLOCK)]);
    assert_eq!(bufs, [[7; BLOCK]; 3]);
    assert_eq!(proactor.backend.enters(), enters);
    assert_eq!(proactor.tally.enters.get(), enters + proactor.older.calls());
    assert!(proactor.is_idle() && !proactor.older.is_busy());
}

#[test]
fn what_they_do_not_take_is_asked_of_the_ring() {
    let Some((mut proactor, _watched)) = lane(true) else {
        return;
    };
    let file = File::create("/dev/null").expect("it is there");
    let mut bufs = [[0; BLOCK]; 2];
    for (token, buf) in (0..).zip(&mut bufs) {
        // SAFETY: the buffers are there, and not looked at, until the answers have come.
        unsafe { proactor.push(token, &started(file.as_raw_fd(), buf)) };
    }
    let mut told = Vec::new();
    while told.len() < bufs.len() {
        proactor.turn(1, |token, answer| told.push((token, answer.errno())));
    }
    told.sort_unstable();
    assert_eq!(told, [(0, Some(libc::EBADF)), (1, Some(libc::EBADF))]);
    assert_eq!(proactor.tally.retries.get(), 2);
    assert!(proactor.older.calls() > 0, "they were asked first");
}

#[test]
fn who_sleeps_until_completions_are_announced_is_told_of_them() {
    let Some(file) = direct_file(9) else {
        return;
    };
    for is_alone in [true, false] {
        let Some((mut proactor, watched)) = lane(is_alone) else {
            return;
        };
        let mut block = Block([0; BLOCK]);
        // SAFETY: the block is there, and not looked at, until the answer has come.
        unsafe { proactor.push(1, &started(file.as_raw_fd(), &mut block.0)) };
        assert_eq!(answered(&mut proactor, &watched), [(1, BLOCK)]);
        assert_eq!(block.0, [9; BLOCK]);
        assert!(proactor.older.calls() > 0);
    }
}
