//! Files that the ring knows in advance, for the length of one call.
//!
//! A fixed file saves taking and giving back a reference for each operation (io_uring_register(2),
//! `IORING_REGISTER_FILES`). The ring holds the file open meanwhile, so it is let go when the call
//! ends: closing a file must close it. Kernels before 6.5 let it go up to a second later.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, Submitter};

use super::register::Table;

/// Files that one ring knows at a time.
const PLACES: u32 = 8;

/// What clears places (io_uring_register(2), `IORING_REGISTER_FILES_UPDATE`).
const NOTHING: [RawFd; 8] = [-1; 8];

/// The table of fixed files of one ring.
#[derive(Default)]
pub(crate) struct Files {
    /// Whether files are to be made known.
    wanted: bool,
    table: Table,
    /// The descriptor at each place in use.
    known: Vec<RawFd>,
    /// The last refusal that nobody has been told of.
    refusal: Option<String>,
}

impl Files {
    /// Makes the files of the operations that follow known.
    pub(crate) fn fix(&mut self) {
        self.wanted = self.table != Table::Refused;
    }

    /// Whether there may be something to let go.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted || !self.known.is_empty()
    }

    /// The place of a file, if it is to be known and there is one.
    #[inline(always)]
    pub(super) fn place(&mut self, ring: &IoUring, fd: RawFd) -> Option<RawFd> {
        if !self.wanted {
            return None;
        }
        self.find(ring, fd)
    }

    #[inline(always)]
    fn find(&mut self, ring: &IoUring, fd: RawFd) -> Option<RawFd> {
        match (0..).zip(&self.known).find(|(_, known)| **known == fd) {
            Some((place, _)) => Some(place),
            None => self.add(ring, fd),
        }
    }

    #[cold]
    fn add(&mut self, ring: &IoUring, fd: RawFd) -> Option<RawFd> {
        if self.table == Table::None {
            self.table = match ring.submitter().register_files_sparse(PLACES) {
                Ok(()) => Table::Made,
                Err(cause) => {
                    self.refuse(&cause);
                    Table::Refused
                }
            };
        }
        let place = u32::try_from(self.known.len()).expect("at most PLACES");
        if self.table == Table::Refused || place == PLACES {
            return None;
        }
        match ring.submitter().register_files_update(place, &[fd]) {
            Ok(_) => {
                self.known.push(fd);
                i32::try_from(place).ok()
            }
            Err(cause) => {
                self.refuse(&cause);
                // Not worth another try in this call; descriptors work as well.
                self.wanted = false;
                None
            }
        }
    }

    #[cold]
    fn refuse(&mut self, cause: &io::Error) {
        self.refusal = Some(format!(
            "files are not known to the ring in advance: {cause}"
        ));
    }

    /// Whether there is something for [`Files::take_refusal`].
    #[inline]
    pub(super) fn has_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// The last refusal since this was last asked, in one sentence.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Lets all files go. Nothing is in flight.
    #[cold]
    pub(super) fn release(&mut self, ring: &Submitter<'_>) {
        self.wanted = false;
        if ring
            .register_files_update(0, &NOTHING[..self.known.len()])
            .is_err()
        {
            // Without the table the files are let go for sure.
            let _ = ring.unregister_files();
            self.table = Table::None;
        }
        self.known.clear();
    }
}
