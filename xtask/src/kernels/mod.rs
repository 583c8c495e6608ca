//! `cargo xtask kernels`: the tests of the library on kernels that are not this machine's.
//!
//! The programs are built here and run in virtual machines, with the libraries they need, on an
//! ext4 disk of the guest's own, so that direct I/O is real. A [`package`] has the kernel and its
//! [`modules`]; what is to be run goes into a [`cpio`] archive; this program itself is the
//! [`guest`]'s first process, tells what happens, and is [`told`] to whoever waits for the
//! [`machine`]. Nothing is installed, and nothing needs root.

mod cpio;
pub(crate) mod guest;
mod machine;
mod modules;
mod package;
mod told;

use std::env;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::check::{self, cargo};
use crate::target;
use crate::tools::output;
use cpio::Archive;
use machine::{Ending, Parts, Runner};
use package::{Kernel, find};
use told::Told;

/// What the tests run beside themselves.
const TOOLS: [&str; 4] = ["mount", "umount", "ls", "mkfifo"];

/// Room on the disk of the guest; only what is written takes any.
const DISK_BYTES: u64 = 8 << 30;

/// How long a test waits before it takes something for a hang, in seconds: an interpreter that does
/// not have the processor for itself needs ten times as long as usual.
const PATIENCE_S: u32 = 600;

/// The first kernel on which a ring is the library's own choice.
const RINGS_FROM: [u32; 2] = [6, 1];

/// Which kernels, which tests, and how long they may take.
pub(crate) struct Wanted {
    pub(crate) kernels: Vec<String>,
    /// Demanded of every engine; without it, the choice is the library's.
    pub(crate) backend: Option<String>,
    /// Of tests, or parts of them; without any, all run.
    pub(crate) names: Vec<String>,
    pub(crate) limit: Duration,
}

/// Runs the tests on every kernel, prints what came of it, and fails if one of them does.
pub(crate) fn run(wanted: &Wanted) -> Result<()> {
    ensure!(
        env::consts::ARCH == "x86_64",
        "the programs would have to be built for x86_64"
    );
    let store = target("kernels");
    fs::create_dir_all(&store).context("the folder for kernels")?;
    let store = store.canonicalize()?;
    let kernels = wanted.kernels.iter().map(|name| find(name, &store));
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    let programs = build()?;

    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let mut runner = Runner::best();
    let mut failed = Vec::new();
    for kernel in &kernels {
        let site = Site::prepare(kernel, &programs, wanted, &store)?;
        let complaints = site.run(&mut runner, wanted, &stopped)?;
        for complaint in &complaints {
            println!("  {complaint}");
        }
        if !complaints.is_empty() {
            println!("  all that was said: {}", site.log("*").display());
            failed.push(kernel.release.as_str());
        }
    }
    ensure!(failed.is_empty(), "not in order: {}", failed.join(", "));
    Ok(())
}

/// A program of tests: its target's name, and where it is.
type Program = (String, PathBuf);

/// The tests beside the code, and those of the public API on every backend.
fn build() -> Result<Vec<Program>> {
    let mut command = cargo("test");
    // An interpreter is slow enough for tests to take for a hang what is none. All that is checked
    // in the usual build still is.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    command.env("CARGO_TARGET_DIR", target("kernels/build"));
    command.args(["--package", "inflight", "--all-features", "--no-run"]);
    command
        .args(["--lib", "--test", "it"])
        .args(check::locked());
    let programs = check::programs(&mut command)?;
    ensure!(
        programs.len() == 2,
        "two programs were asked for: {programs:?}"
    );
    Ok(programs)
}

/// What a machine needs, in a folder that goes when it is over; what it says stays.
struct Site<'a> {
    kernel: &'a Kernel,
    planned: Vec<String>,
    store: &'a Path,
    folder: tempfile::TempDir,
}

