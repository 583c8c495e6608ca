//! Opening, closing, truncating and naming, waited for and awaited.

pub(crate) mod cached;
mod closing;
mod dropped;
mod refused;

use std::fs;
use std::future::{Future, IntoFuture};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use inflight::fs::{Direct, File, OpenOptions};
use inflight::{Engine, Operation, errno_of};
use tempfile::TempDir;

use crate::support::fifo::Fifo;
use crate::support::own::in_own_process;
use crate::support::{directory, on_every_backend, open, read_write, temp_path};

/// A folder on a file system that is not known to answer by itself, so that a thread of the pool
/// asks for its metadata where that is awaited.
const ELSEWHERE: &str = "/proc";

fn folder() -> TempDir {
    TempDir::new_in(directory()).expect("the test directory can be written")
}

/// Runs a future on every kind of host.
fn on_every_host<F: Future>(engine: &Engine, mut future: impl FnMut() -> F) {
    pollster::block_on(future());
    engine.run(future()).expect("nothing is demanded");
    let mut single = tokio::runtime::Builder::new_current_thread();
    single.build().expect("a runtime").block_on(future());
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl Woken {
    fn wait(&self) {
        while self.0.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
    }
}

/// Polls once; what wakes it is not looked at.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    let error = result.expect_err("it cannot be done");
    errno_of(&error).unwrap_or_else(|| panic!("{error:?}"))
}

/// A link in a folder to what may be there or not: whoever may create that opens it by the pool.
fn link_to(what: impl AsRef<Path>, folder: &Path) -> PathBuf {
    let link = folder.join("link");
    symlink(what, &link).expect("it can be made");
    link
}

async fn everything_in(folder: &Path, engine: &Engine) -> io::Result<()> {
    use inflight::fs::{create_dir, metadata, remove_dir, remove_file, rename, sync_dir};
    let below = folder.join("below");
    create_dir(&below).on(engine).await?;
    assert!(below.is_dir());
    let (one, two) = (below.join("one"), below.join("two"));
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600);
    let file = options.engine(engine).opening(&one).await?;
    file.write_all_at(b"hello".to_vec(), 0).await.0?;
    file.truncate(9000).await?;
    assert_eq!(metadata(&one).on(engine).await?.len, 9000);
    file.truncate(4).await?;
    file.close().await?;
    assert_eq!(fs::metadata(&one)?.permissions().mode() & 0o777, 0o600);
    rename(&one, &two).on(engine).await?;
    sync_dir(&below).on(engine).await?;
    assert!(!one.exists());
    assert_eq!(fs::read(&two)?, b"hell");
    remove_file(&two).on(engine).await?;
    assert!(!two.exists());
    remove_dir(&below).on(engine).await?;
    assert!(!below.exists());
    Ok(())
}

#[test]
fn names_are_made_changed_and_removed_when_awaited() {
    on_every_backend(|engine| {
        let folder = folder();
        on_every_host(engine, || async {
            let done = everything_in(folder.path(), engine).await;
            done.expect("the folder is ours");
        });
    });
}

#[test]
fn names_are_made_changed_and_removed_when_waited_for() {
    use inflight::fs::{create_dir, metadata, remove_dir, remove_file, rename, sync_dir};
    on_every_backend(|engine| {
        let folder = folder();
        let below = folder.path().join("below");
        create_dir(&below).wait().unwrap();
        let (one, two) = (below.join("one"), below.join("two"));
        let options = OpenOptions::new().write(true).create(true).engine(engine);
        let file = options.opening(&one).wait().unwrap();
        file.write_all_at(b"hello".to_vec(), 0).wait().0.unwrap();
        file.truncate(2).wait().unwrap();
        file.close().wait().unwrap();
        assert_eq!(metadata(&one).wait().unwrap().len, 2);
        rename(&one, &two).wait().unwrap();
        sync_dir(&below).wait().unwrap();
        assert_eq!(fs::read(&two).unwrap(), b"he");
        remove_file(&two).wait().unwrap();
        remove_dir(&below).wait().unwrap();
        assert!(!below.exists());
    });
}

#[test]
fn the_global_engine_serves_where_none_is_named() {
    let folder = folder();
    let path = folder.path().join("file");
    pollster::block_on(async {
        let options = OpenOptions::new().write(true).create(true);
        let file = options.opening(&path).await.unwrap();
        file.write_all_at(vec![7; 3], 0).await.0.unwrap();
        file.close().await.unwrap();
        assert_eq!(inflight::fs::metadata(&path).await.unwrap().len, 3);
    });
}

