//! Buffers of cached reads that a run loop shares with another thread.

use std::future::IntoFuture;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use inflight::fs::{File, ReadAt};
use inflight::{Engine, Pending, local};

use super::FILE_PAGES;
use crate::lifetime::yard::{Buf, PAGE, Planned, Yard};
use crate::support::{Random, on_every_backend, pattern, say, seed, share_of, temp_file};

/// In so many loops there are several trials, in which reads are shared.
const EPISODES: u64 = 1500;

/// Large enough for a future to be left while another thread is at work at its buffer.
const LEN: usize = 8 * PAGE;

type Read<'f> = Pending<ReadAt<'f, Buf>>;

#[derive(Debug, Default)]
struct Done {
    panics: u64,
    /// Futures that were left when their reads had not been answered.
    left: u64,
}

fn is_pending(read: &mut Read<'_>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(Future::poll(Pin::new(read), &mut context), Poll::Pending)
}

/// A task that reads for as long as it is let.
async fn reads(file: Arc<File>, yard: Arc<Yard>, mut page: u64) {
    loop {
        page = (page * 37 + 1) % (FILE_PAGES - 8);
        let (result, buf) = file.read_at(yard.take(), page * PAGE as u64).await;
        assert_eq!(result.expect("it is read"), LEN);
        drop(buf);
    }
}

/// Begins reads, beside tasks that read, and leaves them in every way there is.
async fn episode(file: &Arc<File>, yard: &Arc<Yard>, random: &mut Random, done: &mut Done) {
    for page in 0..random.below(4) {
        // Never over: it is dropped when the loop ends.
        drop(local::spawn(reads(
            Arc::clone(file),
            Arc::clone(yard),
            page,
        )));
    }
    let begin = |random: &mut Random| {
        let page = random.below(FILE_PAGES - 8);
        file.read_at(yard.take(), page * PAGE as u64).into_future()
    };
    let mut begun: Vec<Read<'_>> = (0..=random.below(32)).map(|_| begin(random)).collect();
    // The others have been answered, and are used up.
    begun.retain_mut(is_pending);
    for _ in 0..random.below(3) {
        local::yield_now().await;
    }
    done.left += begun.len() as u64;
    while let Some(mut read) = begun.pop() {
        match random.below(8) {
            0 => mem::forget(read),
            1 => thread::scope(|scope| _ = scope.spawn(|| drop(read))),
            2 => {
                let (result, _) = (&mut read).await;
                assert_eq!(result.expect("it is read"), LEN);
            }
            3 if random.below(4) == 0 => {
                done.panics += 1;
                // With what is left.
                resume_unwind(Box::new(Planned));
            }
            _ => drop(read),
        }
    }
}

/// Nobody writes to a buffer that is given up: it is kept until whoever copies is done, also when
/// its future is dropped, here or elsewhere, forgotten, or goes with its loop.
#[test]
fn nobody_copies_to_a_buffer_of_a_loop_that_was_given_up() {
    on_every_backend(|engine| {
        let pages = usize::try_from(FILE_PAGES).expect("a few");
        let file = Arc::new(temp_file(engine, &pattern(pages * PAGE)));
        let yard = Yard::new(LEN, 512);
        let mut random = Random(seed());
        let mut done = Done::default();
        for _ in 0..share_of(EPISODES) {
            let run = || engine.run(episode(&file, &yard, &mut random, &mut done));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(run) => run.expect("nothing is demanded"),
                Err(payload) => assert!(payload.is::<Planned>(), "a panic that was not planned"),
            }
        }
        assert_eq!(
            yard.late_writes(),
            0,
            "written to after it had been given up"
        );
        assert!(done.panics > 0 || done.left == 0, "it proves little");
        tell(engine, &done);
    });
}

fn tell(engine: &Engine, done: &Done) {
    let stats = engine.stats();
    assert_eq!((stats.in_flight, stats.strays), (0, 0));
    say(&format!(
        "{} of {} by another thread, {} futures left unanswered, {} panics",
        stats.helped_reads, stats.operations, done.left, done.panics
    ));
}
