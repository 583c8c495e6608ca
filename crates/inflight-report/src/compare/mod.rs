//! Two records of the same plan: what became faster or slower from one to the other.
//!
//! Separate runs share no rounds, so the intervals are unpaired ([`crate::stats::rank_sum`]), and
//! whatever else changed between the runs is in them. Many rows are compared at once, so that some
//! look slower by chance alone: a regression has to be one among all of them
//! ([`crate::stats::among_all`]). Limits that a record has to keep are in
//! [`limit`]; how a comparison looks is in [`crate::text`] and [`crate::markdown`].

pub mod limit;
mod plan;

use crate::figures::full_rounds;
use crate::open;
use crate::ranking::Ranking;
use crate::record::{Cell, Device, Record};
use crate::stats::{FALSE_ALARM, Interval, LEVEL, Word, among_all};
use crate::stats::{chance_of_slower, least_chance, rank_sum, rate};
use crate::strategy::{self, is_judged};

/// An old record against a new one.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// What is compared with.
    pub old: &'a Record,
    /// What is judged.
    pub new: &'a Record,
    /// Why the records should not be compared at all.
    pub mismatches: Vec<String>,
    /// What else differs, and may explain a change.
    pub changes: Vec<String>,
    /// Cells measured in both, in the order of the new record.
    pub rows: Vec<Row<'a>>,
    /// Cells that only one of the two measured, with what there is to say about it.
    pub left_out: Vec<(&'a Cell, String)>,
}

/// One cell, in both records.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The cell in the old record.
    pub old: &'a Cell,
    /// The same cell in the new record.
    pub new: &'a Cell,
    /// The new rate over the old one: of this row alone.
    pub interval: Interval,
    /// The chance of a row as much slower as this one, or more, among all that are compared, if
    /// none was beyond the zone of no difference.
    pub chance: f64,
}

impl Row<'_> {
    /// The change of the rate: -0.05 for 5 % slower.
    #[must_use]
    pub fn change(&self) -> f64 {
        self.interval.ratio - 1.0
    }

    /// Whether it is this program that a change of the cell tells of.
    ///
    /// What does no I/O, and another program, are never regressions of this one.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        is_judged(&self.new.strategy)
    }

    /// Whether the cell is clearly slower, by at least this share, and among all rows too.
    #[must_use]
    pub fn regressed(&self, threshold: f64) -> bool {
        self.looks_slower(threshold) && self.chance <= FALSE_ALARM
    }

    /// Whether the cell would be a regression if it was the only one, and may be chance among all.
    #[must_use]
    pub fn may_be_chance(&self, threshold: f64) -> bool {
        self.looks_slower(threshold) && self.chance > FALSE_ALARM
    }

    fn looks_slower(&self, threshold: f64) -> bool {
        let slower = self.interval.word() == Word::ClearlySlower;
        self.is_judged() && slower && self.change() <= -threshold
    }
}

/// How many rounds in each of two runs can show a regression among so many rows, at least.
#[must_use]
pub fn rounds_to_show(rows: usize) -> usize {
    (1..=MOST_NEEDED)
        .find(|rounds| can_show((*rounds, *rounds), rows))
        .unwrap_or(MOST_NEEDED)
}

/// With so many rounds in each run, more rows than any record has can be compared.
const MOST_NEEDED: usize = 30;

/// Whether so many rounds against so many others can show a regression among so many rows: the
/// row by itself, and among all.
fn can_show((old, new): (usize, usize), rows: usize) -> bool {
    let least = least_chance(old, new);
    least * 2.0 <= 1.0 - LEVEL && least * rows as f64 <= FALSE_ALARM
}

impl<'a> Comparison<'a> {
    /// Compares every cell that both records measured.
    #[must_use]
    pub fn new(old: &'a Record, new: &'a Record) -> Self {
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        let (before, after) = (counted(old), counted(new));
        for (cell, why) in &after {
            let twin = before.iter().find(|(other, _)| other.id == cell.id);
            match (twin, why) {
                (_, Some(why)) => left_out.push((*cell, format!("does not count: {why}"))),
                (Some((_, Some(why))), None) => {
                    left_out.push((*cell, format!("did not count before: {why}")));
                }
                (Some((old, None)), None) => match change(old, cell) {
                    Some((interval, chance)) => rows.push(Row {
                        old,
                        new: cell,
                        interval,
                        chance,
                    }),
                    None => left_out.push((*cell, "has no complete round in one run".to_owned())),
                },
                (None, None) => left_out.push((*cell, "is only in the new record".to_owned())),
            }
        }
        for (cell, _) in &before {
            if !after.iter().any(|(other, _)| other.id == cell.id) {
                left_out.push((*cell, "is only in the old record".to_owned()));
            }
        }
        for cell in new.cells.iter().filter(|cell| open::is_open(cell)) {
            let why =
                "has a rate that was given, not found: hold its latencies to a limit (--assert)";
            left_out.push((cell, why.to_owned()));
        }
        count_among_all(&mut rows);
        Self {
            old,
            new,
            mismatches: mismatches(old, new),
            changes: changes(old, new),
            rows,
            left_out,
        }
    }

