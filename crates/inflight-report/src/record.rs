//! The stored format of a benchmark, `inflight.bench/1`.
//!
//! Durations are nanoseconds, sizes are bytes, histograms are HdrHistogram V2 in base64.
//! Changes are additive only: a field may come, none may go or change its meaning.
//! What is drawn from a record (ratios, words, tables) is in [`crate::stats`] and [`crate::text`].

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{packed, whole};

/// The name and version of the stored format.
pub const SCHEMA: &str = "inflight.bench/1";

/// How a page begins the element that holds its record, packed by [`crate::packed`].
pub(crate) const EMBEDDED: &str = "<script type=\"text/plain\" id=\"inflight-record\">";

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// It is a page, and not one of this program.
    NoRecord,
    /// It is another format, or another version of this one.
    OtherSchema(String),
    /// It is not JSON, or not all of a record, or none that a run can have written.
    Broken(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord => f.write_str(
                "this page holds no record: it was not written by `inflight`, or was cut short",
            ),
            Self::OtherSchema(schema) => {
                write!(
                    f,
                    "the record is `{schema}`, and only `{SCHEMA}` can be read: show it with the \
                     `inflight` that wrote it"
                )
            }
            Self::Broken(why) => write!(
                f,
                "this is no record, or not a whole one: {why}; name a file that --export-json or \
                 --report wrote"
            ),
        }
    }
}

impl std::error::Error for LoadError {}

/// Reads a record from its JSON, or from a page that holds it.
///
/// # Errors
/// [`LoadError`], by how far it got.
pub fn load(text: &str) -> Result<Record, LoadError> {
    /// What every version has.
    #[derive(Deserialize)]
    struct Named {
        schema: String,
    }
    let text = text.trim_start_matches('\u{feff}').trim();
    let unpacked;
    let json = if text.starts_with('<') {
        let inside = text.split_once(EMBEDDED).ok_or(LoadError::NoRecord)?.1;
        let text = inside.split_once("</script>").ok_or(LoadError::NoRecord)?.0;
        unpacked = packed::unpack(text).map_err(LoadError::Broken)?;
        unpacked.as_str()
    } else {
        text
    };
    let broken = |why: serde_json::Error| LoadError::Broken(why.to_string());
    let named: Named = serde_json::from_str(json).map_err(broken)?;
    if named.schema != SCHEMA {
        return Err(LoadError::OtherSchema(named.schema));
    }
    let record = serde_json::from_str(json).map_err(broken)?;
    match whole::defect(&record) {
        Some(why) => Err(LoadError::Broken(why)),
        None => Ok(record),
    }
}

/// One run of the command: what was asked, on what machine, and every round of every cell.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The program that measured.
    pub tool: Tool,
    /// When the run began, UTC, as `2026-01-31T12:00:00Z`.
    pub started_utc: String,
    /// How long the whole run took, test data included.
    pub took_ns: u64,
    /// The seed of offsets, data and order: the same seed asks for the same I/O.
    pub seed: u64,
    /// The command line.
    pub argv: Vec<String>,
    /// A hash of everything that must agree before two records may be compared.
    pub plan_hash: String,
    /// Rounds that were planned; a cell may have fewer when the run was interrupted, or when there
    /// was not time for all.
    pub rounds_planned: u32,
    /// Measured time of one cell in one round, warm-up not included.
    pub cell_duration_ns: u64,
    /// Discarded time before each measured time; longer where files grow by synced
    /// writes.
    pub warmup_ns: u64,
    /// Whether the run was cut short (Ctrl-C).
    pub interrupted: bool,
    /// The machine.
    pub machine: Machine,
    /// What was read.
    pub target: Target,
    /// The profiles, in the order they ran.
    pub profiles: Vec<ProfileSummary>,
    /// What the reader has to know before trusting a figure.
    pub findings: Vec<Finding>,
    /// Whether a cache below this machine answers; absent where nothing was read past the page
    /// cache, or too little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reread: Option<Reread>,
    /// Every profile x strategy x depth.
    pub cells: Vec<Cell>,
    /// How far the library is behind the best of the others, from the rounds of the cells.
    #[serde(default)]
    pub regrets: Vec<Regret>,
}

