//! Which lane of a runtime serves a thread, what its passes ask of the kernel, and what waits for
//! completions that stay away.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Barrier};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::engine::{BackendKind, Engine};
use crate::host::cells::Ticket;
use crate::host::crew::current;
use crate::host::driver::Desk;
use crate::host::lane::Lane;
use crate::host::mail::{Mailbox, Rouser};
use crate::host::pass::{Takes, Then, Told, pass};
use crate::op::{Op, Request, Span, Wishes};
use crate::proactor::older_calls::{BLOCK, Block, answered, direct_file, started};

/// An engine with rings.
fn engine_or_skip() -> Option<Engine> {
    let engine = Engine::new().expect("nothing is demanded");
    if engine.backend().kind != BackendKind::Uring {
        eprintln!("skipped: there are no rings");
        return None;
    }
    Some(engine)
}

/// A runtime with so many threads, which serves these engines.
fn serving(engines: &[&Engine], workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_io();
    let runtime = builder.build().expect("a runtime");
    let entered = runtime.enter();
    for engine in engines {
        engine.serve_on_tokio().expect("it has rings");
    }
    drop(entered);
    runtime
}

fn served_or_skip(workers: usize) -> Option<(Engine, Runtime)> {
    let engine = engine_or_skip()?;
    let runtime = serving(&[&engine], workers);
    Some((engine, runtime))
}

/// The lane that serves this thread in a runtime; none if a driver has taken all of them over.
fn look(engine: &Engine, runtime: &Runtime) -> Option<Arc<Lane>> {
    let _entered = runtime.enter();
    current(engine.shared())
}

/// Whether a driver has taken a lane over, because this machine has not run its threads.
fn is_too_busy(engine: &Engine) -> bool {
    let reasons = engine.stats().fallbacks;
    let is = reasons
        .iter()
        .any(|fallback| fallback.reason.contains("not polled its lane"));
    if is {
        eprintln!("skipped: this machine is too busy to run its threads");
    }
    is
}

/// Waits until something is so, which is bounded.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    (0..6000).any(|_| {
        let is = is_so();
        if !is {
            thread::sleep(Duration::from_millis(10));
        }
        is
    })
}

/// A read of one byte from the start, or from a pipe.
fn read_of(reader: &impl AsRawFd, byte: &mut u8) -> Request {
    Request::simple(Op::ReadAt {
        fd: reader.as_raw_fd(),
        span: Span {
            start: byte,
            len: 1,
            arena: None,
        },
        offset: 0,
        wishes: Wishes::default(),
    })
}

/// Reads that wait for a pipe, in flight in a lane.
struct Waiting {
    lane: Arc<Lane>,
    tickets: Vec<Ticket>,
    memory: Vec<u8>,
    _reader: PipeReader,
    writer: PipeWriter,
}

impl Waiting {
    fn begin(lane: &Arc<Lane>, count: usize) -> Self {
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        let mut memory = vec![0; count];
        let submit = |byte: &mut u8| {
            // SAFETY: all of them are answered by `finish`, before memory and pipe are gone; a test
            // that fails before ends the process, or leaves both to a lane that is never entered.
            let ticket = unsafe { lane.submit(read_of(&reader, byte), Waker::noop()) };
            ticket.expect("the lane is there")
        };
        let tickets = memory.iter_mut().map(submit).collect();
        Self {
            lane: Arc::clone(lane),
            tickets,
            memory,
            _reader: reader,
            writer,
        }
    }

    fn finish(mut self) {
        let bytes = vec![1; self.memory.len()];
        self.writer.write_all(&bytes).expect("it is a pipe");
        for ticket in self.tickets {
            let is_there = || self.lane.poll(ticket, Waker::noop()).is_some();
            assert!(until(is_there), "an answer has not come");
        }
        assert_eq!(self.memory, bytes);
    }
}

/// No-ops of so many tasks, 100 each.
fn run_nops(engine: &Engine, runtime: &Runtime, tasks: usize) {
    let nops = |_| {
        let engine = engine.clone();
        runtime.spawn(async move {
            for _ in 0..100 {
                engine.nop().await.expect("a no-op cannot fail");
            }
        })
    };
    let nops: Vec<_> = (0..tasks).map(nops).collect();
    runtime.block_on(async {
        for task in nops {
            task.await.expect("it does not panic");
        }
    });
}

