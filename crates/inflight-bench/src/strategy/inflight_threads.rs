//! `inflight-threads`: the library on as many threads as there are operations in flight, each of
//! which waits for its own. It is to `inflight`, which has them in a queue of one thread, what
//! `threads` is to a ring: how a server of threads would use the library.

use anyhow::Result;

use super::inflight::Inflight;
use super::threads::Threads;
use super::{Road, Shape, Strategy, Way};
use crate::profile::Profile;

pub(crate) struct InflightThreads;

impl Strategy for InflightThreads {
    fn name(&self) -> &'static str {
        "inflight-threads"
    }

    fn about(&self) -> &'static str {
        "the library, on threads that each wait for their own"
    }

    /// One operation at a time is left to `inflight`.
    fn shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        Threads.shapes(profile, cpus)
    }

    fn most_threads(&self) -> Option<u32> {
        Threads.most_threads()
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        Threads.unfit(profile)
    }

    fn road(&self, on: &Road<'_>) -> Option<Result<String>> {
        Inflight.road(on)
    }

    fn way(&self) -> Way {
        Inflight.way()
    }
}
