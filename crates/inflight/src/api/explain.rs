//! Which way a transfer or a sync would take now, and why.

use std::fmt;
use std::fs;
use std::os::fd::RawFd;

use super::device::{device_of, of_queue};
use super::durable::Durable;
use super::engine::BackendKind;
use super::file::File;
use super::open::statx;
use super::transfer::{ReadAt, WriteAt};
use super::upkeep::SyncFile;
use super::vectored::{ReadVectoredAt, WriteVectoredAt, total};
use crate::buf::{IoBuf, IoBufMut};
use crate::op::{Plan, Prepare, Wishes};
use crate::policy::{self, Durably, Way};

/// Which way a transfer or a sync would take now, and why. Made by [`ReadAt::explain`],
/// [`WriteAt::explain`], [`ReadVectoredAt::explain`], [`WriteVectoredAt::explain`] and
/// [`SyncFile::explain`].
///
/// The next transfer may change it: the library learns from how each one is served.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::fs::File;
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// println!("{}", file.read_at(vec![0; 4096], 0).explain());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The way if it is run by [`wait`](crate::Operation::wait).
    pub alone: Way,
    /// The way in a [`Batch`](crate::Batch) or a [`Queue`](crate::Queue).
    pub batched: Way,
    /// The way if it is awaited.
    pub awaited: Way,
    /// Why, in one sentence.
    pub why: &'static str,
    /// What the backend is of which the ways and the reason speak.
    pub backend: BackendKind,
    /// How a write is made durable that has a wish for it ([`WriteAt::dsync`]); `None` without. The
    /// way is that of the write itself.
    pub durably: Option<Durably>,
    /// Whether it goes past the page cache.
    pub direct: bool,
    /// Whether the file takes transfers of this kind without waiting (`RWF_NOWAIT`), once one of
    /// them without a wish has shown it.
    pub takes_nowait: Option<bool>,
    /// The largest transfer handed over at once, in bytes.
    pub limit_bytes: u32,
    /// The type of the file system, as `/proc/self/mountinfo` names it. For people: no decision
    /// depends on it.
    pub file_system: Option<String>,
    /// The I/O scheduler of the device. For people too.
    pub scheduler: Option<String>,
}

impl Explanation {
    fn of(file: &File, plan: &Plan, bytes: usize, is_write: bool) -> Self {
        let handle = file.handle();
        let facts = match plan {
            Plan::Run(_, request) => handle.facts_of(request.op.fd()),
            _ => handle.facts(),
        };
        let guide = match plan {
            Plan::Run(road, _) => policy::explain(*road, bytes),
            Plan::Sync(_) => policy::explain_sync(),
            Plan::Answered(answer) if answer.errno().is_some() => policy::explain_refused(),
            Plan::Answered(_) | Plan::Cover => policy::explain_none(),
        };
        let guide = match facts.direct == handle.facts().direct {
            true => guide,
            false => policy::explain_unaligned(guide),
        };
        let fd = handle.raw_fd();
        let backend = file.engine().backend().kind;
        let alone = match guide.alone {
            Way::PlainCallOrRing if backend != BackendKind::Uring => Way::PlainCall,
            way => way,
        };
        Self {
            alone,
            batched: guide.batched,
            awaited: guide.awaited,
            why: guide.why,
            backend,
            durably: None,
            direct: facts.direct,
            takes_nowait: handle.takes_nowait(facts, is_write),
            limit_bytes: facts.limit_bytes,
            file_system: file_system_of(fd),
            scheduler: scheduler_of(fd),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        writeln!(f, "  alone: {}", self.alone)?;
        writeln!(f, "  in a batch: {}", self.batched)?;
        writeln!(f, "  awaited: {}", self.awaited)?;
        if let Some(durably) = self.durably {
            writeln!(f, "  {durably}")?;
        }
        let nowait = match self.takes_nowait {
            None => "not known yet",
            Some(true) => "taken",
            Some(false) => "refused",
        };
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
        write!(
            f,
            "  backend {}, {}, RWF_NOWAIT {nowait}, at most {} bytes at once, file system {}, \
             scheduler {}",
            self.backend,
            if self.direct { "direct" } else { "buffered" },
            self.limit_bytes,
            name(&self.file_system),
            name(&self.scheduler),
        )
    }
}

impl<B: IoBufMut> ReadAt<'_, B> {
    /// Which way it would take now, and why. The device is not asked for anything; what is resident
    /// of a mapped file may already be copied to the buffer.
    pub fn explain(&mut self) -> Explanation {
        let plan = planned(self);
        Explanation::of(self.file, &plan, self.buf.len(), false)
    }
}

impl<B: IoBuf> WriteAt<'_, B> {
    /// Which way it would take now, and why. Nothing is written.
    pub fn explain(&mut self) -> Explanation {
        let plan = planned(self);
        let durably = durably(self.wishes, self.durable.as_deref());
        Explanation {
            durably,
            ..Explanation::of(self.file, &plan, self.buf.len(), true)
        }
    }
}

impl<B: IoBufMut> ReadVectoredAt<'_, B> {
    /// Which way it would take now, and why. The device is not asked for anything.
    pub fn explain(&mut self) -> Explanation {
        let plan = planned(self);
        Explanation::of(self.file, &plan, total(&self.bufs), false)
    }
}

impl<B: IoBuf> WriteVectoredAt<'_, B> {
    /// Which way it would take now, and why. Nothing is written.
    pub fn explain(&mut self) -> Explanation {
        let plan = planned(self);
        let durably = durably(self.wishes, self.durable.as_deref());
        Explanation {
            durably,
            ..Explanation::of(self.file, &plan, total(&self.bufs), true)
        }
    }
}

impl SyncFile<'_> {
    /// Which way it would take now, and why. Nothing is flushed.
    pub fn explain(&mut self) -> Explanation {
        let plan = planned(self);
        Explanation::of(self.file, &plan, 0, true)
    }
}

fn durably(wishes: Wishes, durable: Option<&Durable<'_>>) -> Option<Durably> {
    let chosen = durable.map_or(Durably::Alone, Durable::durably);
    wishes.has(Wishes::DSYNC).then_some(chosen)
}

fn planned<O: Prepare>(operation: &mut O) -> Plan {
    match operation.prepare().0 {
        Plan::Cover => operation.cover().0,
        plan => plan,
    }
}

/// The type after the hyphen of the line with the mount of this descriptor (proc_pid_fdinfo(5),
/// proc_pid_mountinfo(5)). Not by the device: btrfs gives its files numbers that no mount has.
fn file_system_of(fd: RawFd) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_it = |line: &&str| line.split(' ').next() == Some(mount.trim());
    let (_, after) = mounts.lines().find(is_it)?.split_once(" - ")?;
    after.split(' ').next().map(str::to_owned)
}

/// What sysfs has in brackets.
pub(super) fn scheduler_of(fd: RawFd) -> Option<String> {
    let text = of_queue(device_of(&statx(fd).ok()?), "scheduler")?;
    let text = text.trim();
    let chosen = text
        .split_once('[')
        .and_then(|(_, after)| after.split_once(']'));
    Some(chosen.map_or(text, |(name, _)| name).to_owned())
}
