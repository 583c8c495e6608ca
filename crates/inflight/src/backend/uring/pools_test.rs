//! Pools come and go while an operation is in flight that needs another one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};

use super::Uring;
use crate::backend::uring::probe;
use crate::buf::{BufPool, PoolBuf, span_of_mut};
use crate::op::{Op, Wishes};

/// More than a ring has places for.
const POOLS: u64 = 40;
const PAGE: usize = 4096;

fn read_of(fd: RawFd, buf: &mut PoolBuf) -> Op {
    Op::ReadAt {
        fd,
        span: span_of_mut(buf),
        offset: 0,
        wishes: Wishes::NONE,
    }
}

fn reaped(ring: &mut Uring) -> Vec<(u64, i32)> {
    let mut reaped = Vec::new();
    assert!(ring.reap(|completion| reaped.push((completion.user_data, completion.result))));
    reaped
}

#[test]
fn pools_that_are_gone_make_room_for_others_while_an_operation_is_in_flight() {
    let Ok(opened) = probe::open(8) else {
        return println!("skipped: no ring here");
    };
    let mut ring = Uring::new(opened.ring);
    let zeros = File::open("/dev/zero").expect("it is there");
    let (reader, mut writer) = io::pipe().expect("there are descriptors");
    let pool = BufPool::new(1, PAGE).expect("there is memory");
    let mut stays = pool.take().expect("nobody has it");
    let waits = read_of(reader.as_raw_fd(), &mut stays);
    // SAFETY: the buffer is there, and not looked at, until the read has completed.
    assert!(unsafe { ring.push(POOLS, &waits) });
    ring.enter(0).expect("the ring goes on");
    if let Some(refusal) = ring.take_refusal() {
        return println!("skipped: {refusal}");
    }
    for number in 0..POOLS {
        let pool = BufPool::new(1, PAGE).expect("there is memory");
        let mut buf = pool.take().expect("nobody has it");
        let read = read_of(zeros.as_raw_fd(), &mut buf);
        // SAFETY: as above.
        assert!(unsafe { ring.push(number, &read) });
        ring.enter(1).expect("the ring goes on");
        assert_eq!(reaped(&mut ring), [(number, 4096)]);
        assert_eq!(ring.take_refusal(), None, "after {number} pools");
    }
    writer.write_all(b"abc").expect("the pipe has room");
    ring.enter(1).expect("the ring goes on");
    assert_eq!(reaped(&mut ring), [(POOLS, 3)]);
    assert_eq!(&stays[..3], b"abc");
}
