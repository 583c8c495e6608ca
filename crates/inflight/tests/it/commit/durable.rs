//! Writes with a wish to be durable, kept by a sync that others share: by every host, and what
//! becomes of a sync that fails.

use std::error::Error;
use std::future::IntoFuture;
use std::io;
use std::time::Duration;

use inflight::fs::{Direct, File, WriteAt};
use inflight::{AlignedBuf, Batch, Durably, Engine, Operation, SyncFailed};

use super::disk::{Mounted, mounted_or_skip};
use super::{SYNCED, bytes_of, open, poll_once};
use crate::awaited::everywhere::Host;
use crate::support::own::{fails_with, in_own_process};
use crate::support::{on_every_backend, read_write, skip, temp_path};

const BLOCK: usize = 100;
const AT_ONCE: usize = 8;
/// So many are in trials, of both ways, whatever comes of those.
const TURNS: usize = 60;

fn block(number: usize) -> Vec<u8> {
    bytes_of(number as u64, BLOCK)
}

/// Writes blocks, a few at a time by `write`, on engines of which nothing is known. Some of them
/// are kept by a sync, and all of them are there.
fn check(write: impl Fn(&Engine, &File)) {
    on_every_backend(|engine| check_on(engine, &write));
}

fn check_on(engine: &Engine, write: impl Fn(&Engine, &File)) {
    let path = temp_path(b"");
    let file = read_write(engine).open(path.path()).expect("it is there");
    write(engine, &file);
    let synced = engine.stats().synced_writes;
    let count = TURNS * AT_ONCE;
    assert!(synced > 0 && synced < count as u64, "{synced} of {count}");
    let content = std::fs::read(path.path()).expect("it can be read");
    assert_eq!(content.len(), count * BLOCK);
    for (number, found) in content.chunks(BLOCK).enumerate() {
        assert!(found == block(number), "block {number}");
    }
}

#[test]
fn durable_writes_are_kept_both_ways_by_every_host() {
    let turn = |turn: usize| turn * AT_ONCE..(turn + 1) * AT_ONCE;
    let at = |number: usize| (number * BLOCK) as u64;
    check(|_, file| {
        for number in (0..TURNS).flat_map(turn) {
            let (result, buf) = file.write_at(block(number), at(number)).dsync().wait();
            assert_eq!((result.unwrap(), buf), (BLOCK, block(number)));
        }
    });
    check(|engine, file| {
        let mut batch = Batch::on(engine);
        for numbers in (0..TURNS).map(turn) {
            for number in numbers {
                batch.push(file.write_all_at(block(number), at(number)).dsync());
            }
            assert!(batch.wait().all(|(result, _)| result.unwrap() == BLOCK));
        }
    });
    check(|engine, file| {
        let mut batch = Batch::on(engine);
        for numbers in (0..TURNS).map(turn) {
            for number in numbers {
                let bufs = vec![block(number)[..40].to_vec(), block(number)[40..].to_vec()];
                batch.push(file.write_vectored_at(bufs, at(number)).dsync());
            }
            assert!(batch.wait().all(|(result, _)| result.unwrap() == BLOCK));
        }
    });
    check(|engine, file| {
        let queued = engine.queue(8, |queue| {
            for number in (0..TURNS).flat_map(turn) {
                let mut write = file.write_at(block(number), at(number)).dsync();
                while let Err(back) = queue.push(0, write) {
                    let (_, (result, _)) = queue.next().expect("it is full");
                    assert_eq!(result.unwrap(), BLOCK);
                    write = back;
                }
            }
            while let Some((_, (result, _))) = queue.next() {
                assert_eq!(result.unwrap(), BLOCK);
            }
        });
        queued.expect("nothing is demanded");
    });
}