impl<'a> Site<'a> {
    fn prepare(
        kernel: &'a Kernel,
        programs: &[Program],
        wanted: &Wanted,
        store: &'a Path,
    ) -> Result<Self> {
        let site = Self {
            kernel,
            planned: programs.iter().map(|(name, _)| name.clone()).collect(),
            store,
            folder: tempfile::Builder::new()
                .prefix("inflight-kernels-")
                .tempdir()?,
        };
        site.archive(programs, wanted)?;
        let disk = site.path("disk");
        File::create(&disk)?
            .set_len(DISK_BYTES)
            .context("the disk")?;
        output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk))?;
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where what is said with this name stays.
    fn log(&self, ending: &str) -> PathBuf {
        self.store.join(format!("{}.{ending}", self.kernel.release))
    }

    /// The first file system of the guest.
    fn archive(&self, programs: &[Program], wanted: &Wanted) -> Result<()> {
        let out = BufWriter::new(File::create(self.path("initramfs"))?);
        let mut archive = Archive::new(out);
        // Without it the first process would have nowhere to say what is wrong.
        archive.device("/dev/console", 5, 1)?;
        // Through /proc this program is there even after cargo has replaced its file.
        let mut from = vec![("/init".to_owned(), PathBuf::from("/proc/self/exe"))];
        for (name, path) in programs {
            from.push((format!("{}/{name}", guest::PROGRAMS), path.clone()));
        }
        for tool in TOOLS {
            let path = format!("/usr/bin/{tool}");
            from.push((path.clone(), PathBuf::from(path)));
        }
        let running = env::current_exe().context("this program")?;
        let binaries = from.iter().skip(1).map(|(_, path)| path).chain([&running]);
        for library in libraries(binaries)? {
            from.push((library.clone(), PathBuf::from(library)));
        }
        for (to, path) in from {
            let content = fs::read(&path).with_context(|| path.display().to_string())?;
            archive.file(&to, &content)?;
        }
        let modules = modules::in_order(&self.kernel.modules)?;
        archive.folder(guest::MODULES)?;
        for (at, module) in modules.iter().enumerate() {
            let path = format!("{}/{at:03}-{}", guest::MODULES, module.name);
            archive.file(&path, &module.image)?;
        }
        let plan = plan(&self.planned, wanted, backend_of(&self.kernel.release)?);
        archive.file(guest::PLAN, plan.as_bytes())?;
        Ok(archive.finish()?)
    }

    /// Runs the machine, and says how it went; returns what is wrong.
    fn run(
        &self,
        runner: &mut Runner,
        wanted: &Wanted,
        stopped: &AtomicBool,
    ) -> Result<Vec<String>> {
        let (console, transcript) = (self.log("console"), self.log("told"));
        let parts = Parts {
            kernel: &self.kernel.image,
            initramfs: &self.path("initramfs"),
            disk: &self.path("disk"),
            console: &console,
            transcript: &transcript,
            limit: wanted.limit,
            stopped,
        };
        println!("{}: {}", self.kernel.release, transcript.display());
        let begun = Instant::now();
        let mut told = Told::default();
        let mut ending = machine::run(&parts, *runner, &mut told)?;
        if ending == Ending::Silent && *runner == Runner::Kvm {
            println!("kernels: nothing runs by /dev/kvm here: QEMU interprets, which takes longer");
            *runner = Runner::Interpreter;
            ending = machine::run(&parts, *runner, &mut told)?;
        }
        let release = told.release.as_deref().unwrap_or(&self.kernel.release);
        let seconds = begun.elapsed().as_secs();
        println!("Linux {release}, {seconds} s, {}", runner.name());
        let mut complaints = told.complaints(&self.planned, wanted.names.is_empty());
        for program in &told.programs {
            println!("  {program}");
            for (reason, times) in &program.skips {
                println!("    {times} x {reason}");
            }
        }
        if ending == Ending::TimeUp {
            let minutes = wanted.limit.as_secs() / 60;
            complaints.push(format!("not done within {minutes} minutes: ended"));
        }
        // It may print anything: not all of it need be text.
        let said = fs::read(&console).context("the console")?;
        let said = told::complaints_of_kernel(&String::from_utf8_lossy(&said));
        complaints.extend(said.into_iter().map(|line| format!("the kernel: {line}")));
        Ok(complaints)
    }
}

