//! Batches of which a part is late: what has come by the deadline, and what becomes of the rest.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::{Duration, Instant};

use inflight::fs::{File, ReadVectoredAt};
use inflight::{AnyOp, Awaited, Batch, BufPool, Engine, Late, Operation, PoolBuf, SyncFailed};

use super::everywhere::on_every_host;
use super::hands::{drained, poll_once, until_turned};
use crate::commit::disk::{Mounted, SECTOR, mounted_or_skip};
use crate::support::{on_every_faultless_backend, open, pattern};

const SOON: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(24 * 3600);

/// The file that is read, and synced.
const FILE: u64 = 2;
/// Sectors that are read, each by a read of its own.
const READS: usize = 8;

/// Runs `body` on every backend that lets its thread go on while a device does not answer, and by
/// every kind of host, with a disk that has a pattern.
fn on_a_disk(name: &str, body: impl AsyncFn(&Engine, &Mounted, &File)) {
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_faultless_backend(|engine| {
        on_every_host(engine, || async {
            let file = open(engine, mounted.path(FILE));
            let (result, _) = file.write_all_at(pattern(READS * SECTOR), 0).wait();
            result.expect("there is room");
            body(engine, &mounted, &file).await;
            until_turned("all is over", || engine.stats().in_flight == 0).await;
        });
        drained(engine);
    });
}

/// Begins what is awaited, waits until so much is over, and then for the deadline.
async fn late<O: Awaited>(operation: O, is_over: impl FnMut() -> bool) -> Late<O> {
    let mut awaited = operation.deadline(Instant::now() + SOON);
    let at_once = poll_once(&mut awaited);
    until_turned("the others are over", is_over).await;
    let result = match at_once {
        Poll::Ready(result) => result,
        Poll::Pending => awaited.await,
    };
    result.err().expect("some are held")
}

/// What an operation yields, in time or late.
async fn in_the_end<O: Awaited>(result: Result<O::Output, Late<O>>) -> O::Output {
    match result {
        Ok(in_time) => in_time,
        Err(late) => late.await,
    }
}

type Read<'f> = ReadVectoredAt<'f, PoolBuf>;

fn read<'f>(file: &'f File, pool: &BufPool, sector: usize) -> Read<'f> {
    let bufs = vec![pool.take().expect("there are enough")];
    file.read_vectored_at(bufs, (sector * SECTOR) as u64)
}

fn check(output: <Read<'_> as IntoFuture>::Output, sector: usize) {
    let (result, bufs) = output;
    assert_eq!(result.expect("it can be read"), SECTOR);
    assert_eq!(
        bufs[0][..],
        pattern(READS * SECTOR)[sector * SECTOR..][..SECTOR]
    );
}

#[test]
fn what_has_come_is_had_and_the_rest_is_awaited_or_left() {
    on_a_disk("part of a batch", async |_, mounted, file| {
        let disk = &mounted.disk;
        let pool = BufPool::new(8, SECTOR).expect("there is memory");
        // Until the machine is fast enough for all that are not held.
        for soon in 0..10 {
            disk.hold_reads_from(READS - 2);
            let batch: Batch<_> = (0..READS).map(|sector| read(file, &pool, sector)).collect();
            let late = batch.timeout(SOON * 2_u32.pow(soon)).await;
            let late = late.expect_err("some are held");
            let mut results = late.into_results();
            let held = results.split_off(READS - 2);
            let [left, awaited] = held.try_into().expect("two are held");
            let had_all = results.iter().all(Result::is_ok);
            for (sector, result) in results.into_iter().enumerate() {
                check(in_the_end(result).await, sector);
            }
            drop(left.expect_err("it is held"));
            let awaited = awaited.expect_err("it is held");
            assert!(awaited.to_string().contains("goes on"), "{awaited}");
            assert_eq!(pool.available(), READS - 2, "the memory is the kernel's");
            disk.let_go();
            check(awaited.await, READS - 1);
            until_turned("the buffers are back", || pool.available() == READS).await;
            if had_all {
                return;
            }
        }
        panic!("some that are not held have never come");
    });
}

