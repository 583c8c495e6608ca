//! Any range of a direct file, by way of aligned memory: against a model, by every host.

use std::fs;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use inflight::fs::{Alignment, AnyRange, Direct, File};
use inflight::{
    AlignedBuf, Batch, Engine, Misaligned, Operation, Partial, Priority, Spare, WishRefused,
    errno_of,
};
use tempfile::NamedTempFile;

use crate::denied::limits::limit_files;
use crate::support::own::in_own_process;
use crate::support::{
    Random, given_up, on_every_backend, pattern, read_write, seed, skip, temp_path,
};
use crate::wishes::by_every_host;

/// A file with this content that takes any range; `None`, with the reason said, where there is no
/// direct I/O.
pub(super) fn any(
    name: &str,
    engine: &Engine,
    data: &[u8],
    range: AnyRange,
) -> Option<(NamedTempFile, File)> {
    let path = temp_path(data);
    let options = read_write(engine).direct(Direct::Required).any_range(range);
    match options.open(path.path()) {
        Ok(file) => Some((path, file)),
        Err(refusal) if refusal.kind() == io::ErrorKind::Unsupported => {
            skip(name, &refusal.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A place and a length: small and large, at and across borders of blocks and the end.
fn range(random: &mut Random, end: usize) -> (usize, usize) {
    let near_block =
        |random: &mut Random, at: usize| (at / 4096 * 4096 + random.size(5)).max(2) - 2;
    let mut offset = random.size(end + 2000);
    let mut len = match random.size(3) {
        0 => random.size(10),
        1 => random.size(5000),
        _ => random.size(40_000),
    };
    if random.size(3) == 0 {
        offset = near_block(random, offset);
    }
    if random.size(3) == 0 {
        len = near_block(random, offset + len).saturating_sub(offset);
    }
    (offset, len)
}

/// What a read of `len` bytes at `offset` finds.
fn found(model: &[u8], offset: usize, len: usize) -> &[u8] {
    let offset = offset.min(model.len());
    &model[offset..(offset + len).min(model.len())]
}

#[test]
fn reads_of_random_ranges_find_what_is_there() {
    on_every_backend(|engine| {
        let mut random = Random(seed());
        let data = pattern(150_001);
        let Some((_path, file)) = any("reads of any range", engine, &data, AnyRange::Reads) else {
            return;
        };
        for _ in 0..60 {
            let (offset, len) = range(&mut random, data.len());
            let expected = found(&data, offset, len);
            let exact = random.size(2) == 0;
            let shift = random.size(2) * random.size(64);
            let memory = AlignedBuf::new(len + shift, 4096).unwrap();
            let read = || match exact {
                true => file.read_exact_at(vec![0; len], offset as u64),
                false => file.read_at(vec![0; len], offset as u64),
            };
            for (result, buf) in by_every_host!(engine, read().priority(Priority::Latency)) {
                match result {
                    Ok(moved) => assert_eq!(moved, expected.len(), "{len} bytes at {offset}"),
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
                        assert!(exact && expected.len() < len);
                    }
                }
                assert!(
                    &buf[..expected.len()] == expected,
                    "{len} bytes at {offset}"
                );
                assert!(buf[expected.len()..].iter().all(|byte| *byte == 0));
            }
            // At an address where the middle may fit, and capacity that is not initialised.
            let mut memory = memory;
            let (result, _) = file.read_at(&mut memory[shift..], offset as u64).wait();
            assert_eq!(result.unwrap(), expected.len());
            assert!(&memory[shift..shift + expected.len()] == expected);
            let spare = Spare::sized(Vec::with_capacity(len), len);
            let (result, spare) = file.read_at(spare, offset as u64).wait();
            assert_eq!(result.unwrap(), expected.len());
            assert!(spare.into_inner() == expected);
        }
        // It was handed over each time, whatever the scheduler makes of it.
        let left_out = ["priority is refused", "priority concerns"];
        for reason in left_out {
            assert_eq!(given_up(engine, reason), []);
        }
    });
}

#[test]
fn large_reads_are_split_and_whole() {
    on_every_backend(|engine| {
        let data = pattern(5 << 20);
        let name = "large reads of any range";
        let Some((_path, file)) = any(name, engine, &data, AnyRange::Reads) else {
            return;
        };
        let len = data.len() - 4099;
        for (result, buf) in by_every_host!(engine, file.read_at(vec![0; len], 4099)) {
            assert_eq!(result.unwrap(), len);
            assert!(buf == data[4099..]);
        }
    });
}

#[test]
fn writes_of_random_ranges_change_nothing_else() {
    on_every_backend(|engine| {
        let mut random = Random(seed());
        let mut model = pattern(50_001);
        let name = "writes of any range";
        let Some((path, file)) = any(name, engine, &model, AnyRange::ReadsAndWrites) else {
            return;
        };
        for round in 0..60_u8 {
            let (offset, len) = range(&mut random, model.len());
            let bytes: Vec<u8> = (0..len)
                .map(|_| u8::try_from(random.size(256)).unwrap())
                .collect();
            if len > 0 && offset + len > model.len() {
                model.resize(offset + len, 0);
            }
            if len > 0 {
                model[offset..offset + len].copy_from_slice(&bytes);
            }
            let write = || match round % 4 {
                0 => file.write_at(bytes.clone(), offset as u64),
                1 => file.write_all_at(bytes.clone(), offset as u64).dsync(),
                2 => file.write_at(bytes.clone(), offset as u64).then_sync(),
                _ => file
                    .write_at(bytes.clone(), offset as u64)
                    .priority(Priority::Throughput),
            };
            // One after the other: those of a batch would undo each other's neighbours.
            let mut batch = Batch::new();
            batch.push(write());
            let batched = batch.wait().next().expect("one was pushed").0;
            let two = engine.queue(2, |queue| {
                assert!(queue.push(1, write()).is_ok());
                queue.next().expect("one is in flight").1.0
            });
            let mut awaited = Batch::on(engine);
            awaited.push(write());
            let results = [
                write().wait().0,
                batched,
                two.unwrap(),
                pollster::block_on(async { write().await }).0,
                engine.run(async { write().await }).unwrap().0,
                pollster::block_on(async { awaited.await }).pop().unwrap().0,
            ];
            for result in results {
                assert_eq!(result.unwrap(), len, "{len} bytes at {offset}");
            }
            let content = fs::read(path.path()).unwrap();
            assert_eq!(content.len(), model.len(), "{len} bytes at {offset}");
            assert!(content == model, "{len} bytes at {offset}");
        }
    });
}

#[test]
fn writes_in_a_batch_that_share_no_block_are_all_done() {
    on_every_backend(|engine| {
        let mut model = vec![1; 300 * 4096];
        let name = "a batch of writes of any range";
        let Some((path, file)) = any(name, engine, &model, AnyRange::ReadsAndWrites) else {
            return;
        };
        let mut batch = Batch::on(engine);
        let mut awaited = Batch::on(engine);
        for n in 0..100_u8 {
            let at = usize::from(n) * 3 * 4096 + usize::from(n) * 7 + 1;
            let bytes = vec![n; 4096];
            model[at..at + 4096].copy_from_slice(&bytes);
            let batch = if n < 50 { &mut batch } else { &mut awaited };
            batch.push(file.write_all_at(bytes, at as u64).then_sync());
        }
        for (result, _) in batch
            .wait()
            .chain(pollster::block_on(async { awaited.await }))
        {
            assert_eq!(result.unwrap(), 4096);
        }
        assert!(fs::read(path.path()).unwrap() == model);
    });
}

#[test]
fn a_write_at_the_end_takes_nothing_away_from_what_is_written_beyond() {
    on_every_backend(|engine| {
        for _ in 0..20 {
            let name = "a write at the end";
            let Some((path, file)) = any(name, engine, b"", AnyRange::ReadsAndWrites) else {
                return;
            };
            let beyond = || {
                let mut block = file.aligned_buf(65_536).unwrap();
                block.fill(7);
                file.write_all_at(block, 1 << 20).then_sync()
            };
            let header = || {
                let mut buf = file.aligned_buf(100).unwrap();
                buf.fill(3);
                file.write_all_at(buf, 0).then_sync()
            };
            let mut batch = Batch::on(engine);
            batch.push(header());
            batch.push(beyond());
            assert!(batch.wait().all(|(result, _)| result.is_ok()));
            let content = fs::read(path.path()).unwrap();
            assert_eq!(content.len(), (1 << 20) + 65_536);
            assert!(content[1 << 20..].iter().all(|byte| *byte == 7));
            assert!(content[..100].iter().all(|byte| *byte == 3));
            assert!(content[100..1 << 20].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_file_never_is_longer_than_what_was_written_to_it() {
    on_every_backend(|engine| {
        for polls in 0..40 {
            let name = "a write at the end that is left";
            let Some((path, file)) = any(name, engine, b"", AnyRange::ReadsAndWrites) else {
                return;
            };
            let write = file.write_all_at(vec![3; 4196], 0).into_future();
            let mut write = Box::pin(write);
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if write.as_mut().poll(&mut context).is_ready() {
                    break;
                }
                std::thread::yield_now();
            }
            drop(write);
            assert_eq!(engine.drain(Duration::from_secs(60)), 0);
            let len = fs::metadata(path.path()).unwrap().len();
            // The blocks before the last one may be there without it.
            assert!(len <= 4096 || len == 4196, "{len} bytes");
            assert_eq!(len % 512, if len == 4196 { 100 } else { 0 });
        }
    });
}

/// Wherever the error comes: in the whole blocks, or in the end of the file behind them.
#[test]
fn a_write_that_stops_at_a_limit_is_short_and_a_whole_one_says_how_far_it_came() {
    const LIMIT: usize = 8192;
    let test = "a_write_that_stops_at_a_limit_is_short_and_a_whole_one_says_how_far_it_came";
    in_own_process(module_path!(), test, || {
        limit_files(LIMIT as u64);
        on_every_backend(|engine| {
            for end in [LIMIT + 50, LIMIT + 1536] {
                let file = any("limits", engine, b"", AnyRange::ReadsAndWrites);
                let Some((_path, file)) = file else {
                    return;
                };
                let data = || vec![3; end - 100];
                for short in by_every_host!(engine, file.write_at(data(), 100)) {
                    assert_eq!(short.0.expect("bytes were written"), LIMIT - 100, "{end}");
                }
                let synced = file.write_at(data(), 100).dsync().wait();
                assert_eq!(synced.0.expect("bytes were written"), LIMIT - 100);
                for partial in by_every_host!(engine, file.write_all_at(data(), 100)) {
                    let error = partial.0.expect_err("it was not all");
                    assert_eq!(errno_of(&error), Some(libc::EFBIG));
                    let partial = error.get_ref().and_then(|inner| inner.downcast_ref());
                    let done = partial.map(|partial: &Partial| partial.done_bytes);
                    assert_eq!(done, Some(LIMIT - 100), "{end}");
                }
            }
        });
    });
}

/// What is read for it may wait.
#[test]
fn a_write_that_is_not_aligned_cannot_be_told_not_to_wait() {
    on_every_backend(|engine| {
        let data = pattern(3 * 4096);
        let file = any("no_wait", engine, &data, AnyRange::ReadsAndWrites);
        let Some((path, file)) = file else {
            return;
        };
        for at in [8, 4096 + 8, 3 * 4096 - 8] {
            let write = || file.write_at(vec![3; 16], at).no_wait();
            for (result, _) in by_every_host!(engine, write()) {
                let error = result.expect_err("it is refused");
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                assert!(inner.is_some_and(|refused: &WishRefused| refused.wishes == "no_wait"));
            }
        }
        assert!(fs::read(path.path()).expect("it is there") == data);
        // Nothing is read for this one.
        let block = || Box::<[u8]>::from(vec![3; 4096]);
        let (result, _) = file.write_at(block(), 4096).no_wait().wait();
        if let Err(error) = result {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    });
}

fn is_misaligned(file: &File, result: io::Result<usize>) -> bool {
    let error = result.expect_err("it does not fit");
    match file.alignment() {
        // Kernels before 6.1 do not say it, so they are asked.
        Alignment::Unknown => error.raw_os_error() == Some(libc::EINVAL),
        _ => error
            .get_ref()
            .is_some_and(|cause| cause.is::<Misaligned>()),
    }
}

#[test]
fn only_what_was_asked_for_goes_by_aligned_memory() {
    on_every_backend(|engine| {
        let data = pattern(20_000);
        let name = "what is not asked for";
        let Some((path, file)) = any(name, engine, &data, AnyRange::Reads) else {
            return;
        };
        for (result, _) in by_every_host!(engine, file.write_at(vec![0; 10], 4091)) {
            assert!(is_misaligned(&file, result), "writes");
        }
        for (result, _) in by_every_host!(engine, file.read_vectored_at(vec![vec![0; 10]], 4091)) {
            assert!(is_misaligned(&file, result), "lists of buffers");
        }
        let options = read_write(engine).direct(Direct::Required);
        let strict = options.open(path.path()).unwrap();
        for (result, _) in by_every_host!(engine, strict.read_at(vec![0; 10], 4091)) {
            assert!(is_misaligned(&strict, result), "nothing was asked for");
        }
        for offset in [u64::MAX - 3, u64::try_from(i64::MAX).unwrap() - 11] {
            for (result, _) in by_every_host!(engine, file.read_at(vec![0; 10], offset)) {
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
            }
        }
        assert!(fs::read(path.path()).unwrap() == data);
        // A write has to read.
        let options = inflight::fs::OpenOptions::new()
            .write(true)
            .create_new(true);
        let options = options.any_range(AnyRange::ReadsAndWrites).engine(engine);
        let new = path.path().with_extension("new");
        let refused = options.open(&new).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("read(true)"), "{refused}");
        assert!(!new.exists());
    });
}

#[test]
fn reads_that_are_left_do_not_write_into_the_memory_of_others() {
    on_every_backend(|engine| {
        let mut random = Random(seed());
        let data = pattern(150_001);
        let name = "reads that are left";
        let Some((_path, file)) = any(name, engine, &data, AnyRange::Reads) else {
            return;
        };
        let file = Arc::new(file);
        let mut kept = Vec::new();
        let is_right = |(offset, len), (moved, buf): (usize, Vec<u8>)| {
            let right = found(&data, offset, len);
            assert!(buf[..moved] == *right, "{len} bytes at {offset}");
        };
        for _ in 0..2000 {
            let (offset, len) = range(&mut random, data.len());
            let read = {
                let file = Arc::clone(&file);
                async move {
                    let (result, buf) = file.read_at(vec![0; len], offset as u64).await;
                    (result.unwrap(), buf)
                }
            };
            let mut read = Box::pin(read);
            let mut cx = Context::from_waker(Waker::noop());
            // One that shows what the device is may be over at once.
            if let Poll::Ready(answer) = read.as_mut().poll(&mut cx) {
                is_right((offset, len), answer);
                continue;
            }
            match random.size(3) {
                0 => drop(read),
                _ => kept.push((offset, len, read)),
            }
            if kept.len() > 16 {
                let (offset, len, read) = kept.swap_remove(random.size(16));
                is_right((offset, len), pollster::block_on(read));
            }
        }
        drop(kept);
        assert_eq!(engine.drain(Duration::from_secs(60)), 0);
    });
}

#[test]
fn a_write_that_is_left_stops_between_its_requests_or_is_done() {
    on_every_backend(|engine| {
        let before = vec![1; 20_000];
        let name = "writes that are left";
        let range = AnyRange::ReadsAndWrites;
        let Some((path, file)) = any(name, engine, &before, range) else {
            return;
        };
        let mut after = before.clone();
        after[4000..14_000].fill(2);
        for polls in 0..5 {
            fs::write(path.path(), &before).unwrap();
            {
                let mut write = pin!(file.write_all_at(vec![2; 10_000], 4000).into_future());
                let mut cx = Context::from_waker(Waker::noop());
                for _ in 0..polls {
                    if write.as_mut().poll(&mut cx).is_ready() {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            assert_eq!(engine.drain(Duration::from_secs(60)), 0);
            let content = fs::read(path.path()).unwrap();
            assert!(content == before || content == after, "after {polls} polls");
        }
    });
}

#[cfg(feature = "faulty")]
#[test]
fn short_and_failing_requests_are_resumed_or_told() {
    use crate::support::{Named, seeds};
    use inflight::Faults;

    for seed in seeds() {
        let _named = Named(format!("seed {seed}"));
        let faults = Faults::new(seed)
            .short_transfers(300)
            .errors(libc::EINTR, 100);
        let engine = Engine::builder().faults(faults).build().unwrap();
        let mut model = pattern(50_001);
        let name = "faults in any range";
        let range = AnyRange::ReadsAndWrites;
        let Some((path, file)) = any(name, &engine, &model, range) else {
            return;
        };
        for n in 0..100_usize {
            let (at, len) = (n * 467 + 3, n * 97 + 1);
            let (result, buf) =
                pollster::block_on(async { file.read_exact_at(vec![0; len], at as u64).await });
            let expected = found(&model, at, len);
            assert!(
                result.is_ok() == (expected.len() == len) && buf[..expected.len()] == *expected
            );
            let bytes = vec![buf[0] ^ 1; len];
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&bytes);
            let write = file.write_all_at(bytes, at as u64).then_sync();
            let (result, _) = pollster::block_on(async { write.await });
            assert_eq!(result.unwrap(), len);
            assert!(
                fs::read(path.path()).unwrap() == model,
                "{len} bytes at {at}"
            );
        }
        assert!(engine.stats().short_transfers > 0);
    }
    // A read at an end of the range that fails: nothing is written.
    let faults = Faults::new(1).refuse("read", libc::EIO);
    let engine = Engine::builder().faults(faults).build().unwrap();
    let data = pattern(9000);
    let name = "a failing read before a write";
    let Some((path, file)) = any(name, &engine, &data, AnyRange::ReadsAndWrites) else {
        return;
    };
    let (result, _) = pollster::block_on(async { file.write_at(vec![0; 10], 5).await });
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(fs::read(path.path()).unwrap() == data);
    // Nor has a sync failed, though the write was to be durable.
    let options = read_write(&engine).direct(Direct::Required);
    let options = options.any_range(AnyRange::ReadsAndWrites);
    for durable_writes in [false, true] {
        let options = options.clone().durable_writes(durable_writes);
        let file = options.open(path.path()).unwrap();
        let mut batch = Batch::new();
        for _ in 0..2 {
            let write = file.write_at(vec![0; 10], 5);
            batch.push(if durable_writes { write } else { write.dsync() });
        }
        for (result, _) in batch.wait() {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        assert!(file.sync_data().wait().is_ok(), "{durable_writes}");
    }
}

/// A device that does not answer has the memory of reads that are left; nobody else may get it.
#[cfg(feature = "faulty")]
#[test]
fn memory_of_reads_that_are_left_is_not_used_again_before_they_are_over() {
    use std::sync::atomic::{AtomicBool, Ordering};

    for seed in crate::support::seeds() {
        let _named = crate::support::Named(format!("seed {seed}"));
        let hold = Arc::new(AtomicBool::new(true));
        let faults = inflight::Faults::new(seed).hold_while(&hold);
        let engine = Engine::builder().faults(faults).build().unwrap();
        let data = pattern(200 * 4096);
        let name = "memory of reads that are left";
        let Some((_path, file)) = any(name, &engine, &data, AnyRange::Reads) else {
            return;
        };
        // The first read of a direct file is a plain call that looks at what it is like.
        file.read_at(vec![0; 10], 5).wait().0.unwrap();
        let read = |n: usize| {
            let mut read = Box::pin(
                file.read_exact_at(vec![0; 100], n as u64 * 4096 + 7)
                    .into_future(),
            );
            let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "nothing is answered yet");
            read
        };
        let left: Vec<_> = (0..16).map(read).collect();
        // Until they are in flight: what waits in the mailbox is taken back when it is left.
        let begun = std::time::Instant::now();
        while engine.stats().in_flight < 16 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{:?}",
                engine.stats()
            );
            std::thread::yield_now();
        }
        drop(left);
        let kept: Vec<_> = (16..48).map(read).collect();
        hold.store(false, Ordering::Release);
        for (n, read) in (16..48).zip(kept) {
            let (result, buf) = pollster::block_on(read);
            assert_eq!(result.unwrap(), 100);
            assert!(buf == data[n * 4096 + 7..n * 4096 + 107], "read {n}");
        }
    }
}
