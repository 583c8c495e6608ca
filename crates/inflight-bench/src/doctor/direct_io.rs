//! One real direct read, whether the device served it, and whether the file can be asked without
//! waiting.
//!
//! In a directory this needs a file: one without a name (O_TMPFILE), which is gone when it is
//! closed, however this process ends.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::{ReadWriteFlags, preadv2};

use super::explain::Topic;
use super::{Found, Site, Spoils};
use crate::measure::{host, storage};

const ID: &str = "direct-io";
const NOWAIT: &str = "nowait";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: ID,
        text: "One block was read with O_DIRECT, and /proc/self/io was asked whether a device \
            served it. Where direct I/O is refused, reads go through the page cache: there is a \
            copy for each, and no telling disk from memory. Where it is accepted but no device \
            served the block, something answers from memory: tmpfs, a file with a hole, or a \
            file system that quietly goes through the page cache. The alignment is what the file \
            system tells (statx, STATX_DIOALIGN): memory, offset and length of each direct \
            request have to be multiples of it.",
    },
    Topic {
        id: NOWAIT,
        text: "io_uring first asks a file to serve a request without waiting. A file that cannot \
            be asked so (RWF_NOWAIT answers EOPNOTSUPP: raw zram, tmpfs, some layered devices and \
            file systems) has each request done by a kernel worker, which costs many times as \
            much as a plain call. The library notices and uses plain calls there. In a benchmark \
            of such a file, rings look slow; it is the file.",
    },
];

/// At least so much is read: a page.
const BLOCK_BYTES: usize = 4096;

/// A file that is open for direct I/O.
struct Trial {
    file: File,
    /// Alignment of memory and of offsets in bytes, if the file system tells.
    told: Option<(u32, u32)>,
}

/// Two lines.
pub(super) fn check(site: &Site) -> Vec<Found> {
    match Trial::open(&site.path) {
        Ok(trial) => vec![trial.read(), trial.nowait()],
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let finding = format!("{} refuses direct I/O (O_DIRECT)", site.target.fs);
            vec![
                Found::warning(ID, finding)
                    .so("Every read goes through the page cache and is copied once more")
                    .fix("name a place on ext4 or XFS")
                    .spoils(Spoils::Direct),
            ]
        }
        Err(error) => {
            let why = format!("no file for a direct read here: {error}");
            let found = Found::unknown(ID, why);
            vec![match site.path.is_dir() {
                true => found.fix("inflight doctor FILE # name an existing file"),
                false => found,
            }]
        }
    }
}

impl Trial {
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true);
        if !path.is_dir() {
            // The time of the last access changes, unless it is asked not to, which only the
            // owner may (open(2), O_NOATIME).
            let quietly = libc::O_DIRECT | libc::O_NOATIME;
            let file = match options.clone().custom_flags(quietly).open(path) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    options.custom_flags(libc::O_DIRECT).open(path)?
                }
                other => other?,
            };
            return Ok(Self::of(file));
        }
        let flags = libc::O_DIRECT | libc::O_TMPFILE;
        let file = options.write(true).custom_flags(flags).open(path)?;
        let trial = Self::of(file);
        // Not zeros: some devices do not store those.
        let mut memory = trial.memory();
        let block = trial.block(&mut memory);
        block.fill(0xa5);
        (&trial.file).write_all(block)?;
        trial.file.sync_data()?;
        Ok(trial)
    }

    fn of(file: File) -> Self {
        let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let told = storage::direct_alignment(&itself);
        Self { file, told }
    }

    fn align(&self) -> usize {
        let (memory, offset) = self.told.unwrap_or_default();
        let told = usize::try_from(memory.max(offset)).expect("u32 fits into usize");
        told.max(BLOCK_BYTES)
    }

    /// Room for one block, wherever an aligned one begins in it.
    fn memory(&self) -> Vec<u8> {
        vec![0; self.align() * 2]
    }

    fn block<'a>(&self, memory: &'a mut [u8]) -> &'a mut [u8] {
        let start = memory.as_ptr().align_offset(self.align());
        &mut memory[start..start + self.align()]
    }

    fn read(&self) -> Found {
        let mut memory = self.memory();
        let block = self.block(&mut memory);
        let before = device_bytes();
        let read = match self.file.read_at(block, 0) {
            Ok(0) => return Found::unknown(ID, "the file is empty: there is nothing to read"),
            Ok(read) => read as u64,
            Err(error) => {
                return Found::warning(ID, format!("a direct read failed: {error}"))
                    .so("Direct I/O cannot be used here")
                    .spoils(Spoils::Direct);
            }
        };
        let align = match self.told {
            Some((memory, offset)) => {
                format!("memory aligned to {memory} bytes, offset and length to {offset}")
            }
            None => "alignment is not told: 4096 bytes are safe".to_owned(),
        };
        let (Some(before), Some(after)) = (before, device_bytes()) else {
            return Found::ok(ID, format!("direct reads work; {align}"));
        };
        let served = after.saturating_sub(before);
        if served >= read {
            let finding = format!("direct reads work, and the device serves them; {align}");
            return Found::ok(ID, finding);
        }
        let finding = format!("a direct read of {read} bytes took {served} bytes from a device");
        Found::warning(ID, finding)
            .so("Something answers from memory: what is measured here is no disk")
            .fix("name a place on a disk, and a file without holes")
            .spoils(Spoils::Direct)
    }

    fn nowait(&self) -> Found {
        let mut memory = self.memory();
        let mut blocks = [IoSliceMut::new(self.block(&mut memory))];
        match preadv2(&self.file, &mut blocks, 0, ReadWriteFlags::NOWAIT) {
            // What would have to wait has been asked, too.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Found::ok(
                NOWAIT,
                "direct reads can be asked for without waiting (RWF_NOWAIT)",
            ),
            Err(error) => Found::warning(NOWAIT, format!("the file refuses RWF_NOWAIT ({error})"))
                .so("Every request of a ring goes to a kernel worker; plain calls are faster")
                .spoils(Spoils::Rings),
        }
    }
}

/// What devices have served this process so far, in bytes; absent where nobody counts.
fn device_bytes() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/self/io").ok()?;
    host::field(&counters, "read_bytes:")?.parse().ok()
}
