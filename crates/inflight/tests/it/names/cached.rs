//! What is opened, asked for and closed where that is awaited, and what is not.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::future::IntoFuture;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use inflight::fs::{
    Direct, OpenOptions, create_dir, metadata, remove_dir, remove_file, rename, sync_dir,
};
use inflight::{Engine, Operation, local};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use seccompiler::{SeccompAction, SeccompFilter, apply_filter_all_threads};
use tempfile::TempDir;

use super::dropped::{no_threads_of_pools, threads_of_pools};
use super::{Fifo, folder, on_every_host, poll_once};
use crate::support::own::in_own_process;
use crate::support::{on_every_backend, read_write, skip, temp_path};

/// What this path leads to, if the kernel finds it in its caches.
fn find_cached(path: &Path) -> rustix::io::Result<OwnedFd> {
    let (flags, cached) = (OFlags::PATH, ResolveFlags::CACHED);
    openat2(CWD, path, flags, Mode::empty(), cached)
}

/// Whether the kernel lets look into its caches, and files are where that is done.
fn is_cached_or_skipped(name: &str) -> bool {
    let path = temp_path(b"abc");
    if let Err(refusal) = find_cached(path.path()) {
        skip(name, &format!("openat2(2) is refused: {refusal}"));
        return false;
    }
    if is_filtered() && env::var_os("INFLIGHT_BACKEND").is_some_and(|wish| wish != "auto") {
        skip(name, "no unusual calls are to be made under this filter");
        return false;
    }
    let engine = Engine::new().expect("nothing is demanded");
    let options = OpenOptions::new().read(true).engine(&engine);
    drop(options.open(path.path()).expect("it is there"));
    let is_opened_here = at_once(|| options.opening(path.path())) > 0;
    if !is_opened_here {
        skip(name, "files are on a file system that may ask somebody");
    }
    is_opened_here
}

/// Whether changing names in this folder, which is in memory, takes what is taken for waiting: on a
/// processor that is interpreted.
fn calls_are_long(folder: &Path) -> bool {
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let begun = Instant::now();
            drop(fs::File::create(folder.join("other")).expect("it can be made"));
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[10] > Duration::from_micros(25)
}

/// Runs `body` with a folder in memory, where to change names takes a few microseconds on any
/// machine.
fn in_memory_on_every_backend(name: &str, body: impl Fn(&Engine, &TempDir)) {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return skip(name, "there is no file system in memory");
    };
    let path = folder.path().join("file");
    fs::write(&path, b"abc").expect("it can be made");
    if calls_are_long(folder.path()) {
        return skip(name, "system calls take long here");
    }
    let engine = Engine::new().expect("nothing is demanded");
    let options = OpenOptions::new().read(true).engine(&engine);
    drop(options.open(&path).expect("it is there"));
    if at_once(|| options.opening(&path)) == 0 {
        return skip(
            name,
            "this kernel does not number mounts without a device for ever",
        );
    }
    on_every_backend_that_may_ask(|engine| {
        let folder = tempfile::tempdir_in("/dev/shm").expect("it can be made");
        body(engine, &folder);
    });
}

pub(crate) fn is_filtered() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// Runs `body` on every backend; under a filter on the default alone, because who demands one
/// without rings there may be ended for unusual calls.
fn on_every_backend_that_may_ask(body: impl Fn(&Engine)) {
    match is_filtered() {
        true => body(&Engine::new().expect("nothing is demanded")),
        false => on_every_backend(body),
    }
}

/// How many of a hundred are ready when they are first polled. A few may not be whatever they are:
/// the kernel does not look into its caches while names are being changed there.
fn at_once<O: IntoFuture<Output = io::Result<T>>, T>(make: impl Fn() -> O) -> usize
where
    O::IntoFuture: Unpin,
{
    let is_ready = |_: &usize| {
        let mut future = make().into_future();
        match poll_once(&mut future) {
            Poll::Ready(result) => result.is_ok(),
            Poll::Pending => {
                drop(pollster::block_on(future));
                false
            }
        }
    };
    (0..100).filter(is_ready).count()
}

