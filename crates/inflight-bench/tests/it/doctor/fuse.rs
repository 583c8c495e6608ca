//! A file system in user space: this one, in a thread of the test.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::{
    Config, Errno, FileHandle, Filesystem, Generation, INodeNo, LockOwner, MountOption, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, Request,
};
use inflight_report::doctor::Status;

use super::{doctor, examine, is_root, line};
use crate::support::{FILE, attributes, directory};

const SIZE_BYTES: u64 = 1 << 16;

/// A directory with one file, `data`.
struct Sevens;

impl Filesystem for Sevens {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "data" {
            true => reply.entry(
                &Duration::ZERO,
                &attributes(FILE, SIZE_BYTES),
                Generation(0),
            ),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(inode, SIZE_BYTES));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size_bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = SIZE_BYTES.saturating_sub(offset).min(u64::from(size_bytes));
        reply.data(&vec![7; usize::try_from(left).unwrap()]);
    }
}

#[test]
fn a_file_system_in_user_space_is_told() {
    let directory = directory();
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("sevens".to_owned())];
    // The directory goes last, when nothing is mounted on it any more.
    let mounted = match fuser::spawn_mount(Sevens, directory.path(), &config) {
        Ok(mounted) => mounted,
        Err(error) => {
            assert!(!is_root(), "root may mount: {error}");
            println!("skipped: FUSE cannot be mounted here: {error}");
            return;
        }
    };
    let (_, examination) = examine(&mut doctor(directory.path()));
    assert!(examination.target.fs.starts_with("fuse"), "{examination:?}");
    let found = line(&examination, "file-system");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("user space"), "{found:?}");
    assert_eq!(line(&examination, "pseudo-device").status, Status::Unknown);
    let direct = line(&examination, "direct-io");
    assert_eq!(
        direct.status,
        Status::Unknown,
        "a file cannot be made: {direct:?}"
    );

    let (_, examination) = examine(&mut doctor(&directory.path().join("data")));
    let direct = line(&examination, "direct-io");
    assert_eq!(
        direct.status,
        Status::Warning,
        "no device serves it: {direct:?}"
    );
    mounted.umount_and_join().unwrap();
}
