//! `uring-busy`: the tuned ring, which never sleeps: it looks for completions until they are there.
//! It shows what sleeping costs on a machine, and takes a processor for each thread.

use anyhow::Result;

use super::uring_tuned::{Waits, requested, with_ring};
use super::{Body, Job, Modes, Strategy, Way};

pub(crate) struct UringBusy;

impl Strategy for UringBusy {
    fn name(&self) -> &'static str {
        "uring-busy"
    }

    fn about(&self) -> &'static str {
        "the tuned ring, which looks for completions and never sleeps"
    }

    fn by_default(&self) -> bool {
        false
    }

    fn requested(&self, job: &Job<'_>) -> Modes {
        requested(job, Waits::Looking)
    }

    fn closed_only(&self) -> Option<&'static str> {
        Some("an open loop was taught to the plain ring only: see uring")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    with_ring(job, Waits::Looking, body)
}
