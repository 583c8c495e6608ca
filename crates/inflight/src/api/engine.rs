//! The public handle: hosts plus configuration.

use std::env;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::operation::{Nop, Operation};
use super::queue::Queue;
use super::timeout::Sleep;
use crate::backend::threads::execute::is_filtered;
use crate::completion::{Answer, Explain};
use crate::error::{Misaligned, NoThread, SetupError, SyncFailed, WrongAccess};
use crate::fork::{self, PerProcess};
use crate::host::caller;
use crate::host::choice::{Kind, Wish};
use crate::host::driver::Drivers;
use crate::host::local;
use crate::host::queue::Flights;
use crate::host::shared::{Config, Shared};
use crate::stats::Stats;

/// Runs operations; cheap to clone, shared by any number of threads.
///
/// Most programs need none: files opened without one use [`Engine::global`].
///
/// Each thread that runs batches has its own ring per engine, made on first use and dropped with
/// the thread. A thread that waits for single direct reads gets one too, after 64 or more of them,
/// to try whether [polling](Stats::busy_polls) pays, as long as such threads are at most a
/// sixteenth of the descriptors that the process may have (`RLIMIT_NOFILE`). An engine made before
/// `fork` refuses to work in the child with [`crate::Forked`]; the [global](Engine::global) one is
/// another one there.
///
/// Dropping the last handle (every [`File`](crate::fs::File) is one) blocks until nothing is in
/// flight, for at most [`Builder::drain_for`]. In async code, where futures may have been dropped
/// in flight or opens may hang, do it in `spawn_blocking`.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

// A panic interrupts nothing that could be seen half done: what is in flight is drained before a
// call unwinds, and foreign code, which may panic, never runs under a lock.
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

/// Which backend runs the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// io_uring.
    Uring,
    /// Linux AIO (io_submit(2)) for direct reads and writes, and the pool of threads for everything
    /// else.
    Aio,
    /// A bounded pool of threads doing plain system calls.
    Threads,
    /// The test backend that makes faults.
    Faulty,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Aio => "aio",
            Self::Threads => "threads",
            Self::Faulty => "faulty",
        })
    }
}

/// Which backend an engine uses, and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// The backend.
    pub kind: BackendKind,
    /// Why this one, in one sentence with the remedy where io_uring is refused.
    pub reason: String,
    /// Why io_uring is not used, if it was tried and refused.
    pub refusal: Option<SetupError>,
}

impl fmt::Display for BackendInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason)
    }
}

