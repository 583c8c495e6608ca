//! `threads`: the same positioned system call on many threads, one operation in flight in each.

use super::{Shape, Strategy, Way, pread};

/// More threads than this are not a serious proposal.
const MOST_THREADS: u32 = 128;

pub(crate) struct Threads;

impl Strategy for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    /// As many threads as operations in flight, and as many as processors. Depth 1 is left to
    /// `pread`, unless it is all that was asked for.
    fn shapes(&self, depths: &[u32], cpus: u32) -> Vec<Shape> {
        let mut counts: Vec<u32> = depths
            .iter()
            .map(|&depth| depth.min(MOST_THREADS))
            .chain([cpus])
            .collect();
        counts.sort_unstable();
        counts.dedup();
        if counts.len() > 1 {
            counts.retain(|&count| count > 1);
        }
        counts
            .into_iter()
            .map(|count| Shape {
                depth: count,
                threads: count,
            })
            .collect()
    }

    fn way(&self) -> Way {
        Way::Lanes(pread::with_lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(depths: &[u32], cpus: u32) -> Vec<u32> {
        Threads
            .shapes(depths, cpus)
            .iter()
            .map(|shape| shape.threads)
            .collect()
    }

    #[test]
    fn threads_follow_depths_and_processors() {
        assert_eq!(counts(&[1, 4, 16], 2), [2, 4, 16]);
        assert_eq!(counts(&[1, 256], 4), [4, 128]);
        assert_eq!(counts(&[1], 1), [1]);
    }
}
