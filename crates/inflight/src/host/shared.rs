//! What all hosts of one engine have in common: its configuration, the backend it has chosen and
//! why, its counters and its pool of threads.

use std::io;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::busy_poll::BusyPolling;
use super::caller;
use super::choice::{Chosen, Kind, Wish, choose};
use super::driver::{Drivers, NotStarted};
#[cfg(feature = "tokio")]
use super::lanes::Lanes;
use super::pooled::Pooled;
use super::sharing::callers::Callers;
use crate::backend::Backend;
use crate::backend::aio::queue::{self, Aio};
use crate::backend::alarm::Alarm;
use crate::backend::returns;
use crate::backend::threads::execute::to_usize;
use crate::backend::threads::lane::Lane;
use crate::backend::threads::pool::Pool;
use crate::backend::uring::probe::{self, Features};
use crate::backend::uring::ring::Uring;
use crate::buf::Bounces;
use crate::completion::Refusal;
use crate::error::{NoThread, SetupError};
use crate::fork;
use crate::op::{KINDS, Request};
use crate::policy::{Devices, Tried};
use crate::proactor::Proactor;
use crate::stats::Counters;
use crate::sync::lock;

/// What an engine is made with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) wish: Wish,
    /// Who has the wish, for [`Chosen::reason`].
    pub(crate) wish_of: &'static str,
    /// System calls were filtered when the engine was made (seccomp(2)).
    pub(crate) was_filtered: bool,
    pub(crate) queue_depth: u32,
    pub(crate) threads_max: u32,
    /// Driver threads.
    pub(crate) drivers: u32,
    /// Most bytes in flight for one driver, lane or run loop.
    pub(crate) bytes_in_flight: u64,
    /// How long dropping the engine waits for what is in flight.
    pub(crate) drain_for: Duration,
    #[cfg(feature = "faulty")]
    pub(crate) faults: Option<crate::backend::faulty::Faults>,
    /// A planted defect: a call returns before the kernel is done with its buffers.
    #[cfg(feature = "faulty")]
    pub(crate) undrained: bool,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) chosen: Chosen,
    pub(crate) counters: Counters,
    /// Aligned memory for what does not fit direct I/O.
    pub(crate) bounces: Arc<Bounces>,
    /// What is below direct files.
    pub(crate) devices: Devices,
    /// Who makes batches of copies.
    pub(crate) callers: Callers,
    /// Whether looking for completions has been seen to pay.
    pub(super) busy_polls: Arc<Tried>,
    /// Forks counted when the engine was made.
    fork_generation: u32,
    /// A ring has broken, for this reason: no more are made.
    gave_up: OnceLock<SetupError>,
    /// Why a thread could last not have a ring, where one was demanded.
    last_refusal: Mutex<Option<SetupError>>,
    /// Why a driver could last not have a thread.
    no_thread: Mutex<Option<NoThread>>,
    /// Closed when the engine is dropped; not touched in a forked child, where its locks may be
    /// held by threads that are not there. Absent only then.
    pool: Option<Arc<Pool>>,
    /// What is awaited and is a plain call anyway. As the pool in a forked child.
    pooled: Option<Arc<Pooled>>,
    /// Started when the first future needs them.
    drivers: OnceLock<Drivers>,
    /// Held while they are started: when there was no thread for one, if that was so.
    starting: Mutex<Option<Instant>>,
    /// The lanes of tokio's runtimes.
    #[cfg(feature = "tokio")]
    pub(crate) lanes: Arc<Lanes>,
}