#[test]
fn in_a_crowd_each_thread_has_a_lane_of_its_own() {
    let Some((engine, runtime)) = served_or_skip(3) else {
        return;
    };
    let id = runtime.handle().id();
    let first = engine.shared().lanes.find(id).expect("the runtime serves");
    let crowd = Arc::clone(first.crowd());
    let before = look(&engine, &runtime).expect("it serves");
    assert!(Arc::ptr_eq(&before, &first), "nothing is in flight");
    let waiting = Waiting::begin(&first, 8);
    let is_there = until(|| crowd.is_there() || is_too_busy(&engine));
    let all_have_theirs = Barrier::new(4);
    let own = || {
        let lane = look(&engine, &runtime);
        let again = look(&engine, &runtime);
        all_have_theirs.wait();
        (
            lane.map(|lane| lane.place()),
            again.map(|lane| lane.place()),
        )
    };
    let mut places = thread::scope(|scope| {
        let owns = [(); 4].map(|()| scope.spawn(own));
        owns.map(|own| own.join().expect("it does not panic"))
    });
    let left: u64 = (0..3).map(|place| crowd.threads(place)).sum();
    waiting.finish();
    let has_gone = until(|| !crowd.is_there());
    let after = look(&engine, &runtime);
    if is_too_busy(&engine) {
        return;
    }
    assert!(is_there && has_gone);
    places.sort_unstable();
    // There is one thread more than lanes.
    let expected = [0, 0, 1, 2].map(|place| (Some(place), Some(place)));
    assert_eq!(places, expected);
    assert_eq!(left, 0, "threads that have ended have no lanes");
    assert!(after.is_some_and(|lane| Arc::ptr_eq(&lane, &first)));
}

#[test]
fn a_thread_remembers_the_lanes_of_a_few_engines() {
    let engines: Option<Vec<_>> = (0..6).map(|_| engine_or_skip()).collect();
    let Some(engines) = engines else {
        return;
    };
    let runtime = serving(&engines.iter().collect::<Vec<_>>(), 1);
    let remembered = || -> Vec<usize> {
        let lanes = engines.iter().map(|engine| &engine.shared().lanes);
        lanes.map(Arc::weak_count).collect()
    };
    let of_tasks = remembered();
    for engine in &engines {
        for known in [engine, &engines[0], engine] {
            let lane = look(known, &runtime).expect("it serves");
            let id = runtime.handle().id();
            let first = known.shared().lanes.find(id).expect("it serves");
            assert!(Arc::ptr_eq(&lane, &first), "the lane of another engine");
        }
    }
    let by_thread: Vec<_> = std::iter::zip(remembered(), of_tasks)
        .map(|(now, before)| now - before)
        .collect();
    assert_eq!(by_thread.iter().sum::<usize>(), 4, "{by_thread:?}");
    assert_eq!(by_thread[5], 1);
}

#[test]
fn a_lane_that_is_taken_over_leaves_the_others_to_their_tasks() {
    let Some((engine, runtime)) = served_or_skip(2) else {
        return;
    };
    let (lanes, id) = (&engine.shared().lanes, runtime.handle().id());
    let first = lanes.find(id).expect("the runtime serves");
    let waiting = Waiting::begin(&first, 8);
    let was_there = until(|| first.crowd().is_there() || is_too_busy(&engine));
    first.take_over("as planned");
    // Its task sees that, and ends.
    let find_other = || lanes.find(id).filter(|lane| !Arc::ptr_eq(lane, &first));
    let has_ended = until(|| find_other().is_some() || is_too_busy(&engine));
    let (Some(other), false) = (find_other(), is_too_busy(&engine)) else {
        return waiting.finish();
    };
    assert!(was_there && has_ended);
    assert!(
        !first.crowd().is_there(),
        "what a driver has is no crowd of theirs"
    );
    let (served, passes) = (engine.stats().lane_operations, other.passes());
    run_nops(&engine, &runtime, 1);
    let by_others = engine.stats().lane_operations - served;
    let passes = other.passes() - passes;
    waiting.finish();
    if is_too_busy(&engine) {
        return;
    }
    assert_eq!(by_others, 100);
    assert!(passes > 0);
    assert!(until(|| first.unanswered() == 0));
    assert_eq!(engine.stats().fallbacks.len(), 1);
}

