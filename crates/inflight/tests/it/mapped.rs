//! Files whose resident pages are copied from a mapping.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use inflight::fs::{File, OpenOptions};
use inflight::{BackendKind, Batch, Engine, Operation, ReadInto, read_many};

use super::commit::disk::mounted_or_skip;
use super::support::own::in_own_process;
use super::support::{directory, given_up, on_every_backend, pattern, skip, temp_path, until};

const BLOCK: usize = 4096;

/// Opens a file that nobody changes while it is open.
fn open_mapped(engine: &Engine, path: &Path) -> File {
    let options = OpenOptions::new().read(true).engine(engine);
    // SAFETY: the tests neither shorten nor change what is in their files.
    let file = unsafe { options.mapped() }.open(path);
    file.expect("the file is there")
}

#[test]
fn what_is_resident_is_copied_without_a_call() {
    let content = pattern(32 * BLOCK + 100);
    let path = temp_path(&content);
    on_every_backend(|engine| {
        let file = open_mapped(engine, path.path());
        assert!(file.is_mapped(), "{:?}", engine.stats().fallbacks);
        let before = engine.stats();
        // Within a page, across two, all but the first byte, and the last ones.
        let ranges = [(10, 100), (BLOCK - 3, 6), (1, content.len() - 1)];
        let last = (content.len() - 7, 7);
        for (offset, len) in ranges.into_iter().chain([last]) {
            let expected = &content[offset..offset + len];
            let (result, buf) = file.read_at(vec![0; len], offset as u64).wait();
            assert_eq!((result.unwrap(), &buf[..]), (len, expected));

            let mut batch = Batch::on(engine);
            batch.push(file.read_exact_at(vec![0; len], offset as u64));
            batch.push(file.read_at(vec![0; len], offset as u64));
            for (result, buf) in batch.wait() {
                assert_eq!((result.unwrap(), &buf[..]), (len, expected));
            }

            let (mut one, mut two) = (vec![0; len], vec![0; len]);
            let reads = &mut [
                ReadInto::new(&file, offset as u64, &mut one),
                ReadInto::new(&file, offset as u64, &mut two),
            ];
            read_many(reads).unwrap();
            assert_eq!((&one[..], &two[..]), (expected, expected));

            let read = file.read_at(Vec::with_capacity(0), offset as u64);
            assert_eq!(read.wait().0.unwrap(), 0, "nothing was asked for");
            let (result, buf) = pollster::block_on(file.read_at(vec![0; len], offset as u64));
            assert_eq!((result.unwrap(), &buf[..]), (len, expected));
        }
        let after = engine.stats();
        assert_eq!(after.copied - before.copied, 4 * 6);
        assert_eq!(after.enters, before.enters);
        assert_eq!(
            after.operations - before.operations,
            after.copied - before.copied + after.plain_calls - before.plain_calls
        );
        assert_eq!(after.plain_calls - before.plain_calls, 4, "the empty reads");
    });
}

#[test]
fn what_lies_beyond_the_mapping_is_read_by_the_other_roads() {
    let content = pattern(BLOCK + 10);
    on_every_backend(|engine| {
        let mut path = temp_path(&content);
        let file = open_mapped(engine, path.path());
        let end = content.len() as u64;
        let (result, buf) = file.read_at(vec![0; 20], end - 5).wait();
        assert_eq!((result.unwrap(), &buf[..5]), (5, &content[BLOCK + 5..]));
        assert_eq!(file.read_at(vec![0; 20], end).wait().0.unwrap(), 0);
        let (result, _) = file.read_exact_at(vec![0; 20], end - 5).wait();
        let kind = result.unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::UnexpectedEof);

        path.write_all(b"appended").unwrap();
        let (result, buf) = file.read_at(vec![0; 13], end - 5).wait();
        assert_eq!((result.unwrap(), &buf[5..]), (13, &b"appended"[..]));
        assert_eq!(engine.stats().copied, 0);
    });
}

#[test]
fn a_file_without_bytes_is_not_mapped_and_the_reason_is_kept() {
    on_every_backend(|engine| {
        for path in [temp_path(b"").path(), Path::new("/proc/self/status")] {
            let before = given_up(engine, "not mapped");
            let file = open_mapped(engine, path);
            assert!(!file.is_mapped());
            assert_ne!(before, given_up(engine, "not mapped"));
        }
    });
}

/// Its pages go when the server says so, or somebody opens it, and who reads one waits for it.
#[test]
fn a_file_that_is_served_is_not_mapped() {
    let Some(mounted) = mounted_or_skip("a mapped file that is served") else {
        return;
    };
    on_every_backend(|engine| {
        let file = open_mapped(engine, &mounted.path(2));
        assert!(!file.is_mapped());
        assert!(!given_up(engine, "another program or machine serves it").is_empty());
    });
}

