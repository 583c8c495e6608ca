//! The archive from which a kernel makes its first file system.
//!
//! # Source
//! Documentation/driver-api/early-userspace/buffer-format.rst of the kernel: the format `newc`.

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive on its way to `out`; folders come of the names of what is in them.
pub(super) struct Archive<W> {
    out: W,
    folders: BTreeSet<String>,
    /// The number of the last file.
    last: u32,
}

/// What the header says beside the name.
struct Entry<'a> {
    mode: u32,
    content: &'a [u8],
    device: (u32, u32),
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            folders: BTreeSet::new(),
            last: 0,
        }
    }

    /// An empty folder, and those it is in.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent)?;
        }
        self.folders.insert(path.to_owned());
        self.entry(path, &Entry::of(DIRECTORY, &[]))
    }

    /// A file that may be run.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = self.within(path)?;
        self.entry(path, &Entry::of(PROGRAM, content))
    }

    /// A device of characters with these numbers.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        let path = self.within(path)?;
        let entry = Entry {
            mode: CHARACTER_DEVICE,
            content: &[],
            device: (major, minor),
        };
        self.entry(path, &entry)
    }

    /// Ends the archive; without this the kernel takes it for one that was cut off.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", &Entry::of(0, &[]))?;
        self.out.flush()
    }

    /// The name as the archive has it, with its folder made.
    fn within<'a>(&mut self, path: &'a str) -> io::Result<&'a str> {
        let path = path.trim_start_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent)?;
        }
        Ok(path)
    }

    fn entry(&mut self, path: &str, entry: &Entry<'_>) -> io::Result<()> {
        self.last += 1;
        let len = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let (size, name) = (len(entry.content.len())?, len(path.len() + 1)?);
        let (major, minor) = entry.device;
        // Number, mode, user, group, links, time, size, device, what it stands for, name, sum.
        let fields = [
            self.last, entry.mode, 0, 0, 1, 0, size, 0, 0, major, minor, name, 0,
        ];
        let mut header = "070701".to_owned();
        fields
            .iter()
            .for_each(|field| header.push_str(&format!("{field:08x}")));
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(entry.content)
    }

    /// Headers and contents begin at multiples of four bytes.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        let rest = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.write_all(&[0; 3][..rest])
    }
}

impl<'a> Entry<'a> {
    fn of(mode: u32, content: &'a [u8]) -> Self {
        Self {
            mode,
            content,
            device: (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_everything_is_aligned() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("/a/b/c", b"12345").unwrap();
        archive.file("a/b/d", b"").unwrap();
        archive.device("dev/console", 5, 1).unwrap();
        archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);

        let text = String::from_utf8(bytes).unwrap();
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        let name = |at: &usize| text[at + 110..].split('\0').next().unwrap().to_owned();
        let names: Vec<String> = starts.iter().map(name).collect();
        let wanted = [
            "a",
            "a/b",
            "a/b/c",
            "a/b/d",
            "dev",
            "dev/console",
            "TRAILER!!!",
        ];
        assert_eq!(names, wanted);
        assert_eq!(&text[starts[2] + 54..][..8], "00000005", "its size");
        assert_eq!(
            &text[starts[5] + 78..][..16],
            "0000000500000001",
            "its numbers"
        );
    }
}
