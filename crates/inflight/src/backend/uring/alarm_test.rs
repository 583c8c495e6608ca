//! The alarm of a ring whose kernel knows polls of one completion only, as before Linux 5.13.

use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};

use super::{ALARM, Uring};
use crate::backend::alarm::Event;
use crate::backend::uring::probe;

/// A ring that has been told that it cannot watch its event in the usual way: what has come to it
/// is what such a kernel answers, EINVAL, here to a read that is too short for an event.
fn of_an_older_kernel() -> Option<Uring> {
    let Ok(opened) = probe::open(8) else {
        println!("skipped: no ring here");
        return None;
    };
    let mut ring = Uring::new(opened.ring);
    let event = Arc::new(Event::new().expect("there are descriptors"));
    let mut few = [0_u8; 4];
    let fd = types::Fd(event.raw_fd());
    let read = opcode::Read::new(fd, few.as_mut_ptr(), 4).build();
    // SAFETY: the bytes are there until the read has completed, which the next enter waits for.
    unsafe { ring.ring.submission().push(&read.user_data(ALARM)) }.expect("there is room");
    ring.enter(1).expect("the ring goes on");
    ring.event = Some(event);
    ring.listens = true;
    reap(&mut ring);
    Some(ring)
}

fn reap(ring: &mut Uring) {
    assert!(ring.reap(|_| panic!("only the alarm is there")));
}

#[test]
fn an_alarm_that_is_refused_as_it_is_asked_for_first_is_heard_all_the_same_and_each_time() {
    let Some(mut ring) = of_an_older_kernel() else {
        return;
    };
    for _ in 0..3 {
        ring.alarm().expect("it has one").signal();
        ring.enter_or(1, None, false).expect("the ring goes on");
        assert!(!ring.ring.completion().is_empty(), "it was heard");
        reap(&mut ring);
        assert!(!ring.listens, "more was asked for than such a kernel knows");
    }
    // Nobody rings any more, so that nothing ends the wait but the time.
    let moment = Some(Duration::from_millis(1));
    ring.enter_or(1, moment, false).expect("the ring goes on");
    assert!(ring.ring.completion().is_empty(), "it was heard once more");
}
