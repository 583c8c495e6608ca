//! Every operation of a scenario fails once, the first, the second, and so on until none is left.

use std::io;

use inflight::fs::{AllocateRange, File};
use inflight::{AnyOp, Batch, BufPool, Engine, Faults, Partial, SyncFailed};

use super::{durable_file, with_faults};
use crate::support::{Named, pattern, seeds, temp_file};

const BLOCK: usize = 4096;
const BLOCKS: usize = 6;

/// Writes, syncs, allocates, and reads back in every way. What comes back is checked; the first
/// error is returned, after everything that had been begun has come back.
fn scenario(engine: &Engine, pool: &BufPool) -> io::Result<()> {
    let (_path, file) = durable_file(engine);
    let data = pattern(BLOCKS * BLOCK);
    write(&file, pool, &data)?;
    let mut batch = Batch::new();
    batch.push(file.allocate(AllocateRange::ReserveKeepSize, 0, 1 << 20));
    batch.push(file.allocate(AllocateRange::Reserve, 0, 1 << 15));
    let allocated: Vec<_> = batch.wait().collect();
    for error in allocated.into_iter().filter_map(Result::err) {
        // A file system may not have it.
        if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return Err(error);
        }
    }
    let mut batch = Batch::new();
    for at in [0, BLOCK] {
        batch.push(
            file.read_vectored_exact_at(vec![vec![0; 100], vec![0; 900]], at as u64)
                .by_backend(),
        );
    }
    let results: Vec<_> = batch.wait().collect();
    for ((result, bufs), at) in results.into_iter().zip([0, BLOCK]) {
        assert_eq!(result?, 1000);
        assert!(bufs.concat() == data[at..at + 1000]);
    }
    read(engine, &file, pool, &data)
}

fn write(file: &File, pool: &BufPool, data: &[u8]) -> io::Result<()> {
    let mut batch: Batch<AnyOp<'_, _>> = Batch::new();
    for (n, block) in (0_u64..).zip(data.chunks(BLOCK)) {
        let mut buf = pool.take().expect("all of them have come back");
        buf.copy_from_slice(block);
        batch.push(file.write_all_at(buf, n * BLOCK as u64).into());
    }
    batch.push(file.sync_data().into());
    let mut results: Vec<_> = batch.wait().map(|(result, _)| result).collect();
    let synced = results.pop().expect("the sync was the last one");
    results
        .into_iter()
        .try_for_each(|result| result.map(drop))?;
    let mut syncs = Batch::new();
    (0..2).for_each(|_| syncs.push(file.sync_all()));
    let results: Vec<_> = syncs.wait().collect();
    let mut synced = std::iter::once(synced.map(drop)).chain(results);
    synced.try_for_each(|result| result.map_err(|error| io::Error::other(OfSync(error))))
}

/// The error of a sync.
#[derive(Debug)]
struct OfSync(io::Error);

impl std::error::Error for OfSync {}

impl std::fmt::Display for OfSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a sync: {}", self.0)
    }
}

fn of_sync(error: &io::Error) -> Option<&io::Error> {
    Some(&error.get_ref()?.downcast_ref::<OfSync>()?.0)
}

fn read(engine: &Engine, file: &File, pool: &BufPool, data: &[u8]) -> io::Result<()> {
    chill_past(engine, file)?;
    engine.queue(3, |queue| {
        let mut next = 0;
        loop {
            while next < BLOCKS && !queue.is_full() {
                let buf = pool.take().expect("all of them have come back");
                let read = file.read_exact_at(buf, (next * BLOCK) as u64);
                assert!(queue.push(next as u64, read).is_ok());
                next += 1;
            }
            let Some((tag, (result, buf))) = queue.next() else {
                return Ok(());
            };
            assert_eq!(result?, BLOCK);
            let at = usize::try_from(tag).expect("a few") * BLOCK;
            assert!(buf[..] == data[at..at + BLOCK]);
        }
    })?
}

/// As [`crate::support::chill`], where reads may fail.
fn chill_past(engine: &Engine, file: &File) -> io::Result<()> {
    let mut batch = Batch::on(engine);
    (0..64).for_each(|_| batch.push(file.read_at(vec![0; 2], (1 << 15) - 1)));
    let results: Vec<_> = batch.wait().map(|(result, _)| result).collect();
    results.into_iter().try_for_each(|result| result.map(drop))
}

/// What the caller was told of the errno that was planted.
pub(super) fn told(error: &io::Error) -> Option<i32> {
    let error = of_sync(error).unwrap_or(error);
    let inner = error.get_ref();
    error
        .raw_os_error()
        .or_else(|| Some(inner?.downcast_ref::<Partial>()?.errno))
        .or_else(|| Some(inner?.downcast_ref::<SyncFailed>()?.errno))
}

