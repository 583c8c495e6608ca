//! Whether a thread that may have several operations in flight makes a write itself that waits.
//!
//! Some writes are best made by a plain call: those that make a direct file grow, of which the
//! kernel makes one at a time, and those to the page cache where the last ones have waited. But
//! the thread that makes one neither sees what else completes meanwhile nor begins anything, and
//! of several files such writes run side by side. What threads of the pool cost is less than that
//! (`docs/design/roads.md`).

use std::os::fd::RawFd;

/// After so many in a row to one file the thread makes them again, if nothing else is in flight: a
/// log that goes on in its next file is not written to two.
const SAME: u32 = 4;

/// The last writes of a thread that wait.
pub(crate) struct HeldUp {
    /// The file of the last one.
    file: Option<RawFd>,
    /// So many have been to that one, in a row.
    row: u32,
}

impl HeldUp {
    pub(crate) const fn new() -> Self {
        Self { file: None, row: 0 }
    }

    /// Whether the next one, to this file, is for the pool. `has_others`: something else is in
    /// flight that is not there.
    pub(crate) fn by(&mut self, file: Option<RawFd>, has_others: bool) -> bool {
        self.row = match self.file {
            // Of the first one nothing is known.
            None => SAME,
            before if before == file => self.row.saturating_add(1),
            _ => 0,
        };
        self.file = file;
        has_others || self.row < SAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_by_the_pool(writes: &[(RawFd, bool)]) -> Vec<bool> {
        let mut held_up = HeldUp::new();
        let by = |&(file, has_others): &(RawFd, bool)| held_up.by(Some(file), has_others);
        writes.iter().map(by).collect()
    }

    #[test]
    fn a_thread_makes_those_of_one_file_while_nothing_else_is_in_flight() {
        let writes = [(3, false), (3, false), (3, true), (3, false), (3, true)];
        assert_eq!(made_by_the_pool(&writes), [false, false, true, false, true]);
    }

    #[test]
    fn those_of_several_files_are_for_the_pool() {
        let writes = [(3, false), (4, false), (3, false), (3, false), (4, false)];
        assert_eq!(made_by_the_pool(&writes), [false, true, true, true, true]);
    }

    #[test]
    fn a_file_that_has_taken_the_place_of_another_is_soon_the_only_one() {
        let writes = [3, 3, 4, 4, 4, 4, 4, 4].map(|file| (file, false));
        let expected = [false, false, true, true, true, true, false, false];
        assert_eq!(made_by_the_pool(&writes), expected);
    }
}