impl Engine {
    /// An engine with the defaults: backend `auto`, queue depth 128.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new() -> Result<Self, SetupError> {
        Self::builder().build()
    }

    /// An engine to be configured.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The engine that is used where none is named, made at the first use as [`Engine::new`] makes
    /// one: by [`File::open`](crate::fs::File::open) and [`OpenOptions`](crate::fs::OpenOptions),
    /// the calls on names in [`crate::fs`], and [`crate::local`]. If you configure an engine, name
    /// it to each of them (`OpenOptions::engine`, `on`, [`Engine::run`]); otherwise the global one
    /// is made as well, with a pool of its own. A forked child gets a new global engine, which
    /// serves files that the child opens, not those of its parent.
    ///
    /// It is never dropped: before the process exits, call [`Engine::drain`] if futures may have
    /// been dropped in flight, and sync what must be durable.
    ///
    /// # Errors
    ///
    /// When `INFLIGHT_BACKEND` demands what cannot be had, or is no backend.
    pub fn global() -> Result<&'static Self, SetupError> {
        static GLOBAL: PerProcess<OnceLock<Result<Engine, SetupError>>> = PerProcess::new();
        fork::watch();
        let of_this = GLOBAL.get();
        of_this
            .get_or_init(Self::new)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Which backend is used, and why.
    ///
    /// ```
    /// # fn main() -> Result<(), inflight::SetupError> {
    /// let backend = inflight::Engine::new()?.backend();
    /// println!("{backend}");
    /// # assert_eq!(backend.to_string(), format!("{}: {}", backend.kind, backend.reason));
    /// # Ok(()) }
    /// ```
    pub fn backend(&self) -> BackendInfo {
        let chosen = self.shared.backend();
        let kind = match chosen.kind {
            Kind::Uring(_) => BackendKind::Uring,
            Kind::Aio => BackendKind::Aio,
            Kind::Threads => BackendKind::Threads,
            #[cfg(feature = "faulty")]
            Kind::Faulty => BackendKind::Faulty,
        };
        BackendInfo {
            kind,
            reason: chosen.reason,
            refusal: chosen.refusal,
        }
    }

    /// What the engine has done so far. In a forked child, what its parent's had done at the fork;
    /// what a thread was just entering then may be missing.
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot(self.shared.is_forked())
    }

    /// Maximum number of operations in flight per thread.
    pub fn queue_depth(&self) -> u32 {
        self.shared.config.queue_depth
    }

    /// An operation that does nothing, by way of the backend: the cost of the way itself. It fails
    /// in a forked child ([`crate::Forked`]), where io_uring was demanded and this thread cannot
    /// have a ring ([`crate::SetupError`]), and awaited where no thread can be started
    /// ([`crate::NoThread`]). Dropping it changes nothing.
    pub fn nop(&self) -> Nop<'_> {
        Nop { engine: self }
    }

    /// Lends `body` a queue of at most `depth` operations in flight, whose results come in the
    /// order in which they complete.
    ///
    /// Use it where one result decides what is asked next, or where the data is worked on while
    /// the device goes on; a [`crate::Batch`] is simpler where all is known in advance.
    /// It blocks its thread until all has completed. In a tokio runtime it belongs in
    /// `spawn_blocking`, as all that is waited for; a task awaits operations or a batch instead.
    ///
    /// The depth is lowered to what one thread can have in flight ([`Engine::queue_depth`]), and 0
    /// counts as 1: see [`Queue::depth`](crate::Queue::depth).
    ///
    /// # Errors
    ///
    /// [`crate::Forked`] in a forked child; [`SetupError`] if io_uring is demanded and this
    /// thread cannot have a ring.
    ///
    /// # Cancellation
    ///
    /// When `body` returns or panics with operations in flight, they run to their end before
    /// this returns or unwinds; their results are dropped.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use inflight::{Engine, fs::File};
    ///
    /// # let path = std::env::current_exe()?;
    /// let file = File::open(path)?;
    /// let engine = Engine::global()?;
    /// let bytes = engine.queue(8, |queue| {
    ///     let mut bytes = 0;
    ///     for block in 0..32 {
    ///         let mut read = file.read_at(vec![0; 4096], block * 4096);
    ///         while let Err(back) = queue.push(block, read) {
    ///             read = back; // the queue is full
    ///             let (_block, (result, _buf)) = queue.next().expect("it is not empty");
    ///             bytes += result?;
    ///         }
    ///     }
    ///     while let Some((_block, (result, _buf))) = queue.next() {
    ///         bytes += result?;
    ///     }
    ///     std::io::Result::Ok(bytes)
    /// })??;
    /// assert!(bytes > 0);
    /// # Ok(()) }
    /// ```
    pub fn queue<O: Operation, R>(
        &self,
        depth: u32,
        body: impl FnOnce(&mut Queue<'_, '_, O>) -> R,
    ) -> io::Result<R> {
        let lease = caller::lease(&self.shared)
            .map_err(|refusal| Answer::refused(refusal).decode(self).expect_err("refused"))?;
        let mut flights = Flights::new(lease, depth);
        Ok(body(&mut Queue {
            flights: &mut flights,
        }))
    }

    /// Runs a future to its end on this thread, as [`crate::local::run`] does on the global
    /// engine.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn run<F: Future>(&self, future: F) -> io::Result<F::Output> {
        local::run(&self.shared, future)
            .map_err(|refusal| Answer::refused(refusal).decode(self).expect_err("refused"))
    }

    /// Has the current tokio runtime serve what is awaited in it, in *lanes* of its own: without
    /// the wake-ups that a driver thread costs. Once for each runtime; again does nothing.
    ///
    /// A runtime of several threads has a ring for each, up to 16; all are used when more than a
    /// few operations are in flight. A thread that has nothing else to do may then wait in its
    /// ring, for some 20 us, or once for up to 1 ms when a device falters, and does not look for
    /// sockets and timers meanwhile: beside many operations in flight, these are served later than
    /// they are beside drivers (`docs/design/lanes.md` has the figures). The only thread of a
    /// runtime never does so.
    ///
    /// A runtime of one thread shares the copies from the page cache with a thread of the pool
    /// where a trial has shown that this wins a tenth at least ([`Stats::helped`]). A shared
    /// read is not answered when it is first polled but when the runtime's tasks have had their
    /// turn, as if it had gone to the disk. So do not have another executor block the thread of the
    /// runtime until an operation is over: its answer may then take half a second, once. A run loop
    /// of the library makes cached reads itself.
    ///
    /// [`Stats::lane_operations`] counts what lanes have done. Timers, syncs, and what goes to the
    /// pool of threads are not for a lane; on the backend `aio` that is all but direct transfers.
    /// Futures may go on anywhere, also when the runtime has ended: a driver thread then takes a
    /// lane over. It also does so, for good, when nobody has polled the lane's task for half a
    /// second with something waiting; [`Engine::stats`] names that among the fallbacks.
    ///
    /// # Errors
    ///
    /// [`SetupError::NoRuntime`] outside a runtime: call it in `block_on`, or in a function under
    /// `#[tokio::main]`. In a forked child, on the backend `threads`, and if there is no ring (or
    /// no context of Linux AIO) for this runtime. Drivers and the pool then serve it as
    /// without this call, and but for the first two the fallbacks say why.
    ///
    /// A paused clock of tokio (`tokio::time::pause`) goes on to its next timer whenever the
    /// runtime has nothing to run, and operations in flight do not hold it back, as those of
    /// sockets do not: its time limits go off at once. Those of this library ([`crate::Awaited`])
    /// do not.
    ///
    /// # Panics
    ///
    /// If the runtime has no I/O driver (`enable_io` of its builder), as tokio's own sockets do.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::current_exe()?;
    /// use inflight::{Engine, fs::OpenOptions};
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// runtime.block_on(async {
    ///     if let Err(refusal) = Engine::global()?.serve_on_tokio() {
    ///         eprintln!("driver threads do the work: {refusal}");
    ///     }
    ///     let file = OpenOptions::new().read(true).opening(path).await?;
    ///     let (result, _buf) = file.read_at(vec![0; 4096], 0).await;
    ///     assert!(result? > 0);
    /// #   Ok(())
    /// })
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn serve_on_tokio(&self) -> Result<(), SetupError> {
        crate::host::crew::open(&self.shared)
    }

    /// Sleeps at least so long from now on, on any runtime: by the timers of this thread's run
    /// loop, or of a driver.
    pub fn sleep(&self, at_least: Duration) -> Sleep {
        Sleep::new(self, at_least)
    }

    /// Blocks this thread until nothing that was awaited outside a run loop is in flight any more,
    /// dropped futures included, but for no longer than `at_most`. Returns how many operations are
    /// left, opening and closing files in the pool among them.
    ///
    /// A task does not block: it asks with [`Duration::ZERO`], and [sleeps](Engine::sleep) for a
    /// while as long as something is left; or it does this in `spawn_blocking`. The only thread of
    /// a runtime that serves the engine would otherwise wait for itself, until a driver takes its
    /// work over for good.
    pub fn drain(&self, at_most: Duration) -> u32 {
        let until = Instant::now().checked_add(at_most);
        loop {
            if self.shared.is_forked() {
                // What is in flight is the parent's, and so are the locks.
                return 0;
            }
            let of_drivers = self.shared.started_drivers().map_or(0, Drivers::unanswered);
            let of_pool = self.shared.pooled().unanswered();
            #[cfg(feature = "tokio")]
            let of_lanes = self.shared.lanes.unanswered();
            #[cfg(not(feature = "tokio"))]
            let of_lanes = 0;
            // Last, because what ends elsewhere may leave a file to be closed.
            let calls = u32::try_from(self.shared.pool().calls()).unwrap_or(u32::MAX);
            let left = [of_drivers, of_pool, of_lanes, calls];
            let left = left.into_iter().fold(0, u32::saturating_add);
            if left == 0 || until.is_some_and(|until| until <= Instant::now()) {
                return left;
            }
            std::thread::sleep(DRAIN_STEP);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.backend())
            .field("queue_depth", &self.queue_depth())
            .finish()
    }
}