#[test]
fn what_is_cached_needs_no_thread_of_the_pool() {
    let test = "what_is_cached_needs_no_thread_of_the_pool";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        on_every_backend_that_may_ask(|engine| {
            let folder = folder();
            let path = folder.path().join("file");
            let link = folder.path().join("link");
            fs::write(&path, b"content").expect("it can be made");
            symlink(&path, &link).expect("it can be made");
            let options = OpenOptions::new().read(true).engine(engine);
            on_every_host(engine, || async {
                for path in [&path, &link] {
                    let file = options.opening(path).await.unwrap();
                    assert_eq!(metadata(path).on(engine).await.unwrap().len, 7);
                    assert_eq!(file.metadata().wait().unwrap().len, 7);
                    file.close().await.unwrap();
                    let both = read_write(engine).opening(path).await.unwrap();
                    drop(both);
                }
            });
            // Nothing follows from a name that is none.
            let none = pollster::block_on(metadata("a\0b").on(engine).into_future());
            assert_eq!(none.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            // xfs asks for links as if they had to be read.
            let is_followed = find_cached(&link).is_ok();
            for path in [&path, &link]
                .into_iter()
                .take(1 + usize::from(is_followed))
            {
                let write = read_write(engine);
                assert!(at_once(|| options.opening(path)) > 50);
                assert!(at_once(|| write.opening(path)) > 50);
                assert!(at_once(|| metadata(path).on(engine)) > 50);
                assert!(at_once(|| options.open(path).unwrap().close()) > 50);
            }
            // As the kernel has it, it waits, if it may at all.
            let file = pollster::block_on(options.opening(&path).into_future()).unwrap();
            let file = file.into_std().expect("nothing is in flight");
            // SAFETY: no memory is involved.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
            assert_eq!(flags & libc::O_NONBLOCK, 0);
        });
    });
}

#[test]
fn what_may_wait_is_made_by_a_thread_of_the_pool() {
    let test = "what_may_wait_is_made_by_a_thread_of_the_pool";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        on_every_backend_that_may_ask(|engine| {
            let folder = folder();
            let path = folder.path().join("file");
            fs::write(&path, b"content").expect("it can be made");
            let is_pending = |options: OpenOptions, path: &Path| {
                let options = options.engine(engine);
                at_once(|| options.opening(path)) == 0
            };
            let reading = || OpenOptions::new().read(true);
            assert!(!is_pending(reading(), &path));
            assert!(is_pending(reading(), Path::new("/proc/self/stat")));
            assert!(is_pending(reading(), &folder.path().join("none")));
            assert!(is_pending(reading(), folder.path()));
            let writing = || reading().write(true);
            assert!(is_pending(OpenOptions::new(), &path), "it is refused");
            let link = folder.path().join("link");
            symlink(&path, &link).expect("it can be made");
            assert!(is_pending(writing().create(true), &link));
            assert!(is_pending(
                writing().create(true),
                Path::new("/proc/self/comm")
            ));
            let other = folder.path().join("other");
            fs::create_dir(&other).expect("it can be made");
            // Not the one below: while this is open, whoever opens the other end is done, and gone
            // when who is waited for comes.
            let taken = Fifo::new(&other);
            assert!(is_pending(writing().create(true), taken.path()));
            let fifo = Fifo::new(folder.path());
            let mut open = fifo.opening(engine).into_future();
            assert!(poll_once(&mut open).is_pending());
            fifo.release();
            drop(pollster::block_on(open).expect("somebody has opened the other end"));
            // Its space is given back when it is closed.
            let file = reading().engine(engine).open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let mut closing = file.close().into_future();
            if poll_once(&mut closing).is_pending() {
                pollster::block_on(closing).unwrap();
            }
            assert!(threads_of_pools() > 0);
        });
    });
}

