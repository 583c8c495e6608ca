//! Flushes that a run loop or a queue makes itself, and those that it has left to it and that
//! somebody else needs.

use std::cell::Cell;
use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread;

use inflight::fs::{File, Sync};
use inflight::{AnyOp, Direct, Operation, Pending, local};

use super::disk::{Mounted, mounted_or_skip};
use super::{SYNCED, WRITTEN, open};
use crate::support::{on_every_backend, read_write};

/// This thread, as the kernel numbers it.
fn this_thread() -> u32 {
    let path = std::fs::read_link("/proc/thread-self").expect("it is there");
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    number.expect("its name is a number")
}

fn is_flushed_here(mounted: &Mounted) -> bool {
    mounted.disk.flusher() == this_thread()
}

/// Polls with the waker of the task that runs.
async fn begin(sync: &mut Pending<Sync<'_>>) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *sync).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// A sync that is known to be fast: the loop makes such ones only.
async fn warm_up(file: &File) {
    file.sync_data().await.expect("the disk is sound");
}

#[test]
fn a_loop_with_nothing_else_to_do_makes_the_flush_itself() {
    let name = "a_loop_with_nothing_else_to_do_makes_the_flush_itself";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let ran = engine.run(async {
            warm_up(&file).await;
            assert!(!is_flushed_here(&mounted), "nothing was known of it");
            // A flush that a busy machine has made slow is followed by one of the pool.
            for _ in 0..1000 {
                file.sync_data().await.unwrap();
                if is_flushed_here(&mounted) {
                    return true;
                }
            }
            false
        });
        assert!(ran.unwrap());
    });
}

/// Whatever is opened anew has had no flush.
#[test]
fn a_loop_goes_by_the_first_flush_of_another_file_of_the_device() {
    let name = "a_loop_goes_by_the_first_flush_of_another_file_of_the_device";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        // Devices are told apart by the files that go past the page cache.
        let open = || {
            let options = read_write(engine).direct(Direct::Required);
            options.open(mounted.path(SYNCED)).expect("it is there")
        };
        let ran = engine.run(async {
            open().sync_data().await.unwrap();
            assert!(!is_flushed_here(&mounted), "nothing was known of any");
            // As above.
            for _ in 0..1000 {
                open().sync_data().await.unwrap();
                if is_flushed_here(&mounted) {
                    return true;
                }
            }
            false
        });
        assert!(ran.unwrap());
    });
}

/// The task that is woken is polled behind the one that syncs, so one flush may come before.
#[test]
fn a_loop_that_makes_one_flush_after_the_other_hears_what_others_send() {
    let name = "a_loop_that_makes_one_flush_after_the_other_hears_what_others_send";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let ran = engine.run(async {
            warm_up(&file).await;
            let (sent, heard) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            let (is_sent, hears) = (Rc::clone(&sent), Rc::clone(&heard));
            let waker: Rc<Cell<Option<Waker>>> = Rc::default();
            let slot = Rc::clone(&waker);
            let task = local::spawn(poll_fn(move |context| {
                slot.set(Some(context.waker().clone()));
                hears.set(is_sent.get());
                match is_sent.get() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }));
            // It is polled meanwhile.
            warm_up(&file).await;
            let waker = waker.take().expect("it has been polled");
            sent.set(true);
            thread::scope(|scope| scope.spawn(|| waker.wake()).join().unwrap());
            let mut made = 0;
            while !heard.get() && made <= 3 {
                file.sync_data().await.unwrap();
                made += u32::from(is_flushed_here(&mounted));
            }
            drop(task);
            made
        });
        assert!(ran.unwrap() <= 2);
    });
}

/// Flushes do not end while this is there.
struct Held<'m>(&'m Mounted);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.disk.let_go();
    }
}

#[test]
fn a_queue_has_several_files_flushed_side_by_side() {
    let name = "a_queue_has_several_files_flushed_side_by_side";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let files = [SYNCED, WRITTEN].map(|number| open(engine, &mounted, number));
        let begun = mounted.disk.flushes();
        mounted.disk.hold();
        let queued = thread::scope(|scope| {
            scope.spawn(|| {
                let _held = Held(&mounted);
                mounted.disk.wait_for_flushes(begun + 2);
            });
            engine.queue(4, |queue| {
                for (tag, file) in (0..).zip(files.iter().chain(&files)) {
                    assert!(queue.push(tag, file.sync_data()).is_ok());
                }
                let results = std::iter::from_fn(|| queue.next());
                results.map(|(_, result)| result.unwrap()).count()
            })
        });
        assert_eq!(queued.unwrap(), 4);
        assert_eq!(mounted.disk.flushes() - begun, 2);
    });
}

#[test]
fn the_syncs_of_a_queue_are_one_flush_of_its_thread() {
    let name = "the_syncs_of_a_queue_are_one_flush_of_its_thread";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let begun = mounted.disk.flushes();
        let queued = engine.queue(8, |queue| {
            (0..8).for_each(|tag| assert!(queue.push(tag, file.sync_data()).is_ok()));
            let results = std::iter::from_fn(|| queue.next());
            results.map(|(_, result)| result.unwrap()).count()
        });
        assert_eq!(queued.unwrap(), 8);
        assert_eq!(mounted.disk.flushes() - begun, 1);
        assert!(is_flushed_here(&mounted));
    });
}

