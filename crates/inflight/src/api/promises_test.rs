//! Flushes that a run loop makes itself, and those that it leaves to others: of a file that tells
//! who makes them, and lets them end.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use pollster::block_on;

use super::detach::Detach;
use super::engine::{BackendKind, Engine};
use super::file;
use super::handle::Handle;
use super::kept::{Foreseen, KeptFor, Tells};
use super::local;
use super::many::{WriteFrom, write_many};
use super::operation::{Operation as _, Sealed};
use super::pending::Pending;
use crate::commit::{Commit, Flush, Gather, Keep, Kept};
use crate::completion::Answer;
use crate::host::at_once::Yielded;
use crate::host::local::without_being_away;
use crate::op::{Op, Prepare, Prepared, Request, SyncOf};

/// A file that is only ever flushed.
struct File {
    engine: Engine,
    disk: Disk,
    commit: Arc<Commit>,
}

#[derive(Clone, Default)]
struct Disk {
    state: Arc<(Mutex<State>, Condvar)>,
    /// How long the first flush of another file took.
    usual: Option<Duration>,
    is_served: bool,
    /// Flushes for so many syncs are said to be short.
    is_short_for: usize,
    /// How long each takes.
    takes: Duration,
}

#[derive(Default)]
struct State {
    /// Who has made the last flush.
    flusher: Option<ThreadId>,
    begun: u32,
    is_held: bool,
    leaders: Vec<JoinHandle<()>>,
}

/// More than this is much to write back.
const LITTLE_BYTES: u64 = 100;

impl Disk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().expect("nobody panics with it")
    }

    fn short_for(syncs: usize) -> Self {
        Self {
            is_short_for: syncs,
            ..Self::default()
        }
    }

    fn is_flushed_here(&self) -> bool {
        self.lock().flusher == Some(thread::current().id())
    }

    /// Flushes that begin from now on do not end.
    fn hold(&self) {
        self.lock().is_held = true;
    }

    fn let_go(&self) {
        self.lock().is_held = false;
        self.state.1.notify_all();
    }

    fn wait_for_flushes(&self, count: u32) {
        let waits = |state: &mut State| state.begun < count;
        let waited = self.state.1.wait_while(self.lock(), waits);
        drop(waited.expect("nobody panics with it"));
    }

    /// Waits until those who were to lead have nobody left to flush for.
    fn wait_for_leaders(&self) {
        let leaders = std::mem::take(&mut self.lock().leaders);
        for leader in leaders {
            leader.join().expect("no panic");
        }
    }
}

impl Flush for Disk {
    fn alone(&self, data_only: bool) -> Answer {
        self.flush(data_only)
    }

    fn flush(&self, _data_only: bool) -> Answer {
        let mut state = self.lock();
        state.flusher = Some(thread::current().id());
        state.begun += 1;
        self.state.1.notify_all();
        let waited = self.state.1.wait_while(state, |state| state.is_held);
        drop(waited.expect("nobody panics with it"));
        thread::sleep(self.takes);
        Answer::moved(0)
    }

    fn delegate(&self, commit: &Arc<Commit>) -> bool {
        let commit = Arc::clone(commit);
        let leader = thread::spawn(move || commit.lead());
        self.lock().leaders.push(leader);
        true
    }

    fn is_wanted(&self) -> bool {
        false
    }

    fn gathers_for(&self, _took: Duration) -> Option<Gather> {
        None
    }

    fn looks_for(&self) -> Duration {
        Duration::ZERO
    }

    fn is_served(&self) -> bool {
        self.is_served
    }

    fn is_little(&self, bytes: u64) -> bool {
        bytes <= LITTLE_BYTES
    }

    fn is_short(&self, _took: Duration, syncs: usize) -> bool {
        assert_ne!(syncs, 0, "any time is short then");
        syncs <= self.is_short_for
    }

    fn usual(&self) -> Option<Duration> {
        self.usual
    }

    fn was_first(&self, _took: Duration) {}

    fn count(&self, _served: usize) {}

    fn wake(&self, waker: Waker) {
        waker.wake();
    }
}

