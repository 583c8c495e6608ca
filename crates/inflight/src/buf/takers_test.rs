//! Waiting for a buffer of a pool; under Miri too.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use super::{BufPool, PoolBuf, TakeWhenFree};

/// Counts how often it is woken.
#[derive(Default)]
struct Counter(AtomicU32);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One who waits, with a waker of its own.
struct Taker {
    future: TakeWhenFree,
    counter: Arc<Counter>,
    waker: Waker,
}

impl Taker {
    fn new(pool: &BufPool) -> Self {
        let counter = Arc::new(Counter::default());
        Self {
            future: pool.take_when_free(),
            waker: Waker::from(Arc::clone(&counter)),
            counter,
        }
    }

    fn waiting(pool: &BufPool) -> Self {
        let mut taker = Self::new(pool);
        assert!(taker.poll().is_none(), "a buffer is free");
        taker
    }

    fn poll(&mut self) -> Option<PoolBuf> {
        poll(&mut self.future, &self.waker)
    }

    fn woken(&self) -> u32 {
        self.counter.0.load(Ordering::SeqCst)
    }
}

fn poll(future: &mut TakeWhenFree, waker: &Waker) -> Option<PoolBuf> {
    match Pin::new(future).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(buf) => Some(buf),
        Poll::Pending => None,
    }
}

/// A pool of which every buffer is taken.
fn taken(count: u32) -> (BufPool, Vec<PoolBuf>) {
    let pool = BufPool::new(count, 100).expect("there is memory");
    let bufs = (0..count).map(|_| pool.take().expect("it is free"));
    let bufs = bufs.collect();
    (pool, bufs)
}

#[test]
fn it_may_be_polled_anywhere() {
    fn is_free<F: Future + Send + Sync + Unpin + 'static>(_: &F) {}
    let pool = BufPool::new(1, 100).expect("there is memory");
    let mut taker = Taker::new(&pool);
    is_free(&taker.future);
    assert_eq!(
        pool.available(),
        1,
        "nothing is taken before the first poll"
    );
    let buf = taker.poll().expect("it is free");
    assert_eq!((buf.len(), pool.available()), (100, 0));
}

#[test]
fn who_waits_is_served_in_order_and_not_overtaken() {
    let (pool, mut bufs) = taken(2);
    let mut takers: Vec<_> = (0..4).map(|_| Taker::waiting(&pool)).collect();
    let woken = |takers: &[Taker]| takers.iter().map(Taker::woken).collect::<Vec<_>>();
    // Polled again, one keeps its turn.
    assert!(takers[0].poll().is_none());
    assert_eq!((pool.waiting(), pool.available()), (4, 0));
    drop(bufs.pop());
    assert_eq!(woken(&takers), [1, 0, 0, 0]);
    assert_eq!(pool.waiting(), 3, "who has been handed one waits no more");
    drop(bufs.pop());
    assert_eq!(woken(&takers), [1, 1, 0, 0]);
    // They have not come for them, but nobody else gets them.
    assert!(pool.take().is_none());
    assert_eq!(pool.available(), 0);
    assert!(Taker::new(&pool).poll().is_none());
    assert!(takers[2].poll().is_none());
    for next in [2, 3] {
        let buf = takers[next - 2].poll().expect("it was handed one");
        assert!(takers[next].poll().is_none());
        drop(buf);
        assert_eq!(takers[next].woken(), 1);
    }
    let last: Vec<_> = takers[2..].iter_mut().map(Taker::poll).collect();
    assert!(last.iter().all(Option::is_some));
    drop(last);
    assert_eq!((pool.available(), woken(&takers)), (2, vec![1; 4]));
    assert!(pool.take().is_some());
}

#[test]
fn one_that_is_dropped_when_it_was_woken_passes_the_buffer_on() {
    let (pool, mut bufs) = taken(1);
    let [one, two, three, mut four] = [(); 4].map(|()| Taker::waiting(&pool));
    // One that was not yet woken is passed over.
    drop(two);
    assert_eq!(pool.waiting(), 3);
    drop(bufs.pop());
    assert_eq!((one.woken(), three.woken(), four.woken()), (1, 0, 0));
    drop(one);
    assert_eq!((three.woken(), four.woken()), (1, 0));
    drop(three);
    assert_eq!(four.woken(), 1);
    drop(four.poll().expect("it was handed to it"));
    let mut five = Taker::new(&pool);
    let buf = five.poll().expect("it is free");
    let six = Taker::waiting(&pool);
    drop(buf);
    assert_eq!((six.woken(), pool.available()), (1, 0));
    drop(six);
    assert_eq!(pool.available(), 1, "it came back to nobody");
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    let (pool, mut bufs) = taken(1);
    let mut taker = Taker::waiting(&pool);
    let counter = Arc::new(Counter::default());
    assert!(poll(&mut taker.future, &Waker::from(Arc::clone(&counter))).is_none());
    drop(bufs.pop());
    assert_eq!((taker.woken(), counter.0.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(
        Arc::strong_count(&taker.counter),
        2,
        "the first one is kept"
    );
}

#[test]
fn a_buffer_from_another_thread_wakes_and_a_future_may_move_there() {
    let (pool, bufs) = taken(2);
    let mut takers = [(); 2].map(|()| Taker::waiting(&pool));
    thread::scope(|scope| {
        scope.spawn(move || drop(bufs)).join().expect("no panic");
        assert!(takers.iter().all(|taker| taker.woken() == 1));
        let [one, two] = &mut takers;
        scope.spawn(|| drop(one.poll().expect("it was handed to it")));
        drop(two.poll().expect("it was handed to it"));
    });
    assert_eq!(pool.available(), 2);
}
