//! Reads and writes at a position, alone and in batches: what comes back in every case.

mod large;

use std::fs;
use std::future::IntoFuture;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{Batch, Engine, NoPositions, Operation, errno_of};
use rustix::event::{EventfdFlags, eventfd};
use tempfile::NamedTempFile;

use crate::support::fifo::Fifo;
use crate::support::{
    Named, alone_and_batched, chill, directory, on_every_backend, path_in_memory, pattern,
    read_write, skip, temp_file, temp_path,
};
use crate::wishes::by_every_host;

/// Checks that a transfer gave the buffer back and failed with `errno`.
fn assert_refused((result, buf): (io::Result<usize>, Vec<u8>), errno: i32) {
    assert_eq!(buf.len(), 16, "the buffer comes back whole");
    let error = result.expect_err("it is refused");
    assert_eq!(errno_of(&error), Some(errno), "{error}");
}

#[test]
fn what_is_written_is_read() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"");
        let data = pattern(100_000);
        for (result, buf) in alone_and_batched!(file.write_at(data.clone(), 7)) {
            assert_eq!((result.unwrap(), &buf), (data.len(), &data));
        }
        for (result, buf) in alone_and_batched!(file.read_at(vec![1; data.len()], 7)) {
            assert_eq!((result.unwrap(), &buf), (data.len(), &data));
        }
        let (result, buf) = file.read_at(vec![1; 7], 0).wait();
        assert_eq!((result.unwrap(), buf), (7, vec![0; 7]));
    });
}

#[test]
fn durable_writes_are_read_back() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true);
        let file = options.open(path.path()).unwrap();
        let data = pattern(10_000);
        for (result, buf) in alone_and_batched!(file.write_at(data.clone(), 3)) {
            assert_eq!((result.unwrap(), &buf), (data.len(), &data));
        }
        assert_eq!(fs::read(path.path()).unwrap()[3..], data);
    });
}

#[test]
fn a_short_read_is_reported() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        for (result, buf) in alone_and_batched!(file.read_at(vec![9; 16], 1)) {
            assert_eq!(result.unwrap(), 2);
            assert_eq!(buf[..4], [b'b', b'c', 9, 9]);
        }
    });
}

#[test]
fn at_and_beyond_the_end_nothing_is_read() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        chill(&file);
        let far = u64::try_from(i64::MAX - 4096).unwrap();
        for offset in [3, 4, 4096, far] {
            for (result, buf) in alone_and_batched!(file.read_at(vec![9; 16], offset)) {
                assert_eq!((result.unwrap(), buf), (0, vec![9; 16]), "at {offset}");
            }
        }
    });
}

#[test]
fn an_exact_read_fills_the_buffer_or_tells_that_the_file_ends() {
    on_every_backend(|engine| {
        let data = pattern(5000);
        let file = temp_file(engine, &data);
        chill(&file);
        for (result, buf) in alone_and_batched!(file.read_exact_at(vec![0; 4000], 1000)) {
            assert_eq!((result.unwrap(), &buf[..]), (4000, &data[1000..]));
        }
        for (result, buf) in alone_and_batched!(file.read_exact_at(vec![0; 4001], 1000)) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(error.to_string(), "the file ended after 4000 of 4001 bytes");
            assert_eq!(buf[..4000], data[1000..]);
        }
        for (result, _) in alone_and_batched!(file.read_exact_at(vec![0; 1], 6000)) {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    });
}