/// Awaited, as [`check`].
async fn check_awaited(engine: &Engine) {
    let at = |number: usize| (number * BLOCK) as u64;
    let path = temp_path(b"");
    let file = read_write(engine).open(path.path()).expect("it is there");
    for turn in 0..TURNS {
        let mut batch = Batch::on(engine);
        for number in turn * AT_ONCE..(turn + 1) * AT_ONCE - 1 {
            batch.push(file.write_at(block(number), at(number)).dsync());
        }
        for (result, _) in batch.await {
            assert_eq!(result.expect("it is written"), BLOCK);
        }
        let last = (turn + 1) * AT_ONCE - 1;
        let (result, _) = file.write_at(block(last), at(last)).dsync().await;
        assert_eq!(result.expect("it is written"), BLOCK);
    }
    assert!(engine.stats().synced_writes > 0);
    let content = std::fs::read(path.path()).expect("it can be read");
    for (number, found) in content.chunks(BLOCK).enumerate() {
        assert!(found == block(number), "block {number}");
    }
}

#[test]
fn awaited_durable_writes_are_kept_both_ways_by_every_host() {
    for host in Host::EVERY {
        on_every_backend(|engine| host.run(engine, check_awaited(engine)));
    }
}

/// Flushes of the disk while whole blocks are written.
fn flushes_of<R>(mounted: &Mounted, write: impl FnOnce() -> R) -> u64
where
    R: IntoIterator<Item = (io::Result<usize>, Vec<u8>)>,
{
    let before = mounted.disk.flushes();
    for (result, _) in write() {
        assert!(matches!(result, Ok(BLOCK)), "{result:?}");
    }
    mounted.disk.flushes() - before
}

#[test]
fn a_batch_that_is_kept_together_needs_one_flush() {
    let Some(mounted) = mounted_or_skip("a_batch_that_is_kept_together_needs_one_flush") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let mut together = 0;
        for _ in 0..TURNS {
            let mut batch = Batch::on(engine);
            let mut ways = Vec::new();
            for number in 0..AT_ONCE {
                let mut write = file.write_at(block(number), number as u64 * 512).dsync();
                ways.push(write.explain().durably);
                batch.push(write);
            }
            let flushes = flushes_of(&mounted, || batch.wait());
            let expected = ways.contains(&Some(Durably::Together));
            assert_eq!(flushes, u64::from(expected), "{ways:?}");
            together += flushes;
        }
        assert!(together > 0, "none is kept together");
        let shared = engine.stats().shared_syncs;
        assert!(shared >= together, "{shared} of {together} batches");
    });
}

#[test]
fn an_awaited_batch_that_is_kept_together_needs_few_flushes() {
    const WRITES: usize = 64;
    let name = "an_awaited_batch_that_is_kept_together_needs_few_flushes";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let file = open(engine, &mounted, SYNCED);
        let mut together = 0;
        for _ in 0..TURNS {
            let mut batch = Batch::on(engine);
            for number in 0..WRITES {
                batch.push(file.write_at(block(number), number as u64 * 512).dsync());
            }
            let before = engine.stats().synced_writes;
            let flushes = flushes_of(&mounted, || pollster::block_on(batch.into_future()));
            let synced = engine.stats().synced_writes - before;
            // Some are written only when the first flush has begun, others when the next has: on a
            // busy machine more of them.
            let few = WRITES as u64 / 2;
            assert!(flushes <= few, "{flushes} flushes for {synced} writes");
            together += u64::from(synced == WRITES as u64);
        }
        assert!(together > 0, "none is kept together");
    });
}

#[test]
fn a_failed_sync_behind_a_durable_write_is_told_and_remembered() {
    let name = "a_failed_sync_behind_a_durable_write_is_told_and_remembered";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        for is_awaited in [false, true] {
            mounted.disk.fail(None);
            let file = open(engine, &mounted, SYNCED);
            let write = || file.write_at(block(7), 0).dsync();
            let run = || match is_awaited {
                false => write().wait().0,
                true => pollster::block_on(write().into_future()).0,
            };
            let before = engine.stats().synced_writes;
            for _ in 0..TURNS * AT_ONCE {
                assert_eq!(run().expect("the disk is sound"), BLOCK);
                if engine.stats().synced_writes > before {
                    break;
                }
            }
            mounted.disk.fail(Some(libc::EIO));
            let error = run().expect_err("it is in the middle of such a run");
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            // From now on there is no sync to be shared.
            let error = file.sync_data().wait().expect_err("one has failed");
            assert_eq!(told(Err(error)), Err(Some(-libc::EIO)));
            for _ in 0..TURNS {
                assert_eq!(run().expect("it needs no sync"), BLOCK);
            }
        }
        mounted.disk.fail(None);
    });
}