#[test]
fn a_queue_that_waits_for_something_else_leaves_its_flush_to_the_pool() {
    let name = "a_queue_that_waits_for_something_else_leaves_its_flush_to_the_pool";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let durable = read_write(engine).durable_writes(true);
        let other = durable.open(mounted.path(WRITTEN)).unwrap();
        let queued = engine.queue(8, |queue| {
            let sync = || AnyOp::from(file.sync_data());
            let write = || AnyOp::from(other.write_at(vec![1; 512], 0));
            let operations = [sync(), write(), sync(), write()];
            for (tag, operation) in (0..).zip(operations) {
                assert!(queue.push(tag, operation).is_ok());
            }
            let results = std::iter::from_fn(|| queue.next());
            let mut tags: Vec<u64> = results
                .map(|(tag, (result, _))| {
                    result.unwrap();
                    tag
                })
                .collect();
            tags.sort_unstable();
            tags
        });
        assert_eq!(queued.unwrap(), [0, 1, 2, 3]);
    });
}

/// Nobody waits for a loop or a queue that does not come back, because this thread blocks.
#[test]
fn whoever_else_asks_does_not_count_on_a_promise() {
    let name = "whoever_else_asks_does_not_count_on_a_promise";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let waits: fn(&File) = |file| file.sync_all().wait().unwrap();
    let awaits: fn(&File) = |file| pollster::block_on(file.sync_all().into_future()).unwrap();
    for asks in [waits, awaits] {
        on_every_backend(|engine| {
            let file = open(engine, &mounted, SYNCED);
            let ask = || {
                thread::scope(|scope| scope.spawn(|| asks(&file)).join().unwrap());
                asks(&file);
            };
            let ran = engine.run(async {
                warm_up(&file).await;
                let mut sync = file.sync_data().into_future();
                begin(&mut sync).await;
                ask();
                sync.await.unwrap();
            });
            ran.unwrap();
            let queued = engine.queue(2, |queue| {
                assert!(queue.push(0, file.sync_data()).is_ok());
                ask();
                queue.next().unwrap().1
            });
            queued.unwrap().unwrap();
        });
    }
}

/// A future that is polled by somebody else does not depend on the loop in which it began.
#[test]
fn a_sync_that_was_moved_out_of_its_loop_is_made() {
    let name = "a_sync_that_was_moved_out_of_its_loop_is_made";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let ran = engine.run(async {
            warm_up(&file).await;
            let mut moved = file.sync_data().into_future();
            begin(&mut moved).await;
            // The loop is blocked meanwhile.
            thread::scope(|scope| {
                let waits = scope.spawn(|| pollster::block_on(moved));
                waits.join().unwrap().unwrap();
            });
            let mut left = file.sync_data().into_future();
            begin(&mut left).await;
            Some(left)
        });
        pollster::block_on(ran.unwrap().expect("it was left")).unwrap();
    });
}

#[test]
fn a_loop_that_is_busy_leaves_its_flush_to_the_pool() {
    let name = "a_loop_that_is_busy_leaves_its_flush_to_the_pool";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let ran = engine.run(async {
            warm_up(&file).await;
            let over = Rc::new(Cell::new(false));
            let is_over = Rc::clone(&over);
            // It never sleeps before the sync is over.
            let busy = local::spawn(poll_fn(move |context| {
                if is_over.get() {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }));
            file.sync_data().await.unwrap();
            assert!(!is_flushed_here(&mounted));
            over.set(true);
            busy.await;
        });
        ran.unwrap();
    });
}

/// Syncs until the loop makes the flush itself, as it does as long as it has nothing else to do.
async fn lead(mounted: &Mounted, file: &File) {
    for _ in 0..1000 {
        file.sync_data().await.expect("the disk is sound");
        if is_flushed_here(mounted) {
            return;
        }
    }
    panic!("the loop has led none of a thousand flushes");
}

#[test]
fn a_loop_that_has_another_file_flushed_hears_of_that_one_meanwhile() {
    let name = "a_loop_that_has_another_file_flushed_hears_of_that_one_meanwhile";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let [led, other] = [SYNCED, WRITTEN].map(|number| open(engine, &mounted, number));
        let ran = engine.run(async {
            lead(&mounted, &led).await;
            let begun = mounted.disk.flushes();
            mounted.disk.hold();
            let mut first = other.sync_data().into_future();
            begin(&mut first).await;
            // The loop does not know how long it takes, and leaves it to the pool.
            local::yield_now().await;
            let lets_go = {
                let disk = mounted.disk.clone();
                thread::spawn(move || {
                    disk.wait_for_flushes(begun + 2);
                    let flusher = disk.flusher();
                    disk.let_go();
                    flusher
                })
            };
            // The other one has begun, so that the last one is this one's.
            mounted.disk.wait_for_flushes(begun + 1);
            led.sync_data().await.unwrap();
            first.await.unwrap();
            let flusher = lets_go.join().expect("both have begun");
            assert_ne!(flusher, this_thread());
            // Alone again, it leads again.
            lead(&mounted, &led).await;
        });
        ran.unwrap();
    });
}

#[test]
fn a_failed_flush_of_a_loop_or_a_queue_is_remembered() {
    let name = "a_failed_flush_of_a_loop_or_a_queue_is_remembered";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        for queues in [false, true] {
            let file = open(engine, &mounted, SYNCED);
            pollster::block_on(warm_up(&file));
            mounted.disk.fail(Some(libc::EIO));
            let told = if queues {
                let queued = engine.queue(1, |queue| {
                    assert!(queue.push(0, file.sync_data()).is_ok());
                    queue.next().unwrap().1
                });
                queued.unwrap()
            } else {
                engine.run(async { file.sync_data().await }).unwrap()
            };
            mounted.disk.fail(None);
            assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::EIO));
            let begun = mounted.disk.flushes();
            assert!(file.sync_data().wait().is_err());
            assert_eq!(mounted.disk.flushes(), begun);
        }
    });
}
