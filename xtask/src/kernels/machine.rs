//! A virtual machine that runs one kernel until it ends or its time is up.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::told::Told;

const PROGRAM: &str = "qemu-system-x86_64";

/// How long a kernel may say nothing when the processor runs it: it takes a second or two. Within
/// a virtual machine there may be a /dev/kvm that opens and then does not get that far.
const SILENCE: Duration = Duration::from_secs(20);

/// As a slow disk reads.
const READ_BYTES_PER_SECOND: u32 = 50_000_000;

/// How often it is looked whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// Who runs the guest's instructions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Runner {
    /// The processor.
    Kvm,
    /// QEMU, ten times slower or more.
    Interpreter,
}

/// What a machine is made of, and where it leaves what it says.
pub(super) struct Parts<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    pub(super) disk: &'a Path,
    /// What the kernel says.
    pub(super) console: &'a Path,
    /// What the guest tells.
    pub(super) transcript: &'a Path,
    pub(super) limit: Duration,
    /// Set by a signal.
    pub(super) stopped: &'a AtomicBool,
}

/// How it ended.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Ending {
    /// By itself, which says nothing of what it was about to tell.
    Over,
    /// It has not begun to tell anything.
    Silent,
    /// It was ended.
    TimeUp,
}

impl Runner {
    /// The processor if it can be had at all.
    pub(super) fn best() -> Self {
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if kvm.is_ok() {
            Self::Kvm
        } else {
            Self::Interpreter
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "by the processor",
            Self::Interpreter => "interpreted",
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // With cx16 Linux 6.12 takes an instruction that QEMU 7.2 gets wrong.
            Self::Interpreter => ["-accel", "tcg", "-cpu", "max,-cx16"],
        }
    }
}

/// Ended with whoever waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a machine; what the guest tells is in `told`.
pub(super) fn run(parts: &Parts, runner: Runner, told: &mut Told) -> Result<Ending> {
    let deadline = Instant::now() + parts.limit;
    let mut machine = Running(command(parts, runner)?.spawn().with_context(|| {
        format!("cannot run {PROGRAM}: it is in the Debian package qemu-system-x86")
    })?);
    let lines = lines(&mut machine.0);
    let mut transcript = File::create(parts.transcript).context("the transcript")?;
    let silent_until = Instant::now() + SILENCE;
    loop {
        ensure!(!parts.stopped.load(SeqCst), "interrupted");
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                writeln!(transcript, "{}", line.trim_end())?;
                told.hear(&line);
            }
            Err(RecvTimeoutError::Disconnected) if told.release.is_none() => {
                return Ok(Ending::Silent);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Ending::Over),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = Instant::now();
        if runner == Runner::Kvm && told.release.is_none() && now > silent_until {
            return Ok(Ending::Silent);
        }
        if now > deadline {
            return Ok(Ending::TimeUp);
        }
    }
}

/// What comes of the second serial port.
fn lines(machine: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let out = machine.stdout.take().expect("it has been piped");
    thread::spawn(move || {
        for bytes in BufReader::new(out).split(b'\n') {
            let Ok(bytes) = bytes else { return };
            let line = String::from_utf8_lossy(&bytes).into_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn command(parts: &Parts, runner: Runner) -> Result<Command> {
    let mut command = Command::new(PROGRAM);
    command.args(runner.arguments());
    command.args(["-smp", "2", "-m", "3072", "-nodefaults", "-display", "none"]);
    command.args(["-no-reboot", "-append"]);
    // To trust the processor's clock: QEMU's others are so slow that all times would be theirs.
    command.arg("console=ttyS0 rdinit=/init panic=-1 oops=panic clocksource=tsc tsc=reliable");
    command.arg("-kernel").arg(parts.kernel);
    command.arg("-initrd").arg(parts.initramfs);
    // Nothing on the disk outlives the machine, so that it need not get to any real disk. Then it
    // would be faster than the guest itself, in which some tests find nothing.
    let read = format!("throttling.bps-read={READ_BYTES_PER_SECOND}");
    let file = option(parts.disk);
    let disk = format!("if=none,id=disk,format=raw,cache=unsafe,{read},file={file}");
    command.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"]);
    command.args(["-serial", &format!("file:{}", parts.console.display())]);
    command.args(["-serial", "stdio"]);
    let complaints =
        File::create(parts.console.with_extension("qemu")).context("its complaints")?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(complaints);
    Ok(command)
}

/// A comma would end the name.
fn option(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
