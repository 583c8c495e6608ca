//! Processor time of the threads that the kernel makes for this process: io-wq and `SQPOLL`.
//!
//! They are threads of the process, so its totals include them; here they are told apart, because
//! nobody sees them in the program that caused them.

#[cfg(test)]
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How the kernel names its workers. Source: `io_uring/io-wq.c` and `io_uring/sqpoll.c` of Linux.
const NAMES: [&str; 2] = ["iou-wrk-", "iou-sqp-"];

/// The workers that are known, each with its figures open: to look for workers is to look at every
/// thread, which takes a millisecond beside a hundred, and reading those of a few microseconds.
#[derive(Debug)]
pub(crate) struct Workers {
    tasks: PathBuf,
    known: BTreeMap<OsString, File>,
    /// Whether the kernel tells: without scheduler statistics the first column is zero for ever.
    told: bool,
}

/// What workers have used so far, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent(BTreeMap<OsString, u64>);

impl Workers {
    /// Looks for those that live now. Where a lane is on this thread, not to be done between the
    /// warm-up and what is measured: it rests meanwhile, and what it has in flight is completed for
    /// nothing.
    pub(crate) fn find() -> Self {
        // Of the first thread, as a new one may have been counted nothing yet.
        let first = File::open("/proc/self/schedstat").ok();
        let told = first.is_some_and(|first| spent_ns(&first).is_some_and(|ns| ns > 0));
        Self::below(Path::new("/proc/self/task"), told)
    }

    fn below(tasks: &Path, told: bool) -> Self {
        let mut workers = Self {
            tasks: tasks.to_owned(),
            known: BTreeMap::new(),
            told,
        };
        workers.look();
        workers
    }

    /// Adds those that are not known yet.
    fn look(&mut self) {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        if !self.told {
            return;
        }
        for task in fs::read_dir(&self.tasks).into_iter().flatten().flatten() {
            let (id, path) = (task.file_name(), task.path());
            if self.known.contains_key(&id) {
                continue;
            }
            let is_worker = fs::read_to_string(path.join("comm"))
                .is_ok_and(|name| NAMES.iter().any(|known| name.starts_with(known)));
            // A worker may end at any time.
            if is_worker && let Ok(file) = File::open(path.join("schedstat")) {
                self.known.insert(id, file);
            }
        }
    }

    /// What those that are known have used; absent where the kernel does not tell.
    pub(crate) fn spent(&self) -> Option<Spent> {
        let spent = |(id, file): (&OsString, &File)| Some((id.clone(), spent_ns(file)?));
        self.told
            .then(|| Spent(self.known.iter().filter_map(spent).collect()))
    }

    /// As above; then looks for those that are new, and adds what they have used.
    pub(crate) fn spent_by_all(&mut self) -> Option<Spent> {
        let spent = self.spent();
        self.look();
        let mut spent = spent?;
        for (id, ns) in self.spent()?.0 {
            spent.0.entry(id).or_insert(ns);
        }
        Some(spent)
    }
}

impl Spent {
    /// What they have used since then. What a worker used that has ended in between is missing;
    /// idle ones live on for seconds, so hardly any does. One that was not known then counts from
    /// its beginning, which may have been in the warm-up.
    pub(crate) fn since_ns(&self, before: &Self) -> u64 {
        let since = |(task, after): (&OsString, &u64)| {
            after.saturating_sub(before.0.get(task).copied().unwrap_or(0))
        };
        self.0.iter().map(since).sum()
    }
}

/// The first column of schedstat: nanoseconds on a processor. The descriptor is that of the thread,
/// not of its number, which another may get.
/// Source: `Documentation/scheduler/sched-stats.rst` of Linux.
fn spent_ns(schedstat: &File) -> Option<u64> {
    let mut text = [0; 128];
    let length = schedstat.read_at(&mut text, 0).ok()?;
    let text = str::from_utf8(&text[..length]).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
thread_local! {
    /// How often this thread has looked for workers.
    pub(crate) static LOOKS: Cell<u32> = const { Cell::new(0) };
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
        let mut workers = Workers::below(tasks, true);
        let before = workers.spent().unwrap();
        task(tasks, "1", "inflight", 9_000);
        task(tasks, "2", "iou-wrk-1", 80);
        task(tasks, "3", "iou-sqp-1", 5);
        let known = workers.spent().unwrap();
        assert_eq!(known.since_ns(&before), 30);
        let after = workers.spent_by_all().unwrap();
        assert_eq!(after.since_ns(&before), 35);
        assert_eq!(before.since_ns(&after), 0);
        assert_eq!(workers.spent(), Some(after));
        assert_eq!(Workers::below(tasks, false).spent_by_all(), None);
    }
}
