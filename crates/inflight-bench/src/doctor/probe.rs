//! The kernel asked for rings, in a child: there are sandboxes that kill for it.
//!
//! The child prints one line for each answer, as soon as it has it. So if it is killed half-way,
//! the parent knows how far it came.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Write, stdout};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use inflight::Engine;
use io_uring::{IoUring, Probe, opcode};

/// What the child runs: the program that is running, also if its file has been replaced since.
const MYSELF: &str = "/proc/self/exe";

/// Entries of the ring that is tried for room: the deepest that `inflight bench` uses by itself.
pub(super) const DEEP_ENTRIES: u32 = 256;

/// Bytes of the buffers that are registered for a trial: a page for each of these entries.
pub(super) const BUFFERS_BYTES: usize = 256 * 4096;

/// A set-up flag: its name, and how it is set.
type Flag = (&'static str, fn(&mut io_uring::Builder));

const FLAGS: &[Flag] = &[
    ("submit-all", |ring| _ = ring.setup_submit_all()),
    ("coop-taskrun", |ring| _ = ring.setup_coop_taskrun()),
    ("single-issuer", |ring| _ = ring.setup_single_issuer()),
    ("defer-taskrun", |ring| {
        ring.setup_single_issuer().setup_defer_taskrun();
    }),
    ("no-sqarray", |ring| _ = ring.setup_no_sqarray()),
];

/// The operations that disk I/O is made of.
const OPERATIONS: &[(&str, u8)] = &[
    ("read", opcode::Read::CODE),
    ("write", opcode::Write::CODE),
    ("read-fixed", opcode::ReadFixed::CODE),
    ("write-fixed", opcode::WriteFixed::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("statx", opcode::Statx::CODE),
    ("openat", opcode::OpenAt::CODE),
    ("close", opcode::Close::CODE),
];

/// The child's part: asks and prints.
pub(super) fn answer() {
    say("setup", &word(trial(8, |_| ())));
    for (name, set) in FLAGS {
        say(&format!("flag {name}"), &word(trial(8, set)));
    }
    operations();
    say("deep", &word(trial(DEEP_ENTRIES, |_| ())));
    say("buffers", &word(register_buffers()));
    let engine = match Engine::new() {
        Ok(engine) => engine.backend(),
        Err(error) => return say("backend none", &error.to_string()),
    };
    say(&format!("backend {}", engine.kind), &engine.reason);
}

fn trial(entries: u32, set: impl Fn(&mut io_uring::Builder)) -> io::Result<()> {
    let mut builder = IoUring::builder();
    set(&mut builder);
    let ring: IoUring = builder.build(entries)?;
    // A filter can allow the set-up and refuse the rest.
    ring.submit().map(|_| ())
}

fn operations() {
    let mut probe = Probe::new();
    let asked = IoUring::new(8).and_then(|ring| ring.submitter().register_probe(&mut probe));
    say("operations", &word(asked));
    for (name, code) in OPERATIONS {
        let known = if probe.is_supported(*code) {
            "ok"
        } else {
            "no"
        };
        say(&format!("operation {name}"), known);
    }
}

fn register_buffers() -> io::Result<()> {
    let mut memory = vec![0_u8; BUFFERS_BYTES];
    let whole = libc::iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: memory.len(),
    };
    let ring = IoUring::new(8)?;
    // SAFETY: `memory` outlives the registration, which is undone below or with the ring, and
    // nothing is ever read into it.
    unsafe { ring.submitter().register_buffers(&[whole]) }?;
    ring.submitter().unregister_buffers()
}

/// `ok`, or the number of the error.
fn word(result: io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO).to_string(),
    }
}

fn say(what: &str, answer: &str) {
    // If the parent is gone, nobody wants to know.
    _ = writeln!(stdout(), "{what}={}", answer.replace('\n', " "));
    _ = stdout().flush();
}

/// The parent's part: what the child said, and how it ended.
#[derive(Debug)]
pub(super) struct Ring {
    answers: BTreeMap<String, String>,
    ended: Result<ExitStatus, io::Error>,
}

impl Ring {
    /// Asks in a child.
    pub(super) fn ask() -> Self {
        let mut child = Command::new(MYSELF);
        child
            .args(["doctor", "--probe"])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        match child.output() {
            Ok(output) => Self {
                answers: answers(&String::from_utf8_lossy(&output.stdout)),
                ended: Ok(output.status),
            },
            Err(error) => Self {
                answers: BTreeMap::new(),
                ended: Err(error),
            },
        }
    }

    #[cfg(test)]
    pub(super) fn said(text: &str, raw_status: i32) -> Self {
        Self {
            answers: answers(text),
            ended: Ok(ExitStatus::from_raw(raw_status)),
        }
    }

    /// The errno of the answer; nothing where the child did not come so far.
    pub(super) fn errno(&self, what: &str) -> Option<Result<(), i32>> {
        match self.answers.get(what)?.as_str() {
            "ok" => Some(Ok(())),
            number => number.parse().ok().map(Err),
        }
    }

    /// The signal that ended the child.
    pub(super) fn killed_by(&self) -> Option<i32> {
        self.ended.as_ref().ok()?.signal()
    }

    /// Why there was no child to ask, or how it failed.
    pub(super) fn failure(&self) -> Option<String> {
        match &self.ended {
            Err(error) => Some(error.to_string()),
            Ok(status) if !status.success() => Some(status.to_string()),
            Ok(_) => None,
        }
    }

    /// Names of a kind (`flag`, `operation`) that the kernel does not know.
    pub(super) fn lacks(&self, kind: &str) -> Vec<&str> {
        let lacking = self.answers.iter().filter_map(|(name, answer)| {
            let name = name.strip_prefix(kind)?.strip_prefix(' ')?;
            (answer != "ok").then_some(name)
        });
        lacking.collect()
    }

    /// What the library would use, and why.
    pub(super) fn library(&self) -> Option<(&str, &str)> {
        self.answers
            .iter()
            .find_map(|(name, reason)| Some((name.strip_prefix("backend ")?, reason.as_str())))
    }

    /// The same as one sentence, for the record.
    pub(super) fn backend(&self) -> String {
        match self.library() {
            Some((_, reason)) => reason.to_owned(),
            None => "not known: the process that asked did not live to tell".to_owned(),
        }
    }
}

fn answers(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(what, answer)| (what.to_owned(), answer.to_owned()))
        .collect()
}