/// On a busy machine any of them may have been preempted, and sends the next ones to the pool.
#[test]
fn names_are_changed_where_that_is_awaited() {
    let test = "names_are_changed_where_that_is_awaited";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        in_memory_on_every_backend(test, |engine, folder| {
            let at = |name: &str| folder.path().join(name);
            let named = |n: usize| at(&n.to_string());
            let numbers = Cell::new(0);
            let next = || named(numbers.replace(numbers.get() + 1));
            let new = || read_write(engine).create_new(true);
            assert!(at_once(|| new().opening(next())) > 0);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 100);
            let kept = at("kept");
            fs::write(&kept, b"content").unwrap();
            assert!(at_once(|| read_write(engine).create(true).opening(&kept)) > 0);
            assert_eq!(fs::read(&kept).unwrap(), b"content");
            let (from, to) = (Cell::new(0), Cell::new(1000));
            let moved = || {
                let name = |number: &Cell<usize>| named(number.replace(number.get() + 1));
                rename(name(&from), name(&to)).on(engine)
            };
            assert!(at_once(moved) > 0);
            assert!(!named(0).exists() && named(1000).exists());
            assert!(at_once(|| rename(&kept, &kept).on(engine)) > 0);
            let written = || {
                let file = read_write(engine).create(true).truncate(true);
                let file = file.open(&kept).unwrap();
                file.write_at(b"other".to_vec(), 0).wait().0.unwrap();
                file.close()
            };
            assert!(at_once(written) > 0);
            assert_eq!(fs::read(&kept).unwrap(), b"other");
            let emptying = || read_write(engine).truncate(true);
            assert!(at_once(|| emptying().opening(&kept)) > 0);
            assert_eq!(fs::read(&kept).unwrap(), b"");
            let gone = Cell::new(1000);
            let removed = || remove_file(named(gone.replace(gone.get() + 1))).on(engine);
            assert!(at_once(removed) > 0);
            let folders = [Cell::new(0), Cell::new(0)];
            let number = |at: usize| folders[at].replace(folders[at].get() + 1);
            assert!(at_once(|| create_dir(named(number(0))).on(engine)) > 0);
            assert!(named(99).is_dir());
            assert!(at_once(|| remove_dir(named(number(1))).on(engine)) > 0);
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
            assert_eq!(left.len(), 1, "{left:?}");
            // As the kernel has it, it waits, if it may at all.
            let file = pollster::block_on(new().opening(named(0)).into_future()).unwrap();
            let file = file.into_std().expect("nothing is in flight");
            // SAFETY: no memory is involved.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
            assert_eq!(flags & libc::O_NONBLOCK, 0);
        });
    });
}

#[test]
fn changes_learn_on_what_names_are() {
    let test = "changes_learn_on_what_names_are";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            return skip(test, "there is no file system in memory");
        };
        if calls_are_long(folder.path()) {
            return skip(test, "system calls take long here");
        }
        // Nothing has been opened there.
        let engine = Engine::new().expect("nothing is demanded");
        let below = folder.path().join("below");
        let made = || create_dir(&below).on(&engine).into_future();
        let removed = || remove_dir(&below).on(&engine).into_future();
        let count = |_: &usize| {
            let (mut making, mut removing) = (made(), removed());
            let is_made = poll_once(&mut making).is_ready();
            if !is_made {
                pollster::block_on(making).expect("it can be made");
            }
            let is_removed = poll_once(&mut removing).is_ready();
            if !is_removed {
                pollster::block_on(removing).expect("it can be removed");
            }
            is_made && is_removed
        };
        let is_known_at_first = count(&0);
        let at_once_later = (0..100).filter(count).count();
        let options = OpenOptions::new().read(true).engine(&engine);
        let file = tempfile::NamedTempFile::new_in(&folder).expect("it can be made");
        if at_once(|| options.opening(file.path())) == 0 {
            return skip(
                test,
                "this kernel does not number mounts without a device for ever",
            );
        }
        assert!(!is_known_at_first);
        assert!(at_once_later > 0, "{at_once_later}");
    });
}