#[test]
fn a_read_that_would_hold_its_thread_is_not_copied() {
    on_every_backend(|engine| {
        let data = pattern(512 << 10);
        let path = temp_path(&data);
        let file = open_mapped(engine, path.path());
        if !file.is_mapped() {
            return;
        }
        let copied = |len: usize| {
            let before = engine.stats().copied;
            let (result, buf) = file.read_exact_at(vec![0; len], 0).wait();
            assert_eq!(result.expect("it is read"), len);
            assert!(buf == data[..len]);
            engine.stats().copied - before
        };
        // The page cache may have lost some of it.
        let small = (0..10).map(|_| copied(4096)).sum::<u64>();
        assert!(small > 0, "nothing is resident");
        assert_eq!(copied(512 << 10), 0);
    });
}

/// Page faults of this thread that had to wait for the disk.
fn major_faults() -> i64 {
    // SAFETY: zeros are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is ours to be filled.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(answer, 0);
    usage.ru_majflt
}

#[test]
fn what_is_not_resident_is_not_touched() {
    let name = "pages that are not resident";
    let content = pattern(64 * BLOCK);
    on_every_backend(|engine| {
        let path = temp_path(&content);
        path.as_file().sync_all().unwrap();
        let fd = path.as_file().as_raw_fd();
        // SAFETY: no memory is involved.
        let advised = unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(advised, 0);
        let file = open_mapped(engine, path.path());
        let faults = major_faults();
        let read = |block: usize| {
            let (result, buf) = file.read_at(vec![0; BLOCK], (block * BLOCK) as u64).wait();
            assert_eq!(result.unwrap(), BLOCK);
            assert_eq!(buf, content[block * BLOCK..][..BLOCK]);
        };
        read(7);
        if engine.stats().copied > 0 {
            return skip(name, "the file system keeps the file in memory");
        }
        (0..64).for_each(read);
        assert_eq!(major_faults(), faults, "no page was waited for");
        if engine.backend().kind == BackendKind::Faulty {
            // The rest takes a while, and is the same for all.
            return;
        }
        // By now all of it is resident, which is noticed when the kernel is asked again.
        until("it is noticed", || {
            read(7);
            engine.stats().copied > 0
        });
    });
}

#[test]
fn whom_the_kernel_tells_nothing_gets_no_mapping() {
    let name = "a file of somebody else";
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        return skip(name, "only root can become somebody else");
    }
    let content = pattern(BLOCK);
    let path = temp_path(&content);
    let mut permissions = path.as_file().metadata().unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    path.as_file().set_permissions(permissions).unwrap();
    let engine = Engine::new().unwrap();
    let stranger = || {
        // The system call changes this thread alone, other than the function of the C library.
        // SAFETY: no memory is involved.
        let answer = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        assert_eq!(answer, 0);
        let file = open_mapped(&engine, path.path());
        assert!(!file.is_mapped());
        let (result, buf) = file.read_at(vec![0; BLOCK], 0).wait();
        assert_eq!((result.unwrap(), buf), (BLOCK, content.clone()));
    };
    std::thread::scope(|scope| scope.spawn(stranger).join().unwrap());
    assert_eq!(engine.stats().copied, 0);
    assert_eq!(given_up(&engine, "owner").len(), 1);
}

/// The last folio of a file there reaches beyond its end, and all of it counts as resident.
#[test]
fn a_file_in_huge_pages_is_mapped() {
    let name = "a file in huge pages";
    let content = pattern(3 * BLOCK + 10);
    let in_private = || {
        let folder = tempfile::tempdir_in(directory()).unwrap();
        if !mount_huge(folder.path()) {
            return skip(name, "no mounts here, or no huge pages in memory");
        }
        let path = folder.path().join("file");
        std::fs::write(&path, &content).unwrap();
        let engine = Engine::new().unwrap();
        let file = open_mapped(&engine, &path);
        assert!(file.is_mapped(), "{:?}", engine.stats().fallbacks);
        let (result, buf) = file.read_at(vec![0; content.len()], 0).wait();
        assert_eq!((result.unwrap(), &buf), (content.len(), &content));
        assert_eq!(engine.stats().copied, 1);
        drop(file);
        let folder = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        // A process that another test starts has the file open until it runs its program.
        let begun = Instant::now();
        // SAFETY: the path is a string.
        while unsafe { libc::umount(folder.as_ptr()) } != 0 {
            let cause = io::Error::last_os_error();
            let is_busy = cause.raw_os_error() == Some(libc::EBUSY);
            assert!(
                is_busy && begun.elapsed() < Duration::from_secs(60),
                "{cause}"
            );
            std::thread::yield_now();
        }
    };
    // The mounts of a thread can be its own.
    std::thread::scope(|scope| scope.spawn(in_private).join().unwrap());
}

