//! `cargo xtask under DENIAL -- COMMAND`: a command where io_uring or locked memory is denied.
//!
//! The filters answer exactly the three system calls of io_uring and let everything else pass; they
//! are inherited by everything that the command starts, and nothing can take them off again. What
//! the command then does is its own business: [`crate::check`] judges it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::sys;

/// The locked memory of [`Denial::Memlock`]: what Linux granted every user before 5.16.
pub(crate) const LOCKED_MEMORY_BYTES: u64 = 64 * 1024;

/// What a command is denied.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Denial {
    /// io_uring answers EPERM: the default seccomp profile of most container runtimes.
    Eperm,
    /// io_uring answers ENOSYS: an old kernel, gVisor, other container profiles.
    Enosys,
    /// One call of io_uring kills the process: what strict sandboxes do.
    Kill,
    /// Locked memory is limited to 64 KiB and CAP_IPC_LOCK is gone.
    Memlock,
}

impl Denial {
    /// The word on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eperm => "eperm",
            Self::Enosys => "enosys",
            Self::Kill => "kill",
            Self::Memlock => "memlock",
        }
    }

    /// Takes effect on this thread and on every program it starts, for good.
    fn impose(self) -> Result<()> {
        match self {
            Self::Eperm => filter(SeccompAction::Errno(libc::EPERM.unsigned_abs())),
            Self::Enosys => filter(SeccompAction::Errno(libc::ENOSYS.unsigned_abs())),
            Self::Kill => filter(SeccompAction::KillProcess),
            Self::Memlock => {
                if sys::is_root() {
                    sys::drop_ipc_lock().context("dropping CAP_IPC_LOCK")?;
                }
                sys::limit_locked_memory(LOCKED_MEMORY_BYTES).context("limiting locked memory")
            }
        }
    }
}

/// Imposes the denial on this process and becomes the command.
pub(crate) fn run(denial: Denial, command: &[OsString]) -> Result<()> {
    let (program, arguments) = command.split_first().context("no command to run")?;
    denial
        .impose()
        .with_context(|| format!("`{}` cannot be imposed", denial.name()))?;
    // exec(2) returns only to report that it failed.
    let error = Command::new(program).args(arguments).exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}

/// Installs a filter that gives `answer` to the calls of io_uring; sets NO_NEW_PRIVS on the way.
fn filter(answer: SeccompAction) -> Result<()> {
    let io_uring = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    // No rules for a system call's arguments: every call of it matches.
    let calls: BTreeMap<i64, _> = io_uring.iter().map(|&call| (call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH
        .try_into()
        .context("no filters for this machine")?;
    let program: BpfProgram =
        SeccompFilter::new(calls, SeccompAction::Allow, answer, architecture)?.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}