#[test]
fn an_awaited_open_has_the_options_of_a_blocking_one() {
    on_every_backend(|engine| {
        let path = temp_path(&[7; 8192]);
        for direct in [Direct::Off, Direct::Auto] {
            let options = read_write(engine).direct(direct);
            let waited = options.open(&path).unwrap();
            let awaited = pollster::block_on(options.opening(&path).into_future()).unwrap();
            assert_eq!(awaited.is_direct(), waited.is_direct());
            assert_eq!(awaited.alignment(), waited.alignment());
            let (result, buf) = awaited.read_at(vec![0; 100], 3).wait();
            assert_eq!((result.unwrap(), buf), (100, vec![7; 100]));
            pollster::block_on(awaited.close().into_future()).unwrap();
        }
        let options = read_write(engine).truncate(true);
        drop(pollster::block_on(options.opening(&path).into_future()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    });
}

/// Each operation that fails, and its errno; made anew for each way to run it.
macro_rules! assert_errno {
    ($errno:ident, $operation:expr) => {{
        assert_eq!(errno($operation.wait()), libc::$errno);
        assert_eq!(
            errno(pollster::block_on($operation.into_future())),
            libc::$errno
        );
    }};
}

#[test]
fn errors_are_those_of_the_system_calls() {
    use inflight::fs::{create_dir, metadata, remove_dir, remove_file, rename, sync_dir};
    on_every_backend(|engine| {
        let folder = folder();
        let (here, none) = (folder.path(), folder.path().join("none"));
        let file = here.join("file");
        fs::write(&file, b"abc").unwrap();
        let full = here.join("full");
        fs::create_dir_all(full.join("entry")).unwrap();
        let options = read_write(engine);
        assert_errno!(ENOENT, options.opening(&none));
        assert_errno!(EISDIR, options.opening(here));
        assert_errno!(ENOTDIR, options.opening(file.join("below")));
        assert_errno!(EEXIST, options.clone().create_new(true).opening(&file));
        // Nobody may write to this, the superuser neither.
        assert_errno!(EACCES, options.opening("/proc/sys/kernel/osrelease"));
        assert_errno!(ENOENT, metadata(&none).on(engine));
        assert_errno!(ENOTDIR, metadata(file.join("below")).on(engine));
        assert_errno!(ENOENT, rename(&none, &file).on(engine));
        assert_errno!(ENOTEMPTY, rename(full.join("entry"), &full).on(engine));
        assert_errno!(ENOENT, remove_file(&none).on(engine));
        assert_errno!(EISDIR, remove_file(&full).on(engine));
        assert_errno!(EEXIST, create_dir(&full).on(engine));
        assert_errno!(ENOENT, create_dir(none.join("below")).on(engine));
        assert_errno!(ENOTEMPTY, remove_dir(&full).on(engine));
        assert_errno!(ENOTDIR, remove_dir(&file).on(engine));
        assert_errno!(ENOTDIR, sync_dir(&file).on(engine));
        assert_errno!(ENOENT, sync_dir(&none).on(engine));
        let opened = open(engine, &file);
        assert_errno!(EINVAL, opened.truncate(u64::MAX));
        let only_read = OpenOptions::new()
            .read(true)
            .engine(engine)
            .open(&file)
            .unwrap();
        assert_errno!(EINVAL, only_read.truncate(1));
        let zero = metadata("a\0b").on(engine).wait().unwrap_err();
        assert_eq!(zero.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(fs::read(&file).unwrap(), b"abc");
    });
}

#[test]
fn a_thousand_opens_at_once_share_two_threads() {
    let test = "a_thousand_opens_at_once_share_two_threads";
    in_own_process(module_path!(), test, || {
        on_every_backend_with_two_threads(|engine| {
            let (folder, file) = (folder(), temp_path(b"abc"));
            let path = link_to(&file, folder.path());
            let options = read_write(engine).create(true);
            let before = entries("/proc/self/fd");
            let run = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            run.block_on(async {
                let tasks: Vec<_> = (0..1000)
                    .map(|_| tokio::spawn(read_all(options.opening(&path))))
                    .collect();
                assert!(entries("/proc/self/task") <= THREADS_BESIDE + 2);
                for task in tasks {
                    assert_eq!(task.await.unwrap(), b"abc");
                }
            });
            assert!(entries("/proc/self/task") <= THREADS_BESIDE + 3);
            drop(run);
            let in_loop = engine.run(async {
                let tasks: Vec<_> = (0..1000)
                    .map(|_| inflight::local::spawn(read_all(options.opening(&path))))
                    .collect();
                let mut read = 0;
                for task in tasks {
                    read += task.await.len();
                }
                read
            });
            assert_eq!(in_loop.unwrap(), 3000);
            // A loop and a driver have kept what they need to be told of anything.
            assert!(entries("/proc/self/fd") <= before + 8);
        });
    });
}

/// The main thread and that of the test, and the driver that reads.
const THREADS_BESIDE: usize = 3;

async fn read_all(open: inflight::fs::Open) -> Vec<u8> {
    let file = open.await.expect("there are descriptors");
    let (result, buf) = file.read_at(vec![0; 3], 0).await;
    assert_eq!(result.expect("it can be read"), 3);
    buf
}

fn on_every_backend_with_two_threads(body: impl Fn(&Engine)) {
    crate::support::on_every_backend_of(|builder| builder.threads(2), body);
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).expect("/proc is there").count()
}

/// Whether a descriptor of this process is open for the file at `path`.
fn is_open(path: &Path) -> bool {
    let path = path.canonicalize().expect("the file is there");
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there");
    let mut targets = entries
        .flatten()
        .flat_map(|entry| fs::read_link(entry.path()));
    targets.any(|target| target == path)
}

fn open_file(engine: &Engine, folder: &TempDir) -> (PathBuf, File) {
    let path = folder.path().join("file");
    fs::write(&path, b"content").expect("it can be made");
    let file = open(engine, &path);
    (path, file)
}