impl Explain for &Engine {
    fn misaligned(&self) -> Misaligned {
        unreachable!("no operation of an engine alone has an alignment")
    }
    fn sync_failed(&self) -> SyncFailed {
        unreachable!("no operation of an engine alone syncs")
    }
    fn setup(&self) -> SetupError {
        self.shared.last_refusal()
    }
    fn no_thread(&self) -> NoThread {
        self.shared.no_thread()
    }
    fn wrong_access(&self, _: i32) -> Option<WrongAccess> {
        None
    }
}

/// Configures an [`Engine`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    wish: Option<Wish>,
    queue_depth: Option<u32>,
    threads_max: Option<u32>,
    drivers: Option<u32>,
    bytes_in_flight: Option<u64>,
    drain_for: Option<Duration>,
    #[cfg(feature = "faulty")]
    faults: Option<crate::Faults>,
    #[cfg(feature = "faulty")]
    undrained: bool,
}

/// Operations in flight on one thread, by default. Rings of this size take 20 KiB of kernel
/// memory, and beyond it no device measured here gets faster.
const QUEUE_DEPTH_DEFAULT: u32 = 128;

/// `IORING_MAX_ENTRIES`, io_uring_setup(2).
const QUEUE_DEPTH_MAX: u32 = 32_768;

