//! Numbers that look random, in about a nanosecond each.

/// Uniformly random numbers, from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// A number below `bound`, which is below 2^32: xorshift64, then Lemire's multiplication
    /// instead of a division ("Fast Random Integer Generation in an Interval", 2019).
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 32) * bound) >> 32
    }
}

/// Every number below a bound once, in an order that looks random, then again. Several lanes with
/// the same seed share the numbers out among them.
///
/// Counters are scrambled by steps that are each reversible within the next power of two, as in
/// the finishing steps of MurmurHash3 (Appleby); what falls outside the bound is passed over.
#[derive(Clone, Debug)]
pub(crate) struct Scattered {
    next: u64,
    lanes: u64,
    salt: u64,
    bound: u64,
    mask: u64,
    shift: u32,
}

impl Scattered {
    pub(crate) fn new(seed: u64, bound: u64, lane: u32, lanes: u32) -> Self {
        let mask = bound.next_power_of_two() - 1;
        Self {
            next: u64::from(lane),
            lanes: u64::from(lanes.max(1)),
            salt: mix(seed),
            bound,
            mask,
            shift: (mask.count_ones() / 2).max(1),
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        loop {
            let scrambled = self.scramble(self.next);
            self.next = self.next.wrapping_add(self.lanes);
            if scrambled < self.bound {
                return scrambled;
            }
        }
    }

    #[inline]
    fn scramble(&self, counter: u64) -> u64 {
        let mut x = (counter ^ self.salt) & self.mask;
        x = x.wrapping_mul(0xff51_afd7_ed55_8ccd) & self.mask;
        x ^= x >> self.shift;
        x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53) & self.mask;
        x ^= x >> self.shift;
        x = x.wrapping_add(self.salt >> 32) & self.mask;
        x ^ (x >> self.shift)
    }
}

/// Fills a block with words that neither compress nor repeat (xorshift64).
pub(crate) fn noise(block: &mut [u8], seed: u64) {
    let mut state = mix(seed);
    for word in block.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
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
    fn every_number_comes_once_also_where_the_bound_is_no_power_of_two() {
        for bound in [1, 2, 7, 64, 1000, 4097] {
            let mut scattered = Scattered::new(bound, bound, 0, 1);
            for _round in 0..2 {
                let mut seen: Vec<u64> = (0..bound).map(|_| scattered.next()).collect();
                if bound > 60 {
                    let falls = seen.windows(2).filter(|pair| pair[0] > pair[1]).count();
                    assert!(falls > seen.len() / 4, "{bound}: in order");
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..bound), "{bound}");
            }
        }
    }
}
