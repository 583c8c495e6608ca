//! What the tests share: engines of every kind, files, skips; buffers that panic in [`fussy`], and,
//! in [`own`], processes.

pub(crate) mod fifo;
pub(crate) mod fuse;
pub(crate) mod fussy;
pub(crate) mod overlay;
pub(crate) mod own;
pub(crate) mod zram;

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config};
use inflight::fs::{Alignment, Direct, File, OpenOptions};
use inflight::{BackendKind, Batch, Builder, Engine, Fallback, Operation, SetupError};
use rustix::fs::Advice;
use tempfile::{NamedTempFile, TempDir};

use fuse::{Served, Server};

/// Runs `body` on every backend that can be had here; the one that failed is named.
pub(crate) fn on_every_backend(body: impl Fn(&Engine)) {
    on_every_backend_of(|builder| builder, body);
}

/// As [`on_every_backend`], with engines that `configure` has had a hand in.
pub(crate) fn on_every_backend_of(configure: impl Fn(Builder) -> Builder, body: impl Fn(&Engine)) {
    on_every_faultless_backend_of(&configure, &body);
    #[cfg(feature = "faulty")]
    for seed in seeds() {
        let faults = inflight::Faults::new(seed);
        let builder = Engine::builder().faults(faults);
        run_on(
            &format!("late completions, seed {seed}"),
            configure(builder),
            &body,
        );
    }
}

/// As [`on_every_backend`], but for those with faults: what is awaited on them is always handed
/// over.
pub(crate) fn on_every_faultless_backend(body: impl Fn(&Engine)) {
    on_every_faultless_backend_of(|builder| builder, body);
}

pub(crate) fn on_every_faultless_backend_of(
    configure: impl Fn(Builder) -> Builder,
    body: impl Fn(&Engine),
) {
    run_on("the default", configure(Engine::builder()), &body);
    // What the default is where no ring can be had needs no second run.
    for kind in [BackendKind::Aio, BackendKind::Threads] {
        let builder = Engine::builder().backend(kind);
        if default_backend() != kind && builder.clone().build().is_ok() {
            run_on(&kind.to_string(), configure(builder), &body);
        }
    }
}

fn run_on(name: &str, builder: Builder, body: impl Fn(&Engine)) {
    let _named = Named(name.to_owned());
    let engine = builder.build().expect("nothing is demanded");
    body(&engine);
}

/// The seeds of every test with faults.
#[cfg(feature = "faulty")]
pub(crate) fn seeds() -> Vec<u64> {
    told_seed().map_or_else(|| vec![1, 0x5eed, u64::MAX - 7], |seed| vec![seed])
}

fn default_backend() -> BackendKind {
    static DEFAULT: OnceLock<BackendKind> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let engine = Engine::builder().build().expect("nothing is demanded");
        engine.backend().kind
    })
}

/// So many of `all` repetitions as the environment says, in hundredths.
pub(crate) fn share_of(all: u64) -> u64 {
    match env::var("INFLIGHT_TEST_SHARE") {
        Ok(share) => {
            all * share
                .parse::<u64>()
                .expect("INFLIGHT_TEST_SHARE is a number")
                / 100
        }
        Err(_) => all,
    }
}

/// The seed of a test that has one, whatever the backend.
pub(crate) fn seed() -> u64 {
    seed_or(0x5eed)
}

/// The same of a test with a default of its own.
pub(crate) fn seed_or(default: u64) -> u64 {
    told_seed().unwrap_or(default)
}

fn told_seed() -> Option<u64> {
    let seed = env::var("INFLIGHT_TEST_SEED").ok()?;
    Some(seed.parse().expect("INFLIGHT_TEST_SEED is a number"))
}

/// Far longer than anything here takes; then the test has failed. Where the processor is
/// interpreted the environment says more.
pub(crate) fn patience() -> Duration {
    let seconds = env::var("INFLIGHT_TEST_PATIENCE").map_or(60, |seconds| {
        seconds
            .parse()
            .expect("INFLIGHT_TEST_PATIENCE is a number of seconds")
    });
    Duration::from_secs(seconds)
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < patience(), "still not: {what}");
        thread::yield_now();
    }
}

/// Numbers from a seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// A length or place below this.
    pub(crate) fn size(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }
}

/// Says what was being tested when a test fails.
pub(crate) struct Named(pub(crate) String);

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            say(&format!("failed with: {}", self.0));
        }
    }
}

/// What an engine gets where no ring can be had.
pub(crate) fn backend_without_rings() -> BackendKind {
    match Engine::builder().backend(BackendKind::Aio).build() {
        Ok(engine) => engine.backend().kind,
        Err(_) => BackendKind::Threads,
    }
}

