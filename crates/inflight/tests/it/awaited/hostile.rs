//! Wakers that do what they should not: panic, use the engine they are woken by, end it.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use inflight::{BackendKind, Builder, Engine};

use super::hands::{Done, counting, drained, poll_with, telling, until_turned};
use crate::support::{on_every_backend, pattern, temp_file};

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
        let (result, bufs) = file.read_vectored_at(vec![vec![0; 4]], at).await;
        assert_eq!(result.expect("it is done"), 4);
        let at = usize::try_from(at).expect("a few");
        assert_eq!(bufs[0], content[at..at + 4]);
    }
}

/// Panics without a report.
fn bang() -> ! {
    resume_unwind(Box::new("bang"))
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
fn the_last_handle_of_an_engine_may_be_dropped_by_its_own_driver() {
    for kind in [None, Some(BackendKind::Threads)] {
        for drivers in [1, 3] {
            let builder = Engine::builder().drivers(drivers);
            let builder = kind.into_iter().fold(builder, Builder::backend);
            let engine = builder.build().unwrap();
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
            let on = hear.recv().expect("the driver is not stuck");
            assert_eq!(on.as_deref(), Some("inflight-driver"));
        }
    }
}
