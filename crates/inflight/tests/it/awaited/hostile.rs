//! Wakers and buffers that do what they should not: panic, use the engine they belong to, end it;
//! and futures that are dropped and forgotten where that is least expected.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
#[cfg(feature = "faulty")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
#[cfg(feature = "faulty")]
use std::task::Waker;
use std::thread;
use std::time::Duration;

#[cfg(feature = "faulty")]
use inflight::{Awaited, Batch, Faults, errno_of, fs::OpenOptions};
use inflight::{BackendKind, Builder, Engine, fs::sync_dir};

use super::hands::{Done, counting, drained, poll_with, telling, until_turned};
#[cfg(feature = "faulty")]
use super::hands::{Gate, Loud, Mute, Watchdog, in_flight, on_both_hosts};
use crate::support::{on_every_backend, pattern, read_write, temp_file, temp_path, until};

/// Runs `body` outside a run loop and in one, on every backend.
fn on_every_host(body: impl AsyncFn(&Engine)) {
    on_every_backend(|engine| {
        pollster::block_on(body(engine));
        drained(engine);
        engine.run(body(engine)).expect("nothing is demanded");
        #[cfg(feature = "tokio")]
        super::lanes::in_lanes(engine, || body(engine));
        // It goes on as if nothing had been.
        pollster::block_on(reads_rightly(engine));
        engine
            .run(reads_rightly(engine))
            .expect("nothing is demanded");
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

async fn reads_rightly(engine: &Engine) {
    let content = pattern(600);
    let file = temp_file(engine, &content);
    for at in 0..20 {
        let (result, bufs) = file
            .read_vectored_at(vec![vec![0; 4]], at)
            .by_backend()
            .await;
        assert_eq!(result.expect("it is done"), 4);
        let at = usize::try_from(at).expect("a few");
        assert_eq!(bufs[0], content[at..at + 4]);
    }
}

/// Panics without a report.
fn bang() -> ! {
    resume_unwind(Box::new("bang"))
}

/// The result of a future, as [`taken`], if it is not there at once.
fn result_of<F: Future + Unpin>(what: &str, mut future: F) -> F::Output {
    let (counter, good) = counting();
    if let Poll::Ready(output) = poll_with(&mut future, &good) {
        return output;
    }
    until(what, || counter.count() > 0);
    taken(what, future)
}

/// The result of a future whose waker panics when it is dropped, in the poll that has the result.
fn taken<F: Future + Unpin>(what: &str, mut future: F) -> F::Output {
    let armed = Arc::new(AtomicBool::new(true));
    let is_armed = Arc::clone(&armed);
    let bad = telling(move |done| {
        if done == Done::Dropped && is_armed.load(Ordering::SeqCst) {
            bang();
        }
    });
    let polled = catch_unwind(AssertUnwindSafe(|| poll_with(&mut future, &bad)));
    armed.store(false, Ordering::SeqCst);
    match polled {
        Ok(Poll::Ready(output)) => output,
        Ok(Poll::Pending) => panic!("{what}: woken without a result"),
        Err(_) => panic!("{what}: the result is lost"),
    }
}

#[test]
fn no_result_is_lost_with_a_waker_that_panics_when_it_is_dropped() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(600));
        let folder = path.path().parent().expect("it is in one");
        let sync = sync_dir(folder).on(engine).into_future();
        result_of("sync_dir", sync).expect("it can be synced");
        let opening = read_write(engine).opening(path.path()).into_future();
        let file = result_of("opening", opening).expect("it is there");
        let truncate = file.truncate(500).into_future();
        result_of("truncate", truncate).expect("it is cut off");
        let read = file.read_vectored_at(vec![vec![0; 4]], 0).by_backend();
        let (result, _) = result_of("a read", read.into_future());
        assert_eq!(result.expect("it is read"), 4);
        result_of("close", file.close().into_future()).expect("it is closed");
        let mut moved = engine.nop().into_future();
        let begin = async { assert!(poll_with(&mut moved, &telling(|_| {})).is_pending()) };
        engine.run(begin).expect("nothing is demanded");
        taken("what its loop has left", moved).expect("it is done");
    });
}

