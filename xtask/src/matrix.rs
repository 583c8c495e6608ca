//! `cargo xtask matrix`: the same profiles on every kind of place this machine can make, and how
//! far the library is behind on each.
//!
//! Every place is a value that takes itself down when it is dropped, the last made first; Ctrl-C
//! ends the measurement that runs and then comes here, so that nothing stays behind either.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inflight_report::record::Regret;
use inflight_report::regret::{self, blocking_and_others};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use crate::tools::output;
use crate::{repository, sys};

const PREFIX: &str = "inflight-matrix-";
const MEMORY: &str = "/dev/shm";

/// What is measured, where the records go, and how large the devices are.
pub(crate) struct Wanted {
    pub(crate) profiles: String,
    pub(crate) records: PathBuf,
    pub(crate) size_gib: u64,
    pub(crate) arguments: Vec<String>,
}

/// A kind of place, and how it is made.
type Kind = (&'static str, fn(u64) -> Result<Place>);

const KINDS: &[Kind] = &[
    ("disk", |_| Place::directory(Path::new("/var/tmp"))),
    ("ext4-on-loop", |size| Place::on_loop("ext4", size)),
    ("tmpfs", |_| Place::directory(Path::new(MEMORY))),
    ("raw-zram", Place::raw_zram),
    ("ext4-on-zram", |size| Place::on_zram("ext4", size)),
    ("xfs-on-loop", |size| Place::on_loop("xfs", size)),
    ("btrfs-on-loop", |size| Place::on_loop("btrfs", size)),
    ("overlay-on-disk", |_| Place::overlay(Path::new("/var/tmp"))),
];

/// Measures on every kind of place, and prints the worst regret on each.
pub(crate) fn run(wanted: &Wanted) -> Result<()> {
    ensure!(
        sys::is_root(),
        "devices and mounts need root: run this with sudo"
    );
    let program = repository().join("target/release/inflight");
    let program = std::env::var_os("CARGO_TARGET_DIR").map_or(program, |directory| {
        Path::new(&directory).join("release/inflight")
    });
    ensure!(
        program.exists(),
        "build the command first: cargo build --release -p inflight-bench"
    );
    fs::create_dir_all(&wanted.records).context("the directory for records")?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let (told, failed) = on_each(KINDS, &program, wanted, &stopped);
    for line in told {
        println!("{line}");
    }
    ensure!(!stopped.load(SeqCst), "interrupted");
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// Measures on each kind of place that can be made, until it is stopped. Returns what is to be
/// told, and the names of those that failed.
fn on_each(
    kinds: &[Kind],
    program: &Path,
    wanted: &Wanted,
    stopped: &AtomicBool,
) -> (Vec<String>, Vec<&'static str>) {
    let (mut told, mut failed) = (Vec::new(), Vec::new());
    for (name, make) in kinds {
        if stopped.load(SeqCst) {
            break;
        }
        eprintln!("== {name}");
        match make(wanted.size_gib) {
            Ok(place) => match measure(program, &place, name, wanted) {
                Ok([blocking, awaited]) => {
                    told.push(format!("{name:16} {blocking}"));
                    told.push(format!("{:16} awaited: {awaited}", ""));
                }
                Err(why) => {
                    told.push(format!("{name:16} failed: {why:#}"));
                    failed.push(*name);
                }
            },
            Err(why) => told.push(format!("{name:16} cannot be made here: {why:#}")),
        }
    }
    (told, failed)
}

/// Exit codes of a command that leaves a record of all that can be measured: done, and that some
/// profiles mean nothing here, as those that meet the device in memory.
/// Source: `crates/inflight-bench/src/exit.rs`.
const USABLE: [i32; 2] = [0, 3];

/// Measures in one place, and says what its record says of blocking calls and of what is awaited.
fn measure(program: &Path, place: &Place, name: &str, wanted: &Wanted) -> Result<[String; 2]> {
    let record = wanted.records.join(format!("{name}.json"));
    // What an earlier run has left would pass for this one's.
    match fs::remove_file(&record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("the record of an earlier run stays");
        }
        _ => {}
    }
    let status = Command::new(program)
        .arg("bench")
        .arg(&place.target)
        .args(["--profile", &wanted.profiles, "--export-json"])
        .arg(&record)
        .args(&wanted.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("the command cannot be started")?;
    let is_usable = status.code().is_some_and(|code| USABLE.contains(&code));
    ensure!(is_usable, "the command ended with {status}");
    let text = fs::read_to_string(&record)
        .with_context(|| format!("no record of {name}: the command ended with {status}"))?;
    worst(&serde_json::from_str(&text)?)
}

/// The worst regrets of the library in a record, of its blocking calls and of what is awaited, in
/// words.
fn worst(record: &Value) -> Result<[String; 2]> {
    let stored = record.get("regrets").cloned();
    let stored: Option<Vec<Regret>> = stored.map(serde_json::from_value).transpose()?;
    let all = stored.unwrap_or_default();
    let (blocking, others) = blocking_and_others(&all);
    let awaited = others.into_iter().filter(|one| one.is_awaited());
    let awaited: Vec<&Regret> = awaited.collect();
    Ok([in_words(&blocking), in_words(&awaited)])
}

/// The worst of some regrets by the bad end of its interval.
fn in_words(regrets: &[&Regret]) -> String {
    let Some(worst) = regret::worst(regrets) else {
        return "nothing could be compared".to_owned();
    };
    let within = regrets.iter().filter(|one| one.is_within()).count();
    format!(
        "{:+.1} % at the bad end of its interval ({:+.1} in the middle, {:+.1} at the good end) in \
         {} against {}; {within} of {} cells within 3 % with their whole interval",
        worst.percent_at_worst(),
        worst.percent(),
        worst.percent_at_best(),
        worst.cell,
        worst.reference,
        regrets.len()
    )
}

/// A directory to measure in, or a device to read from. Its fields are dropped in order: what was
/// made last goes first.
struct Place {
    target: PathBuf,
    _inside: Option<TempDir>,
    _mount: Option<Mount>,
    _layers: Option<TempDir>,
    _device: Option<Device>,
    _backing: Option<tempfile::TempPath>,
}

impl Place {
    /// A directory of its own in one that is there.
    fn directory(parent: &Path) -> Result<Self> {
        let inside = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        Ok(Self {
            target: inside.path().to_owned(),
            _inside: Some(inside),
            _mount: None,
            _layers: None,
            _device: None,
            _backing: None,
        })
    }

    /// A file system on a loop device with direct I/O over a file in memory.
    fn on_loop(file_system: &str, size_gib: u64) -> Result<Self> {
        let file = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempfile_in(MEMORY)?;
        file.as_file().set_len(size_gib << 30)?;
        let backing = file.into_temp_path();
        let attach = ["--find", "--show", "--direct-io=on"];
        let node = output(Command::new("losetup").args(attach).arg(&backing))?;
        let device = Device::Loop(node.trim().to_owned());
        Self::on(device, Some(backing), file_system)
    }

    /// A file system on a compressed device in memory, one of its own.
    fn on_zram(file_system: &str, size_gib: u64) -> Result<Self> {
        Self::on(Device::zram(size_gib)?, None, file_system)
    }

    /// An overlay as containers have it, over directories of its own in one that is there.
    fn overlay(parent: &Path) -> Result<Self> {
        let layers = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        for layer in ["lower", "upper", "work"] {
            fs::create_dir(layers.path().join(layer))?;
        }
        let point = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let target = point.path().to_owned();
        let mount = [
            "-t",
            "overlay",
            "-o",
            "lowerdir=lower,upperdir=upper,workdir=work",
        ];
        let mut command = Command::new("mount");
        // The names of the layers are relative, so that no character in them means anything.
        command.current_dir(layers.path()).args(mount);
        output(command.arg("overlay").arg(&target))?;
        Ok(Self {
            target,
            _inside: None,
            _mount: Some(Mount { point }),
            _layers: Some(layers),
            _device: None,
            _backing: None,
        })
    }

    /// A compressed device in memory without a file system, full of what does not compress. The
    /// command only reads from it.
    fn raw_zram(size_gib: u64) -> Result<Self> {
        let device = Device::zram(size_gib)?;
        let node = PathBuf::from(device.node());
        let mut noise = File::open("/dev/urandom")?.take(size_gib << 30);
        let mut file = File::options().write(true).open(&node)?;
        io::copy(&mut noise, &mut file)?;
        file.sync_all()?;
        Ok(Self {
            target: node,
            _inside: None,
            _mount: None,
            _layers: None,
            _device: Some(device),
            _backing: None,
        })
    }

    fn on(device: Device, backing: Option<tempfile::TempPath>, file_system: &str) -> Result<Self> {
        let node = device.node();
        let mut make = Command::new(format!("mkfs.{file_system}"));
        // Tables written now are not written by the kernel later, in the middle of a measurement.
        let eagerly: &[&str] = match file_system {
            "ext4" => &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            _ => &["-q"],
        };
        output(make.args(eagerly).arg(&node))?;
        let point = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let target = point.path().to_owned();
        let mount = ["-t", file_system, "-o", "noatime"];
        output(Command::new("mount").args(mount).arg(&node).arg(&target))?;
        Ok(Self {
            target,
            _inside: None,
            _mount: Some(Mount { point }),
            _layers: None,
            _device: Some(device),
            _backing: backing,
        })
    }
}

/// A mounted file system, unmounted when dropped.
struct Mount {
    point: TempDir,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmount = || output(Command::new("umount").arg(self.point.path()));
        complain(repeated(unmount), "a mount is left");
    }
}

/// A block device, given back when dropped.
enum Device {
    Loop(String),
    Zram(String),
}

impl Device {
    /// A zram device of its own.
    fn zram(size_gib: u64) -> Result<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .context("no zram: is the module loaded?")?;
        let device = Self::Zram(number.trim().to_owned());
        let size = Path::new("/sys/block").join(device.name()).join("disksize");
        fs::write(size, format!("{size_gib}G")).context("sizing the device")?;
        Ok(device)
    }

    fn node(&self) -> String {
        match self {
            Self::Loop(node) => node.clone(),
            Self::Zram(_) => format!("/dev/{}", self.name()),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Loop(node) => node.trim_start_matches("/dev/").to_owned(),
            Self::Zram(number) => format!("zram{number}"),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        match self {
            Self::Loop(node) => {
                let detached = output(Command::new("losetup").args(["--detach", node]));
                complain(detached, "a loop device is left");
            }
            Self::Zram(number) => {
                let remove = || {
                    let told = fs::write("/sys/class/zram-control/hot_remove", number.as_str());
                    Ok(told?)
                };
                complain(repeated(remove), "a zram device is left");
            }
        }
    }
}

/// Tries again for a while what is refused: the kernel lets go of the files of a ring only some
/// time after its process has ended, and until then the file system is busy.
fn repeated<T>(try_once: impl Fn() -> Result<T>) -> Result<T> {
    const TRIES: u32 = 100;
    for _ in 1..TRIES {
        if let Ok(done) = try_once() {
            return Ok(done);
        }
        sleep(Duration::from_millis(100));
    }
    try_once()
}

/// Says what could not be taken down; the rest is taken down all the same.
fn complain<T>(done: Result<T>, what: &str) {
    if let Err(why) = done {
        eprintln!("{what}: {why:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_worst_regrets_are_those_of_the_better_blocking_call_and_of_what_is_awaited() {
        let regret = |strategy: &str, depth: u32, ratio: f64, hi: f64| {
            json!({"profile": "p", "strategy": strategy, "depth": depth,
                   "ratio": ratio, "lo": ratio - 0.01, "hi": hi, "level": 0.96,
                   "cell": format!("p/{strategy}/{depth}"), "reference": "p/pread/1"})
        };
        let record = json!({"regrets": [
            regret("inflight", 1, 1.01, 1.02), regret("inflight", 4, 1.30, 1.42),
            regret("inflight-threads", 4, 1.10, 1.12), regret("inflight", 32, 1.02, 1.20),
            regret("inflight-threads", 32, 1.03, 1.04), regret("inflight-async", 1, 3.0, 3.1)
        ]});
        let [told, awaited] = worst(&record).unwrap();
        let bad_end = "+20.0 % at the bad end of its interval (+2.0 in the middle, +1.0 at the \
                       good end) in p/inflight/32 against";
        assert!(told.starts_with(bad_end), "{told}");
        assert!(
            told.ends_with("1 of 3 cells within 3 % with their whole interval"),
            "{told}"
        );
        let bad_end = "+210.0 % at the bad end of its interval";
        assert!(awaited.starts_with(bad_end), "{awaited}");
        assert!(awaited.contains("0 of 1 cells"), "{awaited}");
        let nothing = "nothing could be compared";
        assert_eq!(worst(&json!({})).unwrap(), [nothing, nothing]);
    }

    /// A command that answers like this, whatever it is asked.
    fn program(directory: &Path, answer: &str) -> PathBuf {
        let (text, path) = (directory.join("text"), directory.join("command"));
        // Its arguments: bench TARGET --profile NAMES --export-json RECORD
        fs::write(&text, format!("#!/bin/sh\n{answer}\n")).expect("a file");
        // Copied by another process: a child of another test may hold what this one has open for
        // writing, and then it cannot be started (execve(2), ETXTBSY).
        let mut copy = Command::new("install");
        output(copy.args(["-m", "755"]).arg(&text).arg(&path)).expect("a copy");
        path
    }

    #[test]
    fn a_place_that_fails_is_told_and_the_next_one_measured() {
        let kinds: &[Kind] = &[
            ("one", |_| Place::directory(&std::env::temp_dir())),
            ("none", |_| Err(anyhow::anyhow!("no such module"))),
            ("two", |_| Place::directory(&std::env::temp_dir())),
        ];
        let directory = tempfile::tempdir().expect("a temporary directory");
        let wanted = Wanted {
            profiles: "p".to_owned(),
            records: directory.path().to_owned(),
            size_gib: 1,
            arguments: Vec::new(),
        };
        let on_each = |answer: &str| {
            let program = program(directory.path(), answer);
            on_each(kinds, &program, &wanted, &AtomicBool::new(false))
        };
        let (told, failed) = on_each("echo '{}' > \"$6\"; exit 3");
        assert!(failed.is_empty() && told.len() == 5, "{told:?}");
        // The records of that run are there, and are not this one's.
        for answer in ["exit 2", "exit 0", "echo '{}' > \"$6\"; exit 130"] {
            let (told, failed) = on_each(answer);
            assert_eq!(failed, ["one", "two"], "{answer}");
            assert!(told[0].contains("failed: "), "{told:?}");
            assert_eq!(
                told[1],
                "none             cannot be made here: no such module"
            );
        }
    }

    #[test]
    fn a_place_in_a_directory_goes_away() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let place = Place::directory(parent.path()).expect("a directory in it");
        assert!(place.target.exists());
        let directory = place.target.clone();
        drop(place);
        assert!(!directory.exists());
    }
}
