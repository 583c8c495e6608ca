//! Starting the command and looking at what it leaves behind.
#![allow(unsafe_code)]

#[path = "../../../inflight/tests/it/support/fuse.rs"]
pub(crate) mod fuse;
#[path = "../../../inflight/tests/it/support/zram.rs"]
mod zram;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use inflight_report::Record;
use tempfile::TempDir;

pub(crate) use zram::Zram;

/// Nothing in these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory on the file system of the build, where direct I/O is likely to work; elsewhere if
/// another user built.
pub(crate) fn directory() -> TempDir {
    let near = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"));
    near.or_else(|_| TempDir::new_in("/var/tmp")).unwrap()
}

/// The command, without arguments.
pub(crate) fn inflight() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inflight"));
    command.stdin(Stdio::null()).env_remove("COLUMNS");
    command
}

/// A small benchmark in this directory.
pub(crate) fn bench(target: &Path, args: &[&str]) -> Command {
    let mut command = inflight();
    command.arg("bench").arg(target).args(args);
    command
}

pub(crate) fn run(target: &Path, args: &[&str]) -> Output {
    bench(target, args).output().unwrap()
}

/// Runs with a JSON export, and hands back exit code and record.
pub(crate) fn record(target: &Path, args: &[&str]) -> (i32, Record) {
    let output = bench(target, args)
        .args(["--export-json", "-"])
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    let record = serde_json::from_slice(&output.stdout);
    let stderr = || String::from_utf8_lossy(&output.stderr).into_owned();
    (
        code,
        record.unwrap_or_else(|error| panic!("{error}, exit {code}: {}", stderr())),
    )
}

/// As [`record`], in cells of so many milliseconds; in longer ones as long as the record does not
/// suffice, because on a busy machine a thread may wait for longer than a short cell lasts.
pub(crate) fn record_enough(
    target: &Path,
    args: &[&str],
    first_ms: u32,
    suffices: impl Fn(&Record) -> bool,
) -> (i32, Record) {
    let mut cell_ms = first_ms;
    loop {
        let time = ["--cell-time", &cell_ms.to_string()];
        let (code, record) = record(target, &[args, &time].concat());
        if code != 0 || suffices(&record) || cell_ms >= 5_000 {
            return (code, record);
        }
        cell_ms *= 4;
    }
}

/// Whether something was timed in every cell that was not skipped.
pub(crate) fn all_timed(record: &Record) -> bool {
    let mut cells = record.cells.iter();
    cells.all(|cell| cell.skipped.is_some() || cell.latency.is_some())
}

/// Runs a command with one of the limits of ulimit(1p).
pub(crate) fn limited(limit: &str, inner: &Command) -> Output {
    let exec = format!("ulimit {limit}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-ec", &exec]).arg(inner.get_program());
    let output = command.args(inner.get_args()).stdin(Stdio::null()).output();
    output.expect("there is a shell")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The test files in a directory.
pub(crate) fn scratch_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.to_string_lossy().ends_with(".inflight-scratch"))
        .collect()
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A running command whose stderr is followed.
pub(crate) struct Running {
    child: Child,
    told: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            told: String::new(),
        }
    }

    /// Waits until stderr contains a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        let stderr = self.child.stderr.as_mut().unwrap();
        let mut byte = [0];
        while !self.told.contains(text) {
            assert!(begin.elapsed() < PATIENCE, "no `{text}` in: {}", self.told);
            assert_eq!(
                stderr.read(&mut byte).unwrap(),
                1,
                "it ended early: {}",
                self.told
            );
            self.told.push(char::from(byte[0]));
        }
    }

    /// Waits until its first thread has worked for as long as only a cell takes.
    pub(crate) fn wait_for_work(&self) {
        const WORK: Duration = Duration::from_millis(200);
        let path = format!("/proc/{}/schedstat", self.child.id());
        let worked = || {
            let schedstat = fs::read_to_string(&path).unwrap();
            let nanos = schedstat.split(' ').next().unwrap();
            Duration::from_nanos(nanos.parse().unwrap())
        };
        let (begin, before) = (Instant::now(), worked());
        while worked() < before + WORK {
            assert!(begin.elapsed() < PATIENCE, "it does not work");
            thread::yield_now();
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a signal to a child that was not waited for yet; no memory is involved.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub(crate) fn end(self) -> Output {
        self.child.wait_with_output().unwrap()
    }
}

/// Memory that a file is mapped to and that stays there.
pub(crate) struct Held {
    start: *mut libc::c_void,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody looks at it.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// Keeps the pages of a file in memory, if that is allowed.
pub(crate) fn hold_in_memory(file: &File, bytes: usize) -> Option<Held> {
    let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let held = Held { start, bytes };
    // SAFETY: the range was mapped just now with this length.
    let locked = unsafe { libc::mlock(start, bytes) };
    (locked == 0).then_some(held)
}
