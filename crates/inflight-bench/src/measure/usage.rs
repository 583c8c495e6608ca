//! What has been used so far: processor time and context switches of the process, the device.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;

use inflight_report::record::DeviceWork;

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

/// What the device has done so far: for this process, and for all.
pub(crate) struct DeviceMeter {
    io: Option<File>,
    stat: Option<File>,
}

impl DeviceMeter {
    /// `stat` is the file of this name of the device; where there is none, and where the kernel
    /// does not account for processes, every reading is absent.
    pub(crate) fn open(stat: Option<&Path>) -> Self {
        Self {
            io: File::open("/proc/self/io").ok(),
            stat: stat.and_then(|path| File::open(path).ok()),
        }
    }

    /// `read_bytes` of `/proc/self/io`: what this process caused to be fetched from a device.
    pub(crate) fn fetched_bytes(&self) -> Option<u64> {
        let mut text = [0; 512];
        let text = read(self.io.as_ref()?, &mut text)?;
        text.lines()
            .find_map(|line| line.strip_prefix("read_bytes: "))?
            .trim()
            .parse()
            .ok()
    }

    /// What the device did for all programs.
    pub(crate) fn work(&self) -> Option<DeviceWork> {
        let mut text = [0; 512];
        device_work(read(self.stat.as_ref()?, &mut text)?)
    }
}

fn read<'t>(file: &File, text: &'t mut [u8]) -> Option<&'t str> {
    let length = file.read_at(text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()
}

/// The fields of a device's `stat`.
///
/// # Source
/// Documentation/block/stat.rst of the kernel; a sector has 512 bytes there.
fn device_work(text: &str) -> Option<DeviceWork> {
    let fields = text.split_ascii_whitespace().map(str::parse);
    let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
    let &[reads, _, read_sectors, _, writes, _, written_sectors, ..] = fields.as_slice() else {
        return None;
    };
    Some(DeviceWork {
        reads,
        read_bytes: read_sectors * 512,
        writes,
        written_bytes: written_sectors * 512,
        flushes: fields.get(15).copied(),
    })
}

/// What a device did in two stretches together.
pub(crate) fn device_work_of_both(a: &DeviceWork, b: &DeviceWork) -> DeviceWork {
    DeviceWork {
        reads: a.reads + b.reads,
        read_bytes: a.read_bytes + b.read_bytes,
        writes: a.writes + b.writes,
        written_bytes: a.written_bytes + b.written_bytes,
        flushes: a.flushes.zip(b.flushes).map(|(a, b)| a + b),
    }
}

/// What a device did between two readings.
pub(crate) fn device_work_between(before: &DeviceWork, after: &DeviceWork) -> DeviceWork {
    let since = |field: fn(&DeviceWork) -> u64| field(after).saturating_sub(field(before));
    let flushes = after.flushes.zip(before.flushes);
    DeviceWork {
        reads: since(|work| work.reads),
        read_bytes: since(|work| work.read_bytes),
        writes: since(|work| work.writes),
        written_bytes: since(|work| work.written_bytes),
        flushes: flushes.map(|(after, before)| after.saturating_sub(before)),
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

    #[test]
    fn the_fields_of_a_device_are_found_with_and_without_flushes() {
        let new = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let work = device_work(new).unwrap();
        assert_eq!((work.reads, work.read_bytes), (1, 3 * 512));
        assert_eq!((work.writes, work.written_bytes), (5, 7 * 512));
        assert_eq!(work.flushes, Some(16));
        let old = device_work("1 2 3 4 5 6 7 8 9 10 11\n").unwrap();
        assert_eq!(old.flushes, None);
        assert_eq!(device_work("1 2 3\n"), None);
        let later = DeviceWork {
            reads: 4,
            flushes: Some(20),
            ..work
        };
        let between = device_work_between(&work, &later);
        assert_eq!((between.reads, between.flushes), (3, Some(4)));
        assert_eq!(between.written_bytes, 0);
    }
}
