//! A wait looks when it is told to, tells what has come of it, and sleeps after one in vain.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Looks, Proactor};
use crate::backend::Backend;
use crate::backend::uring::probe;
use crate::backend::uring::ring::Uring;
use crate::completion::Answer;
use crate::op::{KINDS, Op, Request, Span, Wishes};

/// Has every wait look for so long, and keeps what it is told.
struct Always {
    at_most: Option<Duration>,
    told: Arc<Mutex<Vec<bool>>>,
}

impl Looks for Always {
    fn looks_for(&mut self, in_flight: u32, _completed: u64) -> Option<Duration> {
        assert_eq!(in_flight, 1);
        self.at_most
    }

    fn looked(&mut self, has_seen: bool) {
        self.told.lock().expect("no panic").push(has_seen);
    }
}

/// What came of a wait.
#[derive(Debug, Default, PartialEq)]
struct Came {
    /// What those who decide were told of looks.
    told: Vec<bool>,
    /// Waits that looks have saved.
    saved: u64,
    /// What who waits was told.
    has_seen: bool,
    /// Completions that those who decide count.
    reaped: u64,
}

/// Whether a thread, named by its folder in /proc, sleeps until something comes.
fn is_asleep(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).expect("it has not ended");
    // proc_pid_stat(5): the name before the state may be any.
    let (_, state) = stat.rsplit_once(") ").expect("it has a name");
    state.starts_with('S')
}

/// Reads a byte of a pipe into which another thread writes it: after a while if it is looked for
/// for long, and else when the look is over and this thread sleeps. Whoever decides has every wait
/// look for so long, and who waits for this one.
fn read(looks_for: Option<Duration>, this: Option<Duration>) -> io::Result<Option<Came>> {
    let Ok(opened) = probe::open(8) else {
        println!("skipped: no ring here");
        return Ok(None);
    };
    let told = Arc::default();
    let backend = Backend::Uring(Box::new(Uring::new(opened.ring)));
    let mut proactor = Proactor::new(backend, 8, [true; KINDS]).looking(Always {
        at_most: looks_for,
        told: Arc::clone(&told),
    });
    let (reader, mut writer) = io::pipe()?;
    let mut byte = 0_u8;
    let span = Span {
        start: &raw mut byte,
        len: 1,
        arena: None,
    };
    let request = Request::simple(Op::ReadAt {
        fd: reader.as_raw_fd(),
        span,
        offset: 0,
        wishes: Wishes::NONE,
    });
    // SAFETY: the byte is there, and not looked at, until the answer has come.
    unsafe { proactor.push(0, &request) };
    let is_looked_for = this.or(looks_for) == LONG;
    let this_thread = Path::new("/proc").join(fs::read_link("/proc/thread-self")?);
    let writes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        while !is_looked_for && !is_asleep(&this_thread) {
            thread::yield_now();
        }
        writer.write_all(b"x")
    });
    let (answer, has_seen) = proactor.turn_for_one(this);
    assert_eq!(answer, Answer::moved(1));
    assert_eq!(byte, b'x');
    writes.join().expect("no panic")?;
    let told = told.lock().expect("no panic").clone();
    let saved = proactor.tally().busy_polls.get();
    Ok(Some(Came {
        told,
        saved,
        has_seen,
        reaped: proactor.reaped(),
    }))
}

const LONG: Option<Duration> = Some(Duration::from_secs(60));
const SHORT: Option<Duration> = Some(Duration::from_micros(50));

#[test]
fn what_comes_while_it_looks_is_seen_and_counted() -> io::Result<()> {
    let seen = |told, reaped| Came {
        told,
        saved: 1,
        has_seen: true,
        reaped,
    };
    if let Some(came) = read(LONG, None)? {
        assert_eq!(came, seen(vec![true], 1));
    }
    if let Some(came) = read(SHORT, LONG)? {
        assert_eq!(came, seen(vec![], 0), "who waits has decided");
    }
    Ok(())
}

#[test]
fn after_a_look_in_vain_it_sleeps() -> io::Result<()> {
    if let Some(came) = read(SHORT, None)? {
        assert_eq!(
            (came.told, came.saved, came.has_seen),
            (vec![false], 0, false)
        );
    }
    if let Some(came) = read(LONG, SHORT)? {
        assert_eq!(came, Came::default(), "who waits has decided");
    }
    Ok(())
}

#[test]
fn without_being_told_to_it_does_not_look() -> io::Result<()> {
    if let Some(came) = read(None, None)? {
        assert_eq!((came.told, came.saved, came.reaped), (vec![], 0, 1));
    }
    Ok(())
}
