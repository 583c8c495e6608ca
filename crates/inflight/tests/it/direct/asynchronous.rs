//! Direct files that cannot be asked not to wait: which of them the ring serves best shows itself.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use inflight::fs::File;
use inflight::{AlignedBuf, Engine, Way, local};
use tempfile::TempDir;

use super::required;
use crate::support::{directory, pattern, skip, uring_of_depth_or_skip};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const IN_FLIGHT: usize = 8;

/// Reads, and writes, after which it has to be known; one in 64 shows it.
const SHOWN_AFTER: usize = 64 * 50;

/// An overlay over directories of the disk that the tests use, until this is dropped.
struct Overlay(TempDir);

impl Overlay {
    /// `None`, with the reason said, if this is not allowed.
    fn new(name: &str) -> Option<Self> {
        let folder = tempfile::tempdir_in(directory()).expect("the test directory can be written");
        for part in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(folder.path().join(part)).expect("it is empty");
        }
        let options = "lowerdir=lower,upperdir=upper,workdir=work";
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", options, "merged"]);
        match mount.current_dir(folder.path()).output() {
            Ok(output) if output.status.success() => Some(Self(folder)),
            output => {
                skip(name, &format!("no overlay can be mounted: {output:?}"));
                None
            }
        }
    }

    /// A file with this content.
    fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.0.path().join("merged/file");
        std::fs::write(&path, content).expect("there is room");
        path
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let umount = Command::new("umount")
            .arg(self.0.path().join("merged"))
            .status();
        assert!(umount.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

fn buf(file: &File) -> AlignedBuf {
    file.aligned_buf(BLOCK).expect("there is memory")
}

fn check(content: &[u8], at: usize, read: &[u8]) {
    assert!(read == &content[at * BLOCK..][..BLOCK], "block {at}");
}

/// Reads so many blocks in a queue, one after the other over and over.
fn read_in_a_queue(engine: &Engine, file: &File, content: &[u8], reads: usize) {
    let run = engine.queue(u32::try_from(IN_FLIGHT).expect("a few"), |queue| {
        let take = |(tag, (result, read)): (u64, (std::io::Result<usize>, AlignedBuf))| {
            assert_eq!(result.expect("it is read"), BLOCK);
            check(content, usize::try_from(tag).expect("a few"), &read);
        };
        for at in (0..BLOCKS).cycle().take(reads) {
            if queue.is_full() {
                take(queue.next().expect("some are in flight"));
            }
            let read = file.read_at(buf(file), (at * BLOCK) as u64);
            assert!(queue.push(at as u64, read).is_ok());
        }
        while let Some(read) = queue.next() {
            take(read);
        }
    });
    run.expect("nothing is demanded");
}

/// Writes all blocks anew, several at a time, by tasks of a run loop.
fn write_in_a_loop(engine: &Engine, file: &Rc<File>, content: &Rc<Vec<u8>>, writes: usize) {
    let run = engine.run(async {
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|first| {
                let (file, content) = (Rc::clone(file), Rc::clone(content));
                local::spawn(async move {
                    let places = (first..BLOCKS).step_by(IN_FLIGHT).cycle();
                    for at in places.take(writes / IN_FLIGHT) {
                        let mut block = buf(&file);
                        block.copy_from_slice(&content[at * BLOCK..][..BLOCK]);
                        let (result, _) = file.write_at(block, (at * BLOCK) as u64).await;
                        assert_eq!(result.expect("it is written"), BLOCK);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    run.expect("nothing is demanded");
}

/// Where reads of the file go, and writes.
fn ways(file: &File) -> [(Way, Way); 2] {
    let (read, write) = (
        file.read_at(buf(file), 0).explain(),
        file.write_at(buf(file), 0).explain(),
    );
    [(read.batched, read.awaited), (write.batched, write.awaited)]
}

#[test]
fn what_is_only_started_by_a_call_is_left_to_the_ring() {
    let name = "a direct file of an overlay";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    let Some(overlay) = Overlay::new(name) else {
        return;
    };
    let content = Rc::new(pattern(BLOCKS * BLOCK));
    let Some(file) = required(name, &engine, overlay.file(&content)) else {
        return;
    };
    let file = Rc::new(file);
    for _ in 0..SHOWN_AFTER / 64 {
        read_in_a_queue(&engine, &file, &content, 64);
        write_in_a_loop(&engine, &file, &content, 64);
        if ways(&file) == [(Way::Backend, Way::Backend); 2] {
            break;
        }
    }
    let read = file.read_at(buf(&file), 0).explain();
    if read.takes_nowait == Some(true) || read.batched == Way::SharedCall {
        return skip(name, "the file can be asked, or its device is memory");
    }
    assert_eq!(ways(&file), [(Way::Backend, Way::Backend); 2], "{read}");
    // Whatever is read and written from now on goes there, but for one that shows it again.
    let before = engine.stats();
    read_in_a_queue(&engine, &file, &content, 256);
    write_in_a_loop(&engine, &file, &content, 256);
    read_in_a_queue(&engine, &file, &content, 256);
    let after = engine.stats();
    let elsewhere = |stats: &inflight::Stats| stats.pool_calls + stats.plain_calls;
    assert!(elsewhere(&after) - elsewhere(&before) <= 2, "{after:?}");
    assert!(std::fs::read(overlay.0.path().join("merged/file")).unwrap() == *content);
}

/// A file system of one file, which takes its time within each call.
struct Sluggish(Vec<u8>);

impl Sluggish {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        FileAttr {
            ino: inode,
            size: self.0.len() as u64,
            blocks: 1,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: match inode {
                INodeNo::ROOT => FileType::Directory,
                _ => FileType::RegularFile,
            },
            perm: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

const FOREVER: Duration = Duration::from_secs(3600);

impl Filesystem for Sluggish {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.entry(&FOREVER, &self.attributes(INodeNo(2)), Generation(0));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread::sleep(Duration::from_micros(50));
        let from = usize::try_from(offset).expect("it is a place in memory");
        let bytes = self.0.get(from..).unwrap_or_default();
        let size = usize::try_from(size).expect("usize has 32 bits or more");
        reply.data(&bytes[..size.min(bytes.len())]);
    }
}

fn mounted_or_skip(name: &str, content: &[u8]) -> Option<(BackgroundSession, TempDir)> {
    let folder = tempfile::tempdir().expect("the temporary directory can be written");
    let mut config = Config::default();
    config.n_threads = Some(4);
    match fuser::spawn_mount(Sluggish(content.to_vec()), folder.path(), &config) {
        Ok(session) => Some((session, folder)),
        Err(cause) => {
            skip(name, &format!("no file system can be mounted: {cause}"));
            None
        }
    }
}

#[test]
fn what_a_call_waits_for_is_left_to_the_pool() {
    let name = "a direct file of FUSE";
    let Some(engine) = uring_of_depth_or_skip(name, 32) else {
        return;
    };
    let content = pattern(BLOCKS * BLOCK);
    let Some((session, folder)) = mounted_or_skip(name, &content) else {
        return;
    };
    if let Some(file) = required(name, &engine, folder.path().join("file")) {
        // Often enough that several have been made to show it.
        for _ in 0..8 {
            read_in_a_queue(&engine, &file, &content, 64);
            let read = file.read_at(buf(&file), 0).explain();
            assert_eq!(
                (read.batched, read.awaited),
                (Way::Pool, Way::Pool),
                "{read}"
            );
        }
        assert!(engine.stats().pool_calls >= 4 * 64, "{:?}", engine.stats());
    }
    drop(engine);
    let _ = session.umount_and_join();
}