/// The backend that the tests must find on a kernel of this release.
fn backend_of(release: &str) -> Result<&'static str> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        anyhow::bail!("{release} is no version of Linux");
    };
    Ok(if [major, minor] >= RINGS_FROM {
        "uring"
    } else {
        "aio"
    })
}

/// What the guest is to do. As much as the check does in environments that deny something.
fn plan(programs: &[String], wanted: &Wanted, chosen: &str) -> String {
    let mut plan = String::new();
    if let Some(backend) = &wanted.backend {
        plan.push_str(&format!("set INFLIGHT_BACKEND={backend}\n"));
    }
    let backend = wanted.backend.as_deref().unwrap_or(chosen);
    plan.push_str(&format!("set INFLIGHT_REQUIRE={backend}\n"));
    for (variable, usual) in check::LESS {
        let value = env::var(variable).unwrap_or_else(|_| usual.to_owned());
        plan.push_str(&format!("set {variable}={value}\n"));
    }
    plan.push_str(&format!("set INFLIGHT_TEST_PATIENCE={PATIENCE_S}\n"));
    for word in &wanted.names {
        plan.push_str(&format!("argument {word}\n"));
    }
    for program in programs {
        plan.push_str(&format!("run {program}\n"));
    }
    plan
}

/// The shared libraries of these programs, and what loads them, each once.
fn libraries<'a>(programs: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<String>> {
    let listed = output(Command::new("ldd").args(programs))?;
    let mut libraries: Vec<String> = listed.lines().filter_map(library).collect();
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}

/// The path in a line of ldd(1), such as `libc.so.6 => /lib/libc.so.6 (0x7f)`.
fn library(line: &str) -> Option<String> {
    let (path, _) = line.trim().rsplit_once(" (0x")?;
    let path = path.rsplit_once(" => ").map_or(path, |(_, path)| path);
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_must_choose_what_is_not_a_ring() {
        assert_eq!(backend_of("5.10.0-46-amd64").unwrap(), "aio");
        assert_eq!(backend_of("6.0.1").unwrap(), "aio");
        assert_eq!(backend_of("6.1.0-56-amd64").unwrap(), "uring");
        assert_eq!(backend_of("6.12.117+deb12-amd64").unwrap(), "uring");
        assert!(backend_of("next").is_err());
    }

    #[test]
    fn libraries_are_found_in_what_ldd_prints() {
        let found = |line| library(line).unwrap_or_default();
        assert_eq!(
            found("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)"),
            "/lib/libc.so.6"
        );
        assert_eq!(
            found("\t/lib64/ld-linux.so.2 (0x00007f)"),
            "/lib64/ld-linux.so.2"
        );
        assert_eq!(found("\tlinux-vdso.so.1 (0x00007f)"), "");
        assert_eq!(found("/usr/bin/ls:"), "");
    }

    #[test]
    fn the_plan_says_what_is_required_before_what_is_run() {
        let wanted = |backend: Option<&str>| Wanted {
            kernels: Vec::new(),
            backend: backend.map(str::to_owned),
            names: vec!["a::b".to_owned()],
            limit: Duration::ZERO,
        };
        let programs = ["it".to_owned()];
        let free = plan(&programs, &wanted(None), "uring");
        assert!(free.starts_with("set INFLIGHT_REQUIRE=uring\n"), "{free}");
        assert!(free.ends_with("argument a::b\nrun it\n"), "{free}");
        let demanded = plan(&programs, &wanted(Some("threads")), "uring");
        let both = "set INFLIGHT_BACKEND=threads\nset INFLIGHT_REQUIRE=threads\n";
        assert!(demanded.starts_with(both), "{demanded}");
    }
}
