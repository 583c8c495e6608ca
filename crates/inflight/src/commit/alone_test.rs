//! Who leads whom where no thread of the pool can be had.

use std::cell::RefCell;
use std::rc::Rc;

use super::leaders::{Blocks, MADE, MEANWHILE, Site};
use super::*;

/// Counts how often it wakes.
#[derive(Default)]
struct Woken(AtomicU64);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A task, and how often it has been woken.
struct Task {
    seat: Seat,
    woken: Arc<Woken>,
    waker: Waker,
}

impl Task {
    fn join(commit: &Arc<Commit>) -> Self {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let seat = commit.join(true, &Nothing, Some(&waker), None);
        Self { seat, woken, waker }
    }

    fn poll(&self) -> Option<Answer> {
        self.seat.poll(&self.waker)
    }

    fn woken(&self) -> u64 {
        self.woken.0.load(Ordering::Relaxed)
    }
}

const SUCCESS: Option<Answer> = Some(Answer::from_number(0));

/// What this thread does, and how many flushes it makes meanwhile.
fn made<R>(does: impl FnOnce() -> R) -> (R, usize) {
    let before = MADE.get();
    let done = does();
    (done, MADE.get() - before)
}

/// During each flush of this thread another task comes, so many of them.
fn tasks_come(commit: &Arc<Commit>, left: usize, came: &Rc<RefCell<Vec<Task>>>) {
    let (next, all) = (Arc::clone(commit), Rc::clone(came));
    MEANWHILE.set((left > 0).then(|| -> Box<dyn FnOnce()> {
        Box::new(move || {
            tasks_come(&next, left - 1, &all);
            all.borrow_mut().push(Task::join(&next));
        })
    }));
}

#[test]
fn a_poll_makes_one_flush_however_many_come_meanwhile() {
    let site = Site::without_a_pool();
    let came = Rc::default();
    tasks_come(&site.commit, 8, &came);
    let (first, flushes) = made(|| Task::join(&site.commit));
    assert_eq!((first.poll(), flushes), (SUCCESS, 1));
    // Each is woken to make its own, and the last one has nobody behind it.
    for number in 0..8 {
        let late = came.borrow_mut().pop().expect("one came during the flush");
        assert!(came.borrow().is_empty());
        assert_eq!((late.woken(), late.seat.answer()), (1, None), "{number}");
        assert_eq!(made(|| late.poll()), (SUCCESS, 1));
    }
    assert!(site.nobody_leads());
}

#[test]
fn a_thread_makes_its_own_flush_and_one_that_waits_the_next() {
    let site = Site::without_a_pool();
    for has_tasks in [false, true] {
        let ((sleepers, task), flushes) = made(|| {
            site.led(|| {
                let task = has_tasks.then(|| Task::join(&site.commit));
                ([site.sleeper(), site.sleeper()], task)
            })
        });
        assert_eq!(flushes, 1, "{has_tasks}");
        for sleeper in sleepers {
            assert_eq!(Some(sleeper.join().expect("no panic")), SUCCESS);
        }
        if let Some(task) = task {
            assert_eq!(task.seat.answer(), SUCCESS, "with them");
            assert!(task.woken() > 0);
        }
        assert!(site.nobody_leads());
    }
}

#[test]
fn tasks_that_are_woken_to_lead_and_never_polled_keep_nobody_waiting() {
    let site = Site::without_a_pool();
    let tasks = || site.led(|| [(); 3].map(|()| Task::join(&site.commit)));
    // Another task comes, or a thread.
    let forgotten = tasks();
    let (task, flushes) = made(|| Task::join(&site.commit));
    assert_eq!((task.seat.answer(), flushes), (SUCCESS, 1));
    assert!(forgotten.iter().all(|task| task.seat.answer() == SUCCESS));
    let forgotten = tasks();
    let waits = || match site.commit.enter_alone(true, &Nothing) {
        Turn::Wait(seat) => Some(seat.wait()),
        Turn::Lead => panic!("it would pass over those who wait"),
    };
    assert_eq!(made(waits), (SUCCESS, 1));
    assert!(forgotten.iter().all(|task| task.seat.answer() == SUCCESS));
    // All leave.
    for task in tasks() {
        drop(task.seat.leave());
    }
    assert!(site.nobody_leads());
    site.led(|| ());
    assert!(site.nobody_leads());
}

#[test]
fn a_task_that_is_moved_makes_the_flush_it_is_woken_for() {
    let site = Site::without_a_pool();
    let task = site.led(|| Task::join(&site.commit));
    assert_eq!((task.woken(), task.seat.answer()), (1, None));
    let (told, flushes) = made(|| task.seat.poll(Waker::noop()));
    assert_eq!((told, flushes), (SUCCESS, 1));
    assert!(site.nobody_leads());
}

#[test]
fn the_pool_leads_again_once_it_has_a_thread() {
    let site = Site::without_a_pool();
    let task = site.led(|| Task::join(&site.commit));
    site.has_no_thread.store(false, Ordering::Relaxed);
    let called = site.counts().1;
    assert_eq!(made(|| task.poll()), (None, 0));
    assert_eq!(site.counts().1, called + 1);
    site.commit.lead();
    assert_eq!((task.poll(), site.nobody_leads()), (SUCCESS, true));
}

#[test]
fn those_woken_to_lead_are_still_tasks_when_a_batch_does() {
    let site = Site::without_a_pool();
    *lock(&site.patience) = Duration::from_millis(1);
    let (task, batch) = site.led(|| {
        let Turn::Wait(batch) = site.commit.enter(true, &Nothing) else {
            panic!("two lead");
        };
        (Task::join(&site.commit), batch)
    });
    assert_eq!(task.woken(), 1, "the batch has something else to do");
    let (seat, commit) = (task.seat, Arc::clone(&site.commit));
    MEANWHILE.set(Some(Box::new(move || {
        assert_eq!(seat.poll(&Waker::from(Arc::new(Blocks(commit)))), None);
    })));
    // Its waker waits for a thread, which takes the lead.
    assert_eq!(made(|| Some(batch.wait())), (SUCCESS, 1));
    assert!(site.nobody_leads());
}
