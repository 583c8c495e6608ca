//! Buffers of cached reads that a run loop shares with another thread.

use std::future::IntoFuture;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use inflight::fs::File;
use inflight::{Detach, Engine, Pending, local};

use super::FILE_PAGES;
use crate::lifetime::yard::{PAGE, Planned, Yard};
use crate::support::{Random, on_every_backend, pattern, say, seed, share_of, temp_file};

/// In so many loops there are several trials, in which reads are shared.
const EPISODES: u64 = 1500;

/// Large enough for a future to be left while another thread is at work at its buffer.
const LEN: usize = 8 * PAGE;

#[derive(Debug, Default)]
struct Done {
    panics: u64,
    /// Futures that were left when their reads had not been answered.
    left: u64,
}

fn is_pending<O: Detach>(read: &mut Pending<O>) -> bool {
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

/// Begins reads at pages, beside tasks that read, and leaves them in every way there is.
async fn episode<O, B>(
    file: &Arc<File>,
    yard: &Arc<Yard>,
    (random, done): (&mut Random, &mut Done),
    read: impl Fn(u64) -> O,
) where
    O: Detach<Output = (io::Result<usize>, B)> + IntoFuture<IntoFuture = Pending<O>> + Send,
{
    for page in 0..random.below(4) {
        // Never over: it is dropped when the loop ends.
        drop(local::spawn(reads(
            Arc::clone(file),
            Arc::clone(yard),
            page,
        )));
    }
    let begin = |random: &mut Random| read(random.below(FILE_PAGES - 8)).into_future();
    let mut begun: Vec<_> = (0..=random.below(32)).map(|_| begin(random)).collect();
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
                assert!(result.expect("it is read") >= LEN);
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
        for number in 0..share_of(EPISODES) {
            let both = (&mut random, &mut done);
            let run = || match number % 2 {
                0 => engine.run(episode(&file, &yard, both, |page| {
                    file.read_at(yard.take(), page * PAGE as u64)
                })),
                _ => engine.run(episode(&file, &yard, both, |page| {
                    let page = page.min(FILE_PAGES - 16);
                    file.read_vectored_at(vec![yard.take(), yard.take()], page * PAGE as u64)
                })),
            };
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
        stats.helped, stats.operations, done.left, done.panics
    ));
}
