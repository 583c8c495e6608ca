//! Why plain calls and a ring did in one profile as they did, as far as counts say it: requests of
//! the device, system calls, and processor time, also of kernel workers.
//!
//! Nothing is said that the same row of the table may contradict: each sentence is chosen by the
//! ratios and counts of its own profile.

use crate::figures::{calls_per_op, cpu_ns_per_op};
use crate::noun;
use crate::ranking::Ranking;
use crate::record::{Cell, DeviceWork, Sync};
use crate::stats::{Word, compare, word};
use crate::units::{bytes, nanos, percent, ratio};

/// A device that is asked for so many blocks at once was not asked for each.
const MERGED: f64 = 4.0;
/// A device that is asked for no more blocks at once than this was asked for each.
const SINGLE: f64 = 1.5;
/// Kernel workers that have this part of the processor time are worth a word.
const BUSY_WORKERS: f64 = 0.1;
/// A cost that differs by this factor is a reason for a difference.
const DEARER: f64 = 1.1;

/// What the counts of a profile say, by its plain calls and those of its rings that count.
pub(super) fn reasons(ranking: &Ranking<'_>, plain: &Cell, rings: &[&Cell]) -> String {
    let requests = Requests::of(plain, ranking.profile.access.writes());
    let mut said: Vec<String> = Vec::new();
    said.extend(requests.as_ref().map(|found| found.said(ranking)));
    let outcomes = [
        (Word::ClearlyFaster, "Faster than plain calls"),
        (Word::ClearlySlower, "Slower than plain calls"),
        (
            Word::NoRealDifference,
            "No real difference from plain calls",
        ),
        (Word::CannotTellYet, "Not told apart from plain calls yet"),
    ];
    for (outcome, beginning) in outcomes {
        let is_so = |ring: &&Cell| word(ring, plain) == outcome;
        let those: Vec<&Cell> = rings.iter().copied().filter(is_so).collect();
        if those.is_empty() {
            continue;
        }
        let one = |ring: &&Cell| match compare(ring, plain) {
            Some(found) => format!("{} ({})", asked(ring.depth), ratio(found.ratio)),
            None => asked(ring.depth),
        };
        let list: Vec<String> = those.iter().map(one).collect();
        let why = match outcome {
            Word::ClearlyFaster => gained(ranking, plain, &those, requests.as_ref()),
            Word::ClearlySlower => lost(ranking, plain, &those),
            Word::NoRealDifference | Word::CannotTellYet => None,
        };
        let why = why.map_or_else(String::new, |why| format!("; {why}"));
        said.push(format!("{beginning}: {}{why}.", list.join(", ")));
    }
    said.join(" ")
}

fn asked(depth: u32) -> String {
    match depth {
        1 => "with one entry".to_owned(),
        _ => format!("in batches of {depth}"),
    }
}

/// What a ring that is faster has more of, or less.
fn gained(
    ranking: &Ranking<'_>,
    plain: &Cell,
    rings: &[&Cell],
    requests: Option<&Requests>,
) -> Option<String> {
    let batches: Vec<&Cell> = rings.iter().copied().filter(|one| one.depth > 1).collect();
    let reads = ranking.profile.access.reads();
    if reads && !batches.is_empty() && requests.is_some_and(Requests::are_single) {
        return Some("the device has the whole batch to work on".to_owned());
    }
    let fewest = batches.iter().filter_map(|ring| calls_per_op(ring));
    let fewest = fewest.min_by(f64::total_cmp)?;
    let calls = calls_per_op(plain).filter(|calls| *calls > fewest * DEARER)?;
    let noun = noun::of(ranking.profile).one;
    Some(format!(
        "a {noun} takes down to {fewest:.2} system calls instead of {calls:.2}"
    ))
}

/// What a ring that is slower has to pay.
fn lost(ranking: &Ranking<'_>, plain: &Cell, rings: &[&Cell]) -> Option<String> {
    let most = |figure: fn(&Cell) -> Option<f64>| {
        let figures = rings.iter().filter_map(|ring| figure(ring));
        figures.max_by(f64::total_cmp)
    };
    if let Some(share) = most(workers).filter(|share| *share > BUSY_WORKERS) {
        return Some(format!(
            "kernel workers had up to {} of the ring's processor time: it hands these on instead \
             of doing them",
            percent(share)
        ));
    }
    let (ours, theirs) = (most(cpu_ns_per_op)?, cpu_ns_per_op(plain)?);
    let noun = noun::of(ranking.profile).one;
    (ours > theirs * DEARER).then(|| {
        format!(
            "a {noun} takes up to {} of processor time instead of {}",
            nanos(ours),
            nanos(theirs)
        )
    })
}

/// What the device was asked for, beside what the program asked for.
struct Requests {
    count: u64,
    /// Bytes of one, on the average.
    bytes: f64,
    /// Operations in each.
    operations: f64,
}

impl Requests {
    /// Those of plain calls, which nobody batches; `None` where the device did not count them.
    fn of(plain: &Cell, writes: bool) -> Option<Self> {
        let mut work = DeviceWork::default();
        let (mut ops, mut done) = (0, 0);
        for round in &plain.rounds {
            let device = round.device?;
            work.reads += device.reads;
            work.read_bytes += device.read_bytes;
            work.writes += device.writes;
            work.written_bytes += device.written_bytes;
            ops += round.ops;
            done += round.bytes;
        }
        let (count, all) = match writes {
            true => (work.writes, work.written_bytes),
            false => (work.reads, work.read_bytes),
        };
        let bytes = all as f64 / count.max(1) as f64;
        let operations = bytes * ops as f64 / done.max(1) as f64;
        Some(Self {
            count,
            bytes,
            operations,
        })
    }

    fn are_single(&self) -> bool {
        self.count > 0 && self.operations <= SINGLE
    }

    fn said(&self, ranking: &Ranking<'_>) -> String {
        let size = bytes(self.bytes);
        let noun = noun::of(ranking.profile).one;
        if self.count == 0 {
            return "The device was not asked for anything: all of it was the page cache."
                .to_owned();
        }
        if ranking.profile.access.writes() {
            let when = match ranking.profile.sync {
                Sync::End => ", the sync at the end included",
                Sync::None | Sync::Each => "",
            };
            let how = if self.operations >= MERGED {
                "merged into"
            } else {
                "as"
            };
            return format!(
                "Writes end in the page cache; the device took them {how} {size}{when}."
            );
        }
        match self.operations {
            merged if merged >= MERGED => {
                format!("The kernel reads ahead: the device was asked for {size} at a time.")
            }
            _ if self.are_single() => format!("Each {noun} is a request of its own ({size})."),
            _ => format!("The device was asked for {size} at a time."),
        }
    }
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
