//! Buffers of cached reads that another thread may copy to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use inflight::fs::{File, ReadVectoredAt};
use inflight::{Batch, Engine};

use super::{Done, FILE_PAGES, batch_episode, queue_episode, single};
use crate::lifetime::yard::{Buf, PAGE, Planned, Yard};
use crate::support::{Random, on_every_backend, pattern, say, seed, share_of, temp_file};

/// Some of them while reads are shared: a trial begins after some thousands of reads.
const EPISODES: u64 = 1500;

/// Some reach beyond the end, and are resumed.
fn lists<'f>(file: &'f File, yard: &Arc<Yard>, random: &mut Random) -> ReadVectoredAt<'f, Buf> {
    let bufs = (0..=random.below(3)).map(|_| yard.take()).collect();
    let page = random.below(FILE_PAGES + 8);
    match random.below(4) {
        0 => file.read_vectored_exact_at(bufs, page * PAGE as u64),
        _ => file.read_vectored_at(bufs, page * PAGE as u64),
    }
}

/// Batches in which a buffer panics, and queues that are left, while their reads are gathered or
/// others copy: nobody writes to a buffer that its owner has back.
#[test]
fn nobody_copies_to_a_buffer_that_was_left_behind() {
    on_every_backend(|engine| {
        let pages = usize::try_from(FILE_PAGES).expect("a few");
        let file = temp_file(engine, &pattern(pages * PAGE));
        let yard = Yard::new(PAGE, 512);
        let mut random = Random(seed());
        let (mut done, episodes) = (Done::default(), share_of(EPISODES));
        for _ in 0..episodes {
            batch_episode(&file, &mut random, &mut done, &yard);
            queue_episode(engine, &mut random, &mut done, |random| {
                single(&file, &yard, random)
            });
            queue_episode(engine, &mut random, &mut done, |random| {
                lists(&file, &yard, random)
            });
        }
        assert_eq!(yard.late_writes(), 0, "written to after it had come back");
        assert!(done.panics > episodes / 4, "it proves nothing");
        let stats = engine.stats();
        say(&format!(
            "{} of {} by another thread",
            stats.helped, stats.operations
        ));
    });
}

/// Large enough for a buffer to be dropped while another thread is at work at it.
const LARGE: usize = 4 << 20;

/// In so many batches there are several trials, in which batches are shared.
const BATCHES_MAX: u32 = 400;

/// Of those, in which another thread was at work when a buffer panicked, so many are enough.
const ENOUGH: u64 = 8;

/// Reads a batch that is small. True if another thread has helped.
fn is_shared(engine: &Engine, file: &File) -> bool {
    let before = engine.stats().helped;
    let mut batch = Batch::on(engine);
    (0..128).for_each(|at| batch.push(file.read_at(vec![0; 4 * PAGE], at * PAGE as u64)));
    batch.wait().for_each(drop);
    engine.stats().helped > before
}

/// The panic comes when another thread has begun to copy, and has most of it left to do.
#[test]
fn a_panic_waits_for_the_thread_that_copies() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &vec![0; LARGE]);
        let yard = Yard::new(LARGE, 8);
        for _ in 0..BATCHES_MAX {
            if yard.seen() == ENOUGH {
                break;
            }
            if !is_shared(engine, &file) {
                continue;
            }
            let (mut first, mut last) = (yard.take(), yard.take());
            last.watches = Some(first.first_byte());
            last.panics = true;
            let mut batch = Batch::on(engine);
            batch.push(file.read_at(first, 0));
            batch.push(file.read_at(last, 0));
            let run = AssertUnwindSafe(|| batch.wait().for_each(drop));
            let payload = catch_unwind(run).expect_err("the last one panics");
            assert!(payload.is::<Planned>(), "a panic that was not planned");
            drop(batch);
        }
        assert_eq!(yard.late_writes(), 0, "written to after it had come back");
        say(&format!("{} panics while another copied", yard.seen()));
    });
}
