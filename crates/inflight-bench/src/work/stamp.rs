//! What a block carries, so that a read can be told to have delivered the right one.
//!
//! The last 16 bytes of each sector say which file and which offset it belongs to. The rest is
//! noise, which no device can compress. A sector that was torn, moved, forgotten or never written
//! does not pass.

/// Sectors are written whole by every device.
const SECTOR_BYTES: usize = 512;
const STAMP_BYTES: usize = 16;
/// Tells a stamp from noise and from zeros.
const TAG: u64 = 0x696e_666c_6967_6874;

/// Writes the stamps into a block that belongs at this offset of this file.
#[inline]
pub(crate) fn stamp(block: &mut [u8], file: u32, offset: u64) {
    let mut place = offset;
    for sector in block.chunks_exact_mut(SECTOR_BYTES) {
        let stamp = &mut sector[SECTOR_BYTES - STAMP_BYTES..];
        stamp.copy_from_slice(&told(file, place));
        place += SECTOR_BYTES as u64;
    }
}

/// Whether every sector of the block belongs where it was read.
#[inline]
pub(crate) fn is_right(block: &[u8], file: u32, offset: u64) -> bool {
    let mut place = offset;
    block.chunks_exact(SECTOR_BYTES).all(|sector| {
        let right = sector[SECTOR_BYTES - STAMP_BYTES..] == told(file, place);
        place += SECTOR_BYTES as u64;
        right
    })
}

#[inline]
fn told(file: u32, offset: u64) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&(TAG ^ u64::from(file)).to_le_bytes());
    stamp[8..].copy_from_slice(&offset.to_le_bytes());
    stamp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_passes_where_it_belongs_and_nowhere_else() {
        let mut block = vec![7; 4096];
        stamp(&mut block, 3, 8192);
        assert!(is_right(&block, 3, 8192));
        assert!(!is_right(&block, 2, 8192));
        assert!(!is_right(&block, 3, 4096));
        assert!(!is_right(&vec![0; 4096], 0, 0));
    }

    #[test]
    fn one_torn_sector_is_noticed() {
        let mut block = vec![7; 4096];
        stamp(&mut block, 0, 0);
        for sector in 0..8 {
            let mut torn = block.clone();
            torn[sector * 512..][..512].fill(7);
            assert!(!is_right(&torn, 0, 0), "sector {sector}");
        }
    }
}
