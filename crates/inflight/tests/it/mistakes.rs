//! What a program gets wrong most easily, and that it is told what and how it is put right.

use std::fs;
use std::future::IntoFuture;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use inflight::fs::{AllocateRange, Direct, File, OpenOptions};
use inflight::{BadRange, Operation, ReadInto, WrongAccess, errno_of, read_many};

use crate::support::{alone_and_batched, on_every_backend, read_write, temp_path};
use crate::wishes::by_every_host;

/// What this library tells of an error beside its errno.
fn told<T: std::error::Error + Copy + 'static>(error: &io::Error) -> T {
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    *cause.unwrap_or_else(|| panic!("{error:?}"))
}

fn assert_access<T>(result: io::Result<T>, is_write: bool, errno: i32) {
    let Err(error) = result else {
        panic!("it is refused");
    };
    assert_eq!(told::<WrongAccess>(&error), WrongAccess { is_write, errno });
    assert_eq!(errno_of(&error), Some(errno));
    let (remedy, text) = (
        if is_write {
            "write(true)"
        } else {
            "read(true)"
        },
        error,
    );
    assert!(text.to_string().contains(remedy), "{text}");
}

fn assert_range<T>(result: io::Result<T>, expected: BadRange) {
    let Err(error) = result else {
        panic!("it is refused");
    };
    assert_eq!(told::<BadRange>(&error), expected);
    assert_eq!(errno_of(&error), Some(libc::EINVAL));
}

#[test]
fn who_changes_a_file_that_is_open_for_reading_is_told_so() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let options = OpenOptions::new().read(true).engine(engine);
        let opened_elsewhere = fs::File::open(path.path()).unwrap();
        let files = [
            options.open(path.path()).unwrap(),
            File::from_std(engine, opened_elsewhere).unwrap(),
        ];
        for file in &files {
            let write = || file.write_all_at(vec![1; 3], 0);
            let writes = [
                by_every_host!(engine, write()),
                by_every_host!(engine, write().dsync()),
                by_every_host!(engine, write().then_sync()),
            ];
            for (result, buf) in writes.into_iter().flatten() {
                assert_access(result, true, libc::EBADF);
                assert_eq!(buf, [1; 3]);
            }
            let list = || file.write_vectored_at(vec![vec![1; 3]], 0);
            for (result, _) in by_every_host!(engine, list()) {
                assert_access(result, true, libc::EBADF);
            }
            let reserve = AllocateRange::Reserve;
            for result in by_every_host!(engine, file.allocate(reserve, 0, 4096)) {
                assert_access(result, true, libc::EBADF);
            }
            assert_access(file.truncate(1).wait(), true, libc::EINVAL);
            let awaited = pollster::block_on(file.truncate(1).into_future());
            assert_access(awaited, true, libc::EINVAL);
            file.sync_data().wait().unwrap();
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn who_reads_a_file_that_is_open_for_writing_is_told_so() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let options = OpenOptions::new().write(true).engine(engine);
        let file = options.open(path.path()).unwrap();
        for (result, buf) in by_every_host!(engine, file.read_at(vec![1; 3], 0)) {
            assert_access(result, false, libc::EBADF);
            assert_eq!(buf, [1; 3]);
        }
        let list = || file.read_vectored_exact_at(vec![vec![1; 3]], 0);
        for (result, _) in by_every_host!(engine, list()) {
            assert_access(result, false, libc::EBADF);
        }
        let mut buf = [0; 3];
        let mut reads = [ReadInto::new(&file, 0, &mut buf)];
        assert_access(read_many(&mut reads), false, libc::EBADF);
    });
}

#[test]
fn a_descriptor_without_a_file_behind_it_is_open_for_nothing() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let mut options = fs::File::options();
        let options = options.read(true).custom_flags(libc::O_PATH);
        let file = File::from_std(engine, options.open(path.path()).unwrap()).unwrap();
        for result in alone_and_batched!(file.allocate(AllocateRange::Reserve, 0, 4096)) {
            let error = result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error}");
        }
    });
}

#[test]
fn a_range_that_no_file_has_is_called_so() {
    on_every_backend(|engine| {
        let path = temp_path(b"abc");
        let file = read_write(engine).open(path.path()).unwrap();
        for offset in [i64::MAX.unsigned_abs(), u64::MAX - 1, u64::MAX] {
            for (result, _) in by_every_host!(engine, file.read_at(vec![0; 3], offset)) {
                assert_range(result, BadRange::TooFar);
            }
            let write = || file.write_all_at(vec![0; 3], offset);
            for (result, _) in by_every_host!(engine, write().dsync()) {
                assert_range(result, BadRange::TooFar);
            }
            let list = || file.write_vectored_at(vec![vec![0; 3]], offset);
            for (result, _) in by_every_host!(engine, list()) {
                assert_range(result, BadRange::TooFar);
            }
        }
        assert_range(file.truncate(u64::MAX).wait(), BadRange::TooFar);
        for range in [AllocateRange::Reserve, AllocateRange::PunchHole] {
            for result in by_every_host!(engine, file.allocate(range, 0, 0)) {
                assert_range(result, BadRange::Empty);
            }
        }
        assert_eq!(fs::read(path.path()).unwrap(), b"abc");
    });
}

#[test]
fn what_changes_a_file_is_opened_for_writing() {
    let path = temp_path(b"abc");
    let ways: [fn(OpenOptions) -> OpenOptions; 3] = [
        |options| options.truncate(true),
        |options| options.create(true),
        |options| options.create_new(true),
    ];
    for direct in [Direct::Off, Direct::Auto, Direct::Required] {
        for way in ways {
            let options = way(OpenOptions::new().read(true).direct(direct));
            let opened = options.open(path.path());
            let awaited = pollster::block_on(options.opening(path.path()).into_future());
            for result in [opened, awaited] {
                let error = result.expect_err("it is refused");
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert!(error.to_string().contains("write(true)"), "{error}");
            }
        }
    }
    assert_eq!(fs::read(path.path()).unwrap(), b"abc");
}