/// What the task of a lane works with, for passes by hand.
struct ByHand {
    mailbox: Mailbox,
    desk: Desk,
    told: Told,
    announced: File,
}

impl ByHand {
    fn new(engine: &Engine) -> Self {
        let (proactor, announced) = engine.shared().new_lane(false).expect("it has rings");
        Self {
            mailbox: Mailbox::new(Rouser::Task(Waker::noop().clone()), u64::MAX),
            desk: Desk::new(proactor),
            told: Told::default(),
            announced: File::from(announced),
        }
    }

    fn pass(&mut self, takes: Takes) -> Then {
        let then = pass(&mut self.desk, &self.mailbox, &mut self.told, takes, |_| ());
        self.mailbox.tell(&mut self.told.news);
        then
    }

    /// Whether a completion has been announced since this was asked last.
    fn is_announced(&mut self) -> bool {
        let read = self.announced.read(&mut [0; 8]);
        let is_none = matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock);
        assert!(is_none || read.is_ok(), "{read:?}");
        !is_none
    }

    fn submit_nops(&self, count: usize) -> Vec<Ticket> {
        let nops = (0..count).map(|_| Request::simple(Op::Nop));
        let mut tickets = Vec::new();
        // SAFETY: a no-op names no memory.
        assert!(unsafe { self.mailbox.submit_all(nops, &mut tickets) });
        tickets
    }

    /// # Safety
    ///
    /// Pipe and memory stay until the read has been answered.
    unsafe fn submit_read(&self, reader: &PipeReader, byte: &mut u8) -> Ticket {
        // SAFETY: passed on from the caller.
        let ticket = unsafe { self.mailbox.submit(read_of(reader, byte), Waker::noop()) };
        ticket.expect("it is not to end")
    }

    fn finish(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            assert!((0..6000).any(|_| {
                let is_answered = self.mailbox.poll(*ticket, Waker::noop()).is_some();
                if !is_answered && self.pass(Takes::Mail) == Then::Sleep {
                    thread::sleep(Duration::from_millis(10));
                }
                is_answered
            }));
        }
    }
}

#[test]
fn what_has_come_is_one_enter_and_only_who_sleeps_is_told_of_completions() {
    let Some(engine) = engine_or_skip() else {
        return;
    };
    let mut lane = ByHand::new(&engine);
    let first = lane.submit_nops(1);
    lane.finish(&first);
    assert!((0..4).any(|_| lane.pass(Takes::Mail) == Then::Sleep));
    lane.is_announced();
    let enters = engine.stats().enters;
    let nops = lane.submit_nops(32);
    lane.pass(Takes::None);
    assert_eq!(engine.stats().enters, enters);
    assert_eq!(lane.pass(Takes::Mail), Then::Again);
    assert_eq!(engine.stats().enters, enters + 1);
    assert!(!lane.is_announced(), "it has not slept");
    lane.finish(&nops);

    let mut pipes = [(); 2].map(|()| std::io::pipe().expect("there are descriptors"));
    let mut memory = [0; 2];
    let mut reads = Vec::new();
    for ((reader, _), byte) in pipes.iter().zip(&mut memory) {
        // SAFETY: they are finished below.
        reads.push(unsafe { lane.submit_read(reader, byte) });
    }
    assert!((0..4).any(|_| lane.pass(Takes::Mail) == Then::Sleep));
    lane.is_announced();
    pipes[0].1.write_all(&[1]).expect("it is a pipe");
    assert!(until(|| lane.is_announced()), "it sleeps");
    assert_eq!(lane.pass(Takes::Mail), Then::Again);
    pipes[1].1.write_all(&[1]).expect("it is a pipe");
    assert!(!lane.is_announced(), "it does not sleep");
    lane.finish(&reads);
    assert_eq!(memory, [1; 2]);
}