/// Mounts memory with huge pages there, for this thread alone.
fn mount_huge(folder: &Path) -> bool {
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    let mount = |kind: &CStr, on: &CStr, flags, options: &CStr| {
        let (kind, on) = (kind.as_ptr(), on.as_ptr());
        // SAFETY: all of them are strings.
        unsafe { libc::mount(kind, on, kind, flags, options.as_ptr().cast()) == 0 }
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"")
        && mount(c"tmpfs", &folder, 0, c"huge=always")
}

/// Bytes of memory that this process has.
fn resident_bytes() -> usize {
    let told = fs::read_to_string("/proc/self/statm").expect("procfs is there");
    let pages = told.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * BLOCK)
}

#[test]
fn a_large_file_takes_no_memory_for_what_is_not_read() {
    let test = "a_large_file_takes_no_memory_for_what_is_not_read";
    in_own_process(module_path!(), test, || {
        let path = temp_path(&pattern(BLOCK));
        let sparse = fs::OpenOptions::new().write(true).open(path.path());
        sparse.and_then(|file| file.set_len(1 << 40)).unwrap();
        on_every_backend(|engine| {
            let before = resident_bytes();
            assert!(before > 0);
            let file = open_mapped(engine, path.path());
            assert!(file.is_mapped(), "{:?}", engine.stats().fallbacks);
            let (result, buf) = file.read_at(vec![0; BLOCK], 0).wait();
            assert_eq!((result.unwrap(), buf), (BLOCK, pattern(BLOCK)));
            let more = resident_bytes().saturating_sub(before);
            assert!(more < 16 << 20, "{more} bytes");
        });
    });
}

#[test]
fn a_task_that_only_copies_lets_the_others_have_their_turn() {
    let content = pattern(4 * BLOCK);
    let path = temp_path(&content);
    on_every_backend(|engine| {
        let file = open_mapped(engine, path.path());
        let file = &file;
        let turns = std::cell::Cell::new(0);
        let turns = &turns;
        let reads = async {
            for _ in 0..4_000 {
                let (result, _) = file.read_at(vec![0; 16], 0).await;
                result.unwrap();
            }
        };
        let others = std::future::poll_fn(|cx| {
            turns.set(turns.get() + 1);
            cx.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        });
        // Whenever the reads yield, the others are polled.
        let mut reads = std::pin::pin!(reads);
        let mut others = std::pin::pin!(others);
        pollster::block_on(std::future::poll_fn(|cx| {
            let _ = others.as_mut().poll(cx);
            reads.as_mut().poll(cx)
        }));
        assert!(turns.get() > 10, "{} turns", turns.get());
        assert_eq!(engine.stats().copied, 4_000);
    });
}

#[test]
fn what_is_copied_does_not_count_as_unaligned() {
    on_every_backend(|engine| {
        let content = pattern(8192);
        let path = temp_path(&content);
        path.as_file().sync_all().unwrap();
        let drop_pages = || {
            let advice = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(path.as_file(), 0, None, advice).unwrap();
        };
        drop_pages();
        let options = OpenOptions::new().read(true).engine(engine);
        // SAFETY: nobody changes the file while it is open.
        let options = unsafe { options.mapped() }.direct(inflight::fs::Direct::Auto);
        let file = options.open(path.path()).unwrap();
        if !(file.is_direct() && file.is_mapped()) {
            return skip("copied reads", "the file is not direct and mapped");
        }
        // Planned while it is not resident, made when it is.
        let mut again = file.read_at(vec![0; 100], 1);
        let (mut buf, mut other) = ([0; 100], [0; 100]);
        let mut many = [
            ReadInto::new(&file, 1, &mut buf),
            ReadInto::new(&file, 1, &mut other),
        ];
        let _ = again.explain();
        read_many(&mut many).unwrap();
        let before = engine.stats();
        if before.copied > 0 {
            return skip("copied reads", "the file system keeps the file in memory");
        }
        assert_eq!(before.unaligned, 2);
        until("it is known to be resident", || {
            let read = file.read_at(file.aligned_buf(4096).unwrap(), 0);
            fs::read(path.path()).unwrap();
            assert_eq!(read.wait().0.unwrap(), 4096);
            engine.stats().copied > 0
        });
        let copied = engine.stats().copied;
        assert_eq!(again.wait().0.unwrap(), 100);
        read_many(&mut many).unwrap();
        let after = engine.stats();
        assert_eq!((after.copied - copied, after.unaligned), (3, 2));
    });
}
