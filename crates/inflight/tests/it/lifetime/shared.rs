//! Buffers of cached reads that another thread may copy to.

use super::{Done, FILE_PAGES, batch_episode, queue_episode, single};
use crate::lifetime::yard::{PAGE, Yard};
use crate::support::{Random, on_every_backend, pattern, say, seed, temp_file};

/// Some of them while reads are shared: a trial begins after some thousands of reads.
const EPISODES: u64 = 1500;

/// Batches in which a buffer panics, and queues that are left, while their reads are gathered or
/// others copy: nobody writes to a buffer that its owner has back.
#[test]
fn nobody_copies_to_a_buffer_that_was_left_behind() {
    on_every_backend(|engine| {
        let pages = usize::try_from(FILE_PAGES).expect("a few");
        let file = temp_file(engine, &pattern(pages * PAGE));
        let yard = Yard::new(PAGE, 512);
        let mut random = Random(seed());
        let mut done = Done::default();
        for _ in 0..EPISODES {
            batch_episode(&file, &mut random, &mut done, &yard);
            queue_episode(engine, &mut random, &mut done, |random| {
                single(&file, &yard, random)
            });
        }
        assert_eq!(yard.late_writes(), 0, "written to after it had come back");
        assert!(done.panics > EPISODES / 4, "it proves nothing");
        let stats = engine.stats();
        say(&format!(
            "{} of {} by another thread",
            stats.helped_reads, stats.operations
        ));
    });
}
