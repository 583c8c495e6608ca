//! `cargo xtask under DENIAL -- COMMAND`: a command where io_uring or locked memory is denied.
//!
//! The filters answer the three system calls of io_uring, one also those of its predecessor
//! (io_submit(2)), and let everything else pass; they
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
    /// io_uring and Linux AIO answer ENOSYS: other container profiles.
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
            Self::Eperm => filter(&IO_URING, SeccompAction::Errno(libc::EPERM.unsigned_abs())),
            Self::Enosys => {
                let all = [&IO_URING[..], &AIO].concat();
                filter(&all, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))
            }
            Self::Kill => filter(&IO_URING, SeccompAction::KillProcess),
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

const IO_URING: [i64; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const AIO: [i64; 4] = [
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_destroy,
];

/// Installs a filter that gives `answer` to these calls; sets NO_NEW_PRIVS on the way.
fn filter(calls: &[i64], answer: SeccompAction) -> Result<()> {
    // No rules for a system call's arguments: every call of it matches.
    let calls: BTreeMap<i64, _> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH
        .try_into()
        .context("no filters for this machine")?;
    let program: BpfProgram =
        SeccompFilter::new(calls, SeccompAction::Allow, answer, architecture)?.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}
