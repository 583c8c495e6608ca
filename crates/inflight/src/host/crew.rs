//! The lanes of one runtime, and which of them serves a thread.
//!
//! With few operations in flight one lane serves all threads. In a crowd each thread has a lane
//! of its own, as far as there are enough: whoever reaps goes on with the tasks itself, and their
//! next operations go to the kernel from there, so that no thread has to wake another. tokio
//! wakes a worker that sleeps whenever another one has two tasks to run; with a lane for each
//! there is none that sleeps.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Weak};

use tokio::runtime::{Handle, Id};

use super::crowd::Crowd;
use super::lane::{self, Lane};
use super::lanes::Lanes;
use super::shared::Shared;
use crate::error::SetupError;

/// Has the current runtime serve what is awaited in it.
///
/// # Errors
///
/// Outside a runtime, in a forked child, and if there are no rings, or none for it.
///
/// # Panics
///
/// If the runtime has no I/O driver.
pub(crate) fn open(shared: &Arc<Shared>) -> Result<(), SetupError> {
    let opened = try_open(shared);
    if let Err(refusal) = &opened
        && !matches!(refusal, SetupError::NoRuntime)
        && !shared.is_forked()
    {
        shared.counters.fallback(format!("no lane: {refusal}"));
    }
    opened
}

fn try_open(shared: &Arc<Shared>) -> Result<(), SetupError> {
    if shared.is_forked() {
        return Err(refused(io::Error::other("this is a forked child")));
    }
    let runtime = Handle::try_current().map_err(|_| SetupError::NoRuntime)?;
    if shared.lanes.find(runtime.id()).is_some() {
        return Ok(());
    }
    let crowd = Arc::new(Crowd::new(runtime.metrics().num_workers()));
    let (mut lanes, mut watched) = (Vec::new(), Vec::new());
    for place in 0..crowd.places() {
        match lane::make(shared, runtime.id(), &crowd, place) {
            Ok((lane, its)) => {
                lanes.push(lane);
                watched.push(its);
            }
            Err(refusal) if place == 0 => return Err(refusal),
            Err(refusal) => {
                let wanted = crowd.places();
                let reason = format!("{place} lanes instead of {wanted}: {refusal}");
                shared.counters.fallback(reason);
                break;
            }
        }
    }
    if shared.lanes.add(runtime.id(), &lanes).map_err(refused)? {
        for (lane, watched) in lanes.into_iter().zip(watched) {
            lane::start(&runtime, lane, watched, Arc::downgrade(&shared.lanes));
        }
    }
    Ok(())
}

fn refused(cause: io::Error) -> SetupError {
    SetupError::Refused {
        cause: Arc::new(cause),
    }
}

/// A thread remembers the lanes of so many engines and runtimes. There is more than one if it runs
/// tasks that use several engines, or goes from runtime to runtime.
const MET_MAX: usize = 4;

/// Lanes that a thread has used.
struct Met {
    /// Of the engine. As long as this is kept, no other one has its address.
    lanes: Weak<Lanes>,
    runtime: Id,
    crowd: Arc<Crowd>,
    /// The one for all threads.
    first: Weak<Lane>,
    /// The one for this thread, once it has met a crowd.
    own: Option<Own>,
}

/// The lane of a thread, which counts among those that have it.
struct Own {
    lane: Weak<Lane>,
    crowd: Arc<Crowd>,
    place: usize,
}

impl Own {
    fn of(lane: &Arc<Lane>) -> Self {
        let (crowd, place) = (Arc::clone(lane.crowd()), lane.place());
        crowd.join(place);
        Self {
            lane: Arc::downgrade(lane),
            crowd,
            place,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.crowd.leave(self.place);
    }
}

thread_local! {
    /// The last one last.
    static MET: RefCell<Vec<Met>> = const { RefCell::new(Vec::new()) };
}

/// The lane of the current runtime that serves this thread.
#[inline]
pub(crate) fn current(shared: &Shared) -> Option<Arc<Lane>> {
    if !shared.lanes.has_any() {
        return None;
    }
    let runtime = Handle::try_current().ok()?.id();
    let lane = MET.try_with(|met| {
        let mut met = met.borrow_mut();
        let known = met.iter().rfind(|met| met.is_of(shared, runtime));
        let lane = known.and_then(Met::lane);
        lane.or_else(|| meet(shared, runtime, &mut met))
    });
    lane.ok()?
}

/// The lanes that this thread has used are looked up again: one of them has ended.
#[cold]
pub(crate) fn forget() {
    // A thread that ends has forgotten them already.
    let _ = MET.try_with(RefCell::take);
}

/// No foreign code runs here: what is let go of are counts, and memory.
#[cold]
fn meet(shared: &Shared, runtime: Id, met: &mut Vec<Met>) -> Option<Arc<Lane>> {
    met.retain(|known| !known.is_of(shared, runtime));
    let first = shared.lanes.find(runtime)?;
    let crowd = Arc::clone(first.crowd());
    let own = match crowd.is_there() {
        true => shared.lanes.assign(runtime, Own::of),
        false => None,
    };
    if met.len() == MET_MAX {
        met.remove(0);
    }
    let now = Met {
        lanes: Arc::downgrade(&shared.lanes),
        runtime,
        crowd,
        first: Arc::downgrade(&first),
        own,
    };
    let lane = now.lane();
    met.push(now);
    lane
}

impl Met {
    #[inline]
    fn is_of(&self, shared: &Shared, runtime: Id) -> bool {
        self.runtime == runtime && self.lanes.as_ptr() == Arc::as_ptr(&shared.lanes)
    }

    /// The one to be used now.
    #[inline]
    fn lane(&self) -> Option<Arc<Lane>> {
        match self.crowd.is_there() {
            true => self.own.as_ref()?.lane.upgrade(),
            false => self.first.upgrade(),
        }
    }
}