/// Threads of the pool, by default.
const THREADS_DEFAULT: u32 = 32;

/// Bytes in flight for one driver or run loop, by default: 128 requests of 1 MiB.
const BYTES_DEFAULT: u64 = 128 << 20;

/// How often [`Engine::drain`] looks.
const DRAIN_STEP: Duration = Duration::from_micros(200);

/// How long dropping an engine waits, by default.
const DRAIN_DEFAULT: Duration = Duration::from_secs(10);

/// One driver serves about a million small operations in a second, so few are needed.
fn drivers_default() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores / 8).unwrap_or(4).clamp(1, 4)
}

impl Builder {
    /// Demands a backend. Without a demand, io_uring is used where the kernel allows it, else Linux
    /// AIO, else threads. The environment variable `INFLIGHT_BACKEND` (`uring`, `aio`, `threads`,
    /// `auto`; empty as if it were not set) has the last word, so that whoever runs a program can
    /// switch io_uring off; but not over [`Builder::faults`].
    ///
    /// # Panics
    ///
    /// For [`BackendKind::Faulty`], which is asked for with its faults.
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.wish = Some(match kind {
            BackendKind::Uring => Wish::Uring,
            BackendKind::Aio => Wish::Aio,
            BackendKind::Threads => Wish::Threads,
            BackendKind::Faulty => panic!("use Builder::faults"),
        });
        self
    }

    /// Maximum number of operations in flight per thread; 128 by default, at most 32768, and 0
    /// counts as 1. Memory for it is taken once for each thread that runs batches; less is taken
    /// when it is refused.
    pub fn queue_depth(mut self, depth: u32) -> Self {
        self.queue_depth = Some(depth.clamp(1, QUEUE_DEPTH_MAX));
        self
    }

    /// Maximum number of threads in the pool, which makes the plain calls of every backend, and all
    /// calls with the backend `threads`; 32 by default, at most 1024, and 0 counts as 1. They are
    /// started when they are needed and end with the engine, also those that one burst has needed.
    /// With one or two, an open that hangs (a FIFO, a server) holds up all other calls, and with
    /// one the syncs as well.
    pub fn threads(mut self, count: u32) -> Self {
        self.threads_max = Some(count.clamp(1, 1024));
        self
    }

    /// Number of driver threads, which run, on their rings, what is awaited outside a run loop, and
    /// timers; by default one for each 8 cores, at least 1 and at most 4. At most 64, and 0 counts
    /// as 1. They are started by the first future that needs them and end with the engine. Plain
    /// calls are made by the pool ([`Builder::threads`]) without them.
    pub fn drivers(mut self, count: u32) -> Self {
        self.drivers = Some(count.clamp(1, 64));
        self
    }

    /// Maximum bytes of buffers in flight for each driver, the pool, each lane of a runtime
    /// (`Engine::serve_on_tokio`) and each run loop; 128 MiB by default. What is awaited beyond
    /// waits its turn, in the order in which it was first polled; a single request that is larger
    /// runs alone.
    pub fn bytes_in_flight(mut self, bytes: u64) -> Self {
        self.bytes_in_flight = Some(bytes);
        self
    }

    /// How long dropping the last handle of the engine (each [`Engine`] and each
    /// [`File`](crate::fs::File) is one) waits for operations whose futures were dropped; 10 s by
    /// default. What is in flight after that is left to the kernel with its
    /// memory, reported on the standard error and counted ([`crate::leaked_operations`]). A run
    /// loop that ends, and a call of this thread, wait for theirs however long it takes. Where a
    /// waker drops the last handle on a thread of the engine's own pool, dropping returns at once,
    /// and another thread waits.
    pub fn drain_for(mut self, at_most: Duration) -> Self {
        self.drain_for = Some(at_most);
        self
    }

    /// Runs everything on the test backend, which makes these faults.
    #[cfg(feature = "faulty")]
    pub fn faults(mut self, faults: crate::Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Plants the defect that the tests for it have to find: a queue that is left early closes its
    /// ring without waiting for the operations in flight.
    ///
    /// # Safety
    ///
    /// The memory of all buffers stays mapped and unused until the device is done with it.
    #[cfg(feature = "faulty")]
    #[doc(hidden)]
    #[allow(unsafe_code)]
    pub unsafe fn plant_undrained(mut self) -> Self {
        self.undrained = true;
        self
    }

    /// The engine.
    ///
    /// # Errors
    ///
    /// If io_uring or Linux AIO is demanded and cannot be had: who refuses, and the remedy.
    /// If `INFLIGHT_BACKEND` is no backend.
    pub fn build(self) -> Result<Engine, SetupError> {
        let of_environment = env::var_os("INFLIGHT_BACKEND").filter(|value| !value.is_empty());
        let (wish, wish_of) = match of_environment {
            Some(value) => match value.to_str() {
                Some("uring") => (Wish::Uring, "INFLIGHT_BACKEND"),
                Some("aio") => (Wish::Aio, "INFLIGHT_BACKEND"),
                Some("threads") => (Wish::Threads, "INFLIGHT_BACKEND"),
                Some("auto") => (Wish::Auto, "INFLIGHT_BACKEND"),
                _ => {
                    let value = value.to_string_lossy().into_owned();
                    return Err(SetupError::UnknownBackend { value });
                }
            },
            None => (self.wish.unwrap_or_default(), "the program"),
        };
        let config = Config {
            wish,
            wish_of,
            was_filtered: is_filtered(),
            queue_depth: self.queue_depth.unwrap_or(QUEUE_DEPTH_DEFAULT),
            threads_max: self.threads_max.unwrap_or(THREADS_DEFAULT),
            drivers: self.drivers.unwrap_or_else(drivers_default),
            bytes_in_flight: self.bytes_in_flight.unwrap_or(BYTES_DEFAULT),
            drain_for: self.drain_for.unwrap_or(DRAIN_DEFAULT),
            #[cfg(feature = "faulty")]
            faults: self.faults,
            #[cfg(feature = "faulty")]
            undrained: self.undrained,
        };
        Ok(Engine {
            shared: Arc::new(Shared::new(config)?),
        })
    }
}
