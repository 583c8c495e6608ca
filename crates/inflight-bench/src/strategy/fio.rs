//! `fio` and `fio-psync`: outside checks. The same work through fio's io_uring engine, nothing
//! registered; and one plain call after the other, beside `pread`.
//!
//! fio measures itself; its start-up is not counted. It gets the existing file, read only where
//! nothing is to be written, and leaves the page cache alone. It hands over and collects together
//! what there is, as the other strategies do: left to itself it makes a system call for each
//! operation (`docs/design/fio.md`).
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use inflight_report::record::{Access, Sync};
use rustix::process;

use super::blocked::check_allowed;
use super::fio_output::{self, Output};
use super::{ALONE, Job, Modes, Shape, Strategy, Way, modes};
use crate::exit::cannot;
use crate::measure::heat::Timed;
use crate::measure::meter::Counters;
use crate::measure::run::Stretch;
use crate::profile::Profile;
use crate::work::{RANGE_STEP_BYTES, Work};

pub(crate) struct Fio {
    name: &'static str,
    engine: Engine,
}

/// Who does the I/O in fio.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Uring,
    Psync,
}

pub(crate) const URING: Fio = Fio {
    name: "fio",
    engine: Engine::Uring,
};

pub(crate) const PSYNC: Fio = Fio {
    name: "fio-psync",
    engine: Engine::Psync,
};

/// Both, in the order of the list.
pub(crate) const CHECKS: [&str; 2] = [URING.name, PSYNC.name];

impl Engine {
    /// What it is and does, in the words of fio where it has any.
    fn modes(self) -> Modes {
        match self {
            Self::Uring => modes(&[("ioengine", "io_uring"), ("registered", "nothing")]),
            Self::Psync => modes(&[("ioengine", "psync")]),
        }
    }
}

impl Strategy for Fio {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.engine {
            Engine::Uring => "the program fio with its io_uring engine, as an outside check",
            Engine::Psync => "the program fio with plain calls, as an outside check of `pread`",
        }
    }

    fn shapes(&self, profile: &Profile, _cpus: u32) -> Vec<Shape> {
        if self.engine == Engine::Psync {
            return vec![ALONE];
        }
        let depths = profile.asked.queue_depths.iter();
        depths.map(|&depth| Shape { depth, threads: 1 }).collect()
    }

    fn by_default(&self) -> bool {
        false
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        self.engine.modes()
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let asked = &profile.asked;
        let same = asked.files == 1
            && !asked.verify
            && asked.sync == Sync::None
            && !asked.read_back
            && lengths(&profile.work(0)).is_some()
            && !profile.grows();
        (!same).then_some("its jobs would not be the same work")
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("fio counts latencies of its own: it has no open loop here")
    }

    fn way(&self) -> Way {
        Way::Program(match self.engine {
            Engine::Uring => |job| run(job, Engine::Uring, &[]),
            Engine::Psync => |job| run(job, Engine::Psync, &[]),
        })
    }
}

/// Makes sure that fio can be started, before anything is written or measured.
pub(crate) fn check(program: &Path) -> Result<()> {
    let version = Command::new(program).arg("--version").output();
    match version {
        Ok(output) if output.status.success() && output.stdout.starts_with(b"fio-") => Ok(()),
        Ok(_) => Err(cannot(format!(
            "{} is not fio: `--version` says so",
            program.display()
        ))),
        Err(error) => Err(not_started(program, &error)),
    }
}

fn not_started(program: &Path, error: &io::Error) -> anyhow::Error {
    cannot(format!(
        "{} cannot be started ({error}): install the package `fio`, or name it with --fio=PATH",
        program.display()
    ))
}

