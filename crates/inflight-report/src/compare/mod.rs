//! Two records of the same plan: what became faster or slower from one to the other.
//!
//! Separate runs share no rounds, so the intervals are unpaired ([`crate::stats::rank_sum`]), and
//! whatever else changed between the runs is in them. Limits that a record has to keep are in
//! [`limit`]; how a comparison looks is in [`crate::text`] and [`crate::markdown`].

pub mod limit;
mod plan;

use crate::open;
use crate::ranking::Ranking;
use crate::record::{Cell, Device, Record};
use crate::stats::{Interval, Word, rank_sum, rate};
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
    /// The new rate over the old one.
    pub interval: Interval,
}

impl Row<'_> {
    /// The change of the rate: -0.05 for 5 % slower.
    #[must_use]
    pub fn change(&self) -> f64 {
        self.interval.ratio - 1.0
    }

    /// Whether the cell is clearly slower, and by at least this share.
    ///
    /// What does no I/O, and another program, are never regressions of this one.
    #[must_use]
    pub fn regressed(&self, threshold: f64) -> bool {
        let judged = is_judged(&self.new.strategy);
        let slower = self.interval.word() == Word::ClearlySlower;
        judged && slower && self.change() <= -threshold
    }
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
                    Some(interval) => rows.push(Row {
                        old,
                        new: cell,
                        interval,
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
            let why = "has a rate that was given, not found: hold its latencies to a limit";
            left_out.push((cell, why.to_owned()));
        }
        Self {
            old,
            new,
            mismatches: mismatches(old, new),
            changes: changes(old, new),
            rows,
            left_out,
        }
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

fn change(old: &Cell, new: &Cell) -> Option<Interval> {
    let logs = |cell: &Cell| -> Vec<f64> {
        let rates = cell.rounds.iter().filter_map(rate);
        rates.map(f64::ln).collect()
    };
    rank_sum(&logs(new), &logs(old))
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