#[test]
fn a_sync_that_ends_before_a_durable_write_fails_is_no_success_once_that_is_told() {
    let name = "a_sync_that_ends_before_a_durable_write_fails_is_no_success_once_that_is_told";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let late = Duration::from_millis(300);
    on_every_backend(|engine| {
        // Syncs of a file that was written are for the disk to answer.
        let file = open(engine, &mounted, SYNCED);
        mounted.disk.fail_through_after(libc::EIO, late);
        let mut sync = file.sync_data().into_future();
        let mut write = file.write_at(block(7), 0).dsync().into_future();
        assert!(poll_once(&mut write).is_pending());
        assert!(poll_once(&mut sync).is_pending());
        let wrote = pollster::block_on(write).0.expect_err("the disk fails");
        assert_eq!(wrote.raw_os_error(), Some(libc::EIO));
        let synced = pollster::block_on(sync).expect_err("it may have hidden the same error");
        assert_eq!(told(Err(synced)), Err(Some(-libc::EIO)));
        mounted.disk.fail_through(None);
    });
}

/// A durable write at this place that will be kept this way.
fn kept(file: &File, way: Durably, at: u64) -> WriteAt<'_, Vec<u8>> {
    for _ in 0..TURNS * AT_ONCE {
        let mut write = file.write_at(block(7), at).dsync();
        if write.explain().durably == Some(way) {
            return write;
        }
        assert_eq!(write.wait().0.expect("the disk is sound"), BLOCK);
    }
    panic!("no write is {way}");
}

/// What a durable write was told.
fn told(result: io::Result<usize>) -> Result<usize, Option<i32>> {
    result.map_err(|error| {
        let cause = error.get_ref().and_then(|cause| {
            let cause: &(dyn Error + 'static) = cause;
            cause.downcast_ref::<SyncFailed>()
        });
        match cause {
            Some(SyncFailed { errno }) => Some(-errno),
            None => error.raw_os_error(),
        }
    })
}

/// Runs a batch of two durable writes that are kept in different ways, while the disk is made to
/// fail; what the one by its flag was told, and the one by a sync.
fn both_ways(
    file: &File,
    fail: impl FnOnce(),
    [is_awaited, is_first]: [bool; 2],
) -> [Result<usize, Option<i32>>; 2] {
    let together = kept(file, Durably::Together, 0);
    let alone = kept(file, Durably::Alone, 512);
    fail();
    let mut batch = Batch::new();
    let mut writes = vec![alone, together];
    if !is_first {
        writes.reverse();
    }
    writes.into_iter().for_each(|write| batch.push(write));
    let results: Vec<_> = match is_awaited {
        false => batch.wait().map(|(result, _)| told(result)).collect(),
        true => {
            let results = pollster::block_on(batch.into_future());
            results
                .into_iter()
                .map(|(result, _)| told(result))
                .collect()
        }
    };
    let place = usize::from(!is_first);
    [results[place], results[1 - place]]
}

/// The kernel tells an error of write-back once, to whoever asks first, so no other write of the
/// batch may be told that it is durable.
#[test]
fn a_failure_that_is_told_to_one_durable_write_is_no_success_of_another() {
    let name = "a_failure_that_is_told_to_one_durable_write_is_no_success_of_another";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let (eio, remembered) = (Err(Some(libc::EIO)), Err(Some(-libc::EIO)));
    let disk = &mounted.disk;
    on_every_backend(|engine| {
        for how in [[false, false], [false, true], [true, false], [true, true]] {
            let file = open(engine, &mounted, SYNCED);
            let by_flag = both_ways(&file, || disk.fail_through(Some(libc::EIO)), how);
            disk.fail_through(None);
            assert_eq!(by_flag, [eio, remembered], "{how:?}");
            let file = open(engine, &mounted, SYNCED);
            let by_sync = both_ways(&file, || disk.fail(Some(libc::EIO)), how);
            disk.fail(None);
            assert_eq!(by_sync, [remembered, eio], "{how:?}");
        }
    });
}

/// Its answer is taken before that of the sync is, whoever looks at its result first.
#[test]
fn a_failed_write_in_a_batch_is_remembered_before_its_result_is_looked_at() {
    let name = "a_failed_write_in_a_batch_is_remembered_before_its_result_is_looked_at";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        let through = read_write(engine)
            .durable_writes(true)
            .open(mounted.path(SYNCED))
            .expect("every number is a file");
        let mut batch = Batch::on(engine);
        batch.push(through.write_at(block(7), 0));
        mounted.disk.fail_through(Some(libc::EIO));
        let mut results = batch.wait();
        mounted.disk.fail_through(None);
        let refused = through.sync_data().wait().map(|()| 0);
        assert_eq!(told(refused), Err(Some(-libc::EIO)));
        let (result, _) = results.next().expect("there is one");
        assert_eq!(told(result), Err(Some(libc::EIO)));
    });
}