/// Lets fio do the work of a job, with these arguments beside its own.
pub(crate) fn run(job: &Job<'_>, engine: Engine, more: &[&str]) -> Result<Stretch> {
    if engine == Engine::Uring {
        check_allowed()?;
    }
    let start_ns = job.clock.now_ns();
    let mut command = Command::new(job.fio);
    command
        .args(arguments(job, engine)?)
        .args(more)
        .env(TUNABLES, huge_pages(env::var_os(TUNABLES)))
        .stdin(Stdio::null())
        // Ctrl-C on the terminal is for this program: the current cell is to finish.
        .process_group(0);
    ends_with_this_thread(&mut command);
    let output = command.output();
    let output = output.map_err(|error| not_started(job.fio, &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let why = errors
            .lines()
            .chain(text.lines())
            .find(|line| !line.trim().is_empty());
        bail!(
            "fio failed ({}): {}",
            output.status,
            why.unwrap_or("it did not say why")
        );
    }
    let parsed = fio_output::parse(&text)?;
    Ok(stretch(job, engine, &parsed, start_ns))
}

/// Has the kernel kill the program when this thread ends, however it ends: prctl(2),
/// `PR_SET_PDEATHSIG`. Its children are not, so fio is asked for threads instead.
fn ends_with_this_thread(command: &mut Command) {
    let this = process::getpid();
    let before = move || {
        process::set_parent_process_death_signal(Some(process::Signal::KILL))?;
        match process::getppid() == Some(this) {
            true => Ok(()),
            // It has ended before the kernel was asked.
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: two system calls, and no memory is allocated.
    unsafe { command.pre_exec(before) };
}

/// Where the C library is told how to have memory: its manual, "Tunables".
const TUNABLES: &str = "GLIBC_TUNABLES";

/// That it is to ask for huge pages, as all here do whose blocks have more than a page
/// (`docs/design/memory.md`).
pub(crate) const HUGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// That, beside what it was told before.
fn huge_pages(before: Option<OsString>) -> OsString {
    let mut told = before.unwrap_or_default();
    if !told.is_empty() {
        told.push(":");
    }
    told.push(HUGE_PAGES);
    told
}

/// A path as fio takes it, which splits file names at colons (fio(1), filename).
pub(crate) fn path(path: &Path) -> Result<String> {
    let path = path.to_str();
    let path = path.context("fio takes only paths that are UTF-8")?;
    Ok(path.replace('\\', "\\\\").replace(':', "\\:"))
}

fn arguments(job: &Job<'_>, engine: Engine) -> Result<Vec<String>> {
    let path = path(job.paths.first().context("a file")?)?;
    let work = job.work;
    let mut arguments = vec![
        "--name=inflight".to_owned(),
        "--thread=1".to_owned(),
        format!("--ioengine={}", engine.modes()["ioengine"]),
        format!("--iodepth={}", job.depth),
        format!("--direct={}", u8::from(job.direct)),
        format!("--filename={path}"),
        format!("--filesize={}", work.file_bytes),
        "--allow_file_create=0".to_owned(),
        "--invalidate=0".to_owned(),
        // Nobody else here tells the page cache in which order a file will be read.
        "--fadvise_hint=0".to_owned(),
        "--norandommap=1".to_owned(),
        "--randrepeat=0".to_owned(),
        format!("--randseed={}", job.seed >> 1),
        "--time_based=1".to_owned(),
        format!("--ramp_time={}ms", job.warmup.as_millis()),
        format!("--runtime={}ms", job.measured.as_millis().max(1)),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        "--output-format=json+".to_owned(),
    ];
    let said = together(job.depth, work.batched).into_iter();
    let said = said.chain(lengths(work)).chain(memory(work));
    let said = said.map(|said| format!("--{said}"));
    arguments.extend(said);
    arguments.extend(access(work));
    Ok(arguments)
}

/// That a turn hands over whatever is queued, waits for one completion, or for all of a batch, and
/// collects all there are, in fio's words.
pub(crate) fn together(depth: u32, batched: bool) -> Vec<String> {
    let mut said = vec![
        format!("iodepth_batch_submit={depth}"),
        format!("iodepth_batch_complete_max={depth}"),
    ];
    if batched {
        said.push(format!("iodepth_batch_complete_min={depth}"));
    }
    said
}

/// That blocks of more than a page begin where a huge page does, in fio's words; it has them where
/// [`TUNABLES`] says so.
pub(crate) fn memory(work: &Work) -> Option<String> {
    (work.block_bytes > 4096).then(|| format!("iomem_align={}", 2 << 20))
}

/// How long the operations are, in fio's words; nothing where fio would have other lengths.
///
/// fio takes each multiple of the shortest that is no longer than the longest, all of them equally
/// often, and begins at multiples of the shortest too.
///
/// # Source
/// fio 3.33, `get_next_buflen` of io_u.c; counted in `docs/design/fio.md`.
pub(crate) fn lengths(work: &Work) -> Option<String> {
    let (least, most) = (work.least_bytes, work.block_bytes);
    match least == most {
        true => Some(format!("bs={most}")),
        false => (least == RANGE_STEP_BYTES && most.is_multiple_of(least))
            .then(|| format!("bsrange={least}-{most}")),
    }
}

/// The order and direction of the operations, in fio's words.
pub(crate) fn access(work: &Work) -> Vec<String> {
    let direction = match work.access {
        Access::RandomRead | Access::RangeRead => "randread",
        Access::SequentialRead => "read",
        Access::RandomWrite => "randwrite",
        Access::SequentialWrite | Access::Append => "write",
        Access::Mixed => "randrw",
    };
    let mut said = vec![format!("--rw={direction}")];
    if work.access == Access::Mixed {
        said.push(format!("--rwmixread={}", work.read_percent));
    }
    if work.only_reads() {
        said.push("--readonly".to_owned());
        said.push(format!("--size={}", work.file_bytes));
        return said;
    }
    // The first block tells what the file is, and stays.
    let first_bytes = u64::from(work.block_bytes);
    said.push(format!("--offset={first_bytes}"));
    said.push(format!("--size={}", work.file_bytes - first_bytes));
    said
}

fn stretch(job: &Job<'_>, engine: Engine, output: &Output, start_ns: u64) -> Stretch {
    let direct = if job.direct { "yes" } else { "no" };
    let mut effective = modes(&[("direct", direct), ("version", &output.version)]);
    effective.extend(engine.modes());
    let mut timed = Timed::new();
    for &(ns, count) in &output.bins {
        timed.latencies.record_many(ns, count);
    }
    Stretch {
        start_ns,
        duration_ns: output.duration_ns,
        counters: Counters {
            ops: output.ops,
            bytes: output.bytes,
            errors: output.errors,
            errno: 0, // fio counts them, and does not tell which they were
            short: output.short,
            syscalls: 0,
            wrong: 0,
        },
        syscalls: None,
        device_bytes: None,
        device: None,
        user_ns: output.user_ns,
        sys_ns: output.sys_ns,
        worker_ns: None,
        ctxsw: output.ctxsw,
        timed: Some(timed),
        effective,
        sample_every: 1,
        open: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::load;

    /// What fio is told of a profile, with 32 in flight; nothing if it takes no part in it.
    fn told(name: &str) -> Option<Vec<String>> {
        let profile = load(&[name.to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let paths = ["data".into()];
        let job = Job {
            depth: 32,
            paths: &paths,
            ..Job::of(&work)
        };
        let unfit = URING.unfit(&profile).is_some();
        (!unfit).then(|| arguments(&job, Engine::Uring).unwrap())
    }

    #[test]
    fn blocks_of_several_pages_are_of_huge_ones_as_here() {
        let aligned = "--iomem_align=2097152".to_owned();
        assert!(told("direct-range-read").unwrap().contains(&aligned));
        assert!(!told("direct-random-read").unwrap().contains(&aligned));
        assert_eq!(huge_pages(None), HUGE_PAGES);
        let before = Some("glibc.rtld.nns=8".into());
        assert_eq!(
            huge_pages(before),
            "glibc.rtld.nns=8:glibc.malloc.hugetlb=1"
        );
    }

    #[test]
    fn ranges_have_the_same_lengths_and_batches_are_waited_for() {
        for name in ["direct-range-read", "cold-range-read"] {
            let told = told(name).unwrap();
            let has = |said: &str| told.iter().any(|one| one == said);
            assert!(has("--bsrange=4096-262144"), "{told:?}");
            assert!(has("--iodepth_batch_complete_min=32"), "{told:?}");
            assert!(!told.iter().any(|one| one.starts_with("--bs=")), "{told:?}");
        }
        let told = told("direct-random-read").unwrap();
        assert!(told.contains(&"--bs=4096".to_owned()), "{told:?}");
        let waits = |one: &String| one.contains("complete_min");
        assert!(!told.iter().any(waits), "{told:?}");
    }

    #[test]
    fn who_asks_for_what_fio_does_otherwise_has_no_row_of_it() {
        for name in ["durable-append", "many-files", "write-fsync-read"] {
            assert_eq!(told(name), None, "{name}");
        }
        // Of other steps than ours fio has other lengths.
        let mut profile = load(&["direct-range-read".to_owned()]).unwrap().remove(0);
        profile.block_bytes += 512;
        assert!(URING.unfit(&profile).is_some() && PSYNC.unfit(&profile).is_some());
    }
}