#[test]
fn a_waker_that_panics_harms_nobody_else() {
    for bad in [Done::Cloned, Done::Woken, Done::WokenByRef, Done::Dropped] {
        on_every_host(async |engine| {
            let armed = Arc::new(AtomicBool::new(true));
            let is_armed = Arc::clone(&armed);
            let waker = telling(move |done| {
                if done == bad && is_armed.load(Ordering::SeqCst) {
                    bang();
                }
            });
            let (counter, good) = counting();
            let mut nops: Vec<_> = (0..8).map(|_| engine.nop().into_future()).collect();
            for (n, nop) in nops.iter_mut().enumerate() {
                let waker = if n % 2 == 0 { &waker } else { &good };
                let polled = catch_unwind(AssertUnwindSafe(|| poll_with(nop, waker)));
                assert!(polled.is_ok() || bad == Done::Cloned);
            }
            until_turned("the good ones are woken", || counter.count() == 4).await;
            for nop in &mut nops {
                let other = telling(|_| {});
                let _ = catch_unwind(AssertUnwindSafe(|| poll_with(nop, &other)));
            }
            drop(nops);
            armed.store(false, Ordering::SeqCst);
        });
    }
}

/// Panics when it is dropped, like what it is thrown by.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        bang();
    }
}

#[test]
fn a_panic_that_panics_again_when_it_is_dropped_is_contained() {
    on_every_host(async |engine| {
        let waker = telling(|done| {
            if done == Done::Woken {
                resume_unwind(Box::new(Bomb));
            }
        });
        let (counter, good) = counting();
        let mut nops: Vec<_> = (0..8).map(|_| engine.nop().into_future()).collect();
        for (n, nop) in nops.iter_mut().enumerate() {
            let waker = if n % 2 == 0 { &waker } else { &good };
            assert!(poll_with(nop, waker).is_pending());
        }
        until_turned("the good ones are woken", || counter.count() == 4).await;
        for nop in nops {
            nop.await.unwrap();
        }
    });
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A no-op that owns its engine.
fn owned_nop(engine: &Engine) -> Boxed {
    let engine = engine.clone();
    Box::pin(async move { engine.nop().await.expect("a no-op cannot fail") })
}

/// Begins operations and timers, polls them with several wakers, drops some and keeps some.
fn use_in_every_way(engine: &Engine, kept: &Mutex<Vec<Boxed>>) {
    let mut nops = [(); 3].map(|()| owned_nop(engine));
    for nop in &mut nops {
        let _ = poll_with(nop, &counting().1);
    }
    let [_, keep, _] = nops;
    kept.lock().expect("nobody has panicked").push(keep);
    let mut sleep = engine.sleep(Duration::from_secs(3600));
    assert!(poll_with(&mut sleep, &counting().1).is_pending());
    assert!(poll_with(&mut sleep, &counting().1).is_pending());
}

#[test]
fn a_waker_may_use_the_engine_whenever_it_is_touched() {
    for when in [Done::Cloned, Done::Woken, Done::Dropped] {
        on_every_host(async |engine| {
            let (say, hear) = channel();
            let kept = Arc::new(Mutex::new(Vec::new()));
            let (again, keeps) = (engine.clone(), Arc::clone(&kept));
            let waker = telling(move |done| {
                if done == when {
                    use_in_every_way(&again, &keeps);
                    let _ = say.send(());
                }
            });
            let mut nop = engine.nop().into_future();
            let mut sleep = engine.sleep(Duration::from_secs(3600));
            // Each is told to two wakers, so that one is replaced; the second is woken.
            assert!(poll_with(&mut nop, &waker).is_pending());
            for waker in [&waker, &counting().1, &waker] {
                assert!(poll_with(&mut sleep, waker).is_pending());
                if poll_with(&mut nop, waker).is_ready() {
                    nop = engine.nop().into_future();
                    assert!(poll_with(&mut nop, waker).is_pending());
                }
            }
            until_turned("used", || hear.try_recv().is_ok()).await;
            drop((nop, sleep, waker));
            let kept = std::mem::take(&mut *kept.lock().unwrap());
            for nop in kept {
                nop.await;
            }
        });
    }
}

/// A future that is polled by its own waker.
type Chain = Mutex<Option<Boxed>>;

fn advance(chain: &Arc<Chain>) {
    let again = Arc::downgrade(chain);
    let waker = telling(move |done| {
        if let (Done::Woken | Done::WokenByRef, Some(chain)) = (done, again.upgrade()) {
            advance(&chain);
        }
    });
    // Whoever wakes meanwhile waits until it is back.
    let mut place = chain.lock().expect("nobody has panicked");
    let Some(mut future) = place.take() else {
        return;
    };
    if poll_with(&mut future, &waker).is_pending() {
        *place = Some(future);
    }
}

#[test]
fn a_waker_may_poll_its_future_to_the_end() {
    on_every_host(async |engine| {
        let (say, hear) = channel();
        let again = engine.clone();
        let chain: Chain = Mutex::new(Some(Box::pin(async move {
            for _ in 0..10 {
                again.nop().await.unwrap();
            }
            say.send(()).unwrap();
        })));
        let chain = Arc::new(chain);
        advance(&chain);
        until_turned("the chain is over", || hear.try_recv().is_ok()).await;
    });
}

/// Says on which thread it is dropped, after the engine that it has.
struct Last {
    engine: Option<Engine>,
    say: Sender<Option<String>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        drop(self.engine.take());
        let on = thread::current().name().map(str::to_owned);
        self.say.send(on).expect("the test listens");
    }
}

