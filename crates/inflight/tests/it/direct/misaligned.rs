//! What does not fit direct I/O: requests, files, and file systems.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use inflight::fs::{Alignment, File, OpenOptions};
use inflight::{AlignedBuf, Batch, Direct, Engine, Misaligned, Operation};

use super::required;
use crate::support::{
    alone_and_batched, directory, on_every_backend, pattern, read_write, skip, temp_path,
};

/// As [`required`], where also the alignment is known: memory and offset, in bytes.
fn aligned(name: &str, engine: &Engine, path: &Path) -> Option<(File, u32, u32)> {
    let file = required(name, engine, path)?;
    match file.alignment() {
        Alignment::Known {
            memory_bytes,
            offset_bytes,
        } => Some((file, memory_bytes, offset_bytes)),
        other => {
            skip(name, &format!("the alignment is {other:?}"));
            None
        }
    }
}

fn assert_misaligned(result: io::Result<usize>, memory_bytes: u32, offset_bytes: u32) {
    let error = result.expect_err("it does not fit");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let inner = error.get_ref().expect("it has a cause");
    let cause = inner
        .downcast_ref::<Misaligned>()
        .expect("the cause is typed");
    assert_eq!(
        (cause.memory_bytes, cause.offset_bytes),
        (memory_bytes, offset_bytes)
    );
    let numbers = [memory_bytes.to_string(), offset_bytes.to_string()];
    assert!(
        numbers
            .iter()
            .all(|number| error.to_string().contains(number)),
        "{error}"
    );
}

#[test]
fn required_refuses_what_is_not_aligned_and_says_what_is_needed() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(16384));
        let name = "misaligned requests";
        let Some((file, memory, offset)) = aligned(name, engine, path.path()) else {
            return;
        };
        // Offset, length, and the address of the buffer: each alone.
        for (at, len) in [(1, 4096), (0, 4097)] {
            for (result, buf) in
                alone_and_batched!(file.read_at(file.aligned_buf(len).unwrap(), at))
            {
                assert_misaligned(result, memory, offset);
                assert_eq!(buf.len(), len);
            }
            for (result, buf) in
                alone_and_batched!(file.write_at(file.aligned_buf(len).unwrap(), at))
            {
                assert_misaligned(result, memory, offset);
                assert_eq!(buf.len(), len);
            }
            let list = || vec![file.aligned_buf(len).unwrap()];
            for (result, bufs) in alone_and_batched!(file.read_vectored_at(list(), at)) {
                assert_misaligned(result, memory, offset);
                assert_eq!(bufs[0].len(), len);
            }
        }
        if memory > 1 {
            let mut buf = file.aligned_buf(8192).unwrap();
            let (result, part) = file.read_at(&mut buf[1..4097], 0).wait();
            assert_misaligned(result, memory, offset);
            assert_eq!(part.len(), 4096);
        }
        assert!(
            fs::read(path.path()).unwrap() == pattern(16384),
            "nothing was written"
        );
    });
}

#[test]
fn auto_takes_what_is_not_aligned_through_the_page_cache() {
    on_every_backend(|engine| {
        let data = pattern(64 * 1024);
        let path = temp_path(&data);
        let file = read_write(engine)
            .direct(Direct::Auto)
            .open(path.path())
            .unwrap();
        let mut batch = Batch::new();
        let places: [(u64, usize); 6] = [
            (0, 4096),
            (1, 4096),
            (4096, 100),
            (8192, 8192),
            (65_000, 4096),
            (7, 1),
        ];
        for (offset, len) in places {
            batch.push(file.read_at(AlignedBuf::new(len, 4096).unwrap(), offset));
        }
        for ((offset, len), (result, buf)) in places.into_iter().zip(batch.wait()) {
            let at = usize::try_from(offset).unwrap();
            let expected = &data[at..(at + len).min(data.len())];
            assert_eq!(
                (result.unwrap(), &buf[..expected.len()]),
                (expected.len(), expected)
            );
        }
        for (result, _) in alone_and_batched!(file.write_all_at(vec![9; 100], 4000)) {
            assert_eq!(result.unwrap(), 100);
        }
        let vectored = || vec![vec![0; 10], vec![0; 100], vec![0; 7]];
        for (result, bufs) in alone_and_batched!(file.read_vectored_exact_at(vectored(), 3990)) {
            assert_eq!(result.unwrap(), 117);
            assert_eq!(
                bufs,
                [
                    data[3990..4000].to_vec(),
                    vec![9; 100],
                    data[4100..4107].to_vec()
                ]
            );
        }
        // What went through the page cache is seen past it.
        let (result, buf) = file.read_at(file.aligned_buf(8192).unwrap(), 0).wait();
        assert_eq!(result.unwrap(), 8192);
        assert_eq!(
            (&buf[4000..4100], &buf[4100..]),
            (&[9; 100][..], &data[4100..8192])
        );
    });
}

