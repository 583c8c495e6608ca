//! What is done to a file beside moving bytes.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use inflight::fs::{AllocateRange, Direct, File, OpenOptions};
use inflight::{Batch, Operation, SyncFailed, errno_of};

use crate::support::{
    alone_and_batched, directory, on_every_backend, pattern, read_write, skip, temp_file, temp_path,
};

#[test]
fn the_size_is_told() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(10_000));
        for metadata in alone_and_batched!(file.metadata()) {
            let metadata = metadata.unwrap();
            assert_eq!((metadata.len, metadata.direct), (10_000, file.alignment()));
            assert!(metadata.block_size_bytes.is_power_of_two());
        }
        file.write_all_at(vec![1; 10], 20_000).wait().0.unwrap();
        for metadata in alone_and_batched!(file.metadata()) {
            assert_eq!(metadata.unwrap().len, 20_010);
        }
    });
}

#[test]
fn allocated_bytes_are_those_on_the_device() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"");
        assert_eq!(file.metadata().wait().unwrap().allocated_bytes, 0);
        file.write_all_at(vec![1; 8192], 1 << 20).wait().0.unwrap();
        file.sync_all().wait().unwrap();
        let metadata = file.metadata().wait().unwrap();
        assert_eq!(metadata.len, (1 << 20) + 8192);
        assert!(
            (8192..1 << 20).contains(&metadata.allocated_bytes),
            "{metadata:?}"
        );
    });
}

#[test]
fn a_directory_has_metadata() {
    on_every_backend(|engine| {
        let options = OpenOptions::new().read(true).engine(engine);
        let folder = options.open(directory()).unwrap();
        assert!(
            alone_and_batched!(folder.metadata())
                .iter()
                .all(Result::is_ok)
        );
    });
}

/// Whether the file system has this; a skip is said.
fn is_supported(what: &str, results: &[io::Result<()>]) -> bool {
    let unsupported = |result: &io::Result<()>| {
        let error = result.as_ref().err().and_then(io::Error::raw_os_error);
        error == Some(libc::EOPNOTSUPP)
    };
    if results.iter().all(unsupported) {
        skip(what, "the file system does not support it");
        return false;
    }
    results
        .iter()
        .for_each(|result| assert!(result.is_ok(), "{result:?}"));
    true
}

#[test]
fn reserving_grows_the_file_unless_its_size_is_to_be_kept() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        let keep = AllocateRange::ReserveKeepSize;
        let kept = alone_and_batched!(file.allocate(keep, 0, 1 << 20));
        if is_supported("reserving space", &kept) {
            let metadata = file.metadata().wait().unwrap();
            assert_eq!(metadata.len, 3);
            assert!(metadata.allocated_bytes >= 1 << 20);
        }
        let grown = alone_and_batched!(file.allocate(AllocateRange::Reserve, 4096, 8192));
        if is_supported("reserving and growing", &grown) {
            assert_eq!(file.metadata().wait().unwrap().len, 4096 + 8192);
            let (result, buf) = file.read_exact_at(vec![1; 4096 + 8192], 0).wait();
            result.unwrap();
            assert!(buf.starts_with(b"abc") && buf[3..].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_hole_reads_as_zeros_and_takes_no_space() {
    on_every_backend(|engine| {
        let data = pattern(1 << 20);
        let file = temp_file(engine, &data);
        file.sync_all().wait().unwrap();
        let before = file.metadata().wait().unwrap();
        let (from, to) = (64 << 10, 192 << 10);
        let punched = alone_and_batched!(file.allocate(AllocateRange::PunchHole, from, to - from));
        if !is_supported("punching holes", &punched) {
            return;
        }
        let after = file.metadata().wait().unwrap();
        assert_eq!(after.len, before.len);
        assert!(after.allocated_bytes < before.allocated_bytes, "{after:?}");
        let (_, buf) = file.read_exact_at(vec![1; data.len()], 0).wait();
        let (from, to) = (usize::try_from(from).unwrap(), usize::try_from(to).unwrap());
        assert!(buf[from..to].iter().all(|byte| *byte == 0));
        assert!(buf[..from] == data[..from] && buf[to..] == data[to..]);
    });
}

#[test]
fn a_range_is_made_to_read_as_zeros() {
    on_every_backend(|engine| {
        let data = pattern(64 << 10);
        let file = temp_file(engine, &data);
        let zeroed = alone_and_batched!(file.allocate(AllocateRange::Zero, 5000, 10_000));
        if !is_supported("zeroing ranges", &zeroed) {
            return;
        }
        let (_, buf) = file.read_exact_at(vec![1; data.len()], 0).wait();
        assert!(buf[5000..15_000].iter().all(|byte| *byte == 0));
        assert!(buf[..5000] == data[..5000] && buf[15_000..] == data[15_000..]);
    });
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let file = read_write(engine).open(path.path()).unwrap();
        let (reserve, limit) = (AllocateRange::Reserve, u64::try_from(i64::MAX).unwrap());
        let cases = [
            (0, 0, libc::EINVAL),
            (limit + 1, 1, libc::EINVAL),
            (1, limit, libc::EINVAL),
            (u64::MAX, u64::MAX, libc::EINVAL),
        ];
        for (offset, len, errno) in cases {
            for result in alone_and_batched!(file.allocate(reserve, offset, len)) {
                assert_eq!(
                    errno_of(&result.unwrap_err()),
                    Some(errno),
                    "{offset} {len}"
                );
            }
        }
        let read_only = OpenOptions::new().read(true).engine(engine);
        let read_only = read_only.open(path.path()).unwrap();
        for result in alone_and_batched!(read_only.allocate(reserve, 0, 4096)) {
            assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EBADF));
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn files_are_synced_alone_and_in_batches() {
    on_every_backend(|engine| {
        for direct in [Direct::Off, Direct::Auto] {
            let path = temp_path(b"abc");
            let file = read_write(engine).direct(direct).open(path.path()).unwrap();
            file.write_all_at(vec![1; 10_000], 0).wait().0.unwrap();
            assert!(
                alone_and_batched!(file.sync_data())
                    .iter()
                    .all(Result::is_ok)
            );
            assert!(
                alone_and_batched!(file.sync_all())
                    .iter()
                    .all(Result::is_ok)
            );
        }
        // Many files, one batch.
        let files: Vec<_> = (0..8).map(|_| temp_file(engine, &pattern(5000))).collect();
        let mut batch = Batch::new();
        files.iter().for_each(|file| batch.push(file.sync_all()));
        assert!(batch.wait().all(|result| result.is_ok()));
    });
}

#[test]
fn a_file_opened_for_reading_can_be_synced() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let options = OpenOptions::new().read(true).engine(engine);
        let file = options.open(path.path()).unwrap();
        assert!(
            alone_and_batched!(file.sync_all())
                .iter()
                .all(Result::is_ok)
        );
        assert!(
            alone_and_batched!(file.sync_data())
                .iter()
                .all(Result::is_ok)
        );
    });
}

#[test]
fn a_sync_that_makes_no_sense_is_refused_and_not_held_against_the_file() {
    on_every_backend(|engine| {
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from_std(engine, OwnedFd::from(reader).into()).unwrap();
        for _ in 0..2 {
            for result in alone_and_batched!(pipe.sync_all()) {
                let error = result.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
                assert!(
                    !error
                        .get_ref()
                        .is_some_and(|cause| cause.is::<SyncFailed>())
                );
            }
        }
    });
}
