//! `inflight`: the library, through its public API only, and left to its own choices.
//!
//! One operation at a time is `.wait()`, as a program would write it; several in flight are a
//! queue (`inflight_queue`), and batches are a `Batch` (`inflight_batch`).

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ::inflight::fs::{Direct, File, OpenOptions, ReadAt};
use ::inflight::{AnyOp, BackendKind, BufPool, Engine, IoBufMut, Operation, PoolBuf, SetupError};
use anyhow::{Context, Result};

use super::arena::no_memory;
use super::one_by_one::{OneByOne, Perform};
use super::pread::Pread;
use super::road::{self, Host};
use super::tasks::Block;
use super::{Body, Job, Modes, Road, Shape, Strategy, Unavailable, Way, as_answer, modes};
use super::{inflight_batch, inflight_queue};
use crate::measure::calls::Asked;
use crate::profile::Profile;
use crate::work::{Kind, Step, Work, noise};

/// What the library has in flight on a thread unless it is told otherwise.
const USUAL_DEPTH: u32 = 128;

pub(crate) struct Inflight;

impl Strategy for Inflight {
    fn name(&self) -> &'static str {
        "inflight"
    }

    fn about(&self) -> &'static str {
        "the library: one at a time waited for, several in a queue of one thread"
    }

    /// A queue waits for results and not for the clock: several in flight are left to
    /// `inflight_threads`, where each thread has one operation, and futures to `inflight_tasks`.
    fn open_shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        Pread.shapes(profile, cpus)
    }

    fn road(&self, on: &Road<'_>) -> Option<Result<String>> {
        let host = Host::of_depth(on.depth);
        Some(road::at_first(on.paths, on.direct, on.work, host))
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// The engine of this process, as a program would have it; a deeper one where it is asked for.
fn engine(depth: u32) -> Result<Engine, SetupError> {
    static USUAL: OnceLock<Engine> = OnceLock::new();
    if depth > USUAL_DEPTH {
        return Engine::builder().queue_depth(depth).build();
    }
    if let Some(engine) = USUAL.get() {
        return Ok(engine.clone());
    }
    let engine = Engine::new()?;
    Ok(USUAL.get_or_init(|| engine).clone())
}

/// What all ways of using the library work with.
pub(super) struct Means {
    pub(super) engine: Engine,
    pub(super) files: Arc<[File]>,
    calls_before: u64,
    work: Work,
    host: Host,
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    static SYNCED: InCommon = InCommon::new();
    with_files(job, body, |engine| {
        let open = || Ok(open_all(engine, job.paths, job.direct, job.work)?.into());
        // One flush serves all threads that wait for it on one `File`.
        match job.depth == 1 && job.work.syncs_each() {
            true => SYNCED.get(job.paths, open),
            false => open(),
        }
    })
}

/// Files that the threads of a stretch have in common, as they would in a program.
pub(super) struct InCommon(Mutex<Option<Live>>);

/// Files that were opened last, and where.
type Live = (Vec<PathBuf>, Weak<[File]>);

impl InCommon {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The files that are open, or new ones.
    pub(super) fn get(
        &self,
        paths: &[PathBuf],
        open: impl FnOnce() -> Result<Arc<[File]>>,
    ) -> Result<Arc<[File]>> {
        // What is behind the lock is whole at any moment.
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, files)) = &*live
            && known == paths
            && let Some(files) = files.upgrade()
        {
            return Ok(files);
        }
        let files = open()?;
        *live = Some((paths.to_vec(), Arc::downgrade(&files)));
        Ok(files)
    }
}

/// Opens the lane on files that `open` has opened.
pub(super) fn with_files(
    job: &Job<'_>,
    body: Body<'_>,
    open: impl FnOnce(&Engine) -> Result<Arc<[File]>>,
) -> Result<()> {
    let engine = engine(job.depth).map_err(|error| Unavailable {
        reason: error.to_string(),
        // The reason ends with it.
        denied: Some(""),
    })?;
    let means = Means {
        files: open(&engine)?,
        calls_before: calls(&engine),
        engine,
        work: job.work.clone(),
        host: Host::of_depth(job.depth),
    };
    let pool = pool_of(job.depth, job.work.block_bytes)?;
    by_kind(job, &means, pool_blocks(&pool, job.work)?, body)
}

/// Registered memory for the blocks of a cell.
pub(super) fn pool_of(depth: u32, block_bytes: u32) -> Result<BufPool> {
    BufPool::new(depth, usize::try_from(block_bytes)?)
        .with_context(|| no_memory(depth, block_bytes))
}

/// As many buffers as the pool has; noisy where they will be written from.
pub(super) fn pool_blocks(pool: &BufPool, work: &Work) -> Result<Vec<PoolBuf>> {
    let count = u64::try_from(pool.available())?;
    let block = |seed: u64| {
        let mut block = pool.take().context("the pool has one for each")?;
        if work.access.writes() {
            noise(&mut block, seed);
        }
        Ok(block)
    };
    (0..count).map(block).collect()
}

/// Opens files through the library, for what the work needs.
pub(super) fn open_all(
    engine: &Engine,
    paths: &[PathBuf],
    direct: bool,
    work: &Work,
) -> Result<Vec<File>> {
    let direct = if direct {
        Direct::Required
    } else {
        Direct::Off
    };
    let options = OpenOptions::new()
        .read(true)
        .write(work.access.writes())
        .direct(direct)
        .engine(engine);
    let open = |path| options.open(path);
    let files: io::Result<_> = paths.iter().map(open).collect();
    files.context("the library cannot open a file")
}