#[test]
fn the_last_handle_of_an_engine_may_be_dropped_by_the_thread_that_answers() {
    for kind in [None, Some(BackendKind::Threads)] {
        for drivers in [1, 3] {
            let builder = Engine::builder().drivers(drivers);
            let builder = kind.into_iter().fold(builder, Builder::backend);
            let engine = builder.build().unwrap();
            let who = match engine.backend().kind {
                BackendKind::Threads | BackendKind::Aio => "inflight-pool",
                _ => "inflight-driver",
            };
            let (say, hear) = channel();
            let last = Last {
                engine: Some(engine),
                say,
            };
            let chain: Chain = Mutex::new(Some(Box::pin(async move {
                let engine = last.engine.as_ref().expect("it is there");
                for _ in 0..3 {
                    engine.nop().await.unwrap();
                }
            })));
            let chain = Arc::new(chain);
            advance(&chain);
            let on = hear.recv().expect("it is not stuck");
            assert_eq!(on.as_deref(), Some(who));
        }
    }
}

/// What a buffer does to its engine when it is dropped.
#[cfg(feature = "faulty")]
fn loud(dropped: &Arc<AtomicU64>, then: impl FnOnce() + Send + 'static) -> Loud {
    let dropped = Arc::clone(dropped);
    Loud::new(move || {
        then();
        dropped.fetch_add(1, Ordering::SeqCst);
    })
}

