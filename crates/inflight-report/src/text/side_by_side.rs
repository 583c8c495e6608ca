//! Profiles in batches, one row each: plain calls beside a ring with one entry and with several,
//! and why the row is as it is.
//!
//! The reasons are made of what was counted: requests of the device, system calls, and processor
//! time of kernel workers.

use super::grid;
use super::paint::{Paint, Screen};
use crate::figures::{calls_per_op, iops};
use crate::noun;
use crate::ranking::Ranking;
use crate::record::{Cell, DeviceWork, ProfileSummary, Sync};
use crate::strategy::{PREAD, URING};
use crate::units::{bytes, count, or_missing, percent};

/// A device that is asked for so many blocks at once was not asked for each.
const MERGED: f64 = 4.0;
/// Kernel workers that have this part of the processor time are worth a word.
const BUSY_WORKERS: f64 = 0.1;

/// Draws the table, if there are profiles in batches with plain calls to compare.
pub(super) fn draw(screen: &mut Screen, rankings: &[Ranking<'_>]) {
    let batched = |ranking: &&Ranking<'_>| ranking.profile.batched && plain(ranking).is_some();
    let rankings: Vec<_> = rankings.iter().filter(batched).collect();
    if rankings.len() < 2 {
        return;
    }
    let mut depths: Vec<u32> = Vec::new();
    let rings = |ranking: &Ranking<'_>| {
        let rings = ranking.cells.iter().filter(|cell| cell.strategy == URING);
        rings.map(|cell| cell.depth).collect::<Vec<_>>()
    };
    depths.extend(rankings.iter().flat_map(|ranking| rings(ranking)));
    depths.sort_unstable();
    depths.dedup();
    let titles: Vec<String> = depths.iter().map(|depth| ring_title(*depth)).collect();
    let mut columns: Vec<grid::Column<'_>> = vec![("  profile", false), ("plain calls/s", true)];
    columns.extend(titles.iter().map(|title| (title.as_str(), true)));
    columns.push(("calls per operation", true));
    let row = |ranking: &&Ranking<'_>| (row(ranking, &depths), Paint::Plain);
    let rows: Vec<_> = rankings.iter().map(row).collect();
    screen.blank();
    screen.prose("Plain calls and io_uring side by side", 1, Paint::Bold);
    grid::draw(screen, &columns, &rows);
    for ranking in rankings {
        screen.statement(&short(ranking.profile), &reasons(ranking), Paint::Plain);
    }
}

fn ring_title(depth: u32) -> String {
    match depth {
        1 => "ring, 1 entry/s".to_owned(),
        _ => format!("ring, batches of {depth}/s"),
    }
}

fn plain<'a>(ranking: &Ranking<'a>) -> Option<&'a Cell> {
    let mut cells = ranking.cells.iter().copied();
    cells.find(|cell| cell.strategy == PREAD && iops(cell).is_some())
}

fn ring<'a>(ranking: &Ranking<'a>, depth: u32) -> Option<&'a Cell> {
    let mut cells = ranking.cells.iter().copied();
    cells.find(|cell| cell.strategy == URING && cell.depth == depth)
}

fn row(ranking: &Ranking<'_>, depths: &[u32]) -> Vec<String> {
    let cells: Vec<Option<&Cell>> = [plain(ranking)]
        .into_iter()
        .chain(depths.iter().map(|depth| ring(ranking, *depth)))
        .collect();
    let rate = |cell: &Option<&Cell>| or_missing(cell.and_then(iops), count);
    let calls = |cell: &Option<&Cell>| {
        or_missing(cell.and_then(calls_per_op), |calls| format!("{calls:.2}"))
    };
    let mut row = vec![format!("  {}", ranking.profile.name)];
    row.extend(cells.iter().map(rate));
    row.push(cells.iter().map(calls).collect::<Vec<_>>().join(" / "));
    row
}

/// A label: the last words of the name.
fn short(profile: &ProfileSummary) -> String {
    let words: Vec<&str> = profile.name.split('-').collect();
    let last = words.len().saturating_sub(2);
    words[last..].join(" ")
}