fn by_kind<B: Block + IoBufMut>(
    job: &Job<'_>,
    means: &Means,
    mut blocks: Vec<B>,
    body: Body<'_>,
) -> Result<()> {
    if job.depth == 1 {
        let block = blocks.pop();
        return OneByOne::new(job, Alone { means, block }).lend(job, body);
    }
    // A program that only reads has no use for operations of several kinds.
    match (job.work.batched, job.work.only_reads()) {
        (true, true) => inflight_batch::with_lane::<ReadAt<'_, B>, B>(job, means, blocks, body),
        (true, false) => inflight_batch::with_lane::<AnyOp<'_, B>, B>(job, means, blocks, body),
        (false, true) => inflight_queue::with_lane::<ReadAt<'_, B>, B>(job, means, blocks, body),
        (false, false) => inflight_queue::with_lane::<AnyOp<'_, B>, B>(job, means, blocks, body),
    }
}

/// Operations of the library that can do the steps of a work.
pub(super) trait Ask<'f, B>: Operation + Sized {
    /// The operation for a step, and the block if it has no use for it.
    fn ask(file: &'f File, step: &Step, block: B) -> (Self, Option<B>);

    /// Its result, and the block if it had it.
    fn told(output: Self::Output) -> (io::Result<usize>, Option<B>);
}

impl<'f, B: IoBufMut> Ask<'f, B> for ReadAt<'f, B> {
    #[inline]
    fn ask(file: &'f File, step: &Step, block: B) -> (Self, Option<B>) {
        (file.read_at(block, step.offset), None)
    }

    #[inline]
    fn told((result, block): Self::Output) -> (io::Result<usize>, Option<B>) {
        (result, Some(block))
    }
}

impl<'f, B: IoBufMut> Ask<'f, B> for AnyOp<'f, B> {
    #[inline]
    fn ask(file: &'f File, step: &Step, block: B) -> (Self, Option<B>) {
        match step.kind {
            Kind::Read => (file.read_at(block, step.offset).into(), None),
            Kind::Write => (file.write_at(block, step.offset).into(), None),
            Kind::Sync => (file.sync_data().into(), Some(block)),
        }
    }

    #[inline]
    fn told(output: Self::Output) -> (io::Result<usize>, Option<B>) {
        output
    }
}

impl Block for PoolBuf {
    fn cut(&mut self, bytes: usize) {
        if self.len() != bytes {
            self.set_len(bytes);
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// System calls of the engine so far.
fn calls(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.enters + stats.plain_calls + stats.helped + stats.pool_calls + stats.flushes
}

/// The same for the measuring thread, of all that share the engine.
pub(super) fn asks_for_calls(engine: &Engine) -> Asked {
    let engine = engine.clone();
    Box::new(move || calls(&engine))
}

impl Means {
    /// System calls of the engine since the lane was opened.
    pub(super) fn calls(&self) -> u64 {
        calls(&self.engine) - self.calls_before
    }

    /// The threads of the pool do not count theirs.
    pub(super) fn knows_syscalls(&self) -> bool {
        self.engine.backend().kind == BackendKind::Uring
    }

    pub(super) fn effective(&self) -> Modes {
        let backend = self.engine.backend();
        let mut effective = modes(&[("backend", &backend.to_string())]);
        effective.extend(road::mode(&self.files, &self.work, self.host));
        effective.extend(road::given_up(&self.engine));
        effective
    }
}

/// One operation at a time.
struct Alone<'m, B> {
    means: &'m Means,
    block: Option<B>, // absent only during a call
}

impl<B: Block + IoBufMut> Perform for Alone<'_, B> {
    /// The library counts its own.
    const SYSCALLS: u64 = 0;

    fn all_syscalls(&self) -> Option<u64> {
        Some(self.means.calls())
    }

    fn asks_for_all(&self) -> Option<Asked> {
        Some(asks_for_calls(&self.means.engine))
    }

    #[inline(always)]
    fn perform(&mut self, step: &Step) -> i32 {
        let file = &self.means.files[step.file_index()];
        if step.kind == Kind::Sync {
            return as_answer(&file.sync_data().wait().map(|()| 0));
        }
        let mut block = self.block.take().expect("it came back from the last call");
        block.cut(step.bytes());
        let (result, block) = match step.kind {
            Kind::Write => file.write_at(block, step.offset).wait(),
            Kind::Read | Kind::Sync => file.read_at(block, step.offset).wait(),
        };
        self.block = Some(block);
        as_answer(&result)
    }

    #[inline]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        let block = self
            .block
            .as_mut()
            .expect("it came back from the last call");
        block.cut(bytes);
        block.bytes()
    }

    fn effective(&self) -> Modes {
        self.means.effective()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_files_in_common_as_long_as_one_of_them_has_them_open() {
        let [one, other] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let common = InCommon::new();
        let get = |path: &std::path::Path| {
            let paths = [path.to_owned()];
            let open = || Ok(vec![File::open(path)?].into());
            common.get(&paths, open).unwrap()
        };
        let first = get(one.path());
        let second = get(one.path());
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert!(Arc::ptr_eq(&second, &get(one.path())));
        let elsewhere = get(other.path());
        assert!(!Arc::ptr_eq(&second, &elsewhere));
        drop(elsewhere);
        assert_eq!(Arc::strong_count(&get(other.path())), 1, "they are new");
    }
}