/// Runs the scenario with the nth operation failing, and checks that everything has come back.
fn run_with_nth(faults: Faults, n: u64, errno: i32) -> io::Result<()> {
    let engine = Engine::builder()
        .faults(faults.fail_nth(n, errno))
        .build()?;
    let pool = BufPool::new(8, BLOCK)?;
    let outcome = scenario(&engine, &pool);
    let stats = engine.stats();
    assert_eq!(
        (pool.available(), stats.in_flight, stats.strays),
        (8, 0, 0),
        "operation {n}"
    );
    // The engine is as good as before.
    let mut batch = Batch::on(&engine);
    (0..4).for_each(|_| batch.push(engine.nop()));
    let failed = batch.wait().filter(Result::is_err).count();
    assert!(failed <= 1, "operation {n}");
    outcome
}

#[test]
fn whichever_operation_fails_the_error_is_told_and_everything_comes_back() {
    for (seed, short) in seeds()
        .into_iter()
        .flat_map(|seed| [(seed, 0), (seed, 300)])
    {
        let _named = Named(format!("seed {seed}, {short} of 1000 short"));
        let faults = || Faults::new(seed).short_transfers(short);
        let mut handed_over = 0;
        for n in 0.. {
            match run_with_nth(faults(), n, libc::EIO) {
                Err(error) => assert_eq!(told(&error), Some(libc::EIO), "operation {n}: {error}"),
                Ok(()) => {
                    handed_over = n;
                    break;
                }
            }
        }
        assert!(
            handed_over > 10,
            "only {handed_over} operations went through the backend"
        );
        // What can be met is met, wherever it comes.
        let met = [
            libc::EAGAIN,
            libc::EINTR,
            libc::ECANCELED,
            libc::EINVAL,
            libc::ENOSYS,
        ];
        for (n, errno) in (0..handed_over).zip(met.into_iter().cycle()) {
            if let Err(error) = run_with_nth(faults(), n, errno) {
                assert!(is_told_of_a_sync(&error, errno), "operation {n}: {error}");
            }
        }
    }
}

/// Whether it is what a sync fails with, which is not made again then.
fn is_told_of_a_sync(error: &io::Error, errno: i32) -> bool {
    let is_met = [libc::EINTR, libc::ECANCELED].contains(&errno);
    of_sync(error).is_some() && told(error) == Some(errno) && !is_met
}

#[test]
fn with_errors_all_over_each_operation_is_right_or_says_so() {
    let faults = |faults: Faults| {
        let faults = faults.short_transfers(200).strays(100);
        let met = faults.errors(libc::EAGAIN, 50).errors(libc::ECANCELED, 50);
        met.errors(libc::EINVAL, 20).errors(libc::EIO, 100)
    };
    with_faults(faults, |engine| {
        let pool = BufPool::new(8, BLOCK).unwrap();
        let mut failed = 0;
        for _ in 0..60 {
            if let Err(error) = scenario(engine, &pool) {
                let is_of_sync = |errno| is_told_of_a_sync(&error, errno);
                let is_expected = told(&error) == Some(libc::EIO)
                    || [libc::EAGAIN, libc::EINVAL].into_iter().any(is_of_sync);
                assert!(is_expected, "{error}");
                failed += 1;
            }
            assert_eq!((pool.available(), engine.stats().in_flight), (8, 0));
        }
        assert!(failed > 0);
    });
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    for seed in seeds() {
        let run = || {
            let faults = Faults::new(seed)
                .short_transfers(300)
                .errors(libc::EIO, 200);
            let engine = Engine::builder().faults(faults).build().unwrap();
            let (_path, file) = durable_file(&engine);
            let mut batch = Batch::new();
            (0..50).for_each(|n| batch.push(file.write_at(vec![1; 500], 500 * n)));
            let results = batch
                .wait()
                .map(|(result, _)| result.map_err(|error| error.kind()));
            results.collect::<Vec<_>>()
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn reads_through_the_backend_fail_with_their_errno() {
    let faults = |faults: Faults| faults.refuse("read", libc::EIO).refuse("readv", libc::EIO);
    with_faults(faults, |engine| {
        let file = temp_file(engine, &[1; 1000]);
        let mut batch = Batch::new();
        (0..64).for_each(|_| batch.push(file.read_vectored_at(vec![vec![3; 2]], 999).by_backend()));
        for (result, bufs) in batch.wait() {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
            assert_eq!(bufs, [vec![3; 2]]);
        }
        // Across the end of the file, which the page cache cannot serve whole; but where it
        // cannot be asked, plain calls may serve them.
        let mut batch = Batch::new();
        (0..64).for_each(|_| batch.push(file.read_at(vec![3; 2], 999)));
        for (result, buf) in batch.wait() {
            match result {
                Ok(moved) => assert_eq!((moved, &buf[..]), (1, &[1, 3][..])),
                Err(error) => assert_eq!((error.raw_os_error(), buf.len()), (Some(libc::EIO), 2)),
            }
        }
    });
}