#[cfg(feature = "faulty")]
#[test]
fn a_task_may_drop_what_another_one_has_in_flight() {
    on_both_hosts(async |engine, gate| {
        let dropped = Arc::new(AtomicU64::new(0));
        let file = temp_file(engine, &pattern(8));
        let slot = Mutex::new(Some(file.write_at(loud(&dropped, || ()), 0).into_future()));
        let (_, waker_of_other) = counting();
        let mut other = Box::pin(async {
            std::future::poll_fn(|cx| {
                let mut slot = slot.lock().expect("nobody has panicked");
                let write = slot.as_mut().expect("it was not dropped yet");
                Pin::new(write).poll(cx).map(|_| ())
            })
            .await;
        });
        assert!(poll_with(&mut other, &waker_of_other).is_pending());
        in_flight(engine, 1).await;
        std::future::poll_fn(|_| {
            drop(slot.lock().expect("nobody has panicked").take());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "the kernel has it");
        gate.open();
        until_turned("dropped", || dropped.load(Ordering::SeqCst) == 1).await;
        drop(other);
        reads_rightly(engine).await;
    });
}

#[cfg(feature = "faulty")]
#[test]
fn a_buffer_that_does_not_tell_its_length_is_kept_all_the_same() {
    on_both_hosts(async |engine, gate| {
        let dropped = Arc::new(AtomicU64::new(0));
        let count = || dropped.load(Ordering::SeqCst);
        let keeps_its_length = Arc::new(AtomicBool::new(false));
        let file = temp_file(engine, &pattern(32));
        let write = |at| {
            let mut buf = loud(&dropped, || ());
            buf.keeps_its_length = Arc::clone(&keeps_its_length);
            file.write_at(buf, at)
        };
        let mut batch = Batch::on(engine);
        (1..4).for_each(|n| batch.push(write(8 * n)));
        let (mut alone, mut batch) = (write(0).into_future(), batch.into_future());
        assert!(poll_with(&mut alone, Waker::noop()).is_pending());
        assert!(poll_with(&mut batch, Waker::noop()).is_pending());
        in_flight(engine, 4).await;
        keeps_its_length.store(true, Ordering::SeqCst);
        drop((alone, batch));
        assert_eq!(count(), 0, "the kernel has them");
        gate.open();
        until_turned("dropped", || count() == 4).await;
        let (result, found) = file.read_exact_at(vec![0; 32], 0).await;
        result.unwrap();
        assert_eq!(found, vec![Loud::BYTE; 32]);
    });
}

/// Whether the ring goes on, or breaks before or after some have been handed over.
#[cfg(feature = "faulty")]
#[test]
fn a_batch_of_buffers_that_do_not_tell_their_length_when_they_fail_is_over() {
    let _watchdog = Watchdog::new();
    let path = temp_path(&[0; 64]);
    for breaks_after in [0, 1, 2, 1000] {
        let faults = Faults::new(3).break_after(breaks_after);
        let engine = Engine::builder().faults(faults).build().unwrap();
        // Not to be written; by the backend.
        let options = OpenOptions::new().read(true).durable_writes(true);
        let file = options.engine(&engine).open(path.path()).unwrap();
        let mut batch = Batch::on(&engine);
        (0..3).for_each(|n| batch.push(file.write_at(Mute::new(), 8 * n)));
        for (result, _) in batch.wait() {
            assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EBADF));
        }
        let mut batch = Batch::on(&engine);
        (0..3).for_each(|n| batch.push(file.write_vectored_at(vec![Mute::new()], 8 * n)));
        for (result, _) in batch.wait() {
            assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EBADF));
        }
        let stats = engine.stats();
        assert_eq!((stats.operations, stats.in_flight), (6, 0), "{stats:?}");
    }
}

#[cfg(feature = "faulty")]
#[test]
fn a_buffer_may_use_the_engine_when_it_is_dropped() {
    let _watchdog = Watchdog::new();
    on_both_hosts(async |engine, gate| {
        let dropped = Arc::new(AtomicU64::new(0));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let file = temp_file(engine, &pattern(8));
        let write = || {
            let (again, kept) = (engine.clone(), Arc::clone(&kept));
            let buf = loud(&dropped, move || use_in_every_way(&again, &kept));
            file.write_at(buf, 0).into_future()
        };
        // Never polled.
        drop(write());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        // In flight.
        let (mut left, mut answered) = (write(), write());
        assert!(poll_with(&mut left, Waker::noop()).is_pending());
        let (counter, waker) = counting();
        assert!(poll_with(&mut answered, &waker).is_pending());
        drop(left);
        gate.open();
        until_turned("the buffer is dropped", || {
            dropped.load(Ordering::SeqCst) == 2
        })
        .await;
        // Answered, and nobody has asked.
        until_turned("answered", || counter.count() > 0).await;
        drop(answered);
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
        let kept = std::mem::take(&mut *kept.lock().unwrap());
        for nop in kept {
            nop.await;
        }
    });
}

