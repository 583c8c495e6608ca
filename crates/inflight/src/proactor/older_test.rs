//! Transfers that are made by Linux AIO beside a ring: who tells of them, and what becomes of
//! those that are not taken.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use super::Proactor;
use crate::backend::Backend;
use crate::backend::aio::queue::Aio;
use crate::backend::uring::probe;
use crate::backend::uring::ring::Uring;
use crate::op::{KINDS, Op, Request, Span, Wishes};

const CAPACITY: u32 = 8;
pub(crate) const BLOCK: usize = 4096;

/// As direct transfers need it.
#[repr(align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK]);

/// What a runtime with one thread has, or with several, and what it sleeps on. `None`, with the
/// reason said, where there is no ring, or there are no such calls.
fn lane(is_alone: bool) -> Option<(Proactor, OwnedFd)> {
    if !Aio::are_allowed() {
        eprintln!("skipped: Linux AIO: it may be filtered");
        return None;
    }
    if let Err(why) = Aio::new(CAPACITY) {
        eprintln!("skipped: Linux AIO: {why}");
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
pub(crate) fn started(fd: RawFd, buf: &mut [u8]) -> Request {
    Request {
        submitted: true,
        ..read_of(fd, buf)
    }
}

/// A file past the page cache, with a block of these bytes. `None`, with the reason said, if there
/// can be none.
pub(crate) fn direct_file(byte: u8) -> Option<File> {
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

/// Reads a block of zeros by what a call only starts, and says how many enters and how many older
/// calls that took.
fn read_one(proactor: &mut Proactor, file: &File) -> (u64, u64) {
    let before = (proactor.backend.enters(), proactor.older.calls());
    let mut buf = [1; BLOCK];
    // SAFETY: the buffer is there, and not looked at, until the answer has come.
    unsafe { proactor.push(1, &started(file.as_raw_fd(), &mut buf)) };
    let mut told = Vec::new();
    while told.is_empty() {
        proactor.turn(1, |token, answer| told.push((token, answer.bytes())));
    }
    assert_eq!((told, buf), (vec![(1, BLOCK)], [0; BLOCK]));
    assert!(!proactor.older.is_busy());
    let (enters, calls) = (proactor.backend.enters(), proactor.older.calls());
    (enters - before.0, calls - before.1)
}

#[test]
fn the_ring_has_what_comes_after_a_submission_that_waited() {
    let file = File::open("/dev/zero").expect("it is there");
    // On a busy machine a submission may wait for the processor, which counts as well.
    let quick_lane = || {
        let (mut proactor, watched) = lane(true)?;
        let begun = Instant::now();
        assert!(matches!(read_one(&mut proactor, &file), (0, 1..)));
        Some((
            begun.elapsed() < Duration::from_micros(400),
            proactor,
            watched,
        ))
    };
    let mut lanes = (0..1_000).map_while(|_| quick_lane()).peekable();
    if lanes.peek().is_none() {
        return;
    }
    let quick = lanes.find(|(is_quick, ..)| *is_quick);
    let (_, mut proactor, _watched) = quick.expect("one in a thousand is not held up");
    proactor.older.has_taken(Duration::from_micros(400));
    assert!(matches!(read_one(&mut proactor, &file), (0, 1..)));
    // A second: 300 ms of it are counted, 16 times.
    proactor.older.has_taken(Duration::from_secs(1));
    assert!(matches!(read_one(&mut proactor, &file), (1.., 0)));
    assert!(
        !proactor.older.has_refusal(),
        "that is no reason to complain"
    );
    proactor.older.has_taken(Duration::from_micros(501));
    thread::sleep(Duration::from_millis(9));
    assert!(
        matches!(read_one(&mut proactor, &file), (0, 1..)),
        "the last counts"
    );
}

/// Gives this thread a filter of system calls, for good; all are allowed.
fn refuse_nothing() {
    let action = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = ARCH.try_into().expect("a filter can be made");
    let filter = SeccompFilter::new(BTreeMap::new(), SeccompAction::Allow, action, arch);
    let filter = filter.expect("no rules contradict each other");
    let program: BpfProgram = filter.try_into().expect("it is short");
    apply_filter(&program).expect("no_new_privs allows filters");
}

#[test]
fn a_filter_that_comes_leaves_them_to_the_ring_and_that_is_told() {
    let test = thread::spawn(leave_to_the_ring_for_a_filter);
    test.join().expect("it does not panic");
}

fn leave_to_the_ring_for_a_filter() {
    let Some((mut proactor, _watched)) = lane(true) else {
        return;
    };
    let Some((mut other, _watched)) = lane(true) else {
        return;
    };
    let file = File::open("/dev/zero").expect("it is there");
    assert!(matches!(read_one(&mut proactor, &file), (0, 1..)));
    refuse_nothing();
    for proactor in [&mut proactor, &mut other] {
        for _ in 0..2 {
            assert!(matches!(read_one(proactor, &file), (1.., 0)));
        }
        let told = proactor.older.take_refusal().expect("it is told");
        assert!(told.contains("workers of the kernel"), "{told}");
        assert!(proactor.older.take_refusal().is_none(), "once");
    }
}

/// Reads so many blocks of a file of these bytes, handed over by who sleeps until it is told.
fn tells_of(lane: &mut (Proactor, OwnedFd), file: &File, byte: u8, count: u32) {
    let (proactor, watched) = lane;
    let mut blocks: Vec<Block> = (0..count).map(|_| Block([0; BLOCK])).collect();
    // As a pass has it: what has come is reaped before more is handed over.
    proactor.announce(false);
    proactor.turn(0, |token, _| panic!("{token} is not in flight"));
    for (token, block) in (0..).zip(&mut blocks) {
        // SAFETY: the blocks are there, and not looked at, until the answers have come.
        unsafe { proactor.push(token, &started(file.as_raw_fd(), &mut block.0)) };
    }
    proactor.announce(true);
    assert!(proactor.has_work() || is_readable_soon(watched.as_raw_fd()));
    let mut told = Vec::new();
    while told.len() < blocks.len() {
        told.extend(answered(proactor, watched));
    }
    told.sort_unstable();
    let all: Vec<_> = (0..count).map(|token| (token, BLOCK)).collect();
    assert_eq!(told, all);
    assert!(blocks.iter().all(|block| block.0 == [byte; BLOCK]));
}

#[test]
fn who_sleeps_until_completions_are_announced_is_told_of_them() {
    let Some(file) = direct_file(9) else {
        return;
    };
    for is_alone in [true, false] {
        let Some(mut lane) = lane(is_alone) else {
            return;
        };
        tells_of(&mut lane, &file, 9, 1);
        assert!(lane.0.older.calls() > 0);
    }
}

/// What goes to another thread with all that it has.
struct Moved<T>(T);

// SAFETY: as a lane's desk, whose ring any thread may enter.
unsafe impl<T> Send for Moved<T> {}

/// A lane that another thread has made, which has ended.
fn moved_lane(is_alone: bool) -> Option<(Proactor, OwnedFd)> {
    let made = thread::spawn(move || Moved(lane(is_alone)));
    made.join().expect("it does not panic").0
}

#[test]
fn who_goes_on_after_the_thread_that_began_has_ended_is_told_of_them() {
    let Some(file) = direct_file(5) else {
        return;
    };
    for is_alone in [true, false] {
        let Some(mut lane) = moved_lane(is_alone) else {
            return;
        };
        // As many as are handed over without more ado.
        (0..3).for_each(|_| tells_of(&mut lane, &file, 5, 4));
    }
}