#[test]
fn nothing_has_come_when_all_are_held() {
    on_a_disk("none of a batch", async |_, mounted, file| {
        let disk = &mounted.disk;
        let pool = BufPool::new(3, SECTOR).expect("there is memory");
        let batch = || (0..3).map(|sector| read(file, &pool, sector)).collect();
        disk.hold_reads_from(0);
        let of_batch: Batch<_> = batch();
        let results = late(of_batch, || true).await.into_results();
        let awaited = results.into_iter().map(|result| result.expect_err("held"));
        let awaited: Vec<_> = awaited.collect();
        disk.let_go();
        for (sector, awaited) in awaited.into_iter().enumerate() {
            check(awaited.await, sector);
        }
        // Without any time: each is begun all the same, and yields the same.
        let of_future: Batch<_> = batch();
        match of_future.into_future().timeout(Duration::ZERO).await {
            Ok(outputs) => outputs.into_iter().enumerate().for_each(|(n, output)| {
                check(output, n);
            }),
            Err(late) => {
                for (sector, result) in late.into_results().into_iter().enumerate() {
                    match result {
                        Ok(output) => check(output, sector),
                        Err(late) => check(late.await, sector),
                    }
                }
            }
        }
        let all: Batch<_> = batch();
        let all = all.timeout(LONG).await.expect("a day has not passed");
        (all.into_iter().enumerate()).for_each(|(sector, output)| check(output, sector));
    });
}

type Any<'f> = AnyOp<'f, Vec<u8>>;

fn held<'f>(file: &'f File) -> Any<'f> {
    let at = ((READS - 1) * SECTOR) as u64;
    file.read_at(vec![0; SECTOR], at).into()
}

/// One that has come is durable, and one that has not is told of when it is awaited.
#[test]
fn a_durable_write_and_a_sync_are_over_when_they_are_durable() {
    on_a_disk("durable writes of a batch", async |_, mounted, file| {
        let disk = &mounted.disk;
        let write = |n: u8| file.write_at(vec![n; SECTOR], 0);
        let batch = |n| -> Batch<_> {
            let write = write(n).then_sync();
            [write.into(), file.sync_data().into(), held(file)]
                .into_iter()
                .collect()
        };
        disk.hold_reads_from(READS - 1);
        let flushes = disk.flushes();
        let late = late(batch(1), || disk.flushes() > flushes).await;
        let [write, sync, read] = late.into_results().try_into().expect("there are three");
        let read = read.expect_err("it is held");
        // Whatever has not come yet comes, while the read goes on.
        assert_eq!(in_the_end(write).await.0.unwrap(), SECTOR);
        assert_eq!(disk.cut(|| false)[0], 1, "it is not durable");
        assert_eq!(in_the_end(sync).await.0.unwrap(), 0);
        disk.let_go();
        assert_eq!(read.await.0.unwrap(), SECTOR);

        disk.hold();
        let late = batch(2).timeout(SOON).await;
        let late = late.expect_err("the flushes are held");
        let [write, sync, read] = late.into_results().try_into().expect("there are three");
        let held = (
            write.expect_err("it is held"),
            sync.expect_err("it is held"),
        );
        assert_eq!(disk.cut(|| false)[0], 1, "it is not over");
        disk.let_go();
        assert_eq!(held.0.await.0.unwrap(), SECTOR);
        assert_eq!(disk.cut(|| false)[0], 2, "it is not durable");
        assert_eq!(held.1.await.0.unwrap(), 0);
        assert_eq!(in_the_end(read).await.0.unwrap(), SECTOR);
    });
}

/// Whether the result is had or dropped, and the batch taken apart or dropped whole.
#[test]
fn a_sync_that_has_failed_is_told_and_remembered() {
    on_a_disk("a failed sync of a batch", async |engine, mounted, _| {
        let disk = &mounted.disk;
        let is_remembered = |file: &File| {
            let refused = file.sync_data().wait();
            let error = refused.expect_err("it has failed before");
            error
                .get_ref()
                .is_some_and(|cause| cause.is::<SyncFailed>())
        };
        for is_apart in [true, false] {
            let file = open(engine, mounted.path(FILE));
            let batch = [file.sync_data().into(), held(&file)];
            let batch: Batch<Any<'_>> = batch.into_iter().collect();
            disk.hold_reads_from(READS - 1);
            disk.fail(Some(libc::EIO));
            let flushes = disk.flushes_over();
            let late = late(batch, || disk.flushes_over() > flushes).await;
            if is_apart {
                let [sync, read] = late.into_results().try_into().expect("there are two");
                let (result, _) = in_the_end(sync).await;
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
                drop(read.expect_err("it is held"));
            } else {
                drop(late);
            }
            disk.fail(None);
            disk.let_go();
            assert!(is_remembered(&file));
        }
        // One that is late, and fails when it has been left.
        let file = open(engine, mounted.path(FILE));
        let batch: Batch<_> = (0..2).map(|_| file.sync_data()).collect();
        disk.hold();
        let (begun, over) = (disk.flushes(), disk.flushes_over());
        let late = late(batch, || disk.flushes() > begun).await;
        disk.fail(Some(libc::EIO));
        drop(late.into_results());
        disk.let_go();
        until_turned("it is over", || disk.flushes_over() > over).await;
        disk.fail(None);
        assert!(is_remembered(&file));
    });
}
