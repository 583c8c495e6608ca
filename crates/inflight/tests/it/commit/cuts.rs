//! Power cuts: many clients write and sync, the power goes at random moments, and nothing is lost
//! that was acknowledged.
//!
//! A cut is what the disk would have left at that moment, so the clients need not stop for it: what
//! they had been told before is compared with what is left.

use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::task::Poll;
use std::thread;

use inflight::fs::{AnyRange, Direct, File};
use inflight::{Batch, Engine, Operation};

use super::disk::{Disk, Mounted, SECTOR, SECTORS, mounted_or_skip};
use super::{SYNCED, WRITTEN, bytes_of, open};
use crate::support::{Named, Random, on_every_backend, read_write, say, seed_or, share_of};

const CLIENTS: usize = 16;

/// A record is two sectors, which a cut may tear apart.
const RECORD: usize = 2 * SECTOR;

/// Each client has two blocks of its own, because what is not aligned is read with what surrounds
/// it, and written back.
const STRIDE: usize = SECTORS * SECTOR / CLIENTS;

/// Where the records of a client are: in the middle of a block.
fn place(number: usize) -> usize {
    number * STRIDE + SECTOR
}

/// How a client syncs. With these, all of them write by plain calls.
#[derive(Clone, Copy, Debug)]
enum Style {
    Waits,
    Awaits,
    Batches,
    Queues,
}

/// How a client writes so that it is durable when the write is over.
#[derive(Clone, Copy, Debug)]
enum Durable {
    ThenSync,
    ThenSyncAwaited,
    /// Of a range that is not aligned, past the page cache.
    AnyRangeThenSync,
    Dsync,
    DsyncAwaited,
    DsyncBatches,
    /// The file is open for durable writes.
    Opened,
}

impl Durable {
    const ALL: [Self; 7] = [
        Self::ThenSync,
        Self::ThenSyncAwaited,
        Self::AnyRangeThenSync,
        Self::Dsync,
        Self::DsyncAwaited,
        Self::DsyncBatches,
        Self::Opened,
    ];

    fn is_dsync(self) -> bool {
        matches!(self, Self::Dsync | Self::DsyncAwaited | Self::DsyncBatches)
    }

    fn open(self, engine: &Engine, mounted: &Mounted) -> File {
        let options = read_write(engine);
        let options = match self {
            Self::AnyRangeThenSync => options
                .direct(Direct::Required)
                .any_range(AnyRange::ReadsAndWrites),
            Self::Opened => options.durable_writes(true),
            _ => options,
        };
        options
            .open(mounted.path(SYNCED))
            .expect("it can be opened")
    }

    fn write(self, number: usize, record: u64, file: &File) -> io::Result<()> {
        let offset = place(number) as u64;
        let mut bytes = bytes_of(record, RECORD);
        let wanted = match self {
            Self::AnyRangeThenSync => RECORD - 24,
            _ => RECORD,
        };
        bytes.truncate(wanted);
        let write = file.write_all_at(bytes, offset);
        let (result, _) = match self {
            Self::ThenSync | Self::AnyRangeThenSync => write.then_sync().wait(),
            Self::ThenSyncAwaited => pollster::block_on(write.then_sync().into_future()),
            Self::Dsync => write.dsync().wait(),
            Self::DsyncAwaited => pollster::block_on(write.dsync().into_future()),
            Self::DsyncBatches => {
                let mut batch = Batch::new();
                batch.push(write.dsync());
                batch.push(file.write_at(vec![], offset).dsync());
                let first = batch.wait().next();
                first.expect("there are two")
            }
            Self::Opened => write.wait(),
        };
        assert_eq!(result?, wanted, "{self:?}");
        Ok(())
    }
}

/// What the clients have been told is durable.
struct Told([AtomicU64; CLIENTS]);

fn seed() -> u64 {
    seed_or(0x00c0_ffee)
}

/// Writes record after record at one place, and says which are durable.
fn client(
    number: usize,
    told: &Told,
    over: &AtomicBool,
    keep: impl Fn(usize, u64) -> io::Result<()>,
) {
    for record in 1_u64.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        keep(number, record).expect("the disk is sound");
        told.0[number].store(record, Ordering::SeqCst);
    }
}

fn write(number: usize, record: u64, written: &File) {
    let (result, _) = written
        .write_all_at(bytes_of(record, RECORD), place(number) as u64)
        .wait();
    assert_eq!(result.expect("the disk is sound"), RECORD);
}