impl File {
    fn new(engine: &Engine, disk: Disk) -> Self {
        Self {
            engine: engine.clone(),
            commit: Arc::new(Commit::new(disk.clone(), true)),
            disk,
        }
    }

    fn sync(&self) -> Pending<Sync<'_>> {
        Pending::new(Sync(self))
    }

    /// So often that how long its flushes take is known.
    async fn sync_often(&self) {
        for _ in 0..40 {
            self.sync().await;
        }
    }

    /// Syncs until the loop makes the flush itself: one that a busy machine has made slow is
    /// followed by one of somebody else.
    async fn lead(&self) {
        for _ in 0..1000 {
            self.sync().await;
            if self.disk.is_flushed_here() {
                return;
            }
        }
        panic!("the loop has led none of a thousand flushes");
    }
}

struct Sync<'f>(&'f File);

impl Prepare for Sync<'_> {
    type Output = ();

    fn prepare(&mut self) -> Prepared {
        let (fd, data_only) = (-1, true);
        Prepared::sync(Request::simple(Op::Sync { fd, data_only }))
    }

    fn sync(&self) -> Option<SyncOf<'_>> {
        Some(SyncOf {
            commit: &self.0.commit,
            file: self,
            data_only: true,
        })
    }

    fn finish(self, answer: Answer) {
        assert_eq!(answer, Answer::moved(0));
    }
}

impl Keep for Sync<'_> {
    fn keep(&self) -> Kept {
        Arc::new(())
    }
}

impl Sealed for Sync<'_> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        &self.0.engine
    }
}

// SAFETY: no memory is involved, and no descriptor.
unsafe impl Detach for Sync<'_> {
    fn handle(&self) -> Option<&Arc<Handle>> {
        None
    }

    fn foresee(&self) -> Foreseen {
        Foreseen(Tells::Nothing)
    }

    unsafe fn into_kept(_: MaybeUninit<Self>, _: Option<Arc<Handle>>, of: Foreseen) -> KeptFor {
        KeptFor::new((), None, of)
    }
}

/// Runs `body` in a loop that waits in a ring, if one can be had here, and in one that does not.
fn in_loops(body: impl AsyncFn(&Engine)) {
    let engines = [BackendKind::Uring, BackendKind::Threads].map(|kind| {
        let engine = Engine::builder().backend(kind);
        engine.build().ok()
    });
    let [_, threads] = &engines;
    assert!(threads.is_some(), "threads can be had everywhere");
    for engine in engines.into_iter().flatten() {
        let ran = engine.run(body(&engine));
        ran.expect("there is a loop");
    }
}

/// Polls with the waker of the task that runs.
async fn begin(sync: &mut Pending<Sync<'_>>) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *sync).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// A sync whose flush somebody else than the loop has begun, and that does not end.
async fn begin_with_others(file: &File) -> Pending<Sync<'_>> {
    file.disk.hold();
    let mut sync = file.sync();
    begin(&mut sync).await;
    // Tasks are ready for two turns, so it is left to somebody else.
    for _ in 0..2 {
        local::yield_now().await;
    }
    file.disk.wait_for_flushes(1);
    sync
}

#[test]
fn a_loop_with_nothing_else_to_do_makes_the_flush_itself() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        file.sync().await;
        assert!(!file.disk.is_flushed_here(), "nothing was known of it");
        file.lead().await;
    });
}

/// Whatever is opened anew has had no flush.
#[test]
fn a_loop_goes_by_what_is_usual_where_nothing_is_known_of_the_file() {
    in_loops(async |engine| {
        for (usual_us, leads) in [(1000, true), (1001, false)] {
            let disk = Disk {
                usual: Some(Duration::from_micros(usual_us)),
                ..Disk::default()
            };
            let file = File::new(engine, disk);
            file.sync().await;
            assert_eq!(file.disk.is_flushed_here(), leads, "{usual_us} us");
        }
    });
}

