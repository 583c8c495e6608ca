//! What is handed over, and what has completed meanwhile.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use io_uring::{opcode, types};

use super::Uring;
use crate::backend::uring::probe;

/// What can be reaped without an enter.
fn completions(ring: &mut Uring) -> Vec<u64> {
    let mut came = Vec::new();
    assert!(ring.reap(|completion| came.push(completion.user_data)));
    came
}

#[test]
fn what_is_handed_over_makes_no_completions_that_wait_to_be_made() -> io::Result<()> {
    let Ok(opened) = probe::open(8) else {
        println!("skipped: no ring here");
        return Ok(());
    };
    let is_deferred = opened.deferred;
    let mut ring = Uring::new(opened.ring);
    // Of a pipe a worker of the kernel would make it, before Linux 6.4.
    let (reader, mut writer) = UnixStream::pair()?;
    let mut byte = 0_u8;
    let read = opcode::Read::new(types::Fd(reader.as_raw_fd()), &raw mut byte, 1).build();
    // SAFETY: the byte is there until the read has completed.
    unsafe { ring.ring.submission().push(&read.user_data(1)) }.expect("there is room");
    ring.submit().expect("the ring goes on");
    assert_eq!(completions(&mut ring), []);
    writer.write_all(b"x")?;

    let nop = opcode::Nop::new().build();
    // SAFETY: no memory is named.
    unsafe { ring.ring.submission().push(&nop.user_data(2)) }.expect("there is room");
    ring.submit().expect("the ring goes on");
    assert_eq!(ring.unsubmitted(), 0);
    let came = completions(&mut ring);
    assert!(came.contains(&2), "it was handed over: {came:?}");
    assert!(!is_deferred || came == [2], "the read was made: {came:?}");

    ring.enter(0).expect("the ring goes on");
    let came = [came, completions(&mut ring)].concat();
    assert!(came.contains(&1), "the read is there to be made: {came:?}");
    assert_eq!(byte, b'x');

    let enters = ring.enters();
    ring.submit().expect("the ring goes on");
    assert_eq!(ring.enters(), enters, "there was nothing to hand over");
    Ok(())
}