    /// How many rows are compared with the question whether one became slower.
    #[must_use]
    pub fn judged(&self) -> usize {
        self.rows.iter().filter(|row| row.is_judged()).count()
    }

    /// How many of them have too few rounds to show a regression among all, however slow they are.
    #[must_use]
    pub fn too_few(&self) -> usize {
        let rows = self.judged();
        let judged = self.rows.iter().filter(|row| row.is_judged());
        let rounds = |row: &Row<'_>| (full_rounds(row.old), full_rounds(row.new));
        let too_few = judged.filter(|row| !can_show(rounds(row), rows));
        too_few.count()
    }

    /// The cells that are slower by at least this share.
    pub fn regressions(&self, threshold: f64) -> impl Iterator<Item = &Row<'a>> {
        self.rows.iter().filter(move |row| row.regressed(threshold))
    }

    /// Cells in which not a line of the library ran, and whose rate changed clearly all the same:
    /// then the machine or the disk did.
    #[must_use]
    pub fn weather(&self) -> Vec<&Row<'a>> {
        let plain = |row: &&Row<'_>| {
            let changed = [Word::ClearlyFaster, Word::ClearlySlower];
            row.new.strategy == strategy::PREAD && changed.contains(&row.interval.word())
        };
        self.rows.iter().filter(plain).collect()
    }
}

/// Every cell of a record, with the reason for which it does not count.
fn counted(record: &Record) -> Vec<(&Cell, Option<String>)> {
    let of_profile = |profile| {
        let ranking = Ranking::new(record, profile);
        let why = |cell: &Cell| {
            let skipped = cell.skipped.as_ref().map(|skipped| &skipped.reason);
            let out = ranking.out.iter().find(|(out, _)| out.id == cell.id);
            skipped.or(out.map(|(_, why)| why)).cloned()
        };
        let cells = ranking.cells.iter();
        cells.map(|cell| (*cell, why(cell))).collect::<Vec<_>>()
    };
    record.profiles.iter().flat_map(of_profile).collect()
}

/// Turns the chance of each row that is judged into that among all of them.
fn count_among_all(rows: &mut [Row<'_>]) {
    let judged = rows.iter().filter(|row| row.is_judged());
    let alone: Vec<f64> = judged.map(|row| row.chance).collect();
    let judged = rows.iter_mut().filter(|row| row.is_judged());
    for (row, chance) in judged.zip(among_all(&alone)) {
        row.chance = chance;
    }
}

/// The change of the rate, and the chance of one as low if there was none. By the rounds of all
/// cells alone: fresh ones come later, one after the other, and each run has as many of them, and
/// of those cells, as it needed.
fn change(old: &Cell, new: &Cell) -> Option<(Interval, f64)> {
    let logs = |cell: &Cell| -> Vec<f64> {
        let of_all = cell.rounds.iter().filter(|round| !round.confirms);
        let rates = of_all.filter_map(rate);
        rates.map(f64::ln).collect()
    };
    let (old, new) = (logs(old), logs(new));
    Some((rank_sum(&new, &old)?, chance_of_slower(&new, &old)))
}

/// What makes a comparison one of apples with oranges.
fn mismatches(old: &Record, new: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, old: String, new: String| {
        if old != new {
            found.push(format!("{what}: {old}, now {new}"));
        }
    };
    let bytes = |record: &Record| crate::units::bytes(record.target.size_bytes as f64);
    differ("size of the test data", bytes(old), bytes(new));
    differ("file system", old.target.fs.clone(), new.target.fs.clone());
    differ("device", device(old), device(new));
    differ("processor", processor(old), processor(new));
    found.extend(plan::differences(old, new));
    found
}

fn device(record: &Record) -> String {
    let name = |device: &Device| match &device.model {
        Some(model) => format!("{} ({})", device.name, model.trim()),
        None => device.name.clone(),
    };
    let device = record.target.stack.first().map(name);
    device.unwrap_or_else(|| "none".to_owned())
}

fn processor(record: &Record) -> String {
    let model = record.machine.cpu_model.as_deref().unwrap_or("unknown");
    format!("{} x {model}", record.machine.cpus)
}

/// What may explain a change, and is shown without standing in the way.
fn changes(old: &Record, new: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, old: Option<&str>, new: Option<&str>| {
        if old != new {
            let [old, new] = [old, new].map(|text| text.unwrap_or("unknown"));
            found.push(format!("{what} {old}, now {new}"));
        }
    };
    let both = [old, new];
    let mut text = |what: &str, of: fn(&Record) -> Option<&str>| {
        let [old, new] = both.map(of);
        differ(what, old, new);
    };
    text("kernel", |record| Some(&record.machine.kernel));
    text("inflight", |record| Some(&record.tool.version));
    text("backend", |record| Some(&record.tool.backend));
    text("governor", |record| record.machine.governor.as_deref());
    text("clock", |record| record.machine.clocksource.as_deref());
    text("mount options", |record| {
        record.target.mount_options.as_deref()
    });
    text("scheduler", |record| {
        record.target.stack.first()?.scheduler.as_deref()
    });
    for (which, record) in [("old", old), ("new", new)] {
        if record.interrupted {
            found.push(format!("the {which} run was interrupted"));
        }
    }
    found
}
