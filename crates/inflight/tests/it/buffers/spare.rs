//! Reads into capacity that has not been initialised, and the buffers of the `bytes` crate.

use std::future::{Future, IntoFuture};
use std::io::ErrorKind;

use inflight::fs::File;
use inflight::{AnyOp, Batch, Engine, IoBufMut, Operation, Spare, errno_of};

use super::{BLOCK, file_past_the_cache};
use crate::support::{on_every_backend, pattern, temp_file};

/// A file of three blocks, and what is in it.
fn three_blocks(engine: &Engine) -> (File, Vec<u8>) {
    let content = pattern(3 * BLOCK);
    (temp_file(engine, &content), content)
}

/// The same read alone, in a batch of two, and awaited.
fn every_way<B: IoBufMut + Send + 'static>(
    file: &File,
    make: impl Fn() -> (B, u64),
    exact: bool,
) -> Vec<(std::io::Result<usize>, B)> {
    let read = || {
        let (buf, offset) = make();
        match exact {
            true => file.read_exact_at(buf, offset),
            false => file.read_at(buf, offset),
        }
    };
    let mut batch = Batch::new();
    batch.push(read());
    batch.push(read());
    let mut outputs: Vec<_> = batch.wait().collect();
    outputs.push(read().wait());
    outputs.push(pollster::block_on(read().into_future()));
    outputs
}

#[test]
fn a_read_into_spare_capacity_adds_to_the_length() {
    on_every_backend(|engine| {
        let (file, content) = three_blocks(engine);
        let make = || (Spare::sized(b"head".to_vec(), BLOCK), 7);
        for (result, buf) in every_way(&file, make, false) {
            assert_eq!(result.unwrap(), BLOCK);
            assert_eq!(buf.len(), 4 + BLOCK);
            let buf = buf.into_inner();
            assert_eq!(
                (&buf[..4], &buf[4..]),
                (&b"head"[..], &content[7..7 + BLOCK])
            );
        }
    });
}

#[test]
fn a_short_read_adds_what_was_read() {
    on_every_backend(|engine| {
        let (file, content) = three_blocks(engine);
        let end = content.len() - 5;
        let make = || (Spare::new(Vec::with_capacity(64)), end as u64);
        for (result, buf) in every_way(&file, make, false) {
            assert_eq!(result.unwrap(), 5);
            assert_eq!(buf.into_inner(), content[end..]);
        }
        let beyond = || (Spare::new(Vec::with_capacity(64)), 1 << 30);
        for (result, buf) in every_way(&file, beyond, false) {
            assert_eq!((result.unwrap(), buf.len()), (0, 0));
        }
    });
}

#[test]
fn an_exact_read_fills_what_was_asked_for_or_says_how_far_it_came() {
    on_every_backend(|engine| {
        let (file, content) = three_blocks(engine);
        // More capacity than is to be filled.
        let make = || (Spare::sized(Vec::with_capacity(9000), 100), 1);
        for (result, buf) in every_way(&file, make, true) {
            assert_eq!(result.unwrap(), 100);
            assert_eq!(buf.into_inner(), content[1..101]);
        }
        let end = content.len() - 5;
        let make = || (Spare::sized(Vec::new(), 100), end as u64);
        for (result, buf) in every_way(&file, make, true) {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(buf.into_inner(), content[end..]);
        }
    });
}

#[test]
fn a_read_that_is_refused_adds_nothing() {
    on_every_backend(|engine| {
        let (file, _) = three_blocks(engine);
        let make = || (Spare::sized(b"abc".to_vec(), 100), u64::MAX - 10);
        for exact in [false, true] {
            for (result, buf) in every_way(&file, make, exact) {
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
                assert_eq!(buf.into_inner(), b"abc");
            }
        }
    });
}

#[test]
fn buffers_of_a_vectored_read_are_filled_one_after_the_other() {
    on_every_backend(|engine| {
        let (file, content) = three_blocks(engine);
        let end = content.len() - 50;
        let bufs = || {
            let rooms = [30, 0, 15, 40, 10];
            rooms.map(|room| Spare::sized(vec![9], room)).into()
        };
        let check = |bufs: Vec<Spare<Vec<u8>>>| {
            let lens: Vec<_> = bufs.iter().map(|buf| buf.len()).collect();
            assert_eq!(lens, [31, 1, 16, 6, 1]);
            let read = bufs.iter().flat_map(|buf| buf[1..].to_vec());
            assert!(read.eq(content[end..].iter().copied()));
        };
        let (result, back) = file
            .read_vectored_at(bufs(), end as u64)
            .by_backend()
            .wait();
        assert_eq!(result.unwrap(), 50);
        check(back);
        let exact = file.read_vectored_exact_at(bufs(), end as u64).by_backend();
        let (result, back) = pollster::block_on(exact.into_future());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        check(back);
    });
}

#[test]
fn one_batch_reads_into_spare_capacity_and_writes_what_is_held() {
    on_every_backend(|engine| {
        let (_path, file) = file_past_the_cache(engine);
        let mut batch: Batch<AnyOp<'_, Spare<Vec<u8>>>> = Batch::new();
        let mut held = Vec::with_capacity(4096);
        held.extend(b"held");
        batch.push(file.write_all_at(Spare::new(held), 0).into());
        batch.push(file.sync_data().into());
        let mut results = batch.wait();
        let (result, held) = results.next().unwrap();
        assert_eq!((result.unwrap(), held.unwrap().len()), (4, 4));
        assert!(results.next().unwrap().1.is_none());
        drop(results);
        let mut batch: Batch<AnyOp<'_, Spare<Vec<u8>>>> = Batch::new();
        let read = file.read_at(Spare::sized(b"is ".to_vec(), 99), 0);
        batch.push(read.by_backend().into());
        batch.push(file.write_all_at(Spare::new(b"more".to_vec()), 100).into());
        let buf = batch.wait().next().unwrap().1.unwrap();
        assert_eq!(buf[..7], *b"is held");
    });
}

