//! Why io_uring is refused, and what to do about it: one wording, wherever it is told.

use std::io::Error;

use crate::measure::host;

/// Who may have said no, as far as the system tells.
pub(crate) struct Facts {
    /// `kernel.io_uring_disabled`.
    pub(crate) disabled: Option<u32>,
    /// Whether this process is under a seccomp filter.
    pub(crate) filtered: bool,
}

impl Facts {
    /// Of the process that runs this.
    pub(crate) fn of_process() -> Self {
        Self {
            disabled: host::io_uring_disabled(),
            filtered: host::seccomp() == Some(2),
        }
    }
}

/// What was found, and what to do; the latter can be empty.
pub(crate) struct Denial {
    pub(crate) finding: String,
    pub(crate) fix: &'static str,
}

/// What an error of setting a ring up means.
pub(crate) fn explain(errno: i32, facts: &Facts) -> Denial {
    let cause = Error::from_raw_os_error(errno);
    let denied = matches!(errno, libc::EPERM | libc::EACCES);
    let also = match facts.filtered {
        true => "; there is a seccomp filter as well, which may say no next",
        false => "",
    };
    let (finding, fix) = match (errno, facts.disabled) {
        (_, Some(2)) if denied => (
            format!("io_uring is switched off: kernel.io_uring_disabled is 2{also}"),
            "sudo sysctl kernel.io_uring_disabled=0",
        ),
        (_, Some(1)) if denied => (
            format!("io_uring is for one group only: kernel.io_uring_disabled is 1{also}"),
            "sudo sysctl kernel.io_uring_group=$(id -g)",
        ),
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) if facts.filtered => (
            format!("io_uring is refused by a seccomp filter ({cause})"),
            "docker run --security-opt seccomp=PROFILE.json # one that allows io_uring_setup, \
             io_uring_enter and io_uring_register",
        ),
        (libc::ENOSYS, _) => (
            "io_uring is not in this kernel".to_owned(),
            "a kernel from 6.1 on with CONFIG_IO_URING",
        ),
        (libc::ENOMEM, _) => (
            "io_uring cannot have the memory for even a small ring".to_owned(),
            "sudo prlimit --memlock=unlimited --pid $$",
        ),
        _ if denied => (
            format!("io_uring is refused ({cause}): by no sysctl and no seccomp filter"),
            "sudo ausearch -m avc -ts recent # a security module leaves a trace there",
        ),
        _ => (format!("io_uring cannot be set up: {cause}"), ""),
    };
    Denial { finding, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(errno: i32, disabled: u32, filtered: bool) -> String {
        let facts = Facts {
            disabled: Some(disabled),
            filtered,
        };
        let Denial { finding, fix } = explain(errno, &facts);
        assert!(finding.starts_with("io_uring "), "{finding}");
        format!("{finding} -> {fix}")
    }

    #[test]
    fn sysctl_filter_and_kernel_are_told_apart() {
        let sysctl = told(libc::EPERM, 2, false);
        assert!(sysctl.contains("io_uring_disabled=0") && !sysctl.contains("seccomp"));
        assert!(told(libc::EPERM, 2, true).contains("seccomp filter as well"));
        assert!(told(libc::EPERM, 1, false).contains("io_uring_group"));
        assert!(told(libc::EPERM, 0, true).contains("security-opt"));
        assert!(told(libc::ENOSYS, 0, true).contains("security-opt"));
        // The sysctl answers EPERM, never ENOSYS.
        assert!(told(libc::ENOSYS, 2, false).contains("CONFIG_IO_URING"));
        assert!(told(libc::EPERM, 0, false).contains("no sysctl and no seccomp"));
        assert!(told(libc::ENOMEM, 0, false).contains("--memlock"));
        assert!(told(libc::EINVAL, 0, false).contains("cannot be set up"));
    }
}