/// The task that is woken is polled behind the one that syncs, so one flush may come before.
#[test]
fn a_loop_that_makes_one_flush_after_the_other_hears_what_others_send() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        file.lead().await;
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
        file.lead().await;
        let waker = waker.take().expect("it has been polled");
        sent.set(true);
        thread::scope(|scope| scope.spawn(|| waker.wake()).join().expect("no panic"));
        let mut made = 0;
        while !heard.get() && made <= 3 {
            file.sync().await;
            made += u32::from(file.disk.is_flushed_here());
        }
        drop(task);
        assert!(made <= 2, "{made}");
    });
}

#[test]
fn a_loop_that_is_busy_leaves_its_flush_to_others() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        file.lead().await;
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
        file.sync().await;
        assert!(!file.disk.is_flushed_here());
        over.set(true);
        busy.await;
    });
}

#[test]
fn a_promise_outlasts_a_turn_in_which_tasks_are_ready() {
    in_loops(async |engine| {
        let file = Arc::new(File::new(engine, Disk::default()));
        file.lead().await;
        let before = file.disk.lock().begun;
        let other = Arc::clone(&file);
        let task = local::spawn(async move { other.sync().await });
        file.sync().await;
        task.await;
        assert!(file.disk.is_flushed_here());
        assert_eq!(file.disk.lock().begun - before, 1, "one serves both");
    });
}

#[test]
fn a_loop_hears_whose_sync_is_over_before_it_leaves_a_flush_to_others() {
    in_loops(async |engine| {
        let file = Arc::new(File::new(engine, Disk::default()));
        file.lead().await;
        let before = file.disk.lock().begun;
        file.disk.hold();
        let [waits, joins] = [(); 2].map(|()| Arc::clone(&file));
        let waits = thread::spawn(move || Sync(&waits).wait());
        file.disk.wait_for_flushes(before + 1);
        let task = local::spawn(async move { joins.sync().await });
        local::yield_now().await;
        file.disk.let_go();
        waits.join().expect("no panic");
        file.disk.wait_for_leaders();
        assert_eq!(file.disk.lock().begun - before, 2);
        // The task has been told, and the loop has not heard of it.
        file.sync().await;
        assert!(file.disk.is_flushed_here());
        task.await;
    });
}

#[test]
fn a_flush_that_has_much_to_write_is_left_to_others() {
    in_loops(async |engine| {
        for is_short_for in [0, usize::MAX] {
            let file = File::new(engine, Disk::short_for(is_short_for));
            file.sync_often().await;
            file.lead().await;
            for bytes in [LITTLE_BYTES, 1] {
                file.commit
                    .wrote(usize::try_from(bytes).expect("it is small"));
            }
            file.sync().await;
            assert!(!file.disk.is_flushed_here(), "much was written");
            // That was before the last flush.
            file.commit.wrote(1);
            file.lead().await;
        }
    });
}

/// Polls a sync once, and tells whether it is over.
async fn is_over_at_once(file: &File) -> bool {
    // On a busy machine the one that has made the last flush still leads.
    file.disk.wait_for_leaders();
    let mut sync = pin!(file.sync());
    poll_fn(|context| Poll::Ready(sync.as_mut().poll(context).is_ready())).await
}

/// The same, however long what came before has taken: two yield behind that.
async fn is_over_when_it_begins(file: &File) -> bool {
    (0..3).for_each(|_| _ = Yielded::default().must_yield(Waker::noop()));
    is_over_at_once(file).await
}

#[test]
fn a_short_flush_is_made_where_one_file_is_flushed_and_nothing_ends_in_time() {
    in_loops(async |engine| {
        let files = [(); 2].map(|()| File::new(engine, Disk::short_for(1)));
        for file in &files {
            file.sync_often().await;
            assert!(is_over_when_it_begins(file).await);
        }
        let [first, second] = &files;
        assert!(is_over_when_it_begins(second).await);
        assert!(!is_over_when_it_begins(first).await, "another file");
        for _ in 0..2 {
            first.sync().await;
        }
        assert!(is_over_when_it_begins(first).await);
        let mut sync = pin!(first.sync());
        let is_over = poll_fn(|context| {
            let poll = without_being_away(|| sync.as_mut().poll(context));
            Poll::Ready(poll.is_ready())
        });
        assert!(!is_over.await, "it may not wait");
    });
}

