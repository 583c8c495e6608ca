//! Transfers from and to several buffers.

use std::fs;
use std::io;

use inflight::fs::WriteVectoredAt;
use inflight::{Batch, Operation, errno_of};

use crate::support::{
    alone_and_batched, on_every_backend, pattern, read_write, temp_file, temp_path,
};
use crate::wishes::by_every_host;

/// Buffers of these lengths.
fn bufs(lens: &[usize]) -> Vec<Vec<u8>> {
    lens.iter().map(|len| vec![0; *len]).collect()
}

/// The bytes in pieces of these lengths.
fn pieces(mut bytes: &[u8], lens: &[usize]) -> Vec<Vec<u8>> {
    let mut piece = |len: usize| {
        let (piece, rest) = bytes.split_at(len);
        bytes = rest;
        piece.to_vec()
    };
    lens.iter().map(|len| piece(*len)).collect()
}

const LENS: [usize; 6] = [1, 0, 4096, 17, 0, 900];
const TOTAL: usize = 5014;

#[test]
fn buffers_are_filled_one_after_the_other() {
    on_every_backend(|engine| {
        let data = pattern(6000);
        let file = temp_file(engine, &data);
        for exact in [false, true] {
            let read = || match exact {
                true => file.read_vectored_exact_at(bufs(&LENS), 5),
                false => file.read_vectored_at(bufs(&LENS), 5),
            };
            for (result, bufs) in alone_and_batched!(read()) {
                assert_eq!(result.unwrap(), TOTAL);
                assert_eq!(bufs, pieces(&data[5..], &LENS));
            }
        }
    });
}

#[test]
fn buffers_are_written_one_after_the_other() {
    on_every_backend(|engine| {
        for durable in [false, true] {
            let path = temp_path(b"");
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            let data = pattern(TOTAL);
            for (result, bufs) in
                alone_and_batched!(file.write_vectored_at(pieces(&data, &LENS), 5))
            {
                assert_eq!((result.unwrap(), bufs), (TOTAL, pieces(&data, &LENS)));
            }
            assert!(fs::read(path.path()).unwrap()[5..] == data);
            let all = alone_and_batched!(file.write_vectored_all_at(pieces(&data, &LENS), 0));
            assert!(all.into_iter().all(|(result, _)| result.unwrap() == TOTAL));
            assert!(fs::read(path.path()).unwrap()[..TOTAL] == data);
        }
    });
}

#[test]
fn a_short_read_ends_in_the_middle_of_a_buffer() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abcdefgh");
        for (result, bufs) in alone_and_batched!(file.read_vectored_at(bufs(&[3, 4, 4]), 2)) {
            assert_eq!(result.unwrap(), 6);
            assert_eq!(bufs, [b"cde".to_vec(), b"fgh\0".to_vec(), vec![0; 4]]);
        }
        for (result, _) in alone_and_batched!(file.read_vectored_at(bufs(&[3, 4]), 8)) {
            assert_eq!(result.unwrap(), 0);
        }
    });
}

#[test]
fn an_exact_read_tells_that_the_file_ends() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abcdefgh");
        for (result, bufs) in alone_and_batched!(file.read_vectored_exact_at(bufs(&[3, 4, 4]), 2)) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(error.to_string(), "the file ended after 6 of 11 bytes");
            assert_eq!(bufs.concat(), b"cdefgh\0\0\0\0\0");
        }
    });
}

#[test]
fn a_list_without_bytes_moves_none() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        for durable in [false, true] {
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            for lens in [&[][..], &[0, 0]] {
                let mut outputs = alone_and_batched!(file.read_vectored_at(bufs(lens), 0));
                outputs.extend(alone_and_batched!(
                    file.read_vectored_exact_at(bufs(lens), 0)
                ));
                outputs.extend(alone_and_batched!(file.write_vectored_at(bufs(lens), 0)));
                outputs.extend(alone_and_batched!(
                    file.write_vectored_all_at(bufs(lens), 0)
                ));
                for (result, back) in outputs {
                    assert_eq!((result.unwrap(), back.len()), (0, lens.len()));
                }
            }
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn at_most_1024_buffers_are_used_of_what_may_be_short() {
    on_every_backend(|engine| {
        let data = pattern(1500 * 3);
        let file = temp_file(engine, &data);
        let lens = [3; 1500];
        for (result, bufs) in alone_and_batched!(file.read_vectored_at(bufs(&lens), 0)) {
            assert_eq!((result.unwrap(), bufs.len()), (1024 * 3, 1500));
            assert!(bufs[..1024].concat() == data[..1024 * 3]);
            assert!(bufs[1024..].iter().all(|buf| *buf == [0; 3]));
        }
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true);
        let file = options.open(path.path()).unwrap();
        for (result, bufs) in alone_and_batched!(file.write_vectored_at(pieces(&data, &lens), 0)) {
            assert_eq!((result.unwrap(), bufs.len()), (1024 * 3, 1500));
        }
        assert!(fs::read(path.path()).unwrap() == data[..1024 * 3]);
    });
}

