//! Which operations are looked at, where looking at all of them would cost too much.

use crate::op::Road;

/// One operation in so many.
pub(crate) const SAMPLE_EVERY: u32 = 16;

/// Of reads that are taken to wait for the device, one in so many: to ask whether the page cache
/// has them is a call that is nearly always in vain.
pub(crate) const COLD_SAMPLE_EVERY: u32 = 64;

/// Counts operations. Those that are looked at are not equally far apart: of a program that uses
/// its files by turns, the same one would be looked at for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<const EVERY: u32 = SAMPLE_EVERY> {
    /// Of the last operation.
    number: u32,
    /// Of the next one that is looked at.
    next: u32,
}

impl<const EVERY: u32> Samples<EVERY> {
    pub(crate) const fn new() -> Self {
        Self {
            number: u32::MAX,
            next: EVERY - 1,
        }
    }

    /// Whether the next operation is looked at.
    #[inline(always)]
    pub(crate) fn takes_next(&mut self) -> bool {
        self.number = self.number.wrapping_add(1);
        let takes = self.number == self.next;
        if takes {
            self.choose();
        }
        takes
    }

    /// Passes the next operation, unless it is one that is looked at.
    #[inline(always)]
    fn passes_next(&mut self) -> bool {
        let passes = self.number.wrapping_add(1) != self.next;
        if passes {
            self.number = self.number.wrapping_add(1);
        }
        passes
    }

    /// One of the next `EVERY`, at a place that their number is mixed to (multiplications and a
    /// shift, as in hash functions).
    fn choose(&mut self) {
        let group = (self.number / EVERY).wrapping_add(1);
        let mixed = group.wrapping_mul(0x9e37_79b9);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
        let place = mixed >> (u32::BITS - EVERY.ilog2());
        self.next = group.wrapping_mul(EVERY).wrapping_add(place);
    }
}

impl Samples<COLD_SAMPLE_EVERY> {
    /// Passes an operation for which nothing has to be asked or tried before the backend has it.
    #[inline(always)]
    pub(crate) fn lets_past(&mut self, road: Road) -> bool {
        match road {
            Road::Backend | Road::Device => true,
            Road::Cold => self.passes_next(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_used_by_turns_are_all_looked_at() {
        let mut samples = Samples::<SAMPLE_EVERY>::new();
        let looked: Vec<bool> = (0..1 << 16).map(|_| samples.takes_next()).collect();
        assert_eq!(looked.iter().filter(|is_looked| **is_looked).count(), 4096);
        for files in 1..=64 {
            for file in 0..files {
                let of_file = looked.iter().skip(file).step_by(files).take(16 * 32);
                let count = of_file.filter(|is_looked| **is_looked).count();
                assert!(count >= 8, "file {file} of {files}: {count}");
            }
        }
    }

    #[test]
    fn what_passes_is_what_is_not_taken() {
        let mut samples = Samples::<COLD_SAMPLE_EVERY>::new();
        let mut passed = 0;
        for _ in 0..64 << 10 {
            match samples.passes_next() {
                true => passed += 1,
                false => assert!(samples.takes_next()),
            }
        }
        assert_eq!(passed, 63 << 10);
    }

    #[test]
    fn they_go_on_when_the_numbers_begin_again() {
        let mut samples = Samples::<SAMPLE_EVERY>::new();
        samples.number = u32::MAX - 100;
        samples.next = u32::MAX - 90;
        let looked = (0..1600).filter(|_| samples.takes_next()).count();
        assert!((99..=101).contains(&looked), "{looked}");
    }
}