impl Shared {
    /// Chooses the backend.
    ///
    /// # Errors
    ///
    /// Only if what is demanded cannot be had.
    pub(crate) fn new(config: Config) -> Result<Self, SetupError> {
        fork::watch();
        returns::find_out();
        let chosen = choose(&config)?;
        let counters = Counters::new();
        if chosen.refusal.is_some() {
            counters.fallback(chosen.reason.clone());
        }
        let is_asynchronous = chosen.kind.is_asynchronous();
        let pool = Arc::new(Pool::new(config.threads_max));
        let pooled = Pooled::new(Arc::clone(&pool), config.bytes_in_flight, is_asynchronous);
        counters.watch(pooled.tally());
        Ok(Self {
            pooled: Some(Arc::new(pooled)),
            pool: Some(pool),
            config,
            chosen,
            counters,
            bounces: Arc::default(),
            devices: Devices::new(is_asynchronous),
            callers: Callers::default(),
            busy_polls: Arc::default(),
            fork_generation: fork::generation(),
            gave_up: OnceLock::new(),
            last_refusal: Mutex::new(None),
            no_thread: Mutex::new(None),
            drivers: OnceLock::new(),
            starting: Mutex::new(None),
            #[cfg(feature = "tokio")]
            lanes: Arc::default(),
        })
    }