#[test]
fn space_is_given_back_by_a_thread_of_the_pool() {
    let test = "space_is_given_back_by_a_thread_of_the_pool";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        in_memory_on_every_backend(test, |engine, folder| {
            let (large, small) = (folder.path().join("large"), folder.path().join("small"));
            let fill = || {
                fs::File::create(&large).unwrap().set_len(2 << 20).unwrap();
                fs::write(&small, b"content").unwrap();
            };
            let removing = || {
                fill();
                remove_file(&large).on(engine)
            };
            assert_eq!(at_once(removing), 0);
            // It may have more than it is long.
            let removing_reserved = || {
                let file = fs::File::create(&large).unwrap();
                let keeps = rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, keeps, 0, 2 << 20).unwrap();
                remove_file(&large).on(engine)
            };
            assert_eq!(at_once(removing_reserved), 0);
            let replacing = || {
                fill();
                rename(&small, &large).on(engine)
            };
            assert_eq!(at_once(replacing), 0);
            assert_eq!(fs::read(&large).unwrap(), b"content");
            let emptying = || {
                fill();
                read_write(engine).truncate(true).opening(&large)
            };
            assert_eq!(at_once(emptying), 0);
            let other = folder.path().join("other");
            let emptying_linked = || {
                fill();
                let _ = fs::remove_file(&other);
                fs::hard_link(&large, &other).unwrap();
                read_write(engine).truncate(true).opening(&large)
            };
            assert_eq!(at_once(emptying_linked), 0);
            let replacing_by_large = || {
                fill();
                rename(&large, &small).on(engine)
            };
            assert_eq!(at_once(replacing_by_large), 0);
            // With another name it keeps its space.
            let linked = || {
                fill();
                let _ = fs::remove_file(&other);
                fs::hard_link(&large, &other).unwrap();
                remove_file(&large).on(engine)
            };
            assert!(at_once(linked) > 0);
            assert_eq!(at_once(|| sync_dir(folder.path()).on(engine)), 0);
        });
    });
}

#[test]
fn a_file_without_a_name_is_closed_by_a_thread_of_the_pool() {
    let test = "a_file_without_a_name_is_closed_by_a_thread_of_the_pool";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        on_every_backend_that_may_ask(|engine| {
            let path = temp_path(b"abc");
            let options = OpenOptions::new().read(true).engine(engine);
            let file = options.open(path.path()).unwrap();
            pollster::block_on(file.close().into_future()).unwrap();
            no_threads_of_pools();
            let file = options.open(path.path()).unwrap();
            path.close().unwrap();
            pollster::block_on(file.close().into_future()).unwrap();
            assert_eq!(threads_of_pools(), 1);
        });
    });
}

#[test]
fn a_large_file_that_was_written_is_closed_by_a_thread_of_the_pool() {
    let test = "a_large_file_that_was_written_is_closed_by_a_thread_of_the_pool";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        on_every_backend_that_may_ask(|engine| {
            let path = temp_path(b"abc");
            let file = read_write(engine).open(path.path()).unwrap();
            fs::File::options()
                .write(true)
                .open(path.path())
                .and_then(|file| file.set_len(2 << 20))
                .unwrap();
            no_threads_of_pools();
            pollster::block_on(file.close().into_future()).unwrap();
            assert_eq!(threads_of_pools(), 1);
        });
    });
}

#[test]
fn a_lease_is_not_waited_for_in_a_poll() {
    let test = "a_lease_is_not_waited_for_in_a_poll";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        // SAFETY: no memory is involved. Who has a lease is told that it is wanted.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        on_every_backend_that_may_ask(|engine| {
            let path = temp_path(b"abc");
            let holder = fs::File::options().write(true).open(path.path()).unwrap();
            let (_, path) = path.into_parts();
            let lease = |kind: i32| {
                // SAFETY: no memory is involved.
                let answer = unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, kind) };
                assert_eq!(answer, 0, "{}", io::Error::last_os_error());
            };
            lease(libc::F_WRLCK);
            let options = OpenOptions::new().read(true).engine(engine);
            let mut open = options.opening(&path).into_future();
            assert!(poll_once(&mut open).is_pending());
            lease(libc::F_UNLCK);
            drop(pollster::block_on(open).expect("it is free"));
        });
    });
}

