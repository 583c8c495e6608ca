//! File systems in memory, which a test serves itself: all that they have in common. The tests of
//! the command have it too.

use std::ffi::OsStr;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

/// How long the kernel may believe what it was told.
pub(crate) const FOREVER: Duration = Duration::from_secs(3600);

/// What tells one file system from another; what one does not do is answered with ENOSYS.
pub(crate) trait Served: Send + Sync + 'static {
    /// Bytes of each file.
    fn len(&self) -> u64;

    /// The file with this name, and how long the kernel may believe what it is told of it.
    fn find(&self, _name: &OsStr) -> Result<(INodeNo, Duration), Errno> {
        Ok((INodeNo(2), FOREVER))
    }

    /// How long it may believe it when it asks again.
    fn asked_again(&self, _inode: INodeNo) -> Duration {
        FOREVER
    }

    /// How it is opened: past the page cache, which is mostly not what is tested.
    fn opened(&self) -> FopenFlags {
        FopenFlags::FOPEN_DIRECT_IO
    }

    fn read(&self, _offset: usize, _len: usize) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Returns how many bytes were written.
    fn write(
        &self,
        _thread: u32,
        _offset: usize,
        _data: &[u8],
        _flags: OpenFlags,
    ) -> Result<usize, Errno> {
        Err(Errno::ENOSYS)
    }

    fn fsync(&self, _thread: u32, _data_only: bool) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Asked when a file is closed.
    fn flush(&self) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}

/// Hands what the kernel asks to a file system.
pub(crate) struct Server<S>(pub(crate) S);

impl<S: Served> Server<S> {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let (size, kind) = match inode {
            INodeNo::ROOT => (0, FileType::Directory),
            _ => (self.0.len(), FileType::RegularFile),
        };
        FileAttr {
            ino: inode,
            size,
            blocks: 1,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
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

fn in_memory(number: impl TryInto<usize>) -> usize {
    number.try_into().ok().expect("usize has room for it")
}

impl<S: Served> Filesystem for Server<S> {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.find(name) {
            Ok((inode, ttl)) => reply.entry(&ttl, &self.attributes(inode), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.0.asked_again(inode), &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.0.opened());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(in_memory(offset), in_memory(bytes)) {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        by: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(by.pid(), in_memory(offset), data, flags) {
            Ok(written) => reply.written(u32::try_from(written).expect("it is small")),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, by: &Request, _: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        match self.0.fsync(by.pid(), data_only) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        match self.0.flush() {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}
