//! What does not fit direct I/O: requests, files, and file systems.

use std::fs;
use std::future::{Future, IntoFuture};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

use inflight::fs::{Alignment, Direct, File, OpenOptions};
use inflight::{AlignedBuf, Batch, Engine, Misaligned, Operation, errno_of};

use super::required;
use crate::support::{
    alone_and_batched, directory, given_up, on_every_backend, on_every_faultless_backend, pattern,
    read_write, skip, temp_path,
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

/// What does not fit: offset, length, address.
type Misfit = [bool; 3];

fn assert_misaligned(
    result: io::Result<usize>,
    memory_bytes: u32,
    offset_bytes: u32,
    misfit: Misfit,
) {
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
    assert_eq!([cause.offset, cause.len, cause.address], misfit);
    let text = error.to_string();
    let parts = ["the offset", "the length", "the address"];
    let (_, told) = text.split_once("what does not fit: ").expect("it says so");
    assert_eq!(parts.map(|part| told.contains(part)), misfit, "{text}");
    assert_eq!(text.contains("AlignedBuf"), misfit[2], "{text}");
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
        let misfits = [
            (1, 4096, [true, false, false]),
            (0, 4097, [false, true, false]),
            (1, 4097, [true, true, false]),
        ];
        for (at, len, misfit) in misfits {
            for (result, buf) in
                alone_and_batched!(file.read_at(file.aligned_buf(len).unwrap(), at))
            {
                assert_misaligned(result, memory, offset, misfit);
                assert_eq!(buf.len(), len);
            }
            for (result, buf) in
                alone_and_batched!(file.write_at(file.aligned_buf(len).unwrap(), at))
            {
                assert_misaligned(result, memory, offset, misfit);
                assert_eq!(buf.len(), len);
            }
            let list = || vec![file.aligned_buf(len).unwrap()];
            for (result, bufs) in alone_and_batched!(file.read_vectored_at(list(), at)) {
                assert_misaligned(result, memory, offset, misfit);
                assert_eq!(bufs[0].len(), len);
            }
        }
        if memory > 1 {
            let mut buf = file.aligned_buf(8192).unwrap();
            let (result, part) = file.read_at(&mut buf[1..4097], 0).wait();
            assert_misaligned(result, memory, offset, [false, false, true]);
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
        let options = options.direct(Direct::Auto);
        for (path, why) in [
            (path, "its file system has no"),
            ("/dev/null", "it is neither"),
        ] {
            assert!(!options.open(path).unwrap().is_direct());
            let told = given_up(
                engine,
                "a file with Direct::Auto goes through the page cache",
            );
            let of_this = told.iter().filter(|fallback| fallback.reason.contains(why));
            assert_eq!(
                of_this.map(|fallback| fallback.count).sum::<u64>(),
                1,
                "{told:?}"
            );
        }
        let file = options.open(path).unwrap();
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
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
                assert_eq!(buf.len(), LEN);
            }
            for (result, buf) in
                alone_and_batched!(file.read_at(file.aligned_buf(LEN).unwrap(), offset))
            {
                assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
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
        // One that was there stays, and as it was.
        fs::write(&path, b"there").unwrap();
        for options in [
            options.clone(),
            options.clone().create(true),
            options.truncate(true),
        ] {
            let _ = options.clone().open(&path);
            let _ = engine.run(async { options.opening(&path).await }).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"there");
        }
        fs::remove_file(&path).unwrap();
    });
}

#[test]
fn a_file_that_can_be_direct_is_emptied() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(5000));
        if required("a file that is emptied", engine, path.path()).is_none() {
            return;
        }
        let only_read = OpenOptions::new().read(true).truncate(true).engine(engine);
        let refused = only_read.direct(Direct::Required).open(path.path());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(fs::read(path.path()).unwrap().len(), 5000);
        let options = read_write(engine).truncate(true).direct(Direct::Required);
        for awaits in [false, true] {
            let file = match awaits {
                false => options.open(path.path()).unwrap(),
                true => {
                    let opening = engine.run(async { options.opening(path.path()).await });
                    opening.unwrap().unwrap()
                }
            };
            assert_eq!(fs::read(path.path()).unwrap(), b"");
            let block = file.aligned_buf(4096).unwrap();
            assert_eq!(file.write_at(block, 0).wait().0.unwrap(), 4096);
        }
    });
}

#[test]
fn transfers_of_no_bytes_fit_everywhere() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(4096));
        let Some(file) = required("transfers of no bytes", engine, path.path()) else {
            return;
        };
        for offset in [0, 1, 4096] {
            for (result, _) in alone_and_batched!(file.read_at(Vec::new(), offset)) {
                assert_eq!(result.unwrap(), 0);
            }
            for (result, _) in alone_and_batched!(file.write_all_at(Vec::new(), offset)) {
                assert_eq!(result.unwrap(), 0);
            }
        }
        let lists = || {
            let full = file.aligned_buf(4096).unwrap();
            let empty = file.aligned_buf(0).unwrap();
            file.read_vectored_at(vec![empty, full], 0)
        };
        for (result, _) in alone_and_batched!(lists()) {
            assert_eq!(result.unwrap(), 4096);
        }
        // Its address is aligned to nothing.
        let mut block = file.aligned_buf(4096).unwrap();
        for bufs in [vec![&mut [][..], &mut block[..]], vec![&mut [][..]]] {
            let expected = bufs.iter().map(|buf| buf.len()).sum::<usize>();
            let (result, _) = file.read_vectored_at(bufs, 0).wait();
            assert_eq!(result.unwrap(), expected);
        }
        assert!(fs::read(path.path()).unwrap() == pattern(4096));
    });
}

