//! The figures of one cell that are shown: medians over rounds, and costs per operation.
//!
//! A figure that is not known is `None`, never zero. How sure a difference is, is in
//! [`crate::stats`]; how a figure is written, in `units`.

use crate::histogram;
use crate::record::{Cell, Latency, ProfileSummary, Round};
use crate::stats::{median, rate};
use crate::strategy::NULL;

/// Median over rounds of operations per second; `None` if no round completed anything.
#[must_use]
pub fn iops(cell: &Cell) -> Option<f64> {
    median(cell.rounds.iter().filter_map(rate).collect())
}

/// The same of the rounds in which all cells ran: what they are first put in order by.
#[must_use]
pub fn screened_iops(cell: &Cell) -> Option<f64> {
    let rounds = cell.rounds.iter().filter(|round| !round.confirms);
    median(rounds.filter_map(rate).collect())
}

/// Rounds in which all cells ran, of those that completed something.
#[must_use]
pub fn screening_rounds(cell: &Cell) -> usize {
    let rounds = cell.rounds.iter().filter(|round| !round.confirms);
    rounds.filter_map(rate).count()
}

/// Rounds of all cells that one has run, also those in which it completed nothing.
#[must_use]
pub fn rounds_run(cell: &Cell) -> usize {
    let rounds = cell.rounds.iter();
    rounds.filter(|round| !round.confirms).count()
}

/// Median over rounds of MiB per second.
#[must_use]
pub fn mib_per_second(cell: &Cell) -> Option<f64> {
    let of_round =
        |round: &Round| Some(rate(round)? * round.bytes as f64 / round.ops as f64 / 1_048_576.0);
    median(cell.rounds.iter().filter_map(of_round).collect())
}

/// User and system time of the whole process per operation, in nanoseconds.
///
/// `None` when no processor time was counted at all: then another process did the work.
#[must_use]
pub fn cpu_ns_per_op(cell: &Cell) -> Option<f64> {
    let spent = sum(cell, |round| round.user_ns.saturating_add(round.sys_ns));
    (spent > 0.0).then_some(())?;
    per_op(cell, spent)
}

/// System calls per operation; `None` if any round does not know them.
#[must_use]
pub fn calls_per_op(cell: &Cell) -> Option<f64> {
    let known = cell.rounds.iter().all(|round| round.syscalls.is_some());
    known.then_some(())?;
    per_op(cell, sum(cell, |round| round.syscalls.unwrap_or(0)))
}

/// Bytes that the device served, over bytes that were delivered: 1 when all came from the disk.
///
/// A little above 1 is normal, because of readahead. `None` if a round does not tell.
#[must_use]
pub fn device_share(cell: &Cell) -> Option<f64> {
    let known = cell.rounds.iter().all(|round| round.device_bytes.is_some());
    let bytes = sum(cell, |round| round.bytes);
    (known && bytes > 0.0).then(|| sum(cell, |round| round.device_bytes.unwrap_or(0)) / bytes)
}

/// Bytes that the device took, over bytes that were handed over. What other programs wrote is among
/// them, and what the file system writes about files. `None` if a round does not tell.
#[must_use]
pub fn written_share(cell: &Cell) -> Option<f64> {
    let known = cell.rounds.iter().all(|round| round.device.is_some());
    let written = sum(cell, |round| {
        round.device.map_or(0, |device| device.written_bytes)
    });
    let bytes = sum(cell, |round| round.bytes);
    (known && bytes > 0.0).then(|| written / bytes)
}

/// The share of its bytes that the device served, took, or both: what a profile is about. What does
/// no I/O has none.
#[must_use]
pub fn disk_share(cell: &Cell, profile: &ProfileSummary) -> Option<f64> {
    let (read, written) = (device_share(cell), written_share(cell));
    let share = match (profile.access.reads(), profile.access.writes()) {
        (true, true) => read.zip(written).map(|(read, written)| read + written),
        (true, false) => read,
        (false, _) => written,
    };
    share.filter(|_| cell.strategy != NULL)
}

/// Operations that delivered other bytes than were written, over all rounds.
#[must_use]
pub fn wrong(cell: &Cell) -> u64 {
    let rounds = cell.rounds.iter();
    rounds.fold(0, |all: u64, round| all.saturating_add(round.wrong))
}

/// Rounds that completed something and have a rate.
#[must_use]
pub fn full_rounds(cell: &Cell) -> usize {
    cell.rounds.iter().filter_map(rate).count()
}

/// Rounds that completed nothing and have no rate.
#[must_use]
pub fn empty_rounds(cell: &Cell) -> usize {
    cell.rounds.len() - full_rounds(cell)
}

/// Failed operations, and short ones, as counts over all rounds.
#[must_use]
pub fn failures(cell: &Cell) -> (u64, u64) {
    let add = |(errors, short): (u64, u64), round: &Round| {
        (
            errors.saturating_add(round.errors),
            short.saturating_add(round.short),
        )
    };
    cell.rounds.iter().fold((0, 0), add)
}

/// What went wrong over all rounds, in one clause; nothing where all was done to the full.
pub(crate) fn told_failures(cell: &Cell) -> Option<String> {
    let (errors, short) = failures(cell);
    if (errors, short) == (0, 0) {
        return None;
    }
    let errno = cell.rounds.iter().rev().find_map(|round| round.errno);
    let why = errno.map_or_else(String::new, |errno| {
        format!(" ({})", std::io::Error::from_raw_os_error(errno))
    });
    Some(format!("{errors} failed{why} and {short} were short"))
}

/// Operations completed over all rounds.
#[must_use]
pub fn ops(cell: &Cell) -> u64 {
    cell.rounds
        .iter()
        .fold(0, |all: u64, round| all.saturating_add(round.ops))
}

/// A percentile of latency in nanoseconds, for a quantile from 0 to 1.
///
/// `None` where fewer than ten samples lie beyond it: p99.9 takes 10,000 samples and p99.99 takes
/// 100,000. `None` also where the record does not tell it and the histogram cannot be read.
#[must_use]
pub fn percentile(latency: &Latency, quantile: f64) -> Option<u64> {
    // Not every quantile is a binary number: 10,000 samples have 9.99.. beyond 0.999.
    let beyond = latency.samples as f64 * (1.0 - quantile) + 1e-6;
    (beyond >= 10.0).then_some(())?;
    // The histogram that is kept is coarser than the one these were taken from.
    let told = [
        (0.5, Some(latency.ns_p50)),
        (0.99, latency.ns_p99),
        (0.999, latency.ns_p999),
    ];
    let told = told.into_iter().find(|(told, _)| *told == quantile);
    if let Some((_, Some(ns))) = told {
        return Some(ns);
    }
    let histogram = histogram::decode(&latency.hist_v2_b64).ok()?;
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile))
}

fn per_op(cell: &Cell, total: f64) -> Option<f64> {
    let ops = ops(cell);
    (ops > 0).then(|| total / ops as f64)
}

/// Sums in floating point: a record from elsewhere may hold anything, and must not overflow.
fn sum(cell: &Cell, field: impl Fn(&Round) -> u64) -> f64 {
    cell.rounds.iter().map(|round| field(round) as f64).sum()
}