/// A transfer that fails after some bytes.
#[cfg(feature = "faulty")]
#[test]
fn what_came_before_an_error_counts_to_the_length() {
    use std::os::unix::fs::FileExt;

    use inflight::{Faults, Partial};

    let content = pattern(16 * BLOCK);
    let mut partial = 0;
    for seed in crate::support::seeds() {
        let faults = Faults::new(seed)
            .short_transfers(700)
            .errors(libc::EIO, 300);
        let engine = Engine::builder().faults(faults).build().unwrap();
        let (path, file) = file_past_the_cache(&engine);
        path.as_file().write_all_at(&content, 0).unwrap();
        let mut batch = Batch::on(&engine);
        for _ in 0..200 {
            let spare = Spare::sized(vec![7], 16 * BLOCK);
            batch.push(file.read_exact_at(spare, 0).by_backend());
        }
        for (result, buf) in batch.wait() {
            let bytes = match result {
                Ok(bytes) => bytes,
                Err(error) => {
                    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                    inner.map_or(0, |partial: &Partial| partial.done_bytes)
                }
            };
            partial += u32::from(0 < bytes && bytes < 16 * BLOCK);
            assert_eq!((buf.len(), buf[0]), (1 + bytes, 7));
            assert!(buf[1..] == content[..bytes]);
        }
    }
    assert!(partial > 20, "{partial} transfers failed half way");
}

#[test]
fn capacity_of_a_dropped_read_is_freed_when_it_is_over() {
    on_every_backend(|engine| {
        let (_path, file) = file_past_the_cache(engine);
        file.write_all_at(pattern(BLOCK), 0).wait().0.unwrap();
        for _ in 0..50 {
            let mut read = file
                .read_at(Spare::sized(Vec::new(), BLOCK), 0)
                .by_backend()
                .into_future();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            drop(std::pin::Pin::new(&mut read).poll(&mut context));
        }
        assert_eq!(engine.drain(std::time::Duration::from_secs(60)), 0);
    });
}

#[cfg(feature = "bytes")]
mod with_bytes {
    use bytes::{Bytes, BytesMut};

    use super::*;

    #[test]
    fn a_read_into_bytes_mut_becomes_bytes_without_a_copy() {
        on_every_backend(|engine| {
            let (file, content) = three_blocks(engine);
            let make = || (Spare::sized(BytesMut::from(&b"head"[..]), BLOCK), 7);
            for (result, buf) in every_way(&file, make, false) {
                assert_eq!(result.unwrap(), BLOCK);
                let start = buf.as_ptr();
                let bytes: Bytes = buf.into_inner().freeze();
                assert_eq!((bytes.as_ptr(), bytes.len()), (start, 4 + BLOCK));
                assert_eq!(bytes[4..], content[7..7 + BLOCK]);
            }
            // Without spare capacity, it is what it holds that is filled.
            let make = || (BytesMut::zeroed(100), 7);
            for (result, buf) in every_way(&file, make, true) {
                assert_eq!((result.unwrap(), &buf[..]), (100, &content[7..107]));
            }
        });
    }

    #[test]
    fn bytes_that_are_shared_are_written() {
        on_every_backend(|engine| {
            let (_path, file) = file_past_the_cache(engine);
            let whole = Bytes::from(pattern(2 * BLOCK));
            let mut batch = Batch::new();
            // Parts of one allocation, in several operations at once.
            batch.push(file.write_all_at(whole.slice(BLOCK..), 0));
            batch.push(file.write_all_at(whole.slice(..BLOCK), BLOCK as u64));
            for (result, back) in batch.wait() {
                assert_eq!((result.unwrap(), back.len()), (BLOCK, BLOCK));
            }
            let awaited = file.write_all_at(Bytes::from_static(b"static"), 3);
            assert_eq!(pollster::block_on(awaited.into_future()).0.unwrap(), 6);
            let (result, buf) = file.read_exact_at(vec![0; 2 * BLOCK], 0).wait();
            assert_eq!(result.unwrap(), 2 * BLOCK);
            assert_eq!(buf[BLOCK..], whole[..BLOCK]);
            assert_eq!(buf[3..9], *b"static");
            assert_eq!(buf[9..BLOCK], whole[BLOCK + 9..]);
        });
    }

    #[test]
    fn parts_of_one_allocation_are_filled_at_once() {
        on_every_backend(|engine| {
            let (file, content) = three_blocks(engine);
            let mut whole = BytesMut::zeroed(3 * BLOCK);
            let mut batch = Batch::new();
            for block in 0..3 {
                batch.push(file.read_exact_at(whole.split_to(BLOCK), block * BLOCK as u64));
            }
            let parts: Vec<_> = batch.wait().map(|(_, part)| part).collect();
            let mut joined = BytesMut::new();
            parts.into_iter().for_each(|part| joined.unsplit(part));
            assert!(joined == content[..]);
        });
    }
}
