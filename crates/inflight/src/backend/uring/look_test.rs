//! What is looked for is seen without a call in between, and no longer than asked.

use std::thread;
use std::time::{Duration, Instant};

use super::Uring;
use crate::backend::alarm::Alarm;
use crate::backend::uring::probe;

/// Longer than any of this takes.
const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_completion_is_seen_that_comes_while_it_is_looked_for() {
    let Ok(opened) = probe::open(8) else {
        return println!("skipped: no ring here");
    };
    let mut ring = Uring::new(opened.ring);
    let alarm = Alarm::Event(ring.alarm().expect("there are descriptors"));
    let rings = thread::spawn(move || {
        thread::sleep(Duration::from_millis(5));
        alarm.ring();
    });
    let before = ring.enters();
    assert!(ring.look(1, LONG).expect("the ring goes on"));
    rings.join().expect("it has rung");
    let mut others = 0;
    assert!(ring.reap(|_| others += 1));
    assert_eq!(others, 0, "only the alarm");
    // One that hands over, and one that brings it where task work waits for that.
    assert!(ring.enters() - before <= 2);
}

#[test]
fn a_look_in_vain_ends_when_its_time_is_over() {
    let Ok(opened) = probe::open(8) else {
        return println!("skipped: no ring here");
    };
    let mut ring = Uring::new(opened.ring);
    let (begun, time) = (Instant::now(), Duration::from_millis(2));
    assert!(!ring.look(1, time).expect("the ring goes on"));
    assert!(begun.elapsed() >= time);
}