/// Writes a block that fits direct I/O.
fn write_direct(file: &File) -> WriteAt<'_, AlignedBuf> {
    file.write_at(file.aligned_buf(4096).expect("there is memory"), 0)
}

/// The first writes of a direct file are tried without waiting for anything but the device, to see
/// what it is.
#[test]
fn an_error_of_the_first_durable_write_is_told_and_remembered() {
    let test = "an_error_of_the_first_durable_write_is_told_and_remembered";
    in_own_process(module_path!(), test, || {
        let through = |engine: &Engine| {
            let path = temp_path(&[0; 2 * 4096]);
            let options = read_write(engine).direct(Direct::Required);
            options.durable_writes(true).open(path.path())
        };
        let engine = Engine::new().expect("nothing is demanded");
        let Ok(file) = through(&engine) else {
            return skip(test, "there is no direct I/O");
        };
        let buf = file.aligned_buf(4096).expect("there is memory");
        assert_eq!(file.read_at(buf, 0).wait().0.expect("it is sound"), 4096);
        if write_direct(&file).explain().takes_nowait != Some(true) {
            return skip(test, "the file cannot be asked not to wait");
        }
        fails_with(libc::SYS_pwritev2, 5, libc::RWF_NOWAIT);
        on_every_backend(|engine| {
            for count in [1, 2] {
                let file = through(engine).expect("as before");
                let mut batch = Batch::on(engine);
                (0..count).for_each(|_| batch.push(write_direct(&file)));
                for (result, _) in batch.wait() {
                    assert_eq!(told(result), Err(Some(libc::EIO)));
                }
                let synced = file.sync_data().wait().map(|()| 0);
                assert_eq!(told(synced), Err(Some(-libc::EIO)));
            }
        });
    });
}

#[test]
fn a_device_that_takes_durable_writes_and_has_no_sync_is_written_without() {
    on_every_backend(|engine| {
        for path in ["/dev/null", "/dev/zero"] {
            let file = read_write(engine).open(path).expect("every system has it");
            for number in 0..1000 {
                let (result, _) = file.write_at(block(number), 0).dsync().wait();
                assert_eq!(told(result), Ok(BLOCK), "{path}, {number}");
            }
        }
    });
}

#[test]
fn a_file_that_turns_out_to_have_no_sync_is_asked_for_none_again() {
    let name = "a_file_that_turns_out_to_have_no_sync_is_asked_for_none_again";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    on_every_backend(|engine| {
        for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
            let file = open(engine, &mounted, SYNCED);
            let write = kept(&file, Durably::Together, 0);
            mounted.disk.fail(Some(errno));
            write.wait().0.expect_err("there is no sync");
            for _ in 0..TURNS * AT_ONCE {
                let (result, _) = file.write_at(block(7), 0).dsync().wait();
                assert_eq!(told(result), Ok(BLOCK));
            }
            mounted.disk.fail(None);
        }
    });
}
