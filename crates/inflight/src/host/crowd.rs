//! Whether a runtime has so much in flight that each of its threads is to have a lane of its own,
//! and how many threads have which.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// So many in flight are a crowd (`docs/design/lanes.md`).
const CROWD: u64 = 8;

/// So many are none any more. Well below [`CROWD`], because each change splits those in flight
/// among more lanes than are needed for a while.
const FEW: u64 = 4;

/// Most lanes of one runtime. Each has a ring; more threads share them.
const LANES_MAX: usize = 16;

/// What the lanes of one runtime know of each other. Counts may be late, and two lanes that note
/// theirs at the same time may both miss the other's: whoever notes next puts it right. Until then
/// operations take the other lane, which serves them as well.
pub(crate) struct Crowd {
    is_there: AtomicBool,
    places: Box<[Place]>,
}

/// What is known of one lane.
struct Place {
    /// Operations in flight, when its task looked last.
    in_flight: AtomicU64,
    /// Threads that have it as their own.
    #[cfg(feature = "tokio")]
    threads: AtomicU64,
}

impl Crowd {
    /// Of a runtime with so many threads.
    pub(crate) fn new(workers: usize) -> Self {
        let place = |_| Place {
            in_flight: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            threads: AtomicU64::new(0),
        };
        Self {
            is_there: AtomicBool::new(false),
            places: (0..workers.clamp(1, LANES_MAX)).map(place).collect(),
        }
    }

    /// How many lanes there are to be.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// Whether there is one lane only.
    pub(crate) fn is_alone(&self) -> bool {
        self.places() == 1
    }

    /// Whether each thread is to use a lane of its own.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// So many operations are in flight in one lane.
    pub(crate) fn note(&self, place: usize, in_flight: u32) {
        if self.is_alone() {
            return;
        }
        let noted = &self.places[place].in_flight;
        noted.store(u64::from(in_flight), Ordering::Relaxed);
        let counts = self.places.iter().map(|place| &place.in_flight);
        let all: u64 = counts.map(|count| count.load(Ordering::Relaxed)).sum();
        let was_there = self.is_there();
        let is_there = match was_there {
            true => all > FEW,
            false => all >= CROWD,
        };
        if is_there != was_there {
            self.is_there.store(is_there, Ordering::Relaxed);
        }
    }

    /// How many threads have a lane as their own.
    #[cfg(feature = "tokio")]
    pub(crate) fn threads(&self, place: usize) -> u64 {
        self.places[place].threads.load(Ordering::Relaxed)
    }

    /// A lane is the own one of one more thread.
    #[cfg(feature = "tokio")]
    pub(crate) fn join(&self, place: usize) {
        self.places[place].threads.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread that has joined has ended, or has another lane.
    #[cfg(feature = "tokio")]
    pub(crate) fn leave(&self, place: usize) {
        self.places[place].threads.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_one_until_few_are_left() {
        let crowd = Crowd::new(2);
        let mut seen = Vec::new();
        for (place, in_flight) in [(0, 4), (1, 3), (1, 4), (0, 2), (1, 3), (1, 2), (0, 5)] {
            crowd.note(place, in_flight);
            seen.push(crowd.is_there());
        }
        assert_eq!(seen, [false, false, true, true, true, false, false]);
        let alone = Crowd::new(1);
        alone.note(0, u32::MAX);
        assert!(!alone.is_there());
        assert_eq!(Crowd::new(1000).places(), LANES_MAX);
    }
}