/// Cuts the power so often, or until something is lost: which it returns.
fn cut(disk: &Disk, told: &Told, random: &mut Random, cuts: u64) -> Option<String> {
    for _ in 0..cuts {
        disk.wait_for_operations(1 + random.below(12));
        // What was told before the cut has to be there after it.
        let told = told.0.each_ref().map(|told| told.load(Ordering::SeqCst));
        let left = disk.cut(|| random.below(2) == 0);
        for (number, told) in told.into_iter().enumerate() {
            for sector in left[place(number)..][..RECORD].chunks(SECTOR) {
                let record = u64::from_le_bytes(*sector.first_chunk().expect("it has 512 bytes"));
                if record < told {
                    return Some(format!(
                        "client {number}: {told} was told, {record} is left"
                    ));
                }
            }
        }
    }
    None
}

/// Ends the clients, also when the test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs clients on threads, with a way to write a record of a client and make it durable, and cuts
/// the power meanwhile.
fn run(
    mounted: &Mounted,
    written: &File,
    keep: &(dyn Fn(usize, u64) -> io::Result<()> + std::marker::Sync),
    cuts: u64,
) -> Option<String> {
    let (told, over) = (Told(Default::default()), AtomicBool::new(false));
    (0..CLIENTS).for_each(|number| write(number, 0, written));
    let mut random = Random(seed());
    thread::scope(|scope| {
        let _over = Over(&over);
        for number in 0..CLIENTS {
            let (told, over) = (&told, &over);
            scope.spawn(move || client(number, told, over, keep));
        }
        cut(&mounted.disk, &told, &mut random, cuts)
    })
}

fn sync(file: &File, style: Style) -> io::Result<()> {
    match style {
        Style::Waits => file.sync_data().wait(),
        Style::Awaits => pollster::block_on(file.sync_data().into_future()),
        Style::Batches => {
            let mut batch = Batch::new();
            batch.push(file.sync_data());
            batch.push(file.sync_all());
            batch.wait().collect()
        }
        Style::Queues => {
            let engine = file.engine();
            engine.queue(2, |queue| {
                assert!(queue.push(0, file.sync_all()).is_ok(), "it is empty");
                queue.next().expect("one is in flight").1
            })?
        }
    }
}

#[test]
fn no_acknowledged_sync_is_lost_in_a_power_cut() {
    let name = "no_acknowledged_sync_is_lost_in_a_power_cut";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let _named = Named(format!("seed {}", seed()));
    let styles = [Style::Waits, Style::Awaits, Style::Batches, Style::Queues];
    // And run loops, of two kinds.
    let each = share_of(1000).div_ceil(BACKENDS * (styles.len() as u64 + 2));
    let tally = Tally::default();
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let written = open(engine, &mounted, WRITTEN);
        for style in styles {
            let keep = |number, record| {
                write(number, record, &written);
                sync(&file, style)
            };
            let lost = run(&mounted, &written, &keep, each);
            assert_eq!(lost, None, "{style:?}");
            tally.made(each);
        }
        let lost = run_in_a_loop(&mounted, &written, &file, each);
        assert_eq!(lost, None, "in a run loop");
        tally.made(each);
        let lost = run_as_tasks(&mounted, &written, &file, each);
        assert_eq!(lost, None, "tasks of a run loop");
        tally.made(each);
        tally.backend();
    });
    tally.tell("syncs");
}

#[test]
fn no_acknowledged_durable_write_is_lost_in_a_power_cut() {
    let name = "no_acknowledged_durable_write_is_lost_in_a_power_cut";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let _named = Named(format!("seed {}", seed()));
    let each = share_of(1000).div_ceil(BACKENDS * Durable::ALL.len() as u64);
    let tally = Tally::default();
    on_every_backend(|engine| {
        let written = open(engine, &mounted, WRITTEN);
        for style in Durable::ALL {
            let file = style.open(engine, &mounted);
            let before = engine.stats().synced_writes;
            let keep = |number, record| style.write(number, record, &file);
            // Of writes with the wish there are trials: both ways have to be met.
            for _ in 0..100 {
                let lost = run(&mounted, &written, &keep, each);
                assert_eq!(lost, None, "{style:?}");
                tally.made(each);
                if !style.is_dsync() || engine.stats().synced_writes > before {
                    break;
                }
            }
            let synced = engine.stats().synced_writes - before;
            assert_eq!(synced > 0, style.is_dsync(), "{style:?}");
        }
        tally.backend();
    });
    tally.tell("durable writes");
}

/// The backends, if all can be had: the default, threads, and three seeds of the faulty one.
const BACKENDS: u64 = 5;

/// Cuts that have been made, and on how many backends.
#[derive(Default)]
struct Tally {
    cuts: AtomicU64,
    backends: AtomicU64,
}