#[test]
fn a_write_beyond_the_end_extends_the_file() {
    on_every_backend(|engine| {
        for durable in [false, true] {
            let path = temp_path(b"abc");
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            for (result, buf) in alone_and_batched!(file.write_all_at(b"xyz".to_vec(), 9000)) {
                assert_eq!((result.unwrap(), buf), (3, b"xyz".to_vec()));
            }
            let content = fs::read(path.path()).unwrap();
            assert_eq!(content.len(), 9003);
            assert_eq!(
                (&content[..3], &content[9000..]),
                (&b"abc"[..], &b"xyz"[..])
            );
            assert!(content[3..9000].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_transfer_of_no_bytes_yields_zero() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        for durable in [false, true] {
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            chill(&file);
            for offset in [0, 3, 100] {
                let reads = alone_and_batched!(file.read_at(Vec::new(), offset));
                let exact = alone_and_batched!(file.read_exact_at(Vec::new(), offset));
                let writes = alone_and_batched!(file.write_at(Vec::new(), offset));
                let all = alone_and_batched!(file.write_all_at(Vec::new(), offset));
                for (result, _) in reads.into_iter().chain(exact).chain(writes).chain(all) {
                    assert_eq!(result.unwrap(), 0, "at {offset}");
                }
            }
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn access_the_file_was_not_opened_for_is_refused() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let options = OpenOptions::new().engine(engine);
        let read_only = options.clone().read(true).open(path.path()).unwrap();
        for output in alone_and_batched!(read_only.write_at(vec![0; 16], 0)) {
            assert_refused(output, libc::EBADF);
        }
        for durable in [false, true] {
            let options = options.clone().write(true).durable_writes(durable);
            let write_only = options.open(path.path()).unwrap();
            for output in alone_and_batched!(write_only.read_at(vec![0; 16], 0)) {
                assert_refused(output, libc::EBADF);
            }
            // The kernel looks at the access before it looks at the length.
            for (result, _) in alone_and_batched!(write_only.read_at(Vec::new(), 0)) {
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EBADF));
            }
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn offsets_that_no_file_has_are_refused() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        chill(&file);
        let limit = u64::try_from(i64::MAX).unwrap();
        // The last one is what a ring takes for "the current position".
        for offset in [limit, limit + 1, u64::MAX - 1, u64::MAX] {
            for output in alone_and_batched!(file.read_at(vec![0; 16], offset)) {
                assert_refused(output, libc::EINVAL);
            }
        }
        for offset in [limit + 1, u64::MAX] {
            for output in alone_and_batched!(file.write_at(vec![0; 16], offset)) {
                assert_refused(output, libc::EINVAL);
            }
        }
        assert_eq!(file.metadata().wait().unwrap().len, 3);
    });
}

#[test]
fn a_directory_is_not_read() {
    on_every_backend(|engine| {
        let options = OpenOptions::new().read(true).engine(engine);
        let directory = options.open(directory()).unwrap();
        for output in alone_and_batched!(directory.read_at(vec![0; 16], 0)) {
            assert_refused(output, libc::EISDIR);
        }
    });
}

fn assert_without_positions((result, buf): (io::Result<usize>, Vec<u8>)) {
    assert_eq!(buf.len(), 16, "the buffer comes back whole");
    let error = result.expect_err("it is refused");
    assert_eq!(errno_of(&error), Some(libc::ESPIPE));
    assert_eq!(error.kind(), io::ErrorKind::NotSeekable);
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    assert_eq!(cause, Some(&NoPositions));
    let text = error.to_string();
    assert!(text.contains("no positions") && text.contains("std::fs::File"));
}

#[test]
fn streams_that_look_like_files_are_refused_by_every_host() {
    let paths = [
        "/dev/kmsg",
        "/sys/kernel/tracing/saved_cmdlines_size",
        "/dev/ptmx",
    ];
    on_every_backend(|engine| {
        for path in paths {
            let options = OpenOptions::new().read(true).engine(engine);
            let file = match options.open(path) {
                Ok(file) => file,
                Err(why) => {
                    skip(path, &why.to_string());
                    continue;
                }
            };
            for output in by_every_host!(engine, file.read_at(vec![0; 16], 0)) {
                assert_without_positions(output);
            }
        }
    });
}

#[test]
fn a_fifo_that_nobody_writes_to_keeps_no_one_waiting() {
    on_every_backend(|engine| {
        let folder = tempfile::tempdir_in(directory()).unwrap();
        let fifo = Fifo::new(folder.path());
        // Opened for both, nobody else is needed (fifo(7)).
        let file = read_write(engine).open(fifo.path()).unwrap();
        for output in by_every_host!(engine, file.read_at(vec![0; 16], 0)) {
            assert_without_positions(output);
        }
        assert_eq!(
            pollster::block_on(file.metadata().into_future())
                .unwrap()
                .len,
            0
        );
    });
}

/// Whoever makes it: a plain call, a ring or the pool.
#[test]
fn a_transfer_of_no_bytes_is_answered_alike_by_every_host() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let memory = path_in_memory("transfers of no bytes", b"abc");
        let ours = path.path();
        let memory = memory.as_ref().map_or(ours, NamedTempFile::path);
        let others = [
            "/proc/self/comm",
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "/dev/kmsg",
        ];
        let paths = others.into_iter().map(Path::new).chain([ours, memory]);
        let both = [true, false];
        for (path, direct) in paths.flat_map(|path| both.map(|direct| (path, direct))) {
            for (reads, writes) in [(true, false), (false, true), (true, true)] {
                let options = OpenOptions::new().read(reads).write(writes).engine(engine);
                let direct = if direct { Direct::Auto } else { Direct::Off };
                let Ok(file) = options.direct(direct).open(path) else {
                    continue;
                };
                let _named = Named(format!("{path:?}, {direct:?}, {reads}, {writes}"));
                let errno = |result: io::Result<usize>| result.map_err(|error| errno_of(&error));
                macro_rules! check {
                    ($operation:expr) => {{
                        let all = by_every_host!(engine, $operation);
                        let all = all.into_iter().map(|(result, _)| errno(result));
                        let all: Vec<_> = all.collect();
                        let are_alike = all.iter().all(|one| *one == all[0]);
                        assert!(are_alike, "{}: {all:?}", stringify!($operation));
                    }};
                }
                check!(file.read_at(Vec::new(), 0));
                check!(file.write_at(Vec::new(), 0));
                check!(file.read_vectored_at(vec![Vec::new()], 0));
                check!(file.write_vectored_at(vec![Vec::new()], 0));
                check!(file.write_at(Vec::new(), 0).dsync());
                check!(file.write_at(Vec::new(), 0).no_wait());
            }
        }
    });
}

