//! Whether a cache below this machine answers: blocks that nobody has read in this run are read
//! past the page cache, and then once more. The second reading of a disk is no faster.
//!
//! What was written just now may be in such a cache as a whole; then both readings are fast, and
//! nothing can be seen. A file that was there before, or one larger than the cache, shows it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use inflight_report::record::Reread;
use inflight_report::stats::{Word, signed_rank};
use oorandom::Rand64;

use crate::measure::clock::Clock;
use crate::strategy::arena::Arena;

const BLOCK_BYTES: u32 = 4096;
/// Blocks that are read before they are read again: more than a disk does at a time.
const GROUP: u64 = 8;
/// The first group wakes the disk and this thread, and does not count.
const GROUPS: u64 = 33;
/// A slow disk has time for fewer groups.
const PATIENCE: Duration = Duration::from_millis(600);
/// Faster by more than this is not the weather.
const CLEARLY: f64 = 1.25;

/// Reads some blocks twice, and says what that took; nothing where there are too few.
///
/// # Errors
/// Those of reading.
pub(crate) fn reread(
    profile: &str,
    file: &File,
    bytes: u64,
    seed: u64,
    clock: Clock,
) -> io::Result<Option<Reread>> {
    let segment = bytes / u64::from(BLOCK_BYTES) / (GROUP * GROUPS);
    if segment == 0 {
        return Ok(None);
    }
    let mut random = Rand64::new(u128::from(seed));
    let mut arena = Arena::new(1, BLOCK_BYTES).map_err(io::Error::other)?;
    let length = usize::try_from(BLOCK_BYTES).map_err(io::Error::other)?;
    let mut read = |block: &u64| -> io::Result<u64> {
        let begin_ns = clock.now_ns();
        file.read_exact_at(arena.block(0, length), block * u64::from(BLOCK_BYTES))?;
        Ok((clock.now_ns() - begin_ns).max(1))
    };
    let (begin, mut pairs_ns) = (Instant::now(), Vec::new());
    for group in 0..GROUPS {
        // One block of each segment, so that none is met twice; far from each other.
        let at = |place| (place * GROUPS + group) * segment;
        let blocks = (0..GROUP).map(|place| at(place) + random.rand_range(0..segment));
        let blocks: Vec<u64> = blocks.collect();
        let first: Vec<u64> = blocks.iter().map(&mut read).collect::<Result<_, _>>()?;
        let second: Vec<u64> = blocks.iter().map(&mut read).collect::<Result<_, _>>()?;
        if group > 0 {
            pairs_ns.extend(first.into_iter().zip(second));
        }
        if begin.elapsed() > PATIENCE {
            break;
        }
    }
    Ok(judge(profile, &pairs_ns))
}

/// What pairs of times say, first and second reading.
fn judge(profile: &str, pairs_ns: &[(u64, u64)]) -> Option<Reread> {
    let log = |(first, second): &(u64, u64)| (*first as f64 / *second as f64).ln();
    let logs: Vec<f64> = pairs_ns.iter().map(log).collect();
    let interval = signed_rank(&logs)?;
    let (mut first, mut second): (Vec<u64>, Vec<u64>) = pairs_ns.iter().copied().unzip();
    Some(Reread {
        profile: profile.to_owned(),
        blocks: u64::try_from(pairs_ns.len()).ok()?,
        ns_first: middle(&mut first)?,
        ns_second: middle(&mut second)?,
        ratio: interval.ratio,
        lo: interval.lo,
        hi: interval.hi,
        level: interval.level,
        cached: interval.word() == Word::ClearlyFaster && interval.lo > CLEARLY,
    })
}

fn middle(times_ns: &mut [u64]) -> Option<u64> {
    times_ns.sort_unstable();
    times_ns.get(times_ns.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::ground::empty_cache;
    use std::io::Write;

    #[test]
    fn a_cache_is_seen_where_there_is_one() {
        // The page cache stands for a cache below: this file is not opened for direct I/O.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 16 << 20]).unwrap();
        if let Err(why) = empty_cache(&file, 16 << 20, true) {
            println!("skipped: {why}");
            return;
        }
        let found = reread("test", &file, 16 << 20, 1, Clock::start()).unwrap();
        let found = found.unwrap();
        assert!(found.cached && found.ratio > CLEARLY, "{found:?}");
        assert!(found.ns_second < found.ns_first, "{found:?}");
    }

    #[test]
    fn equal_or_few_readings_are_no_cache() {
        let noisy = |second: fn(u64) -> u64| -> Vec<(u64, u64)> {
            let times = (0..64).map(|at| 80_000 + at * 7_919 % 20_000);
            times.map(|ns| (ns, second(ns))).collect()
        };
        let cached = |pairs: &[(u64, u64)]| judge("test", pairs).is_some_and(|found| found.cached);
        assert!(!cached(&noisy(|ns| 180_000 - ns)));
        assert!(!cached(&noisy(|ns| ns * 9 / 10)));
        assert!(cached(&noisy(|ns| ns / 2)));
        assert!(!cached(&noisy(|ns| ns / 2)[..4]), "four pairs show nothing");
        assert!(judge("test", &[]).is_none());
    }

    #[test]
    fn a_file_of_few_blocks_is_not_asked() {
        let file = tempfile::tempfile().unwrap();
        let found = reread("test", &file, 1 << 20, 1, Clock::start()).unwrap();
        assert!(found.is_none());
    }
}