#[cfg(feature = "faulty")]
#[test]
fn a_buffer_may_end_the_engine_when_it_is_dropped() {
    let _watchdog = Watchdog::new();
    let (gate, engine) = Gate::closed(|builder| builder.drivers(1));
    let (say, hear) = channel();
    let last = Last {
        engine: Some(engine.clone()),
        say,
    };
    let file = temp_file(&engine, &pattern(8));
    let mut write = file
        .write_at(Loud::new(move || drop(last)), 0)
        .into_future();
    assert!(poll_with(&mut write, Waker::noop()).is_pending());
    pollster::block_on(in_flight(&engine, 1));
    drop(write);
    drop((file, engine));
    assert!(hear.try_recv().is_err(), "the kernel has it");
    gate.open();
    let on = hear.recv().expect("the driver is not stuck");
    assert_eq!(on.as_deref(), Some("inflight-driver"));
}

#[cfg(feature = "faulty")]
#[test]
fn timeouts_and_batches_in_flight_may_be_forgotten() {
    on_both_hosts(async |engine, gate| {
        let dropped = Arc::new(AtomicU64::new(0));
        let content = pattern(40);
        let file = temp_file(engine, &content);
        let write = |at| file.write_at(loud(&dropped, || ()), at);
        let mut timeout = write(0).timeout(Duration::from_secs(3600));
        let mut batch = Batch::on(engine);
        (1..4).for_each(|n| batch.push(write(8 * n)));
        let mut batch = batch.into_future();
        assert!(poll_with(&mut timeout, Waker::noop()).is_pending());
        assert!(poll_with(&mut batch, Waker::noop()).is_pending());
        in_flight(engine, 4).await;
        std::mem::forget((timeout, batch));
        gate.open();
        in_flight(engine, 0).await;
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "nobody may free them");
        // They have taken place, and others go on.
        let (result, found) = file.read_exact_at(vec![0; 40], 0).await;
        result.unwrap();
        assert_eq!(
            found,
            [vec![Loud::BYTE; 32], content[32..].to_vec()].concat()
        );
    });
}

#[cfg(feature = "faulty")]
#[test]
fn openings_and_closings_under_way_may_be_forgotten() {
    on_both_hosts(async |engine, gate| {
        let path = temp_path(&pattern(8)).into_temp_path();
        let is_open = || {
            let open = std::fs::read_dir("/proc/self/fd").expect("procfs is mounted");
            let mut open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            open.any(|open| open == *path)
        };
        let file = read_write(engine).open(&path).unwrap();
        let mut write = file.write_at(loud(&Arc::default(), || ()), 0).into_future();
        assert!(poll_with(&mut write, Waker::noop()).is_pending());
        in_flight(engine, 1).await;
        drop(write);
        let mut closing = file.close().into_future();
        assert!(poll_with(&mut closing, Waker::noop()).is_pending());
        std::mem::forget(closing);
        assert!(is_open(), "the kernel has it");
        gate.open();
        until_turned("closed", || !is_open()).await;
        // What was to be made is there, whoever asks.
        let (new, link) = (path.with_extension("new"), path.with_extension("link"));
        // What it leads to may be anywhere, so that is for the pool.
        std::os::unix::fs::symlink(&new, &link).unwrap();
        let mut opening = read_write(engine).create(true).opening(&link).into_future();
        assert!(poll_with(&mut opening, Waker::noop()).is_pending());
        std::mem::forget(opening);
        until_turned("made", || new.exists()).await;
        drained(engine);
        std::fs::remove_file(new).unwrap();
        std::fs::remove_file(link).unwrap();
    });
}