#[test]
fn empty_buffers_are_none_of_the_1024() {
    on_every_backend(|engine| {
        let data = pattern(10 * 3);
        let file = temp_file(engine, &data);
        let lens = [vec![0; 1024], vec![3; 10]].concat();
        for (result, bufs) in alone_and_batched!(file.read_vectored_at(bufs(&lens), 0)) {
            assert_eq!((result.unwrap(), bufs.concat()), (30, data.clone()));
        }
        let path = temp_path(b"");
        let file = read_write(engine).open(path.path()).unwrap();
        for (result, _) in alone_and_batched!(file.write_vectored_at(pieces(&data, &lens), 0)) {
            assert_eq!(result.unwrap(), 30);
        }
        assert_eq!(fs::read(path.path()).unwrap(), data);
    });
}

type Write<'f> = WriteVectoredAt<'f, Vec<u8>>;

const WISHES: [fn(Write<'_>) -> Write<'_>; 3] = [
    |write| write,
    |write| write.then_sync(),
    |write| write.dsync(),
];

/// More than two calls take; the first 1100 have no bytes.
fn many_lens() -> Vec<usize> {
    [vec![0; 1100], vec![3; 2500]].concat()
}

#[test]
fn whole_transfers_use_all_buffers_however_many_there_are() {
    on_every_backend(|engine| {
        let (data, lens) = (pattern(2500 * 3), many_lens());
        for durable in [false, true] {
            let path = temp_path(b"");
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            for wish in WISHES {
                fs::write(path.path(), b"").unwrap();
                let write = || wish(file.write_vectored_all_at(pieces(&data, &lens), 0));
                for (result, bufs) in by_every_host!(engine, write()) {
                    assert_eq!((result.unwrap(), bufs.len()), (data.len(), lens.len()));
                }
                assert!(fs::read(path.path()).unwrap() == data);
            }
            let read = || file.read_vectored_exact_at(bufs(&lens), 0);
            for (result, bufs) in by_every_host!(engine, read()) {
                assert_eq!((result.unwrap(), bufs.len()), (data.len(), lens.len()));
                assert!(bufs.concat() == data);
            }
            let beyond = || file.read_vectored_exact_at(bufs(&lens), 100);
            for (result, bufs) in by_every_host!(engine, beyond()) {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                let text = "the file ended after 7400 of 7500 bytes";
                assert_eq!(error.to_string(), text);
                assert!(bufs.concat()[..7400] == data[100..]);
            }
        }
    });
}

#[cfg(feature = "faulty")]
#[test]
fn a_sync_that_fails_behind_a_long_list_is_remembered() {
    use inflight::{Engine, Faults, Partial, SyncFailed};

    let faults = Faults::new(1).refuse("fsync", libc::EIO);
    let engine = Engine::builder().faults(faults).build().unwrap();
    let path = temp_path(b"");
    let file = read_write(&engine).open(path.path()).unwrap();
    let mut batch = Batch::new();
    // Two are handed over; one alone would be made by plain calls, which do not fail.
    for from in [0, 10_000] {
        let bufs = vec![vec![7; 3]; 1025];
        batch.push(file.write_vectored_at(bufs, from).then_sync());
    }
    for (result, _) in batch.wait() {
        let error = result.unwrap_err();
        let partial = error.get_ref().unwrap().downcast_ref::<Partial>();
        let expected = Partial {
            done_bytes: 3075,
            errno: libc::EIO,
        };
        assert_eq!(partial, Some(&expected));
    }
    let error = file.sync_all().wait().unwrap_err();
    let failed = error.get_ref().unwrap().downcast_ref::<SyncFailed>();
    assert_eq!(failed, Some(&SyncFailed { errno: libc::EIO }));
}

#[test]
fn exactly_1024_buffers_are_whole() {
    on_every_backend(|engine| {
        let data = pattern(1024 * 2);
        let file = temp_file(engine, &data);
        for (result, bufs) in alone_and_batched!(file.read_vectored_exact_at(bufs(&[2; 1024]), 0)) {
            assert_eq!((result.unwrap(), bufs.concat()), (2048, data.clone()));
        }
    });
}

#[test]
fn buffers_come_back_with_every_error() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let options = inflight::fs::OpenOptions::new().engine(engine);
        let file = options.write(true).open(path.path()).unwrap();
        let file_errnos = [(0, libc::EBADF), (u64::MAX, libc::EINVAL)];
        for (offset, errno) in file_errnos {
            for (result, bufs) in alone_and_batched!(file.read_vectored_at(bufs(&[3, 5]), offset)) {
                assert_eq!(errno_of(&result.unwrap_err()), Some(errno));
                assert_eq!(bufs, [vec![0; 3], vec![0; 5]]);
            }
        }
    });
}

#[test]
fn borrowed_slices_and_mixed_sizes_go_together() {
    on_every_backend(|engine| {
        let data = pattern(4096);
        let file = temp_file(engine, &data);
        let mut whole = vec![0; 4096];
        let (head, tail) = whole.split_at_mut(1000);
        let (middle, tail) = tail.split_at_mut(96);
        let mut batch = Batch::new();
        batch.push(file.read_vectored_exact_at(vec![middle, head], 1000));
        batch.push(file.read_vectored_exact_at(vec![tail], 1096));
        assert!(batch.wait().all(|(result, _)| result.is_ok()));
        drop(batch);
        assert!(whole[1000..] == data[1000..]);
        assert!(whole[..1000] == data[1096..2096]);
        let (result, _) = file
            .write_vectored_all_at(vec![&data[..10], &data[..10]], 0)
            .wait();
        assert_eq!(result.unwrap(), 20);
    });
}