/// An engine with asynchronous calls; `None`, with the reason said, where there are none.
pub(crate) fn aio_or_skip(name: &str) -> Option<Engine> {
    let engine = Engine::builder().backend(BackendKind::Aio).build();
    let refusal = match engine {
        Ok(engine) if engine.backend().kind == BackendKind::Aio => return Some(engine),
        Ok(engine) => engine.backend().reason,
        Err(refusal) => refusal.to_string(),
    };
    let required = env::var("INFLIGHT_REQUIRE").is_ok_and(|backend| backend == "aio");
    assert!(!required, "{name} needs asynchronous calls: {refusal}");
    skip(name, &refusal);
    None
}

/// An engine on a ring, on this thread too; `None`, with the reason said, where there is none.
pub(crate) fn uring_or_skip(name: &str) -> Option<Engine> {
    uring_of_depth_or_skip(name, 1)
}

/// As [`uring_or_skip`], with a ring on this thread that takes `depth` operations at a time.
/// With 64 KiB of locked memory there are only small rings, and few.
pub(crate) fn uring_of_depth_or_skip(name: &str, depth: u32) -> Option<Engine> {
    // Not demanded: that would make the operations of a thread without a ring fail.
    let builder = Engine::builder().queue_depth(depth.max(8));
    let engine = builder.build().expect("nothing is demanded");
    let backend = engine.backend();
    let refusal = if backend.kind == BackendKind::Uring {
        has_ring(&engine, depth).err()
    } else {
        Some(backend.reason)
    };
    match refusal {
        None => Some(engine),
        Some(reason) => {
            skip_for_want_of_a_ring(name, &reason);
            None
        }
    }
}

/// What is made, once locked memory is no longer what it `lacks`: with little of it, the rings of
/// other tests may have all of it for a while.
pub(crate) fn with_memory<T>(mut make: impl FnMut() -> T, lacks: impl Fn(&T) -> bool) -> T {
    let begun = Instant::now();
    loop {
        let made = make();
        if !lacks(&made) || begun.elapsed() > patience() {
            return made;
        }
        drop(made);
        thread::sleep(Duration::from_millis(50));
    }
}

/// An engine of which nothing is demanded, as [`with_memory`].
pub(crate) fn engine_with_memory() -> Engine {
    let make = || Engine::new().expect("nothing is demanded");
    with_memory(make, |engine| {
        matches!(engine.backend().refusal, Some(SetupError::Memory { .. }))
    })
}

/// Skips a test that needs a ring, unless rings are required.
pub(crate) fn skip_for_want_of_a_ring(name: &str, reason: &str) {
    let required = env::var("INFLIGHT_REQUIRE").is_ok_and(|backend| backend == "uring");
    assert!(!required, "{name} needs a ring, and has none: {reason}");
    skip(name, reason);
}

/// Whether this thread has a ring of that depth.
fn has_ring(engine: &Engine, depth: u32) -> Result<(), String> {
    let mut batch = Batch::on(engine);
    (0..2).for_each(|_| batch.push(engine.nop()));
    batch
        .wait()
        .for_each(|result| result.expect("a no-op cannot fail"));
    let room = engine.queue(depth, |queue| {
        (0..)
            .take_while(|tag| queue.push(*tag, engine.nop()).is_ok())
            .count()
    });
    let room = room.expect("nothing is demanded");
    let stats = engine.stats();
    if stats.enters == 0 {
        return Err(format!("this thread has no ring: {:?}", stats.fallbacks));
    }
    if u32::try_from(room).is_ok_and(|room| room < depth) {
        return Err(format!("the ring takes {room} operations, not {depth}"));
    }
    Ok(())
}

/// What the engine has given up for reasons that say `part`; there may be others, such as the ring.
pub(crate) fn given_up(engine: &Engine, part: &str) -> Vec<Fallback> {
    let mut all = engine.stats().fallbacks;
    all.retain(|fallback| fallback.reason.contains(part));
    all
}

/// Says why a test has proved nothing here.
pub(crate) fn skip(name: &str, reason: &str) {
    say(&format!("skipped: {name}: {reason}"));
}