    /// Whether the engine belongs to the parent of this process.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_generation != fork::generation()
    }

    /// Whether the engine was made with rings.
    #[inline]
    pub(crate) fn has_rings(&self) -> bool {
        matches!(self.chosen.kind, Kind::Uring(_))
    }

    /// Whether the engine was made such that transfers are in flight without a thread for each.
    #[inline]
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.chosen.kind.is_asynchronous()
    }

    /// Whether everything is to meet the test backend.
    #[cfg(feature = "faulty")]
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self.chosen.kind, Kind::Faulty)
    }

    /// The backend that is used now, and why.
    pub(crate) fn backend(&self) -> Chosen {
        match self.gave_up.get() {
            None => self.chosen.clone(),
            Some(why) => Chosen {
                kind: Kind::Threads,
                reason: format!("the backend could not be used any more: {why}"),
                refusal: Some(why.clone()),
            },
        }
    }

    /// A new proactor for the calling thread.
    ///
    /// # Errors
    ///
    /// Only if io_uring is demanded and this thread cannot have a ring.
    pub(crate) fn new_proactor(&self) -> Result<Proactor, SetupError> {
        let proactor = match self.chosen.kind {
            Kind::Uring(features) => match self.new_ring() {
                Ok(ring) => self.with_ring(ring, &features),
                Err(refusal) if self.config.wish == Wish::Uring => {
                    *lock(&self.last_refusal) = Some(refusal.clone());
                    return Err(refusal);
                }
                Err(refusal) => {
                    let reason = format!("a thread has no ring: {refusal}");
                    self.counters.fallback(reason);
                    self.on_threads()
                }
            },
            #[cfg(feature = "faulty")]
            Kind::Faulty => {
                let faults = self.config.faults.clone().unwrap_or_default();
                let faulty = crate::backend::faulty::Faulty::new(faults);
                let depth = self.config.queue_depth;
                Proactor::new(Backend::Faulty(Box::new(faulty)), depth, [true; KINDS])
            }
            Kind::Aio => match self.new_aio() {
                Ok(aio) => self.with_aio(aio),
                Err(refusal) => {
                    let reason = format!("a thread has no asynchronous calls: {refusal}");
                    self.counters.fallback(reason);
                    self.on_threads()
                }
            },
            _ => self.on_threads(),
        };
        self.counters.watch(proactor.tally());
        Ok(proactor)
    }

    /// Whether this one does without what the engine has chosen, and not because that has broken.
    pub(super) fn is_makeshift(&self, proactor: &Proactor) -> bool {
        let chosen = matches!(self.chosen.kind, Kind::Uring(_) | Kind::Aio);
        chosen && !proactor.is_asynchronous() && self.gave_up.get().is_none()
    }

    /// A new proactor for the calling thread, unless it has to do without the backend.
    pub(super) fn asynchronous(&self) -> Option<Proactor> {
        let proactor = match &self.chosen.kind {
            Kind::Uring(features) => self.with_ring(self.new_ring().ok()?, features),
            Kind::Aio => self.with_aio(self.new_aio().ok()?),
            _ => return None,
        };
        self.counters.watch(proactor.tally());
        Some(proactor)
    }

    fn with_ring(&self, ring: Uring, features: &Features) -> Proactor {
        let capacity = ring.capacity().min(self.config.queue_depth);
        Proactor::new(Backend::Uring(Box::new(ring)), capacity, features.kinds)
            .with_pool(Arc::clone(self.pool()))
            .looking(BusyPolling::of_owner(&self.busy_polls))
    }

    /// A new proactor for any thread, one at a time, and what is readable when it has something to
    /// reap. `is_alone` if it is mostly the same thread.
    ///
    /// # Errors
    ///
    /// If this engine has no rings, or no more of them.
    #[cfg(feature = "tokio")]
    pub(crate) fn new_lane(&self, is_alone: bool) -> Result<(Proactor, OwnedFd), SetupError> {
        let features = match self.chosen.kind {
            Kind::Uring(features) => features,
            Kind::Aio => return self.new_lane_of_aio(),
            _ => {
                let cause = io::Error::new(io::ErrorKind::Unsupported, self.chosen.reason.clone());
                return Err(probe::explain(cause));
            }
        };
        if let Some(why) = self.gave_up.get() {
            return Err(why.clone());
        }
        let mut ring = Uring::shared(probe::open_shared(self.config.queue_depth)?.ring);
        self.tell_if_small(&ring);
        let watched = match is_alone {
            true => ring.watched(),
            false => ring.watched_if_announced(),
        };
        let watched = watched.map_err(probe::explain)?;
        let capacity = ring.capacity().min(self.config.queue_depth);
        let mut proactor = Proactor::new(Backend::Uring(Box::new(ring)), capacity, features.kinds)
            .with_pool(Arc::clone(self.pool()))
            .looking(BusyPolling::of_lane())
            .announced();
        // What a driver thread needs that may have to take it over.
        proactor.alarm().map_err(probe::explain)?;
        self.counters.watch_lane(proactor.tally());
        Ok((proactor, watched))
    }

    fn new_aio(&self) -> Result<Aio, SetupError> {
        match self.gave_up.get() {
            Some(why) => Err(why.clone()),
            None => Aio::new(self.config.queue_depth),
        }
    }

    #[cfg(feature = "tokio")]
    fn new_lane_of_aio(&self) -> Result<(Proactor, OwnedFd), SetupError> {
        let mut aio = self.new_aio()?;
        let watched = aio.watched().map_err(queue::explain)?;
        let mut proactor = self.with_aio(aio).announced();
        proactor.alarm().map_err(probe::explain)?;
        self.counters.watch_lane(proactor.tally());
        Ok((proactor, watched))
    }

    /// What is no direct transfer is for the pool.
    fn with_aio(&self, aio: Aio) -> Proactor {
        let backend = Backend::Aio(Box::new(aio));
        Proactor::new(backend, self.config.queue_depth, [false; KINDS])
            .with_pool(Arc::clone(self.pool()))
    }

    /// A new proactor that has no ring, after one has broken.
    pub(crate) fn new_proactor_on_threads(&self) -> Proactor {
        let proactor = self.on_threads();
        self.counters.watch(proactor.tally());
        proactor
    }

    /// The drivers, which are started if they have not been. In a forked child there are none.
    #[inline]
    pub(crate) fn drivers(self: &Arc<Self>) -> Result<&Drivers, Refusal> {
        match self.drivers.get() {
            Some(drivers) => Ok(drivers),
            None => self.start_drivers(),
        }
    }

    #[cold]
    fn start_drivers(self: &Arc<Self>) -> Result<&Drivers, Refusal> {
        let mut failed = lock(&self.starting);
        if self.drivers.get().is_none() {
            if failed.is_some_and(|failed| failed.elapsed() < START_AGAIN) {
                return Err(Refusal::NoThread);
            }
            let drivers = Drivers::start(self, self.config.drivers).map_err(|why| {
                let refusal = self.no_driver(why);
                *failed = matches!(refusal, Refusal::NoThread).then(Instant::now);
                refusal
            })?;
            // Nobody else sets it while the lock is held.
            let _ = self.drivers.set(drivers);
        }
        Ok(self.drivers.get().expect("it has just been set"))
    }

    /// Tells why there is no driver, and keeps the reason for whoever is refused.
    fn no_driver(&self, why: NotStarted) -> Refusal {
        match why {
            NotStarted::NoThread(why) => {
                self.counters.fallback(format!("no driver: {why}"));
                *lock(&self.no_thread) = Some(why);
                Refusal::NoThread
            }
            NotStarted::Refused(why) => {
                self.counters.fallback(format!("no driver: {why}"));
                *lock(&self.last_refusal) = Some(why);
                Refusal::Setup
            }
        }
    }

    /// The drivers, if they have been started.
    pub(crate) fn started_drivers(&self) -> Option<&Drivers> {
        self.drivers.get()
    }

    /// The pool of threads.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.pool
            .as_ref()
            .expect("taken when the engine is dropped only")
    }

    /// The alarm of a new or idle proactor, which is replaced by one without a ring if it cannot
    /// have one.
    ///
    /// # Errors
    ///
    /// If io_uring is demanded.
    pub(crate) fn alarm_of(&self, proactor: &mut Proactor) -> Result<Alarm, SetupError> {
        let cause = match proactor.alarm() {
            Ok(alarm) => return Ok(alarm),
            Err(cause) => cause,
        };
        let refusal = probe::explain(cause);
        self.counters
            .fallback(format!("a ring has no alarm: {refusal}"));
        if self.config.wish == Wish::Uring {
            *lock(&self.last_refusal) = Some(refusal.clone());
            return Err(refusal);
        }
        *proactor = self.new_proactor_on_threads();
        proactor.alarm().map_err(probe::explain)
    }

    /// What is awaited and made by threads of the pool.
    #[inline]
    pub(crate) fn pooled(&self) -> &Arc<Pooled> {
        self.pooled
            .as_ref()
            .expect("taken when the engine is dropped only")
    }

    /// Whether a request that is awaited outside a run loop is for the pool.
    #[inline]
    pub(crate) fn is_pooled(&self, request: &Request) -> bool {
        let is_call = match self.chosen.kind {
            Kind::Uring(_) => request.aside,
            Kind::Aio => !request.is_direct_transfer(),
            Kind::Threads => true,
            #[cfg(feature = "faulty")]
            Kind::Faulty => false,
        };
        is_call && !request.is_split()
    }

    /// Whether requests that are awaited outside a run loop, and no lane has, are for the pool
    /// rather than for a driver: so few that its wake-ups would take more than a thread for each.
    pub(crate) fn is_rather_pooled(&self, requests: &[Request]) -> bool {
        let is_known = matches!(self.chosen.kind, Kind::Aio);
        let suits = |request: &Request| !request.submitted && !request.is_split();
        if !is_known || !requests.iter().all(suits) {
            return false;
        }
        let of_drivers = self.started_drivers().map_or(0, Drivers::unanswered);
        let many = match of_drivers {
            0 => MANY,
            _ => FEW,
        };
        let awaited = self.pooled().unanswered() + of_drivers;
        to_usize(awaited) + requests.len() <= many
    }

    fn on_threads(&self) -> Proactor {
        let pool = self.pool();
        let lane = Lane::new(Arc::clone(pool), self.config.queue_depth);
        Proactor::new(
            Backend::Threads(lane),
            self.config.queue_depth,
            [true; KINDS],
        )
    }

    fn new_ring(&self) -> Result<Uring, SetupError> {
        if let Some(why) = self.gave_up.get() {
            return Err(why.clone());
        }
        let ring = Uring::new(probe::open(self.config.queue_depth)?.ring);
        self.tell_if_small(&ring);
        Ok(ring)
    }

    fn tell_if_small(&self, ring: &Uring) {
        let (got, asked) = (ring.capacity(), self.config.queue_depth);
        if got < asked {
            let reason = format!("memory for a ring of {got} operations only, not {asked}");
            self.counters.fallback(reason);
        }
    }

    /// A ring, or what there is instead, could not be used any more: the engine makes no more.
    pub(crate) fn give_up_rings(&self, cause: io::Error) {
        let why = match self.chosen.kind {
            Kind::Aio => queue::explain(cause),
            _ => probe::explain(cause),
        };
        // The first reason stands.
        let _ = self.gave_up.set(why);
    }

    /// Why a driver could not have a thread.
    pub(crate) fn no_thread(&self) -> NoThread {
        let why = lock(&self.no_thread).clone();
        why.unwrap_or_else(|| NoThread {
            cause: Arc::new(io::Error::from_raw_os_error(libc::EAGAIN)),
        })
    }

    /// Why this thread could not have a ring.
    pub(crate) fn last_refusal(&self) -> SetupError {
        let refusal = lock(&self.last_refusal).clone();
        refusal.unwrap_or_else(|| probe::explain(io::Error::from_raw_os_error(libc::EAGAIN)))
    }
}

