//! Which operations are looked at, where looking at all of them would cost too much.

/// One operation in so many.
pub(crate) const SAMPLE_EVERY: u32 = 16;

/// Counts operations. Those that are looked at are not equally far apart: of a program that uses
/// its files by turns, the same one would be looked at for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples {
    /// Of the last operation.
    number: u32,
    /// Of the next one that is looked at.
    next: u32,
}

impl Samples {
    pub(crate) const fn new() -> Self {
        Self {
            number: u32::MAX,
            next: SAMPLE_EVERY - 1,
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

    /// One of the next sixteen, at a place that their number is mixed to (multiplications and a
    /// shift, as in hash functions).
    fn choose(&mut self) {
        let group = (self.number / SAMPLE_EVERY).wrapping_add(1);
        let mixed = group.wrapping_mul(0x9e37_79b9);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
        let place = mixed >> (u32::BITS - SAMPLE_EVERY.ilog2());
        self.next = group.wrapping_mul(SAMPLE_EVERY).wrapping_add(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_used_by_turns_are_all_looked_at() {
        let mut samples = Samples::new();
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
    fn they_go_on_when_the_numbers_begin_again() {
        let mut samples = Samples::new();
        samples.number = u32::MAX - 100;
        samples.next = u32::MAX - 90;
        let looked = (0..1600).filter(|_| samples.takes_next()).count();
        assert!((99..=101).contains(&looked), "{looked}");
    }
}
