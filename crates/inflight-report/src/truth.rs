//! Whether a cell measured what its profile asked for: the share of bytes the device served.
//!
//! A cached, sparse or tmpfs file answers from memory and passes for a very fast disk; the
//! device share tells it from one. Caches below this system (of a hypervisor, a controller)
//! are invisible to it. A profile that says nothing of the page cache is not judged by its share.
//! Where reads are mixed with writes, the device's reads are held against the bytes that were read.

use std::ops::RangeInclusive;

use crate::figures::{device_share, failures, ops, told_failures, written_share, wrong};
use crate::record::{Access, Cell, ProfileSummary, Sync, Target};
use crate::strategy;
use crate::units::counted;

/// A direct profile below this share was not served by the disk.
const LEAST_DIRECT: f64 = 0.9;

/// A cached profile above this share was not served by the cache.
const MOST_CACHED: f64 = 0.1;

/// A cold profile below this share was served by the cache it was to be without.
const LEAST_COLD: f64 = 0.8;

/// Of a profile with half of its blocks in memory the disk serves a half; more where the kernel
/// reads ahead, less where some are read again.
const HALF: RangeInclusive<f64> = 0.4..=0.7;

/// Of what was written and synced, the device took at least this share: blocks that were written
/// twice before the sync went to it once.
const LEAST_WRITTEN: f64 = 0.5;

/// More failed or short operations than this share, and the rate means something else.
const MOST_FAILED: f64 = 0.001;

/// With fewer operations than so many times those at the edges of rounds, a tenth of the bytes may
/// be missing for this alone.
const FEW: u64 = 10;

/// File systems that have no device below them.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];

/// Says whether the target is memory and not a disk.
#[must_use]
pub fn in_memory(target: &Target) -> bool {
    IN_MEMORY.contains(&target.fs.as_str())
}

/// What a sync is worth where it does nothing, where a profile asks for one; the figures are those
/// of the calls all the same.
pub(crate) fn not_durable(profile: &ProfileSummary, target: &Target) -> Option<String> {
    (profile.sync != Sync::None && in_memory(target)).then(|| {
        format!(
            "nothing here is durable: {} is memory, and a sync does nothing",
            target.fs
        )
    })
}

/// Why a cell has no place in the ranking of its profile, as a sentence; `None` if it has one.
///
/// `null` does no I/O and is exempt; it is never ranked anyway. A cell that does not know its
/// device bytes is not judged by them.
#[must_use]
pub fn out_of_ranking(cell: &Cell, profile: &ProfileSummary, target: &Target) -> Option<String> {
    if cell.strategy == strategy::NULL {
        return None;
    }
    failed(cell)
        .or_else(|| is_memory(profile, target))
        .or_else(|| unfit_share(cell, profile))
}

/// Why the share of the device does not fit a profile, as far as that can be told.
fn unfit_share(cell: &Cell, profile: &ProfileSummary) -> Option<String> {
    let why = not_read(cell, profile).or_else(|| not_written(written_share(cell)?, profile))?;
    // What is in flight when a round begins or ends may be counted in it and served outside.
    let at_the_edges = u64::from(cell.depth).saturating_mul(cell.rounds.len() as u64);
    Some(match ops(cell) < at_the_edges.saturating_mul(FEW) {
        true => "too few operations to tell who served them: longer cells have more (--cell-time)"
            .to_owned(),
        false => why,
    })
}

fn is_memory(profile: &ProfileSummary, target: &Target) -> Option<String> {
    (profile.direct && in_memory(target)).then(|| {
        format!(
            "this is memory, not a disk: {} has no device below it",
            target.fs
        )
    })
}

fn operations(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "operation")
}

fn failed(cell: &Cell) -> Option<String> {
    let wrong = wrong(cell);
    if wrong > 0 {
        return Some(format!(
            "{} delivered other bytes than were written: nothing it did counts",
            operations(wrong)
        ));
    }
    let (errors, short) = failures(cell);
    let bad = errors.saturating_add(short);
    let tried = ops(cell).saturating_add(errors);
    let told = told_failures(cell).filter(|_| bad as f64 > tried as f64 * MOST_FAILED)?;
    Some(format!(
        "of {}, {told}: its rate means little",
        operations(tried)
    ))
}

/// Why what was read does not fit a profile.
fn not_read(cell: &Cell, profile: &ProfileSummary) -> Option<String> {
    // The sentences have no figure of their own cell, so that cells with one reason share a line.
    let share = device_share(cell)?;
    let (fewest, most) = reads(cell, profile);
    let least_direct = match (profile.access, profile.read_percent) {
        // Nobody knows how much was read: about a half, at least.
        (Access::Mixed, None) => LEAST_DIRECT / 2.0,
        _ => LEAST_DIRECT * fewest,
    };
    let bytes = match fewest < 1.0 {
        true => "the bytes that were read",
        false => "the bytes",
    };
    if !profile.access.reads() || most <= 0.0 {
        None
    } else if profile.direct && share < least_direct {
        Some(format!(
            "the disk served less than 90 % of {bytes}: the page cache, or unwritten or sparse \
             data, answered the rest"
        ))
    } else if profile.cold && share < LEAST_COLD * fewest {
        Some(format!(
            "the disk served less than 80 % of {bytes}: the page cache did not stay empty"
        ))
    } else if profile.half_cached && !HALF.contains(&share) {
        Some(format!(
            "the disk served {} of {bytes}: the page cache did not hold one block in two, or the \
             cell went on when all had been read",
            match share < *HALF.start() {
                true => "less than 40 %",
                false => "more than 70 %",
            }
        ))
    } else if profile.cached && share > MOST_CACHED * most {
        Some(format!(
            "the disk served more than 10 % of {bytes}: the data was not in the page cache"
        ))
    } else {
        None
    }
}

/// Which share of the bytes of a cell was read, at least and at most.
///
/// Of mixed operations each one reads or writes by chance, so that few of them are up to three
/// standard deviations off what was asked for.
fn reads(cell: &Cell, profile: &ProfileSummary) -> (f64, f64) {
    match (profile.access, profile.read_percent) {
        (Access::Mixed, Some(percent)) => {
            let share = f64::from(percent.min(100)) / 100.0;
            let off = 3.0 * (share * (1.0 - share) / ops(cell).max(1) as f64).sqrt();
            let most = if percent == 0 { 0.0 } else { share + off };
            (share - off, most)
        }
        _ => (1.0, 1.0),
    }
}

/// Why a share of what was written does not fit a profile.
fn not_written(share: f64, profile: &ProfileSummary) -> Option<String> {
    let reaches_device = profile.direct || profile.sync != Sync::None;
    let all_written = profile.access.writes() && !profile.access.reads();
    (reaches_device && all_written && share < LEAST_WRITTEN).then(|| {
        "the disk took less than half of the bytes: they did not get further than a cache"
            .to_owned()
    })
}