/// Where a driver could have no thread, the next one to have one is tried after so long: to try
/// takes as long as many an operation, which a thread of the pool may do.
const START_AGAIN: Duration = Duration::from_millis(10);

/// So many direct transfers that are awaited on an engine with asynchronous calls are for a driver,
/// and no longer if there are fewer than so many (`docs/design/backends.md`).
const MANY: usize = 8;
const FEW: usize = 4;

/// Operations that were still in flight when their engine had waited long enough for them.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// See [`LEAKED`].
pub(crate) fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

impl Drop for Shared {
    fn drop(&mut self) {
        let pool = self.pool.take();
        let pooled = self.pooled.take();
        let drivers = self.drivers.take();
        if self.is_forked() {
            std::mem::forget((pool, pooled, drivers));
            return;
        }
        let ends = Ends {
            pool,
            pooled,
            drivers,
            #[cfg(feature = "tokio")]
            lanes: Arc::clone(&self.lanes),
            drain_for: self.config.drain_for,
        };
        let is_in_the_pool = ends
            .pool
            .as_ref()
            .is_some_and(|pool| pool.has_this_thread());
        if !is_in_the_pool {
            return ends.wait();
        }
        caller::forget_dead();
        // What this thread has woken has dropped the last handle. What is in flight may need this
        // very thread, so another one waits for it.
        let parcel = Arc::new(Mutex::new(Some(ends)));
        let theirs = Arc::clone(&parcel);
        let wait = move |parcel: &Mutex<Option<Ends>>| {
            let ends = lock(parcel).take();
            if let Some(ends) = ends {
                ends.wait();
            }
        };
        let named = thread::Builder::new().name("inflight-end".to_owned());
        if named.spawn(move || wait(&theirs)).is_err() {
            wait(&parcel);
        }
    }
}