/// Blocks that nobody had read in the run, read past the page cache, and then once more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reread {
    /// Name of the profile before which it was done.
    pub profile: String,
    /// How many blocks were read twice.
    pub blocks: u64,
    /// Median latency of the first reading.
    pub ns_first: u64,
    /// Median latency of the second.
    pub ns_second: u64,
    /// How many times as fast the second was, of the same blocks.
    pub ratio: f64,
    /// Lower end of its interval.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Achieved level of the interval, from 0 to 1.
    pub level: f64,
    /// Whether that is so much faster that a cache must have answered.
    pub cached: bool,
}

/// The program that measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Semantic version.
    pub version: String,
    /// Which backend the library chose and why, in one sentence.
    pub backend: String,
}

/// The machine that was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Logical processors this process may use.
    pub cpus: u32,
    /// Model name of the first processor, if the kernel tells.
    pub cpu_model: Option<String>,
    /// Current clock source of the kernel (`tsc`, `kvm-clock`, ...).
    pub clocksource: Option<String>,
    /// Cost of reading the clock once, measured.
    pub clock_cost_ns: f64,
    /// Cost of timing one operation, measured: two readings of the clock and an entry in the
    /// histograms; 0 in records that do not have it.
    #[serde(default)]
    pub timing_cost_ns: f64,
    /// Frequency governor of the first processor.
    pub governor: Option<String>,
    /// `RLIMIT_MEMLOCK` in bytes; absent when unlimited.
    pub memlock_bytes: Option<u64>,
    /// `/proc/sys/kernel/io_uring_disabled`.
    pub io_uring_disabled: Option<u32>,
    /// `Seccomp:` of `/proc/self/status`: 0 off, 1 strict, 2 filter.
    pub seccomp: Option<u32>,
    /// Hypervisor, when the processor flags say there is one.
    pub virtualised: bool,
}

/// The file that was read and what it is on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// The directory or file that was named.
    pub path: String,
    /// Whether the command made the file itself.
    pub scratch: bool,
    /// Bytes of test data.
    pub size_bytes: u64,
    /// Type of the file system (`ext4`, `tmpfs`, ...).
    pub fs: String,
    /// Mount options.
    pub mount_options: Option<String>,
    /// Alignment for direct I/O from statx, if it tells.
    pub dio_memory_align_bytes: Option<u32>,
    /// Alignment of offset and length for direct I/O from statx, if it tells.
    pub dio_offset_align_bytes: Option<u32>,
    /// The block devices below, top first.
    pub stack: Vec<Device>,
}

/// A block device, from sysfs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Kernel name (`nvme0n1`, `vda`, `loop0`).
    pub name: String,
    /// Model, where there is one.
    pub model: Option<String>,
    /// Active I/O scheduler.
    pub scheduler: Option<String>,
    /// `queue/nr_requests`.
    pub nr_requests: Option<u32>,
    /// `queue/read_ahead_kb`.
    pub read_ahead_kb: Option<u32>,
    /// `queue/max_sectors_kb`.
    pub max_sectors_kb: Option<u32>,
    /// `queue/io_poll`.
    pub io_poll: Option<bool>,
    /// `queue/write_cache`.
    pub write_cache: Option<String>,
    /// `queue/rotational`; virtual disks often say yes and are not.
    pub rotational: Option<bool>,
}

/// What a profile asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProfileSummary {
    /// Name (`direct-random-read`).
    pub name: String,
    /// One line for people.
    pub title: String,
    /// Bytes per operation; the most of them where ranges differ in length.
    pub block_size_bytes: u32,
    /// Whether the page cache is to be passed by.
    pub direct: bool,
    /// Whether the data is to be in the page cache.
    pub cached: bool,
    /// Order and direction of the operations.
    #[serde(default)]
    pub access: Access,
    /// Of mixed operations, how many in a hundred read; absent of others, and in records that do
    /// not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_percent: Option<u32>,
    /// Whether the page cache is emptied of the data before each measured stretch.
    #[serde(default)]
    pub cold: bool,
    /// Whether every other block is brought into the page cache, and the others are thrown out of
    /// it, before each measured stretch.
    #[serde(default)]
    pub half_cached: bool,
    /// Files the data is spread over; 0 in records that do not tell, which had one.
    #[serde(default)]
    pub files: u32,
    /// When what is written is brought to the device.
    #[serde(default)]
    pub sync: Sync,
    /// Whether as many operations as the depth begin together, and all of them are waited for
    /// before the next begin.
    #[serde(default)]
    pub batched: bool,
    /// Whether each operation reads back what it has written.
    #[serde(default)]
    pub read_back: bool,
    /// Whether the content of every block that was read is checked.
    #[serde(default)]
    pub verified: bool,
    /// Which programs the profile stands for, and what it is to show.
    #[serde(default)]
    pub reason: String,
}

