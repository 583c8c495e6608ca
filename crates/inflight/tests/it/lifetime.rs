//! Whether the kernel is done with a buffer when the caller has it back.
//!
//! The buffers here are poisoned when they are dropped and stay where they are: whatever is
//! written to them later shows. The same check finds a planted defect, so it can fail. Neither
//! a sanitizer nor valgrind sees what the kernel writes.
#![allow(unsafe_code)]

mod yard;

mod borders;

mod loops;

mod shared;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
#[cfg(feature = "faulty")]
use std::time::{Duration, Instant};

#[cfg(feature = "faulty")]
use inflight::SetupError;
use inflight::fs::{Alignment, Direct, File, OpenOptions, ReadAt, ReadVectoredAt};
use inflight::{BackendKind, Batch, Engine, Operation, Queue};
use tempfile::NamedTempFile;

use crate::support::{
    Named, Random, pattern, say, seed_or, share_of, temp_path, uring_of_depth_or_skip,
};
#[cfg(feature = "faulty")]
use crate::support::{directory, skip, with_memory};
use yard::{Buf, PAGE, Planned, Yard};

const FILE_PAGES: u64 = 2048;

#[derive(Debug, Default)]
struct Done {
    on_disk: bool,
    operations: u64,
    panics: u64,
    /// Results that had not been taken when a queue or batch was left.
    left: u64,
    /// Of those, operations that the kernel or the pool was working on.
    left_in_flight: u64,
}

/// A queue that is left somewhere: at the end, by a return, or by a panic.
fn queue_episode<O: Operation>(
    engine: &Engine,
    random: &mut Random,
    done: &mut Done,
    mut make: impl FnMut(&mut Random) -> O,
) {
    let depth = u32::try_from(random.below(64) + 1).expect("at most 64");
    let count = random.below(200) + 1;
    // Half of the episodes come to their end.
    let leave_at = random.below(count * 2);
    let panics = random.below(2) == 0;
    let body = |queue: &mut Queue<'_, '_, O>| {
        for number in 0..count {
            if number == leave_at {
                done.left += queue.len() as u64;
                done.left_in_flight += engine.stats().in_flight;
                if panics {
                    done.panics += 1;
                    resume_unwind(Box::new(Planned));
                }
                return;
            }
            let mut operation = make(random);
            while let Err(back) = queue.push(number, operation) {
                operation = back;
                queue.next().expect("a full queue has results to come");
            }
            done.operations += 1;
        }
        while queue.next().is_some() {}
    };
    match catch_unwind(AssertUnwindSafe(|| engine.queue(depth, body))) {
        Ok(result) => result.expect("nothing is demanded"),
        Err(payload) => assert!(payload.is::<Planned>(), "a panic that was not planned"),
    }
}

/// A batch in which one buffer panics when it is asked, with others in flight.
fn batch_episode(file: &File, random: &mut Random, done: &mut Done, yard: &Arc<Yard>) {
    let count = random.below(100) + 2;
    let panics_at = random.below(count * 2);
    let mut batch = Batch::new();
    for number in 0..count {
        let mut buf = yard.take();
        buf.panics = number == panics_at;
        let page = random.below(FILE_PAGES);
        batch.push(file.read_at(buf, page * PAGE as u64));
    }
    let run = AssertUnwindSafe(|| batch.wait().for_each(drop));
    if let Err(payload) = catch_unwind(run) {
        assert!(payload.is::<Planned>(), "a panic that was not planned");
        done.panics += 1;
        done.operations += panics_at;
        done.left += panics_at;
    } else {
        done.operations += count;
    }
}

fn single<'f>(file: &'f File, yard: &Arc<Yard>, random: &mut Random) -> ReadAt<'f, Buf> {
    // Some reach beyond the end, and are resumed.
    let page = random.below(FILE_PAGES + 8);
    match random.below(4) {
        0 => file.read_exact_at(yard.take(), page * PAGE as u64),
        _ => file.read_at(yard.take(), page * PAGE as u64),
    }
}

fn several<'f>(file: &'f File, yard: &Arc<Yard>, random: &mut Random) -> ReadVectoredAt<'f, Buf> {
    let bufs = (0..=random.below(3)).map(|_| yard.take()).collect();
    let page = random.below(FILE_PAGES);
    match random.below(2) {
        0 => file
            .read_vectored_exact_at(bufs, page * PAGE as u64)
            .by_backend(),
        _ => file.read_vectored_at(bufs, page * PAGE as u64).by_backend(),
    }
}

fn direct(engine: &Engine, path: &NamedTempFile) -> File {
    let options = OpenOptions::new().read(true).direct(Direct::Auto);
    options
        .engine(engine)
        .open(path)
        .expect("the file is there")
}

/// Whether there is a device with direct I/O below the file; tmpfs does not tell.
fn is_on_disk(file: &File) -> bool {
    matches!(file.alignment(), Alignment::Known { .. })
}

/// Reads for a while, leaving at random points. Returns what was done and the late writes.
fn leave_at_random(engine: &Engine, seed: u64, operations: u64) -> (Done, u64) {
    let path = temp_path(&pattern(PAGE * usize::try_from(FILE_PAGES).expect("small")));
    let (cold, warm) = (direct(engine, &path), {
        let options = OpenOptions::new().read(true).engine(engine);
        options.open(&path).expect("the file is there")
    });
    let yard = Yard::new(PAGE, 8192);
    let mut random = Random(seed);
    let mut done = Done {
        on_disk: is_on_disk(&cold),
        ..Done::default()
    };
    while done.operations < operations {
        let file = if random.below(2) == 0 { &cold } else { &warm };
        match random.below(16) {
            0 => batch_episode(file, &mut random, &mut done, &yard),
            1 => {
                let make = |random: &mut Random| several(file, &yard, random);
                queue_episode(engine, &mut random, &mut done, make);
            }
            _ => {
                let make = |random: &mut Random| single(file, &yard, random);
                queue_episode(engine, &mut random, &mut done, make);
            }
        }
    }
    // What is read here comes after whatever the device still has to do.
    settle(engine, &cold);
    (done, yard.late_writes())
}