impl Tally {
    fn made(&self, cuts: u64) {
        self.cuts.fetch_add(cuts, Ordering::Relaxed);
    }

    fn backend(&self) {
        self.backends.fetch_add(1, Ordering::Relaxed);
    }

    /// Says how many there were. With all backends it is all that was promised.
    fn tell(&self, what: &str) {
        let cuts = self.cuts.load(Ordering::Relaxed);
        let backends = self.backends.load(Ordering::Relaxed);
        let left_out = BACKENDS.saturating_sub(backends);
        say(&format!(
            "power cuts, {what}: {cuts}, seed {}, nothing lost; {backends} backends, {left_out} \
             that cannot be had here left out",
            seed()
        ));
        assert!(left_out > 0 || cuts >= share_of(1000), "{cuts} cuts");
    }
}

/// As [`run`], with the clients as tasks of one run loop.
fn run_in_a_loop(mounted: &Mounted, written: &File, file: &File, cuts: u64) -> Option<String> {
    let told = std::sync::Arc::new(Told(Default::default()));
    let over = AtomicBool::new(false);
    (0..CLIENTS).for_each(|number| write(number, 0, written));
    let mut random = Random(seed());
    thread::scope(|scope| {
        let _over = Over(&over);
        let (over, clients) = (&over, &told);
        scope.spawn(move || {
            let ran = file.engine().run(async {
                for record in 1_u64.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut syncs = Vec::new();
                    for number in 0..CLIENTS {
                        write(number, record, written);
                        let mut sync = file.sync_data().into_future();
                        let begun = super::poll_once(&mut sync);
                        syncs.push((number, sync, begun));
                    }
                    for (number, sync, begun) in syncs {
                        match begun {
                            std::task::Poll::Ready(result) => result,
                            std::task::Poll::Pending => sync.await,
                        }
                        .expect("the disk is sound");
                        clients.0[number].store(record, Ordering::SeqCst);
                    }
                }
            });
            ran.expect("nothing is demanded");
        });
        cut(&mounted.disk, &told, &mut random, cuts)
    })
}

/// As [`run`], with clients that are tasks of one run loop, which makes their flushes.
fn run_as_tasks(mounted: &Mounted, written: &File, file: &File, cuts: u64) -> Option<String> {
    let told = Told(Default::default());
    let over = AtomicBool::new(false);
    (0..CLIENTS).for_each(|number| write(number, 0, written));
    let mut random = Random(seed());
    thread::scope(|scope| {
        let _over = Over(&over);
        let (over, told) = (&over, &told);
        scope.spawn(move || {
            let client = async |number: usize| {
                for record in 1_u64.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    write(number, record, written);
                    file.sync_data().await.expect("the disk is sound");
                    told.0[number].store(record, Ordering::SeqCst);
                }
            };
            let mut clients: Vec<_> = (0..CLIENTS)
                .map(|number| Box::pin(client(number)))
                .collect();
            // All are polled with the waker of the one task that is the loop's.
            let all = poll_fn(|context| {
                clients.retain_mut(|client| client.as_mut().poll(context).is_pending());
                match clients.is_empty() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            file.engine().run(all).expect("nothing is demanded");
        });
        cut(&mounted.disk, told, &mut random, cuts)
    })
}

/// Group commit done wrong: who asks while a flush runs is served by that one.
#[derive(Default)]
struct Hasty {
    /// Whether a flush runs, and how many have ended.
    state: Mutex<(bool, u64)>,
    ended: Condvar,
}

impl Hasty {
    fn sync(&self, file: &File) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic");
        if state.0 {
            let ended = state.1;
            while state.1 == ended {
                state = self.ended.wait(state).expect("no panic");
            }
            return Ok(());
        }
        state.0 = true;
        drop(state);
        let result = file.sync_data().wait();
        let mut state = self.state.lock().expect("no panic");
        *state = (false, state.1 + 1);
        self.ended.notify_all();
        result
    }
}

#[test]
fn a_commit_that_acknowledges_with_the_running_flush_is_caught() {
    let name = "a_commit_that_acknowledges_with_the_running_flush_is_caught";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let _named = Named(format!("seed {}", seed()));
    let engine = inflight::Engine::new().expect("nothing is demanded");
    let file = open(&engine, &mounted, SYNCED);
    let written = open(&engine, &mounted, WRITTEN);
    let hasty = Hasty::default();
    let keep = |number, record| {
        write(number, record, &written);
        hasty.sync(&file)
    };
    let lost = run(&mounted, &written, &keep, 20_000);
    say(&format!("power cuts, planted defect: {lost:?}"));
    assert!(lost.is_some(), "the cuts find nothing");
}
