//! Memory of one block that can be cut to the length of a step, as a program has it that reads
//! ranges of different lengths.

use anyhow::Result;

use super::arena::Arena;
use super::tasks::Block;
use crate::work::Work;

/// The beginning of a block, aligned to a page.
pub(crate) struct Cut {
    arena: Arena,
    length: usize,
}

impl Cut {
    /// As long as the longest step.
    pub(crate) fn of(work: &Work) -> Result<Self> {
        Ok(Self {
            arena: Arena::of(work, 1)?,
            length: usize::try_from(work.block_bytes)?,
        })
    }
}

impl Block for Cut {
    fn cut(&mut self, bytes: usize) {
        self.length = bytes;
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.arena.block(0, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::load;

    #[test]
    fn a_block_is_as_long_as_the_step() {
        let profile = load(&["cold-range-read".to_owned()]).unwrap().remove(0);
        let mut cut = Cut::of(&profile.work(1 << 30)).unwrap();
        assert_eq!(cut.bytes().len(), 262_144);
        cut.cut(8192);
        assert_eq!(cut.bytes().len(), 8192);
    }
}