/// The order and direction of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Blocks anywhere, read.
    #[default]
    RandomRead,
    /// One block after the other, read.
    SequentialRead,
    /// Blocks anywhere, written over.
    RandomWrite,
    /// One block after the other, written over.
    SequentialWrite,
    /// Blocks anywhere, some of them read and the others written over.
    Mixed,
    /// Ranges of different length anywhere, read.
    RangeRead,
    /// One block after the other, written to the end of a file that grows.
    Append,
}

impl Access {
    /// Whether anything is read, apart from reading back.
    #[must_use]
    pub fn reads(self) -> bool {
        match self {
            Self::RandomRead | Self::SequentialRead | Self::Mixed | Self::RangeRead => true,
            Self::RandomWrite | Self::SequentialWrite | Self::Append => false,
        }
    }

    /// Whether anything is written.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::RandomWrite | Self::SequentialWrite | Self::Append | Self::Mixed => true,
            Self::RandomRead | Self::SequentialRead | Self::RangeRead => false,
        }
    }
}

/// When what is written is brought to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// When the kernel sees fit.
    #[default]
    None,
    /// Once, at the end of each measured stretch, of which that is part.
    End,
    /// After each write: the operation is the write and its sync, and so is its latency.
    Each,
}

/// Something the reader has to know, tied to the cells that it spoils.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable name, as `tmpfs-target`.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What follows from it for the figures.
    pub why_it_matters: String,
    /// What to do about it; empty when there is nothing to do.
    pub fix: String,
    /// Ids of the cells it affects; empty means all.
    pub affects: Vec<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know.
    Hint,
    /// Some figures mean something else than they seem to.
    Warning,
    /// What was asked could not be measured.
    Blocker,
}

/// One profile at one depth with one strategy.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// `profile/strategy/depth`, with `xN` appended where N threads work; unique in the record.
    pub id: String,
    /// Profile name.
    pub profile: String,
    /// Strategy name.
    pub strategy: String,
    /// Most operations in flight.
    pub depth: u32,
    /// Threads that submit.
    pub threads: u32,
    /// Mode that was asked for, as `direct`, `registered-buffers`: name to value.
    pub requested: BTreeMap<String, String>,
    /// Mode that took effect.
    pub effective: BTreeMap<String, String>,
    /// Why the cell was not measured, or why it is out of the ranking.
    pub skipped: Option<Skipped>,
    /// The measured rounds, in order.
    pub rounds: Vec<Round>,
    /// Operations due per second, in an open loop: they begin by the clock, however long others
    /// take. Absent in a closed loop, where the next begins when one ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u64>,
    /// Latencies of all rounds together.
    pub latency: Option<Latency>,
    /// Latencies over time; absent when the strategy ran in another process.
    pub heat: Option<Heat>,
    /// Fresh rounds in which the cells worked by turns of a few milliseconds; absent where they ran
    /// one after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turns>,
}

/// The turns of one cell in one fresh round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Turns {
    /// Number of the round, as in [`Round::block`].
    pub block: u32,
    /// Picoseconds per operation of each turn, 0 where none was completed: those of two cells with
    /// the same place in the same round ran next to each other.
    pub op_ps: Vec<u64>,
}

/// Why a cell has no figures, or has figures that do not count.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// One sentence.
    pub reason: String,
}

/// The reason of cells that had no round because the run was stopped.
pub const STOPPED: &str = "the run was stopped before its first round";

/// The reason of cells that had no round because the run was to end in time.
pub const NO_TIME: &str = "no time was left for its first round";

