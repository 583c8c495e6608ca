//! The full screen on a real terminal: taken once, and given back as it was on every way out.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{SpecialCodeIndex, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{bench, directory, scratch_files};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: OwnedFd,
    reader: JoinHandle<String>,
    before: Termios,
}

fn is_as_before(now: &Termios, before: &Termios) -> bool {
    let suspend = SpecialCodeIndex::VSUSP;
    now.local_modes == before.local_modes
        && now.special_codes[suspend] == before.special_codes[suspend]
}

impl OnTerminal {
    fn start(command: &mut Command) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let inside = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 40,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        command.env("TERM", "xterm-256color");
        command.stdout(inside.try_clone().unwrap()).stderr(inside);
        let child = command.spawn().unwrap();
        // The command's copies of the inside would keep it open for the reader.
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let mut output = File::from(terminal.try_clone().unwrap());
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            match output.read_to_end(&mut all) {
                // The last of those inside has gone.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                other => assert!(other.is_ok(), "{other:?}"),
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        Self {
            child,
            terminal,
            reader,
            before,
        }
    }

    /// Waits until the command has taken the terminal.
    fn wait_until_taken(&self) {
        let begin = Instant::now();
        while is_as_before(&tcgetattr(&self.terminal).unwrap(), &self.before) {
            assert!(begin.elapsed() < PATIENCE, "it never took the terminal");
            std::thread::yield_now();
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Exit code, and everything that was written; the terminal has to be as it was.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let now = tcgetattr(&self.terminal).unwrap();
        assert!(is_as_before(&now, &self.before), "{now:?}");
        (status.code(), self.reader.join().unwrap())
    }
}

fn live(directory: &std::path::Path, rounds: &str) -> Command {
    let args = [
        "--size",
        "8m",
        "--cell-time",
        "20",
        "--depth",
        "1,4",
        "--live",
        "--rounds",
        rounds,
    ];
    let args = [&args[..], &["--strategy", "pread,threads"]].concat();
    bench(directory, &args)
}

#[track_caller]
fn assert_taken_and_given_back(written: &str) -> &str {
    let (_, inside) = written.split_once(ENTER).expect("it was taken");
    let (shown, after) = inside.split_once(LEAVE).expect("it was given back");
    assert!(shown.contains("inflight bench"));
    assert!(!after.contains(ENTER), "it was taken again");
    after
}

#[test]
fn at_the_end_the_result_follows_the_screen() {
    let directory = directory();
    // The files of the second profile are made when the screen is taken already.
    let profiles = "cached-random-read,buffered-random-write";
    let mut command = live(directory.path(), "2");
    let (code, written) = OnTerminal::start(command.args(["--profile", profiles])).end();
    assert!(code.is_some_and(|code| [0, 3].contains(&code)), "{written}");
    let after = assert_taken_and_given_back(&written);
    let covered = after.matches("writing 8 MiB").count();
    assert_eq!(covered, 1, "{after}");
    assert!(after.contains("Verdict"), "{after}");
}

#[test]
fn every_signal_gives_the_terminal_back() {
    use rustix::process::Signal;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        for twice in [false, true] {
            let directory = directory();
            let terminal = OnTerminal::start(&mut live(directory.path(), "1000"));
            terminal.wait_until_taken();
            terminal.signal(signal);
            if twice {
                terminal.signal(signal);
            }
            let (code, written) = terminal.end();
            let stopped = Some(128 + signal.as_raw());
            assert_eq!(code, stopped, "{signal:?}: {written}");
            assert_taken_and_given_back(&written);
            assert!(scratch_files(directory.path()).is_empty());
        }
    }
}
