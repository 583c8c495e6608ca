//! What safe code can do with queues, batches and buffers on purpose: nest them, forget them,
//! panic in them, and try to move them elsewhere.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use inflight::fs::{File, ReadAt, ReadVectoredAt};
use inflight::{AlignedBuf, AnyOp, Batch, BufPool, Engine, Nop, PoolBuf, Queue};
use inflight::{ReadInto, Results, WriteFrom};

use super::yard::{PAGE, Yard};
use crate::support::fussy::Bomb;
use crate::support::{on_every_backend, pattern, temp_file};

#[test]
fn forgotten_results_leave_a_batch_that_can_be_used_again() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(4 * PAGE));
        let yard = Yard::new(PAGE, usize::MAX);
        let mut batch = Batch::on(engine);
        for _ in 0..3 {
            (0..20).for_each(|page| batch.push(file.read_at(yard.take(), page % 4 * 4096)));
            let mut results = batch.wait();
            assert_eq!(results.next().unwrap().0.unwrap(), PAGE);
            std::mem::forget(results);
            assert!(batch.is_empty());
        }
        assert_eq!(yard.late_writes(), 0);
    });
}

#[test]
fn a_batch_within_a_queue_has_a_proactor_of_its_own() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(64 * PAGE));
        let content = pattern(64 * PAGE);
        let read = |page: usize| file.read_at(vec![0; PAGE], (page * PAGE) as u64);
        let check = |page: usize, buf: &[u8]| assert_eq!(buf, &content[page * PAGE..][..PAGE]);
        // As many places as a ring has at least, with little locked memory.
        let outer = engine.queue(8, |queue| {
            (0..8).for_each(|page| queue.push(page as u64, read(page)).unwrap());
            let mut batch = Batch::on(engine);
            (32..64).for_each(|page| batch.push(read(page)));
            for (page, (result, buf)) in (32..64).zip(batch.wait()) {
                assert_eq!(result.unwrap(), PAGE);
                check(page, &buf);
            }
            let inner = engine.queue(4, |inner| {
                inner.push(0, read(7)).unwrap();
                let (_, (result, buf)) = inner.next().unwrap();
                assert_eq!(result.unwrap(), PAGE);
                check(7, &buf);
            });
            inner.unwrap();
            let mut seen = 0;
            while let Some((page, (result, buf))) = queue.next() {
                assert_eq!(result.unwrap(), PAGE);
                check(usize::try_from(page).unwrap(), &buf);
                seen += 1;
            }
            seen
        });
        assert_eq!(outer.unwrap(), 8);
    });
}

#[test]
fn a_queue_is_usable_after_a_buffer_has_panicked() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(PAGE));
        let yard = Yard::new(PAGE, usize::MAX);
        let seen = engine.queue(1, |queue| {
            let mut bad = yard.take();
            bad.panics = true;
            let push = AssertUnwindSafe(|| queue.push(0, file.read_at(bad, 0)).is_ok());
            assert!(catch_unwind(push).is_err());
            assert!(queue.is_empty(), "what was not started is not in flight");
            assert!(queue.push(1, file.read_at(yard.take(), 0)).is_ok());
            queue
                .next()
                .map(|(tag, (result, _))| (tag, result.unwrap()))
        });
        assert_eq!(seen.unwrap(), Some((1, PAGE)));
    });
}

#[test]
fn what_is_behind_a_buffer_that_panics_when_it_is_dropped_is_over_with_the_queue() {
    on_every_backend(|engine| {
        for bombs in [1, 3] {
            let file = temp_file(engine, &pattern(4 * PAGE));
            let write = |place: u64| file.write_at(Bomb::new(7), place * PAGE as u64);
            // One whose panic gets out has left the sync with nobody, more of them abort.
            let run = AssertUnwindSafe(|| {
                engine.queue(8, |queue| {
                    // The cached write is answered first, and somebody has yet to sync.
                    queue.push(0, AnyOp::from(file.sync_data())).unwrap();
                    (1..=bombs).for_each(|place| queue.push(place, write(place).into()).unwrap());
                })
            });
            let is_over = catch_unwind(run).is_ok();
            let (tell, told) = mpsc::channel();
            thread::spawn(move || tell.send(file.close().wait()));
            let closed = told.recv_timeout(Duration::from_secs(30));
            closed.expect("nobody has left the file open").unwrap();
            assert!(
                is_over,
                "the panic of a buffer got out of the end of a queue"
            );
        }
    });
}

/// Two ways to name `some` for a type with the trait, and one for a type without: the name alone
/// compiles for the latter only.
macro_rules! is_not {
    ($type:ty: $bound:path) => {{
        trait AmbiguousIfIt<A> {
            fn some() {}
        }
        impl<T: ?Sized> AmbiguousIfIt<()> for T {}
        impl<T: ?Sized + $bound> AmbiguousIfIt<u8> for T {}
        <$type as AmbiguousIfIt<_>>::some();
    }};
}

#[test]
fn a_queue_stays_on_its_thread_and_the_rest_may_move() {
    fn moves<T: Send + Sync>() {}
    moves::<(Engine, File, BufPool, PoolBuf, AlignedBuf)>();
    moves::<(
        Batch<ReadAt<'_, Vec<u8>>>,
        Batch<ReadVectoredAt<'_, PoolBuf>>,
    )>();
    moves::<(Results<'_, Nop<'_>>, ReadInto<'_>, WriteFrom<'_>)>();
    // A panic behind which they are used again leaves nothing half done in them.
    fn outlives_panics<T: UnwindSafe + RefUnwindSafe>() {}
    outlives_panics::<(Engine, File, BufPool, PoolBuf, AlignedBuf)>();
    is_not!(Queue<'static, 'static, Nop<'static>>: Send);
    is_not!(Queue<'static, 'static, Nop<'static>>: Sync);
    is_not!(ReadVectoredAt<'static, Rc<Yard>>: Send);
    is_not!(Batch<ReadAt<'static, Rc<Yard>>>: Send);
}