/// What ends with an engine.
struct Ends {
    pool: Option<Arc<Pool>>,
    pooled: Option<Arc<Pooled>>,
    drivers: Option<Drivers>,
    #[cfg(feature = "tokio")]
    lanes: Arc<Lanes>,
    /// How long it waits for what is in flight.
    drain_for: Duration,
}

/// A time that nobody waits for and the clock can count.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

impl Ends {
    /// Waits for what is in flight, and ends the threads.
    fn wait(self) {
        let now = Instant::now();
        // Beyond what the clock counts: as long as nobody can wait.
        let deadline = now.checked_add(self.drain_for).unwrap_or(now + FOR_EVER);
        let of_drivers = self.drivers.map_or(0, |drivers| drivers.end(deadline));
        #[cfg(feature = "tokio")]
        let of_lanes = self.lanes.end(deadline);
        #[cfg(not(feature = "tokio"))]
        let of_lanes = 0;
        let of_pool = self.pooled.map_or(0, |pooled| pooled.end(deadline));
        let left = of_drivers + of_lanes + of_pool;
        if left > 0 {
            tell_of_leak(u64::from(left), self.drain_for);
            // Its threads may be busy with these operations.
            std::mem::forget(self.pool);
            return;
        }
        caller::forget_dead();
        let left = self.pool.map_or(0, |pool| pool.close(deadline));
        if left > 0 {
            tell_of_leak(left as u64, self.drain_for);
        }
    }
}

fn tell_of_leak(left: u64, drain_for: Duration) {
    LEAKED.fetch_add(left, Ordering::Relaxed);
    eprintln!(
        "inflight: {left} operations were still in flight {drain_for:?} after their engine was \
         dropped; they go on, in the kernel or in threads, and keep what memory they have until \
         they are over"
    );
}
