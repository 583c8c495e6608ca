//! What runs in the virtual machine: this very program, as the first process of the kernel.
//!
//! It makes the places that the tests need, runs what the plan says, and tells of it on a line of
//! its own, which neither the kernel nor a test writes to: see [`Told`](super::told::Told) for who
//! listens. Whatever goes wrong is told, and the machine ends in any case.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot, uname};

/// The file that says what is to be done: lines of a word and what belongs to it.
pub(super) const PLAN: &str = "/inflight-plan";
/// Where the programs are that it names.
pub(super) const PROGRAMS: &str = "/programs";
/// Where modules are, with names in the order in which they are loaded.
pub(super) const MODULES: &str = "/modules";

/// The second serial port.
const LINE: &str = "/dev/ttyS1";
const DISK: &str = "/dev/vda";
const WORK: &str = "/disk";

/// Runs the plan if this is the first process of a machine that has one; it does not come back.
pub(crate) fn in_place_of_init() -> Option<ExitCode> {
    (process::id() == 1 && Path::new(PLAN).exists()).then(|| {
        if let Err(error) = run() {
            // To the console: there may be no line.
            eprintln!("kernels: the guest: {error:#}");
        }
        // With `-no-reboot` the virtual machine ends here.
        let answer = reboot(RebootCommand::Restart);
        eprintln!("kernels: reboot: {answer:?}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<()> {
    place("devtmpfs", "/dev", "devtmpfs", "")?;
    let line = Mutex::new(File::options().write(true).open(LINE).context(LINE)?);
    let tell = |text: &str| tell(&line, text);
    tell(&format!("hello {}", uname().release().to_string_lossy()))?;
    match prepare().and_then(|()| carry_out(&line)) {
        Ok(()) => tell("done"),
        Err(error) => tell(&format!("trouble {error:#}")),
    }
}

/// File systems, and the modules that some of them need.
fn prepare() -> Result<()> {
    place("proc", "/proc", "proc", "")?;
    place("sysfs", "/sys", "sysfs", "")?;
    fs::create_dir_all("/dev/shm")?;
    place("tmpfs", "/dev/shm", "tmpfs", "mode=1777")?;
    let mut modules = fs::read_dir(MODULES)?.collect::<io::Result<Vec<_>>>()?;
    modules.sort_by_key(fs::DirEntry::file_name);
    for module in modules {
        let path = module.path();
        let name = path.display().to_string();
        let file = File::open(&path)?;
        finit_module(file, c"", 0).with_context(|| name)?;
    }
    // Some drivers find their devices in a thread of their own.
    for _ in 0..100 {
        if Path::new(DISK).exists() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    place(DISK, WORK, "ext4", "")?;
    let work = format!("{WORK}/tmp");
    fs::create_dir_all(&work)?;
    // Open to all and sticky, as /tmp is: some tests become another user.
    Ok(fs::set_permissions(&work, Permissions::from_mode(0o1777))?)
}

fn place(source: &str, target: &str, kind: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    fs::create_dir_all(target)?;
    mount(
        source,
        target,
        kind,
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .with_context(|| format!("{kind} at {target}"))
}

/// Runs the programs of the plan, each with the variables and arguments said before it.
fn carry_out(line: &Mutex<File>) -> Result<()> {
    let plan = fs::read_to_string(PLAN).context(PLAN)?;
    let (mut variables, mut arguments) = (BTreeMap::new(), Vec::new());
    for step in plan.lines() {
        match step.split_once(' ').context("a word alone")? {
            ("set", variable) => {
                let (name, value) = variable.split_once('=').context("a variable")?;
                variables.insert(name.to_owned(), value.to_owned());
            }
            ("argument", argument) => arguments.push(argument.to_owned()),
            ("run", program) => {
                let mut command = Command::new(format!("{PROGRAMS}/{program}"));
                command.env_clear().envs(&variables).args(&arguments);
                command
                    .env("PATH", "/usr/bin:/bin")
                    .env("TMPDIR", format!("{WORK}/tmp"));
                tell(line, &format!("begin {program}"))?;
                let ended = run_told(&mut command, line)?;
                tell(line, &format!("end {program} {}", status(ended)))?;
            }
            (other, _) => anyhow::bail!("the plan says {other:?}"),
        }
    }
    Ok(())
}

/// Runs a program, and tells every line it prints.
fn run_told(command: &mut Command, line: &Mutex<File>) -> Result<ExitStatus> {
    command.current_dir(WORK).stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().expect("it has been piped");
    let err = child.stderr.take().expect("it has been piped");
    thread::scope(|scope| {
        let errors = scope.spawn(|| tell_all("err", err, line));
        let told = tell_all("out", out, line);
        told.and(errors.join().expect("it does not panic"))
    })?;
    Ok(child.wait()?)
}

/// Not every line is text: a test may print anything.
fn tell_all(word: &str, from: impl Read, line: &Mutex<File>) -> Result<()> {
    for bytes in BufReader::new(from).split(b'\n') {
        let bytes = bytes?;
        tell(line, &format!("{word} {}", String::from_utf8_lossy(&bytes)))?;
    }
    Ok(())
}

fn status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    }
}

fn tell(line: &Mutex<File>, text: &str) -> Result<()> {
    let mut line = line.lock().unwrap_or_else(|held| held.into_inner());
    Ok(line.write_all(format!("{text}\n").as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_program_ends_is_told() {
        assert_eq!(status(ExitStatus::from_raw(0)), "code 0");
        assert_eq!(status(ExitStatus::from_raw(101 << 8)), "code 101");
        assert_eq!(status(ExitStatus::from_raw(libc::SIGSEGV)), "signal 11");
    }

    #[test]
    fn no_other_process_takes_the_place_of_init() {
        assert!(in_place_of_init().is_none());
    }
}