#[test]
fn the_descriptor_of_a_file_that_may_be_direct_takes_what_is_not_aligned() {
    on_every_backend(|engine| {
        let path = temp_path(b"some words");
        let file = read_write(engine).direct(Direct::Auto).open(path.path());
        let std = file.unwrap().into_std().expect("nothing is in flight");
        let mut read = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&std, &mut read, 5).unwrap();
        assert_eq!(&read, b"words");
    });
}

#[test]
fn a_thread_with_descriptors_of_its_own_gets_its_own_file() {
    let folder = tempfile::tempdir_in(directory()).unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
    fs::write(&ours, vec![1; 8192]).unwrap();
    fs::write(&theirs, vec![2; 8192]).unwrap();
    let engine = Engine::builder().backend(inflight::BackendKind::Threads);
    let engine = engine.build().unwrap();
    let options = read_write(&engine).direct(Direct::Auto);
    let is_direct = options.open(&ours).unwrap().is_direct();
    let [unshared, filled] = [(); 2].map(|()| Barrier::new(2));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let set = rustix::thread::UnshareFlags::FILES;
            // SAFETY: this thread uses no descriptor that was opened elsewhere.
            #[expect(unsafe_code)]
            unsafe { rustix::thread::unshare_unsafe(set) }.unwrap();
            unshared.wait();
            filled.wait();
            let file = options.open(&ours).unwrap();
            assert_eq!(file.is_direct(), is_direct);
            let block = file.aligned_buf(4096).unwrap();
            let (result, block) = file.read_at(block, 0).wait();
            assert_eq!((result.unwrap(), block[0]), (4096, 1));
        });
        unshared.wait();
        // In the table of the others, each number that is next means another file.
        let open = |_| fs::File::open(&theirs).unwrap();
        let _others: Vec<_> = (0..100).map(open).collect();
        filled.wait();
        other.join().unwrap();
    });
}

/// How many of the operations of `body` another thread, a ring or the kernel's workers made.
fn made_elsewhere(engine: &Engine, body: impl FnOnce()) -> u64 {
    let before = engine.stats();
    body();
    let after = engine.stats();
    let here = after.plain_calls - before.plain_calls;
    // Whether copies are shared with one more thread is another question.
    let shared = after.helped - before.helped;
    after.operations - before.operations - here - shared
}

/// Runs a future on every host.
fn on_every_host<F: Future>(engine: &Engine, future: impl Fn() -> F) {
    pollster::block_on(future());
    engine.run(future()).expect("there is a loop");
    let mut tokio = tokio::runtime::Builder::new_current_thread();
    let tokio = tokio.enable_all().build().expect("there is a runtime");
    tokio.block_on(future());
}

#[test]
fn cached_reads_that_are_not_aligned_come_to_be_plain_calls() {
    const READS: usize = 128;
    let name = "cached reads that are not aligned";
    let data = &pattern(READS * 512);
    let path = temp_path(data);
    on_every_faultless_backend(|engine| {
        let auto = read_write(engine).direct(Direct::Auto);
        let file = auto.open(path.path()).expect("it is there");
        if !file.is_direct() || !matches!(file.alignment(), Alignment::Known { .. }) {
            return skip(
                name,
                "the file system takes any transfer, or none that is direct",
            );
        }
        let check = |at: usize, (result, buf): (io::Result<usize>, Vec<u8>)| {
            assert_eq!(result.expect("it is read"), 100);
            assert!(buf == data[at..at + 100], "bytes at {at}");
        };
        let at = |read: usize| read * 509 + 1;
        let one = |read: usize| file.read_at(vec![0; 100], at(read) as u64);
        let list = |read: usize| {
            let bufs = vec![vec![0; 40], vec![0; 60]];
            file.read_vectored_at(bufs, at(read) as u64)
        };
        let awaited = async || {
            for read in 0..READS {
                check(at(read), one(read).into_future().await);
                let (result, bufs) = list(read).await;
                check(at(read), (result, bufs.concat()));
            }
        };
        let elsewhere = made_elsewhere(engine, || {
            on_every_host(engine, awaited);
            let mut batch = Batch::on(engine);
            (0..READS).for_each(|read| batch.push(one(read)));
            (0..READS)
                .zip(batch.wait())
                .for_each(|(read, done)| check(at(read), done));
        });
        // The kernel may have taken some pages away, and a busy machine makes some calls slow.
        let most = 7 * READS as u64 / 8;
        assert!(elsewhere < most, "{elsewhere} of {} reads", 7 * READS);
        // Of those that are aligned that says nothing, and the other way round.
        let aligned = || file.read_at(file.aligned_buf(4096).unwrap(), 0);
        let explained = one(0).explain();
        assert_eq!(
            (explained.takes_nowait, explained.direct),
            (Some(true), false)
        );
        assert_eq!(aligned().explain().takes_nowait, None, "{explained}");
        (0..40).for_each(|_| assert_eq!(aligned().wait().0.unwrap(), 4096));
        assert_eq!(one(0).explain().batched, explained.batched);
        assert!(aligned().explain().direct);
    });
}