#[test]
fn direct_files_are_opened_where_that_is_awaited() {
    let test = "direct_files_are_opened_where_that_is_awaited";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        on_every_backend_that_may_ask(|engine| {
            let path = temp_path(&[7; 4096]);
            for direct in [Direct::Off, Direct::Auto, Direct::Required] {
                let options = read_write(engine).direct(direct).durable_writes(true);
                let Ok(waited) = options.open(path.path()) else {
                    skip(test, "the file system has no direct I/O");
                    continue;
                };
                assert!(at_once(|| options.opening(path.path())) > 50);
                let awaited = pollster::block_on(options.opening(path.path()).into_future());
                let awaited = awaited.unwrap();
                assert_eq!(awaited.is_direct(), waited.is_direct());
                assert_eq!(awaited.alignment(), waited.alignment());
                let flags = |file: inflight::fs::File| {
                    let file = file.into_std().expect("nothing is in flight");
                    // SAFETY: no memory is involved.
                    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
                };
                assert_eq!(flags(awaited), flags(waited));
            }
        });
    });
}

#[test]
fn a_task_that_only_opens_lets_the_others_have_their_turn() {
    let name = "a_task_that_only_opens_lets_the_others_have_their_turn";
    if !is_cached_or_skipped(name) {
        return;
    }
    on_every_backend_that_may_ask(|engine| {
        let path = temp_path(b"abc");
        let options = OpenOptions::new().read(true).engine(engine);
        let turns = engine.run(async {
            let turns = Rc::new(Cell::new(0));
            let counted = Rc::clone(&turns);
            let other = local::spawn(async move {
                loop {
                    counted.set(counted.get() + 1);
                    local::yield_now().await;
                }
            });
            for _ in 0..2000 {
                drop(options.opening(path.path()).await.unwrap());
            }
            drop(other);
            turns.get()
        });
        let turns = turns.unwrap();
        assert!(turns >= 10, "{turns} turns");
    });
}

/// Who is ended for it is not asked.
#[test]
fn a_filter_that_comes_later_is_not_tried() {
    let test = "a_filter_that_comes_later_is_not_tried";
    in_own_process(module_path!(), test, || {
        if !is_cached_or_skipped(test) {
            return;
        }
        // SAFETY: no memory is involved.
        if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } != 0 {
            return skip(test, "calls are filtered already");
        }
        let path = temp_path(b"abc");
        let engine = Engine::new().expect("nothing is demanded");
        let options = OpenOptions::new().read(true).engine(&engine);
        drop(options.open(path.path()).unwrap());
        assert!(at_once(|| options.opening(path.path())) > 50);
        let rules: BTreeMap<i64, _> = [(libc::SYS_openat2, Vec::new())].into();
        let arch = env::consts::ARCH.try_into().expect("a filter can be made");
        let (others, these) = (SeccompAction::Allow, SeccompAction::KillProcess);
        let filter = SeccompFilter::new(rules, others, these, arch).expect("it is sound");
        let program: seccompiler::BpfProgram = filter.try_into().expect("it is sound");
        apply_filter_all_threads(&program).expect("it is sound");
        let open = options.opening(path.path()).into_future();
        drop(pollster::block_on(open).expect("by a thread of the pool"));
        let asked = metadata(path.path()).on(&engine).into_future();
        assert_eq!(pollster::block_on(asked).expect("as well").len, 3);
        let again = rename(path.path(), path.path()).on(&engine).into_future();
        pollster::block_on(again).expect("as well");
        let options = read_write(&engine).create(true);
        let open = options.opening(path.path()).into_future();
        drop(pollster::block_on(open).expect("as well"));
        assert!(threads_of_pools() > 0);
    });
}
