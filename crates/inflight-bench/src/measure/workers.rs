//! Processor time of the threads that the kernel makes for this process: io-wq and `SQPOLL`.
//!
//! They are threads of the process, so its totals include them; here they are told apart, because
//! nobody sees them in the program that caused them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// How the kernel names its workers. Source: `io_uring/io-wq.c` and `io_uring/sqpoll.c` of Linux.
const NAMES: [&str; 2] = ["iou-wrk-", "iou-sqp-"];

/// What every worker that lives now has used so far, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workers {
    spent_ns: BTreeMap<OsString, u64>,
}

impl Workers {
    /// Absent where the kernel does not tell.
    pub(crate) fn now() -> Option<Self> {
        // Without scheduler statistics the first column is zero for ever.
        let told = spent_ns(Path::new("/proc/thread-self")).is_some_and(|ns| ns > 0);
        told.then(|| Self::below(Path::new("/proc/self/task")))?
    }

    fn below(tasks: &Path) -> Option<Self> {
        let mut workers = Self::default();
        for task in fs::read_dir(tasks).ok()?.flatten() {
            let path = task.path();
            let is_worker = fs::read_to_string(path.join("comm"))
                .is_ok_and(|name| NAMES.iter().any(|known| name.starts_with(known)));
            // A worker may end at any time.
            if is_worker && let Some(ns) = spent_ns(&path) {
                workers.spent_ns.insert(task.file_name(), ns);
            }
        }
        Some(workers)
    }

    /// What they have used since then. What a worker used that has ended in between is missing;
    /// idle ones live on for seconds, so hardly any does.
    pub(crate) fn since_ns(&self, before: &Self) -> u64 {
        let since = |(task, after): (&OsString, &u64)| {
            after.saturating_sub(before.spent_ns.get(task).copied().unwrap_or(0))
        };
        self.spent_ns.iter().map(since).sum()
    }
}

/// The first column of schedstat: nanoseconds on a processor.
/// Source: `Documentation/scheduler/sched-stats.rst` of Linux.
fn spent_ns(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tasks: &Path, id: &str, name: &str, spent_ns: u64) {
        let path = tasks.join(id);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("comm"), format!("{name}\n")).unwrap();
        fs::write(path.join("schedstat"), format!("{spent_ns} 77 9\n")).unwrap();
    }

    #[test]
    fn only_workers_are_counted_and_new_ones_from_zero() {
        let directory = tempfile::tempdir().unwrap();
        let tasks = directory.path();
        task(tasks, "1", "inflight", 1_000);
        task(tasks, "2", "iou-wrk-1", 50);
        let before = Workers::below(tasks).unwrap();
        task(tasks, "1", "inflight", 9_000);
        task(tasks, "2", "iou-wrk-1", 80);
        task(tasks, "3", "iou-sqp-1", 5);
        let after = Workers::below(tasks).unwrap();
        assert_eq!(after.since_ns(&before), 35);
        assert_eq!(before.since_ns(&after), 0);
    }
}
