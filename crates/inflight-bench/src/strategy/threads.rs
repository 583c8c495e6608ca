//! `threads`: the same positioned system call on many threads, one operation in flight in each.

use super::{Shape, Strategy, Way, pread};
use crate::profile::Profile;

/// More threads than this are not a serious proposal.
const MOST_THREADS: u32 = 128;

/// What is said where more were asked for.
pub(crate) const TOO_MANY: &str = "more than 128 threads";

pub(crate) struct Threads;

impl Strategy for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn about(&self) -> &'static str {
        "plain calls on as many threads as there are operations in flight"
    }

    /// As many threads as operations in flight, and as many as processors. Depth 1 is left to
    /// `pread`.
    fn shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        let depths = profile.asked.queue_depths.iter();
        let mut counts: Vec<u32> = depths
            .map(|&depth| depth.min(MOST_THREADS))
            .filter(|&count| count > 1)
            .collect();
        if !counts.is_empty() {
            counts.push(cpus);
        }
        counts.sort_unstable();
        counts.dedup();
        counts.retain(|&count| count > 1);
        counts
            .into_iter()
            .map(|count| Shape {
                depth: count,
                threads: count,
            })
            .collect()
    }

    fn most_threads(&self) -> Option<u32> {
        Some(MOST_THREADS)
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        let batched = profile.asked.batched;
        batched.then_some("each thread goes on by itself: none waits for the batch of all")
    }

    fn way(&self) -> Way {
        Way::Lanes(pread::with_lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::load;

    fn counts(depths: &[u32], cpus: u32) -> Vec<u32> {
        let mut profile = load(&["direct-random-read".to_owned()]).unwrap().remove(0);
        profile.asked.queue_depths = depths.to_vec();
        let shapes = Threads.shapes(&profile, cpus);
        shapes.iter().map(|shape| shape.threads).collect()
    }

    #[test]
    fn threads_follow_depths_and_processors() {
        assert_eq!(counts(&[1, 4, 16], 2), [2, 4, 16]);
        assert_eq!(counts(&[1, 256], 4), [4, 128]);
        assert!(counts(&[1], 4).is_empty());
        assert_eq!(counts(&[8], 1), [8]);
        assert!(TOO_MANY.contains(&format!(" {MOST_THREADS} ")));
    }
}