#[test]
fn a_wait_for_completions_that_stay_away_is_short_and_the_last_for_a_while() {
    let Some(engine) = engine_or_skip() else {
        return;
    };
    let mut lane = ByHand::new(&engine);
    // From now on completions are thought to be near.
    for _ in 0..100 {
        let nops = lane.submit_nops(32);
        lane.finish(&nops);
    }
    let (reader, mut writer) = std::io::pipe().expect("there are descriptors");
    let mut memory = [0; 16];
    let mut reads = Vec::new();
    for byte in &mut memory {
        // SAFETY: they are finished below.
        reads.push(unsafe { lane.submit_read(&reader, byte) });
    }
    assert!(lane.told.worth() > 0);
    // The last no-ops may have to be told first.
    let waits = (0..4).map(|_| (lane.pass(Takes::MailAndWaits), lane.told.worth()));
    let waits: Vec<_> = waits.collect();
    assert_eq!(waits.last(), Some(&(Then::Sleep, 0)), "{waits:?}");
    writer.write_all(&[1; 16]).expect("it is a pipe");
    lane.finish(&reads);
    assert_eq!(memory, [1; 16]);
}

/// What a lane's ring has given up, for instance.
#[test]
fn a_runtime_is_told_of_what_the_pool_does_for_its_lane() {
    let Some(engine) = engine_or_skip() else {
        return;
    };
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(b"x").expect("there is room");
    for is_alone in [true, false] {
        let lane = engine.shared().new_lane(is_alone);
        let (mut proactor, watched) = lane.expect("it has rings");
        let mut byte = 0;
        let request = read_of(&file, &mut byte).aside();
        // SAFETY: the byte is there, and not looked at, until the answer has come.
        unsafe { proactor.push(1, &request) };
        assert_eq!(answered(&mut proactor, &watched), [(1, 1)]);
        assert_eq!(byte, b'x');
    }
}

/// A task may be held up in a call that starts a transfer.
#[test]
fn an_engine_waits_for_a_task_that_has_its_desk_no_longer_than_it_is_to() {
    let Some((engine, runtime)) = served_or_skip(1) else {
        return;
    };
    let lane = engine.shared().lanes.find(runtime.handle().id());
    let lane = lane.expect("the runtime serves");
    let waiting = Waiting::begin(&lane, 1);
    let held = lane.hold();
    assert_eq!(lane.end(Instant::now() + Duration::from_millis(20)), 1);
    drop(held);
    waiting.finish();
    assert!(until(|| lane.unanswered() == 0));
}

#[test]
fn a_driver_goes_on_with_what_older_calls_have_for_a_lane() {
    let Some(file) = direct_file(b'x') else {
        return;
    };
    // Now and then some are in flight when the lane is taken over.
    for after in [0, 50, 100, 200, 400, 800].map(Duration::from_micros) {
        let Some((engine, runtime)) = served_or_skip(1) else {
            return;
        };
        let lane = engine.shared().lanes.find(runtime.handle().id());
        let lane = lane.expect("the runtime serves");
        let blocks = Vec::leak((0..64).map(|_| Block([0; BLOCK])).collect());
        let submit = |block: &mut Block| {
            let request = started(file.as_raw_fd(), &mut block.0);
            // SAFETY: the blocks stay for ever, also if the test fails before all have been read.
            unsafe { lane.submit(request, Waker::noop()) }
        };
        let (first, last) = blocks.split_at_mut(32);
        let mut tickets: Vec<Ticket> = first.iter_mut().filter_map(submit).collect();
        assert_eq!(tickets.len(), 32);
        thread::sleep(after);
        lane.take_over("as planned");
        // It takes some more until its task has seen that.
        tickets.extend(last.iter_mut().map_while(submit));
        let count = tickets.len();
        for ticket in tickets {
            let mut answer = None;
            let is_there = || {
                answer = lane.poll(ticket, Waker::noop());
                answer.is_some()
            };
            assert!(until(is_there), "an answer has not come");
            assert_eq!(answer.map(|answer| answer.bytes()), Some(BLOCK));
        }
        let read = &blocks[..count];
        assert!(read.iter().all(|block| block.0 == [b'x'; BLOCK]));
        assert!(until(|| lane.unanswered() == 0));
    }
}
