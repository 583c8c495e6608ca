//! Where the next block is read: the same rule for every strategy.

/// Uniformly random, block-aligned offsets of a file, from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    state: u64,
    blocks: u64,
    block_bytes: u64,
}

impl Offsets {
    /// Offsets of whole blocks inside `size_bytes`, which holds at least one.
    pub(crate) fn new(seed: u64, size_bytes: u64, block_bytes: u32) -> Self {
        let block_bytes = u64::from(block_bytes);
        // 32 random bits are spread over the blocks below.
        let blocks = (size_bytes / block_bytes).clamp(1, u64::from(u32::MAX));
        Self {
            state: mix(seed),
            blocks,
            block_bytes,
        }
    }

    /// The next offset, in about a nanosecond: xorshift64, then Lemire's multiplication instead of
    /// a division ("Fast Random Integer Generation in an Interval", 2019).
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (((self.state >> 32) * self.blocks) >> 32) * self.block_bytes
    }
}

/// Spreads a seed over all bits, never zero (splitmix64): near seeds give unrelated sequences.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_aligned_inside_and_spread() {
        let mut offsets = Offsets::new(7, 64 * 4096 + 100, 4096);
        let mut seen = [0u32; 64];
        for _ in 0..64_000 {
            let offset = offsets.next();
            assert_eq!(offset % 4096, 0);
            seen[usize::try_from(offset / 4096).unwrap()] += 1;
        }
        assert!(
            seen.iter().all(|count| (700..1300).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn a_seed_gives_its_own_sequence() {
        let take = |seed| {
            let mut offsets = Offsets::new(seed, 1 << 30, 4096);
            (0..8).map(|_| offsets.next()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }
}
