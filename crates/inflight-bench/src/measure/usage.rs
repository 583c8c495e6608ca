//! What the process has used so far: processor time, context switches, bytes from the device.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

/// Totals of the whole process, kernel workers (io-wq) included: those are threads of it.
/// Source: getrusage(2), proc_pid_io(5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) sys_ns: u64,
    pub(crate) ctxsw: u64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the pointer is to writable memory of the right type, for this call only.
        let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        assert_eq!(result, 0, "getrusage cannot fail with these arguments");
        // SAFETY: the call succeeded, so the kernel has filled the structure.
        let usage = unsafe { usage.assume_init() };
        Self {
            user_ns: nanoseconds(usage.ru_utime),
            sys_ns: nanoseconds(usage.ru_stime),
            ctxsw: count(usage.ru_nvcsw) + count(usage.ru_nivcsw),
        }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        // The kernel scales user and system time to their exact sum, so that one of them
        // can step back a little (kernel/sched/cputime.c, cputime_adjust).
        Self {
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            sys_ns: self.sys_ns.saturating_sub(before.sys_ns),
            ctxsw: self.ctxsw.saturating_sub(before.ctxsw),
        }
    }
}

fn nanoseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_usec).unwrap_or(0) * 1_000
}

fn count(value: libc::c_long) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// `read_bytes` of `/proc/self/io`: what this process caused to be fetched from a block device.
pub(crate) struct DeviceBytes {
    file: Option<File>,
}

impl DeviceBytes {
    /// Where the kernel does not account for it, every reading is absent.
    pub(crate) fn open() -> Self {
        Self {
            file: File::open("/proc/self/io").ok(),
        }
    }

    pub(crate) fn now(&self) -> Option<u64> {
        let mut text = [0; 512];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("read_bytes: "))?
            .trim()
            .parse()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_grows_with_work() {
        let cpu_ns = |usage: Usage| usage.user_ns + usage.sys_ns;
        let before = Usage::now();
        let mut sum = 0u64;
        for _ in 0..50_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_ns(Usage::now().since(&before)) > 1_000_000);
        assert_eq!(cpu_ns(before.since(&Usage::now())), 0);
    }
}
