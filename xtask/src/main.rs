//! `cargo xtask`: what cargo alone does not express.
//!
//! [`check`] is the one command before a commit and the one that CI runs; [`tidy`] holds the house
//! rules that neither rustfmt nor clippy knows; [`under`] takes io_uring or locked memory away
//! from a command, so that anyone can see what `inflight` does without them; [`loop_disk`] makes a
//! block device fast enough for software cost to show; [`matrix`] measures on every kind of place;
//! [`models`] runs loom, Miri and the sanitizers; [`kernels`] runs the tests on other kernels;
//! `peers` looks at the package outside the workspace. Nothing here is part of the library.

mod check;
mod kernels;
mod loop_disk;
mod matrix;
mod models;
mod probe;
mod sys;
mod tidy;
mod tools;
mod under;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand};

/// The repository's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, house rules, tests on every backend and environment, documentation.
    Check,
    /// The house rules that rustfmt and clippy do not know.
    Tidy,
    /// Every order of a few threads around mailbox, lanes, shared work and syncs, with `loom`.
    Loom,
    /// The tests beside the code under Miri, on the nightly toolchain.
    Miri {
        /// Runs, each with other choices where the language leaves one.
        #[arg(long, value_name = "COUNT", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
        seeds: u32,
    },
    /// The tests of the library under a sanitizer, on the nightly toolchain.
    Sanitize {
        /// What is looked for.
        sanitizer: models::Sanitizer,
        /// Names of tests, or parts of them; without any, all run.
        names: Vec<String>,
    },
    /// The tests of the library on other kernels, in virtual machines; not part of the check.
    ///
    /// Needs the Debian packages qemu-system-x86, e2fsprogs, xz-utils, and apt for versions. What
    /// apt offers is downloaded and unpacked below the target directory; nothing is installed.
    Kernels {
        /// Versions that apt offers as `linux-image-VERSION*`, packages of such kernels, or folders
        /// that they were unpacked to.
        #[arg(value_name = "KERNEL", default_values = ["5.10", "6.1", "6.12"])]
        kernels: Vec<String>,
        /// How long each kernel may take, in minutes.
        #[arg(long, value_name = "MINUTES", default_value_t = 60)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1440))]
        limit_minutes: u64,
        /// A backend that is demanded, as `INFLIGHT_BACKEND` does, and must be found.
        #[arg(long, value_name = "BACKEND", value_parser = ["uring", "aio", "threads"])]
        backend: Option<String>,
        /// Names of tests, or parts of them; without any, all run.
        #[arg(last = true)]
        names: Vec<String>,
    },
    /// Whether the peers still build against this library; not part of the check.
    Peers,
    /// Run a command where io_uring or locked memory is denied: `under eperm -- COMMAND ARGS...`.
    Under {
        /// What is denied.
        denial: under::Denial,
        /// The command and its arguments.
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Say what this environment grants: io_uring, locked memory, user.
    Probe,
    /// A fast block device to measure on: ext4 on a loop device over a file in memory. Needs root.
    #[command(subcommand)]
    LoopDisk(LoopDisk),
    /// The same profiles on a disk, in memory and on loop and zram devices: the worst regret on
    /// each. Needs root, and `cargo build --release -p inflight-bench` before.
    Matrix {
        /// Profiles or sets of them, as for `inflight bench`.
        #[arg(long, value_name = "NAMES", default_value = "default")]
        profile: String,
        /// Where the records go: one file for each place.
        #[arg(long, value_name = "DIR")]
        records: PathBuf,
        /// Size of each device in GiB; memory is used as blocks are written.
        #[arg(long, value_name = "GIB", default_value_t = 2)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
        size_gib: u64,
        /// Further arguments for `inflight bench`.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
}

#[derive(Subcommand)]
enum LoopDisk {
    /// Make the device, mount it and print the mount point.
    Up {
        /// Where to mount it: an empty directory, made if it is not there [default: a fresh
        /// temporary directory].
        directory: Option<PathBuf>,
        /// Size of the device in GiB; memory is used as blocks are written.
        #[arg(long, value_name = "GIB", default_value_t = 2)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
        size_gib: u64,
    },
    /// Unmount and remove what `up` made.
    Down {
        /// Where it is mounted [default: wherever the only one is; of several, one is named].
        directory: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    if let Some(status) = kernels::guest::in_place_of_init() {
        return status;
    }
    if let Some(status) = check::in_place_of_rustdoc() {
        return status;
    }
    let outcome = match Cli::parse().task {
        Task::Check => check::run(),
        Task::Tidy => tidy::run(),
        Task::Loom => check::run_to_success(&mut models::loom()),
        Task::Miri { seeds } => models::miri(seeds),
        Task::Sanitize { sanitizer, names } => {
            check::run_to_success(&mut models::sanitize(sanitizer, &names))
        }
        Task::Kernels {
            kernels,
            limit_minutes,
            backend,
            names,
        } => kernels::run(&kernels::Wanted {
            kernels,
            backend,
            names,
            limit: Duration::from_secs(60 * limit_minutes),
        }),
        Task::Peers => check::run_to_success(&mut peers()),
        Task::Under { denial, command } => under::run(denial, &command),
        Task::Probe => probe::run(),
        Task::Matrix {
            profile,
            records,
            size_gib,
            arguments,
        } => matrix::run(&matrix::Wanted {
            profiles: profile,
            records,
            size_gib,
            arguments,
        }),
        Task::LoopDisk(LoopDisk::Up {
            directory,
            size_gib,
        }) => loop_disk::up(directory.as_deref(), size_gib),
        Task::LoopDisk(LoopDisk::Down { directory }) => loop_disk::down(directory.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A look at `peers/`, which no other command compiles.
fn peers() -> Command {
    let mut command = check::cargo("check");
    command.args([
        "--locked",
        "--all-targets",
        "--manifest-path",
        "peers/Cargo.toml",
    ]);
    command
}

/// A folder of what is built.
fn target(name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| repository().join("target"));
    target.join(name)
}

/// The root of the repository, wherever the command was typed.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask/ is a folder of the repository")
}