/// To standard error itself, which the test harness does not capture.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Where test files are made.
pub(crate) fn directory() -> PathBuf {
    env::var_os("INFLIGHT_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from)
}

/// A file with this content and a path, removed when it is dropped.
pub(crate) fn temp_path(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new_in(directory()).expect("the test directory can be written");
    file.write_all(content)
        .expect("the test directory has room");
    file
}

/// Whether another thread can come to help at all.
pub(crate) fn has_several_processors(name: &str) -> bool {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors == 1 {
        skip(name, "there is one processor");
    }
    processors > 1
}

/// A file with this content in memory, which cannot be asked not to wait.
pub(crate) fn path_in_memory(name: &str, content: &[u8]) -> Option<NamedTempFile> {
    let Ok(mut file) = NamedTempFile::new_in("/dev/shm") else {
        skip(name, "there is no tmpfs at /dev/shm");
        return None;
    };
    file.write_all(content).expect("there is room");
    Some(file)
}

/// Whether this processor copies memory faster than the library takes for waiting. One that is
/// interpreted does not: there, reads of memory are for the pool like those of a slow device.
pub(crate) fn copies_are_fast(name: &str, path: &Path, bytes: usize) -> bool {
    let file = fs::File::open(path).expect("it is there");
    let mut buf = vec![0; bytes];
    let mut copy = || {
        let begun = Instant::now();
        file.read_exact_at(&mut buf, 0).expect("it is as long");
        begun.elapsed()
    };
    let fastest = (0..64).map(|_| copy()).min().expect("there are some");
    // Half of what is taken for waiting, because not all are as fast as the fastest.
    let are_fast = fastest <= Duration::from_nanos(5_000 + bytes as u64 / 2);
    if !are_fast {
        say(&format!("{name}: {bytes} bytes of memory in {fastest:?}"));
        skip(name, "memory is copied as slowly as from a device");
    }
    are_fast
}

/// A file with this content and no path, open for reading and writing.
pub(crate) fn temp_file(engine: &Engine, content: &[u8]) -> File {
    let mut file = tempfile::tempfile_in(directory()).expect("the test directory can be written");
    file.write_all(content)
        .expect("the test directory has room");
    File::from_std(engine, file).expect("a plain file is taken")
}

/// Opens a file for reading and writing, through the page cache.
pub(crate) fn open(engine: &Engine, path: impl AsRef<Path>) -> File {
    read_write(engine).open(path).expect("the file is there")
}

/// A file with this content whose reads go by the ring, also where they are awaited: past the page
/// cache of a device, and asked once already. `None`, with the reason said, where there is none.
pub(crate) fn direct_file_or_skip(name: &str, engine: &Engine, content: &[u8]) -> Option<File> {
    let path = temp_path(content);
    let options = OpenOptions::new().read(true).direct(Direct::Required);
    let file = options.engine(engine).open(path.path());
    let Some(file) = file
        .ok()
        .filter(|file| file.alignment() != Alignment::Unknown)
    else {
        skip(name, "there is no direct I/O to a device");
        return None;
    };
    let buf = file.aligned_buf(4096).expect("there is memory");
    let (result, _) = file.read_at(buf, 0).wait();
    result.expect("the file can be read");
    Some(file)
}

/// For reading and writing, on this engine.
pub(crate) fn read_write(engine: &Engine) -> OpenOptions {
    OpenOptions::new().read(true).write(true).engine(engine)
}

/// Bytes that differ from place to place: a block of them says where it was.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    for word in 1_u64.. {
        if bytes.len() >= len {
            break;
        }
        let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The results of an operation run alone, and of two such in a batch.
macro_rules! alone_and_batched {
    ($operation:expr) => {{
        let mut outputs = vec![inflight::Operation::wait($operation)];
        let mut batch = inflight::Batch::new();
        batch.push($operation);
        batch.push($operation);
        outputs.extend(batch.wait());
        outputs
    }};
}

pub(crate) use alone_and_batched;

/// Makes the library take the file for one that the page cache does not have, by reads across its
/// end, into several buffers so that it does not look where that is: most of the next reads in a
/// batch then go through the backend. For files with content.
pub(crate) fn chill(file: &File) {
    let metadata = file.metadata().wait().expect("a plain file has metadata");
    let mut batch = Batch::new();
    for _ in 0..64 {
        batch.push(file.read_vectored_at(vec![vec![0; 1]; 2], metadata.len - 1));
    }
    for (result, _) in batch.wait() {
        assert_eq!(result.expect("there is a last byte"), 1);
    }
}

/// Drops what the page cache has of a file, and has it read from then on what is asked for only.
pub(crate) fn evict(file: &fs::File) {
    file.sync_all().expect("it is written");
    for advice in [Advice::DontNeed, Advice::Random] {
        rustix::fs::fadvise(file, 0, None, advice).expect("it can be advised");
    }
}

/// A file system in memory, with four threads, mounted until this is dropped.
pub(crate) struct FuseMount {
    folder: TempDir,
    session: Option<BackgroundSession>,
}

impl FuseMount {
    /// `None`, with the reason said, if this is not allowed.
    pub(crate) fn or_skip(name: &str, served: impl Served) -> Option<Self> {
        let folder = tempfile::tempdir().expect("the temporary directory can be written");
        let mut config = Config::default();
        config.n_threads = Some(4);
        match fuser::spawn_mount(Server(served), folder.path(), &config) {
            Ok(session) => Some(Self {
                folder,
                session: Some(session),
            }),
            Err(cause) => {
                skip(name, &format!("no file system can be mounted: {cause}"));
                None
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

/// Threads of this process with this name.
#[cfg(feature = "tokio")]
pub(crate) fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is there");
    let names = tasks.flatten().filter_map(|task| {
        // A thread may end meanwhile.
        fs::read_to_string(task.path().join("comm")).ok()
    });
    names.filter(|known| known.trim_end() == name).count()
}
