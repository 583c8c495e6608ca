//! What a range of a file must contain, given what was written there and what may have been.
//!
//! A range belongs to one task, which has one operation on it at a time. A write whose future was
//! dropped has happened, happens or never will: a *doubt*. Until it is over, its bytes may change
//! at any moment and are not written again; from then on they are old or new, and the first read
//! of all of them decides which.

use std::ops::Range;
use std::sync::{OnceLock, Weak};

/// Bytes of the table that everything written is a part of. Where a part begins is its identity:
/// two parts that begin elsewhere differ everywhere.
const TABLE: usize = 1 << 20;

/// A part of the table, which is what writes write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    from: usize,
    len: usize,
}

impl Pattern {
    pub(crate) fn new(random: usize, len: usize) -> Self {
        let from = random % (TABLE - len);
        Self { from, len }
    }

    pub(crate) fn bytes(self) -> &'static [u8] {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        let table = BYTES.get_or_init(|| {
            let words = (0_u64..).flat_map(|word| {
                let mixed = (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed ^ (mixed >> 29)).to_le_bytes()
            });
            words.take(TABLE).collect()
        });
        &table[self.from..self.from + self.len]
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    content: Vec<u8>,
    doubts: Vec<Doubt>,
}

#[derive(Clone, Debug)]
struct Doubt {
    range: Range<usize>,
    /// As long as the range; what would be there if the write happens.
    bytes: Vec<u8>,
    /// The buffers of the write have the claim itself.
    claim: Weak<()>,
}

impl Doubt {
    /// Whether the write has happened or never will.
    fn is_over(&self) -> bool {
        self.claim.strong_count() == 0
    }

    fn part(&self, range: Range<usize>) -> Self {
        let from = range.start - self.range.start;
        Self {
            bytes: self.bytes[from..from + range.len()].to_vec(),
            range,
            claim: Weak::clone(&self.claim),
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Region {
    pub(crate) fn new(content: &[u8]) -> Self {
        Self {
            content: content.to_vec(),
            doubts: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.content.len()
    }

    /// Whether no write that was dropped can still change these bytes.
    pub(crate) fn is_calm(&self, range: &Range<usize>) -> bool {
        let mut near = self.doubts.iter().filter(|d| overlap(&d.range, range));
        near.all(Doubt::is_over)
    }

    /// Checks what was read. `was_calm` is what [`Region::is_calm`] said before the read began: a
    /// write may have happened after the read and be over by now.
    ///
    /// # Errors
    ///
    /// Says where it differs from everything that it may be.
    pub(crate) fn check(&mut self, from: usize, got: &[u8], was_calm: bool) -> Result<(), String> {
        let range = from..from + got.len();
        let near = |doubt: &&Doubt| overlap(&doubt.range, &range);
        if self.doubts.iter().find(near).is_none() {
            if got == &self.content[range.clone()] {
                return Ok(());
            }
            return Err(self.difference(from, got));
        }
        for (at, byte) in range.clone().zip(got) {
            let mut doubts = self.doubts.iter().filter(|d| d.range.contains(&at));
            let is_known = self.content[at] == *byte;
            if !is_known && !doubts.any(|d| d.bytes[at - d.range.start] == *byte) {
                return Err(self.difference(from, got));
            }
        }
        if was_calm {
            self.know(range, got);
        }
        Ok(())
    }

    fn difference(&self, from: usize, got: &[u8]) -> String {
        let expected = &self.content[from..from + got.len()];
        let differs = |(got, expected): (&u8, &u8)| got != expected;
        let first = got.iter().zip(expected).position(differs).unwrap_or(0);
        let end = got.len().min(first + 8);
        format!(
            "a mismatch {first} bytes into a read of {} bytes at {from} of its region: {:02x?}, \
             expected {:02x?} or one of {} writes in doubt",
            got.len(),
            &got[first..end],
            &expected[first..end],
            self.doubts.len(),
        )
    }

    /// These bytes are there for sure.
    pub(crate) fn know(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.content[range.clone()].copy_from_slice(bytes);
        if self
            .doubts
            .iter()
            .any(|doubt| overlap(&doubt.range, &range))
        {
            let doubts = std::mem::take(&mut self.doubts);
            for doubt in doubts {
                if !overlap(&doubt.range, &range) {
                    self.doubts.push(doubt);
                    continue;
                }
                if doubt.range.start < range.start {
                    let left = doubt.part(doubt.range.start..range.start);
                    self.doubts.push(left);
                }
                if range.end < doubt.range.end {
                    let right = doubt.part(range.end..doubt.range.end);
                    self.doubts.push(right);
                }
            }
        }
    }

    /// These bytes may be there. The claim is gone when the write is over.
    pub(crate) fn doubt(&mut self, from: usize, bytes: &[u8], claim: Weak<()>) {
        self.doubts.push(Doubt {
            range: from..from + bytes.len(),
            bytes: bytes.to_vec(),
            claim,
        });
    }
}

#[test]
fn a_read_that_is_neither_old_nor_new_is_refused() {
    let (old, new) = (Pattern::new(1, 64), Pattern::new(1000, 32));
    let mut region = Region::new(old.bytes());
    let claim = std::sync::Arc::new(());
    region.doubt(16, new.bytes(), std::sync::Arc::downgrade(&claim));
    let mut mixed = old.bytes().to_vec();
    region.check(0, &mixed, false).unwrap();
    assert!(!region.is_calm(&(0..20)) && region.is_calm(&(0..16)));
    mixed[16..24].copy_from_slice(&new.bytes()[..8]);
    region.check(0, &mixed, false).unwrap();
    let wrong = [&mixed[..30], &[mixed[30] ^ 1], &mixed[31..]].concat();
    assert!(region.check(0, &wrong, false).is_err());
    drop(claim);
    assert!(region.is_calm(&(0..64)));
    region.check(0, &mixed, true).unwrap();
    // From here on it is known which of the two it is.
    assert!(region.check(0, old.bytes(), true).is_err());
    region.check(0, &mixed, true).unwrap();
}