/// As after a copy that takes as long.
#[test]
fn a_task_yields_after_a_long_flush_that_it_has_made_where_it_is_polled() {
    in_loops(async |engine| {
        let disk = Disk {
            takes: Duration::from_millis(1),
            ..Disk::short_for(usize::MAX)
        };
        let file = File::new(engine, disk);
        file.sync_often().await;
        let mut over = 0;
        for _ in 0..6 {
            over += u32::from(is_over_at_once(&file).await);
        }
        assert_eq!(over, 2, "two others yield behind each");
    });
}

#[test]
fn a_slow_flush_that_all_have_left_is_not_short() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        drop(begin_with_others(&file).await);
        file.disk.let_go();
        // It would panic if it were for nobody.
        file.disk.wait_for_leaders();
    });
}

#[test]
fn whatever_is_written_is_for_the_next_flush() {
    let engine = Engine::new().expect("there is a backend");
    let file = tempfile::tempfile().expect("there is room");
    let file = file::File::from_std(&engine, file).expect("it is one");
    let commit = file.handle().commit();
    let much = vec![7; 2 << 20];
    let (first, second) = much.split_at(1 << 20);
    for way in 0..4 {
        assert!(commit.has_little());
        let written = match way {
            0 => file.write_at(much.clone(), 0).wait().0,
            1 => {
                let lists = vec![first.to_vec(), second.to_vec()];
                file.write_vectored_at(lists, 0).wait().0
            }
            2 => {
                let mut writes = [WriteFrom::new(&file, 0, &much)];
                write_many(&mut writes).and_then(|()| writes[0].result())
            }
            // Nothing of it is left to a flush.
            _ => file.write_at(much.clone(), 0).dsync().wait().0,
        };
        assert_eq!(written.expect("there is room"), much.len());
        assert_eq!(commit.has_little(), way == 3, "way {way}");
        file.sync_data().wait().expect("it can be synced");
    }
}

#[test]
fn a_loop_that_has_another_file_flushed_hears_of_that_one_meanwhile() {
    in_loops(async |engine| {
        let [led, other] = [(); 2].map(|()| File::new(engine, Disk::default()));
        led.lead().await;
        let first = begin_with_others(&other).await;
        led.sync().await;
        assert!(
            !led.disk.is_flushed_here(),
            "it would not hear of the other"
        );
        other.disk.let_go();
        first.await;
        // Alone again, it leads again.
        led.lead().await;
    });
}

/// Nobody waits for a loop that does not come back, because this thread blocks.
#[test]
fn whoever_else_asks_does_not_count_on_a_promise() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        for waits in [true, false] {
            let ask = || match waits {
                true => Sync(&file).wait(),
                false => block_on(file.sync()),
            };
            file.lead().await;
            let mut sync = file.sync();
            begin(&mut sync).await;
            thread::scope(|scope| scope.spawn(ask).join().expect("no panic"));
            ask();
            sync.await;
        }
    });
}

/// A future that is polled by somebody else does not depend on the loop in which it began.
#[test]
fn a_sync_that_was_moved_out_of_its_loop_is_made() {
    in_loops(async |engine| {
        let file = File::new(engine, Disk::default());
        file.lead().await;
        let mut moved = file.sync();
        begin(&mut moved).await;
        // The loop is blocked meanwhile.
        thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(moved));
            waits.join().expect("no panic");
        });
        let nested = engine.run(async {
            let mut left = file.sync();
            begin(&mut left).await;
            Some(left)
        });
        let left = nested.expect("loops may be nested");
        left.expect("it was left").await;
    });
}

/// Whoever serves it may be a task of the loop.
#[test]
fn a_loop_makes_no_flush_of_a_file_that_somebody_else_serves() {
    in_loops(async |engine| {
        for is_short_for in [0, usize::MAX] {
            let disk = Disk {
                usual: Some(Duration::from_micros(1)),
                is_served: true,
                ..Disk::short_for(is_short_for)
            };
            let file = File::new(engine, disk);
            for _ in 0..100 {
                file.sync().await;
                assert!(!file.disk.is_flushed_here(), "short for {is_short_for}");
            }
        }
    });
}