#[test]
fn what_has_no_positions_is_refused() {
    on_every_backend(|engine| {
        let (reader, writer) = io::pipe().unwrap();
        let (left, right) = UnixStream::pair().unwrap();
        // It is ready to be read and written, many times.
        let counter = eventfd(1000, EventfdFlags::SEMAPHORE).unwrap();
        let of_streams: [OwnedFd; 4] = [reader.into(), writer.into(), left.into(), right.into()];
        for fd in of_streams.into_iter().chain([counter]) {
            let file = File::from_std(engine, fd.into()).unwrap();
            for output in alone_and_batched!(file.read_at(vec![0; 16], 0)) {
                assert_without_positions(output);
            }
            for output in alone_and_batched!(file.write_at(vec![0; 16], 0)) {
                assert_without_positions(output);
            }
        }
    });
}

#[test]
fn a_file_opened_for_appending_is_refused() {
    let path = temp_path(b"abc");
    let file = fs::OpenOptions::new().append(true).open(path.path());
    let engine = Engine::new().unwrap();
    let error = File::from_std(&engine, file.unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_full_device_is_told_with_its_errno() {
    on_every_backend(|engine| {
        let options = OpenOptions::new().write(true).engine(engine);
        let Ok(full) = options.durable_writes(true).open("/dev/full") else {
            return skip("a full device", "there is no /dev/full");
        };
        for output in alone_and_batched!(full.write_all_at(vec![0; 16], 0)) {
            assert_eq!(
                output.0.as_ref().unwrap_err().kind(),
                io::ErrorKind::StorageFull
            );
            assert_refused(output, libc::ENOSPC);
        }
    });
}

#[test]
fn the_same_buffer_comes_back_however_it_ends() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from_std(engine, OwnedFd::from(reader).into()).unwrap();
        let mut batch = Batch::new();
        let mut addresses = Vec::new();
        for (file, offset) in [(&file, 0), (&file, u64::MAX), (&pipe, 0), (&file, 99)] {
            for exact in [false, true] {
                let buf = vec![0_u8; 64];
                addresses.push(buf.as_ptr());
                batch.push(match exact {
                    true => file.read_exact_at(buf, offset),
                    false => file.read_at(buf, offset),
                });
            }
        }
        let back: Vec<_> = batch.wait().map(|(_, buf)| buf).collect();
        let back: Vec<_> = back.iter().map(|buf| buf.as_ptr()).collect();
        assert_eq!(back, addresses);
    });
}
