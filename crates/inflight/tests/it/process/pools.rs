//! A pool whose buffers were taken, or waited for, when the process was forked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;

use inflight::{BufPool, TakeWhenFree};

use super::PAGE;
use crate::support::own::{in_forked_child, in_own_process};

/// Counts how often it is woken.
#[derive(Default)]
struct Counter(AtomicU32);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn in_a_forked_child_nobody_of_the_parent_waits_for_a_buffer() {
    let test = "in_a_forked_child_nobody_of_the_parent_waits_for_a_buffer";
    in_own_process(module_path!(), test, || {
        let pool = BufPool::new(2, PAGE).unwrap();
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let woken = || counter.0.load(Ordering::SeqCst);
        let is_ready = |taker: &mut TakeWhenFree| {
            let polled = Pin::new(taker).poll(&mut Context::from_waker(&waker));
            polled.is_ready()
        };
        let [mut handed, mut waits] = [(); 2].map(|()| pool.take_when_free());
        assert!(!is_ready(&mut handed) && !is_ready(&mut waits));
        drop(one);
        assert_eq!((woken(), pool.available()), (1, 0));
        let mut two = Some(two);
        in_forked_child(|| {
            assert_eq!(pool.available(), 1);
            let own = 2;
            assert_eq!(
                Arc::strong_count(&counter),
                own + 1,
                "wakers are forgotten, not dropped"
            );
            drop(two.take());
            assert_eq!((woken(), pool.available()), (1, 2));
            // Those of this thread wait anew, and are woken in the order of their new polls.
            let held = (pool.take().unwrap(), pool.take().unwrap());
            assert!(!is_ready(&mut waits) && !is_ready(&mut handed));
            drop(held.0);
            assert_eq!((woken(), pool.available()), (2, 0));
            assert!(is_ready(&mut waits));
            assert!(is_ready(&mut handed));
            drop(held.1);
            assert_eq!(pool.available(), 2);
        });
        assert!(!is_ready(&mut waits) && is_ready(&mut handed));
        assert_eq!(woken(), 2);
        assert!(is_ready(&mut waits));
    });
}

#[test]
fn a_child_takes_a_buffer_or_finds_none_while_threads_of_its_parent_do() {
    let test = "a_child_takes_a_buffer_or_finds_none_while_threads_of_its_parent_do";
    in_own_process(module_path!(), test, || {
        let pool = &BufPool::new(4, PAGE).unwrap();
        thread::scope(|scope| {
            // A panic drops it too, and so ends the thread.
            let goes_on = Arc::new(());
            let stays = Arc::downgrade(&goes_on);
            scope.spawn(move || {
                while stays.strong_count() > 0 {
                    drop(pool.take());
                }
            });
            let mut held = pool.take();
            for _ in 0..100 {
                in_forked_child(|| {
                    let had = pool.available();
                    drop(held.take());
                    let has = pool.available();
                    assert!(has == had + 1 || (had, has) == (0, 0), "{had} and {has}");
                    assert_eq!(pool.take().is_some(), has > 0);
                });
            }
        });
    });
}
