//! Where the kernel takes nothing for want of memory, what it has is completed all the same. A
//! filter stands for the kernel: it refuses enters that bring something.

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use super::{FRUITLESS_MAX, MEMORY_RETRY_AFTER, Uring};
use crate::backend::uring::probe;
use crate::op::{Op, Span, Wishes};

/// From here on, this thread's enters that bring something are answered by this errno.
fn refuse_to_take(errno: i32) {
    let brings = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0);
    let rule = SeccompRule::new(vec![brings.expect("there is such an argument")]);
    let rules = vec![rule.expect("it has a condition")];
    let rules = BTreeMap::from([(libc::SYS_io_uring_enter, rules)]);
    let action = SeccompAction::Errno(errno.unsigned_abs());
    let arch = env::consts::ARCH.try_into().expect("a filter can be made");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch);
    let program: BpfProgram = filter
        .expect("the rules are sound")
        .try_into()
        .expect("a few rules fit");
    apply_filter(&program).expect("no_new_privs allows filters");
}

fn read_of(socket: &UnixStream, byte: &mut u8) -> Op {
    Op::ReadAt {
        fd: socket.as_raw_fd(),
        span: Span {
            start: byte,
            len: 1,
            arena: None,
        },
        offset: 0,
        wishes: Wishes::NONE,
    }
}

/// Calls `body` for each errno, on a thread of its own, with a ring that has one read in flight and
/// another one in its queue, which the kernel does not take.
fn without_memory(body: impl Fn(&mut Uring) + Sync) {
    for errno in [libc::EAGAIN, libc::ENOMEM] {
        let run = || {
            let Ok(opened) = probe::open(8) else {
                return println!("skipped: no ring here");
            };
            let mut ring = Uring::new(opened.ring);
            // Of a pipe a worker of the kernel would make it, before Linux 6.4.
            let (reader, mut writer) = UnixStream::pair().expect("there are descriptors");
            let mut bytes = [0_u8; 2];
            let [taken, queued] = bytes.each_mut().map(|byte| read_of(&reader, byte));
            // SAFETY: the byte is there, and not looked at, until the read has completed.
            assert!(unsafe { ring.push(1, &taken) });
            ring.enter(0).expect("it is taken");
            refuse_to_take(errno);
            // SAFETY: the kernel never gets to know of it.
            assert!(unsafe { ring.push(2, &queued) });
            writer.write_all(&[1]).expect("there is room");
            body(&mut ring);
        };
        thread::scope(|scope| scope.spawn(run).join()).expect("no failure");
    }
}

fn reaped(ring: &mut Uring) -> Vec<(u64, i32)> {
    let mut reaped = Vec::new();
    assert!(ring.reap(|completion| reaped.push((completion.user_data, completion.result))));
    reaped
}

#[test]
fn what_the_kernel_has_completes_while_it_takes_no_more() {
    without_memory(|ring| {
        ring.enter(1).expect("it may pass");
        assert_eq!(reaped(ring), [(1, 1)]);
        assert_eq!(ring.unsubmitted(), 1);
        assert_eq!(ring.fruitless, 0, "it was not in vain");
    });
}

#[test]
fn whoever_enters_in_vain_rests_each_time_also_when_it_is_told_so() {
    without_memory(|ring| {
        ring.enter(1).expect("it may pass");
        assert_eq!(reaped(ring), [(1, 1)]);
        ring.fruitless = FRUITLESS_MAX - 1;
        let begun = Instant::now();
        ring.enter(1).expect("it may pass");
        let failed = ring.enter(1).expect_err("it has been tried often enough");
        assert!(failed.may_pass);
        assert!(begun.elapsed() >= 2 * MEMORY_RETRY_AFTER);
    });
}