#[test]
fn auto_creates_and_empties_as_asked_and_once() {
    on_every_backend(|engine| {
        let folder = tempfile::tempdir_in(directory()).unwrap();
        let path = folder.path().join("new");
        let options = read_write(engine).direct(Direct::Auto).create_new(true);
        let file = options.open(&path).unwrap();
        let again = read_write(engine).direct(Direct::Auto).open(&path);
        assert_eq!(file.is_direct(), again.unwrap().is_direct());
        assert_eq!(file.write_all_at(b"abc".to_vec(), 0).wait().0.unwrap(), 3);
        assert_eq!(
            options.open(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        let emptied = read_write(engine)
            .direct(Direct::Auto)
            .truncate(true)
            .open(&path);
        assert_eq!(emptied.unwrap().metadata().wait().unwrap().len, 0);
    });
}

#[test]
fn a_file_system_without_direct_io_is_refused_or_gone_around() {
    on_every_backend(|engine| {
        let path = "/proc/self/status";
        let options = OpenOptions::new().read(true).engine(engine);
        let error = options
            .clone()
            .direct(Direct::Required)
            .open(path)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let file = options.direct(Direct::Auto).open(path).unwrap();
        assert!(!file.is_direct());
        for (result, buf) in alone_and_batched!(file.read_at(vec![0; 5], 0)) {
            assert_eq!((result.unwrap(), buf), (5, b"Name:".to_vec()));
        }
    });
}

#[test]
fn a_direct_file_from_elsewhere_is_known_as_one() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(8192));
        let mut options = fs::OpenOptions::new();
        let opened = options
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path.path());
        let Ok(opened) = opened else {
            return skip(
                "an adopted direct file",
                "the test directory has no direct I/O",
            );
        };
        let file = File::from_std(engine, opened).unwrap();
        assert!(file.is_direct());
        for (result, buf) in alone_and_batched!(file.read_at(file.aligned_buf(4096).unwrap(), 4096))
        {
            assert_eq!(result.unwrap(), 4096);
            assert!(buf[..] == pattern(8192)[4096..]);
        }
    });
}

#[test]
fn transfers_whose_parts_would_lie_beyond_every_file_are_refused() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(4096));
        let Some(file) = required("parts beyond every file", engine, path.path()) else {
            return;
        };
        const LEN: usize = 4 << 20;
        let limit = u64::try_from(i64::MAX).unwrap();
        for offset in [
            limit - 4095,
            limit - 2 * 4096 + 1,
            limit - (LEN as u64) + 4097,
        ] {
            for (result, buf) in
                alone_and_batched!(file.write_at(file.aligned_buf(LEN).unwrap(), offset))
            {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
                assert_eq!(buf.len(), LEN);
            }
            for (result, buf) in
                alone_and_batched!(file.read_at(file.aligned_buf(LEN).unwrap(), offset))
            {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
                assert_eq!(buf.len(), LEN);
            }
        }
        assert!(fs::read(path.path()).unwrap() == pattern(4096));
    });
}

/// A file system without direct I/O, until this is dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// `None`, with the reason said, if this is not allowed.
    fn new(name: &str) -> Option<Self> {
        let folder = tempfile::tempdir_in(directory()).expect("the test directory can be written");
        let mut mount = Command::new("mount");
        mount.args(["-t", "ramfs", "none"]).arg(folder.path());
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self(folder)),
            output => {
                skip(name, &format!("ramfs cannot be mounted: {output:?}"));
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg(self.0.path()).status();
        assert!(umount.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_new_file_that_cannot_be_direct_does_not_stay() {
    let name = "a new file without direct I/O";
    let Some(mounted) = Mounted::new(name) else {
        return;
    };
    on_every_backend(|engine| {
        let path = mounted.0.path().join("new");
        let options = read_write(engine).direct(Direct::Required);
        match options.clone().create_new(true).open(&path) {
            Ok(_) => {
                fs::remove_file(&path).unwrap();
                skip(name, "ramfs has direct I/O here");
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                assert!(!path.exists(), "it was left behind");
            }
        }
        // One that was there stays.
        fs::write(&path, b"there").unwrap();
        for options in [options.clone(), options.create(true)] {
            let _ = options.open(&path);
            assert_eq!(fs::read(&path).unwrap(), b"there");
        }
        fs::remove_file(&path).unwrap();
    });
}