/// Why the row is as it is.
fn reasons(ranking: &Ranking<'_>) -> String {
    let mut said = vec![format!("{}:", ranking.profile.name)];
    let work = plain(ranking).and_then(device_work);
    said.extend(work.map(|work| merging(ranking.profile, &work)));
    let rings = ranking.cells.iter().filter(|cell| cell.strategy == URING);
    let busiest = rings.filter_map(|cell| workers(cell));
    let busiest = busiest.max_by(f64::total_cmp);
    said.extend(busiest.filter(|share| *share > BUSY_WORKERS).map(|share| {
        format!(
            "Kernel workers had up to {} of the ring's processor time: it hands these on instead \
             of doing them.",
            percent(share)
        )
    }));
    said.join(" ")
}

/// What the device was asked for, beside what the program asked for.
fn merging(profile: &ProfileSummary, work: &DeviceWork) -> String {
    let block = f64::from(profile.block_size_bytes);
    let noun = noun::of(profile).one;
    let (requests, all_bytes) = match profile.access.writes() {
        true => (work.writes, work.written_bytes),
        false => (work.reads, work.read_bytes),
    };
    if requests == 0 {
        return "The device was not asked for anything: all of it was the page cache.".to_owned();
    }
    let each = all_bytes as f64 / requests as f64;
    let size = bytes(each);
    match (profile.access.writes(), each >= block * MERGED) {
        (false, true) => format!(
            "The kernel reads ahead: the device was asked for {size} at a time, so that how a \
             {noun} is asked for hardly matters."
        ),
        (false, false) => format!(
            "Each {noun} is a request of its own ({size}): one at a time, the device waits for the \
             program; in batches it has several to work on."
        ),
        (true, merged) => {
            let sync = match profile.sync {
                Sync::End => ", most of it at the sync",
                Sync::None | Sync::Each => "",
            };
            let order = if merged { "merged into" } else { "as" };
            format!("Writes end in the page cache; the device took them {order} {size}{sync}.")
        }
    }
}

fn device_work(cell: &Cell) -> Option<DeviceWork> {
    let mut all = DeviceWork::default();
    for round in &cell.rounds {
        let work = round.device?;
        all.reads += work.reads;
        all.read_bytes += work.read_bytes;
        all.writes += work.writes;
        all.written_bytes += work.written_bytes;
    }
    Some(all)
}

/// The part of the processor time that kernel workers had.
fn workers(cell: &Cell) -> Option<f64> {
    let (mut workers, mut all) = (0, 0);
    for round in &cell.rounds {
        workers += round.worker_ns?;
        all += round.user_ns + round.sys_ns;
    }
    (all > 0).then(|| workers as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Access;

    fn told(access: Access, device_bytes: u64) -> String {
        let profile = ProfileSummary {
            name: "buffered-x-4k".to_owned(),
            block_size_bytes: 4096,
            access,
            sync: Sync::End,
            ..ProfileSummary::default()
        };
        let work = DeviceWork {
            reads: 10,
            read_bytes: device_bytes * 10,
            writes: 10,
            written_bytes: device_bytes * 10,
            flushes: None,
        };
        merging(&profile, &work)
    }

    #[test]
    fn reasons_follow_from_what_the_device_was_asked_for() {
        let ahead = told(Access::SequentialRead, 131_072);
        assert!(
            ahead.contains("reads ahead") && ahead.contains("128 KiB"),
            "{ahead}"
        );
        let alone = told(Access::RandomRead, 4096);
        assert!(alone.contains("request of its own (4.00 KiB)"), "{alone}");
        let merged = told(Access::SequentialWrite, 524_288);
        assert!(
            merged.contains("merged into 512 KiB, most of it at the sync"),
            "{merged}"
        );
        assert!(told(Access::RandomWrite, 4096).contains("as 4.00 KiB"));
        let nothing = merging(&ProfileSummary::default(), &DeviceWork::default());
        assert!(nothing.contains("not asked for anything"), "{nothing}");
    }
}