/// One measured stretch of one cell.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Number of the shuffled block this stretch belongs to, from 0: rounds of
    /// different cells with the same number ran next to each other.
    pub block: u32,
    /// Place in its block, from 0.
    pub order: u32,
    /// Whether it was run anew, after all cells had been screened, among the cells at the front
    /// or with the worst regret alone: such rounds took no part in choosing them.
    #[serde(default)]
    pub confirms: bool,
    /// Start, counted from the start of the run.
    pub start_ns: u64,
    /// Length of the stretch.
    pub duration_ns: u64,
    /// Operations completed.
    pub ops: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Bytes the device served (`/proc/self/io: read_bytes`); absent when the
    /// strategy ran in another process that does not tell.
    pub device_bytes: Option<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// The number of the last of these errors (errno(3)); absent where none failed, and where the
    /// strategy ran in another process that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Operations that delivered fewer bytes than asked.
    pub short: u64,
    /// User time of the whole process in the stretch.
    pub user_ns: u64,
    /// System time of the whole process in the stretch, kernel workers (io-wq) included.
    pub sys_ns: u64,
    /// Processor time of kernel workers (io-wq, and the threads of `SQPOLL`) in the stretch, a part
    /// of the system time; absent when the kernel does not tell.
    pub worker_ns: Option<u64>,
    /// System calls made for I/O; absent when unknown.
    pub syscalls: Option<u64>,
    /// Context switches of the process, voluntary and not.
    pub ctxsw: u64,
    /// Operations that delivered other bytes than had been written there.
    #[serde(default)]
    pub wrong: u64,
    /// What the block device did; absent where there is none.
    #[serde(default)]
    pub device: Option<DeviceWork>,
    /// How the clock was kept up with; in an open loop alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenRound>,
}

/// One stretch of an open loop: what was due in it, and what became of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenRound {
    /// Operations whose intended start lies in the stretch.
    pub due: u64,
    /// Of those, the ones that had not begun when it was over: no place was free for them.
    pub backlog: u64,
    /// Of those, the ones that were given up, because there was no end to them for half as long as
    /// the stretch after it. They have no latency, and would have had the longest.
    pub unserved: u64,
    /// How late the clock began operations on average for which a place was free: the timer and
    /// the scheduler, not the disk. It is part of their latency.
    pub lag_ns: u64,
}

/// What the block device that the file system is on did in a stretch, for whomever: `stat` of
/// its sysfs directory counts for all programs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceWork {
    /// Read requests completed, after neighbours were merged.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests completed, after neighbours were merged.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes of its volatile cache; absent where the kernel does not count them.
    pub flushes: Option<u64>,
}

/// How far one of the library's roads is behind the best of the others in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Regret {
    /// Profile name.
    pub profile: String,
    /// Most operations in flight.
    pub depth: u32,
    /// The library's road.
    pub strategy: String,
    /// Id of its cell.
    pub cell: String,
    /// Id of the best cell that copies into the caller's buffer and reports errors, of those with
    /// as many operations in flight or fewer.
    pub reference: String,
    /// The reference's rate over the library's, by the best estimate: 1.03 is a regret of 3 %.
    pub ratio: f64,
    /// The good end of its interval.
    pub lo: f64,
    /// The bad end, by which regrets are put in order and held against 3 %.
    pub hi: f64,
    /// Achieved level of the interval, from 0 to 1.
    pub level: f64,
}

/// What latencies are counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyClock {
    /// The call, in a closed loop: nothing is asked for while all wait.
    #[default]
    Closed,
    /// The moment at which the operation was due, in an open loop: who had to wait for a place has
    /// waited.
    Intended,
}

/// Latencies of a cell, to the result.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// What they are counted from.
    #[serde(default)]
    pub clock: LatencyClock,
    /// Every how many operations one was timed.
    pub sample_every: u32,
    /// Number of timed operations.
    pub samples: u64,
    /// Median.
    pub ns_p50: u64,
    /// 99th percentile; absent below 1,000 samples.
    pub ns_p99: Option<u64>,
    /// 99.9th percentile; absent below 10,000 samples.
    pub ns_p999: Option<u64>,
    /// Longest.
    pub ns_max: u64,
    /// HdrHistogram V2 (deflated) of nanoseconds, base64.
    pub hist_v2_b64: String,
}

/// Latencies of a cell over time, in coarse bands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Heat {
    /// One text for each round but those by turns, in their order, as [`crate::heat`] has it:
    /// slices of equal length, in each of them how many timed operations ended, by how long they
    /// took.
    pub rounds: Vec<String>,
}