/// Reads the file once more, after which the device is done with what came before.
fn settle(engine: &Engine, file: &File) {
    let len = file.metadata().wait().expect("it has metadata").len;
    let mut batch = Batch::on(engine);
    for offset in (0..len).step_by(1 << 20) {
        let buf = file.aligned_buf(1 << 20).expect("there is memory");
        batch.push(file.read_at(buf, offset));
    }
    batch.wait().for_each(|(result, _)| {
        result.expect("the file can be read");
    });
}

/// Operations on each backend: more than a million all in all.
const OPERATIONS_EACH: u64 = 510_000;

fn expect_no_late_write(engine: &Engine, seed: u64) {
    let _named = Named(format!("INFLIGHT_TEST_SEED={seed}, {engine:?}"));
    let (done, late) = leave_at_random(engine, seed, share_of(OPERATIONS_EACH));
    assert_eq!(
        late, 0,
        "buffers were written to after their drop; {done:?}"
    );
    // Where there is no device to wait for, little is in flight.
    let enough = if done.on_disk { share_of(1000) } else { 1 };
    let proved = done.left_in_flight >= enough && done.panics > share_of(1000);
    assert!(proved, "it proved nothing: {done:?}");
    let stats = engine.stats();
    assert_eq!(stats.strays, 0);
    say(&format!(
        "lifetime: {}: 0 late writes, {done:?}",
        engine.backend().kind
    ));
}

fn seed() -> u64 {
    seed_or(0x1f11_6877)
}

#[test]
fn the_kernel_never_writes_to_a_buffer_that_a_ring_has_given_back() {
    let name = "the_kernel_never_writes_to_a_buffer_that_a_ring_has_given_back";
    let Some(engine) = uring_of_depth_or_skip(name, 16) else {
        return;
    };
    expect_no_late_write(&engine, seed());
    assert!(engine.stats().enters > 0, "no ring was used");
}

#[test]
fn no_thread_of_the_pool_writes_to_a_buffer_that_has_been_given_back() {
    let engine = Engine::builder().backend(BackendKind::Threads);
    expect_no_late_write(&engine.build().unwrap(), seed());
}

#[cfg(feature = "faulty")]
const BIG: usize = 1 << 20;
#[cfg(feature = "faulty")]
const BIG_READS: u32 = 64;

/// Leaves a queue with big reads at the device. Returns the late writes so far.
#[cfg(feature = "faulty")]
fn leave_big_reads(engine: &Engine, yard: &Arc<Yard>, file: &File, sound: &Engine) -> u64 {
    let leave = |queue: &mut Queue<'_, '_, _>| {
        for number in 0..u64::from(BIG_READS) {
            // With little locked memory, a ring may have fewer places.
            if queue.is_full() {
                break;
            }
            let read = file.read_at(yard.take(), number * BIG as u64);
            assert!(queue.push(number, read).is_ok(), "there is room");
        }
        // Hands all of them to the kernel. Not waited for: where a device serves all of them side
        // by side, the last is here with the first.
        let pushed = queue.len();
        if let Some((_, (result, _))) = queue.try_next() {
            assert_eq!(result.expect("the file can be read"), BIG);
        }
        (pushed, queue.len())
    };
    // An engine that demands a ring has no queue on a thread without one.
    let left = with_memory(|| engine.queue(BIG_READS, leave), Result::is_err);
    let (pushed, left) = left.expect("there is a ring");
    assert!(left > pushed / 4, "{left} of {pushed}");
    settle(sound, file);
    settle(sound, file);
    yard.late_writes()
}

/// The planted defect, and beside it the same without.
#[cfg(feature = "faulty")]
#[test]
fn a_queue_that_does_not_drain_is_caught_by_the_same_check() {
    let name = "a_queue_that_does_not_drain_is_caught_by_the_same_check";
    let Some(sound) = uring_of_depth_or_skip(name, BIG_READS) else {
        return;
    };
    let path = temp_path(&pattern(BIG * BIG_READS as usize));
    path.as_file().sync_all().unwrap();
    let file = direct(&sound, &path);
    if !is_on_disk(&file) {
        let place = directory();
        let reason = format!("{} is not on a disk with direct I/O", place.display());
        return skip(name, &reason);
    }
    let yard = Yard::new(BIG, BIG_READS as usize);
    let late = leave_big_reads(&sound, &yard, &file, &sound);
    assert_eq!(late, 0, "without the defect");
    let builder = Engine::builder().backend(BackendKind::Uring);
    // SAFETY: the memory of the yard is leaked, so it stays mapped, and it is looked at only.
    let builder = unsafe { builder.plant_undrained() };
    let make = || builder.clone().build();
    let defective = with_memory(make, |made| matches!(made, Err(SetupError::Memory { .. })));
    let defective = defective.unwrap();
    // On a busy machine most reads are over before this thread has its turn.
    let (begun, mut attempt) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(120) {
        attempt += 1;
        let late = leave_big_reads(&defective, &yard, &file, &sound);
        if late > 0 {
            return say(&format!(
                "lifetime: the defect: {late} late writes, try {attempt}"
            ));
        }
    }
    panic!("the planted defect was not caught in {attempt} tries");
}
