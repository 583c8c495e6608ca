//! Limits that figures have to keep, as `p99<200us` or `strategy=inflight,depth=32:iops>=50k`.
//!
//! A figure that is not known does not keep its limit: what cannot be shown must not pass. Nor
//! does a cell that was measured and does not count, unless what is asked is what tells so: its
//! errors, and the share of the disk.
//!
//! The limit of a regret is for the library: its bad end has to keep it, as that is how far behind
//! it may be, and a `?` of the tables is not known here either. Without a strategy it is for the
//! blocking calls, as the verdict has it.

use crate::figures::{calls_per_op, cpu_ns_per_op, disk_share, failures, iops};
use crate::figures::{mib_per_second, percentile, wrong};
use crate::open;
use crate::ranking::Ranking;
use crate::record::{Cell, Record};
use crate::regret::{blocking_and_others, of_cell, of_profile};
use crate::strategy::{is_blocking, is_judged};
use crate::units::{count, nanos, percent, signed_percent};

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// As it was written.
    pub text: String,
    selectors: Vec<(Key, String)>,
    metric: Metric,
    relation: Relation,
    value: f64,
}

/// What a limit says about one cell.
#[derive(Clone, Debug)]
pub struct Checked<'a> {
    /// The cell.
    pub cell: &'a Cell,
    /// The figure as people read it, or why it is not known.
    pub figure: String,
    /// Whether the limit is kept.
    pub kept: bool,
}

/// What a limit says about a record.
#[derive(Clone, Debug, Default)]
pub struct Held<'a> {
    /// The cells that are held to it.
    pub checked: Vec<Checked<'a>>,
    /// The cells that have no round and that nobody named, with the reason: they have nothing to
    /// be held to a limit.
    pub left_out: Vec<(&'a Cell, String)>,
}

impl Held<'_> {
    /// Whether every cell keeps the limit.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.checked.iter().all(|checked| checked.kept)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    Profile,
    Strategy,
    Depth,
    Threads,
    Rate,
}

const KEYS: [(&str, Key); 5] = [
    ("profile", Key::Profile),
    ("strategy", Key::Strategy),
    ("depth", Key::Depth),
    ("threads", Key::Threads),
    ("rate", Key::Rate),
];

impl Key {
    fn name(self) -> &'static str {
        let mut keys = KEYS.iter();
        let found = keys.find(|(_, key)| *key == self);
        found.map_or("", |(name, _)| name)
    }

    /// What a cell has for it, as selectors have it.
    fn of(self, cell: &Cell) -> Option<String> {
        match self {
            Self::Profile => Some(cell.profile.clone()),
            Self::Strategy => Some(cell.strategy.clone()),
            Self::Depth => Some(cell.depth.to_string()),
            Self::Threads => Some(cell.threads.to_string()),
            Self::Rate => cell.rate_per_s.map(|rate| rate.to_string()),
        }
    }

    /// The same way of writing for all that mean the same: `2k` is the rate 2000, as in the flag
    /// of the command.
    fn read(self, value: &str) -> String {
        let number = || {
            let lower = value.to_ascii_lowercase();
            let (digits, scale) = match lower.strip_suffix('k') {
                Some(digits) => (digits, 1_000),
                None => (lower.strip_suffix('m')?, 1_000_000),
            };
            digits.parse::<u64>().ok()?.checked_mul(scale)
        };
        match self {
            Self::Rate => number().map_or_else(|| value.to_owned(), |rate| rate.to_string()),
            Self::Profile | Self::Strategy | Self::Depth | Self::Threads => value.to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Below,
    AtMost,
    Above,
    AtLeast,
}

/// Longer ones first, so that `<=` is not read as `<`.
const RELATIONS: [(&str, Relation); 4] = [
    ("<=", Relation::AtMost),
    (">=", Relation::AtLeast),
    ("<", Relation::Below),
    (">", Relation::Above),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    /// A percentile of latency, as a quantile.
    Latency(f64),
    Max,
    Iops,
    Bandwidth,
    Cpu,
    Calls,
    Disk,
    Regret,
    Errors,
}

const METRICS: [(&str, Metric); 13] = [
    ("p50", Metric::Latency(0.5)),
    ("p90", Metric::Latency(0.9)),
    ("p99", Metric::Latency(0.99)),
    ("p99.9", Metric::Latency(0.999)),
    ("p99.99", Metric::Latency(0.9999)),
    ("max", Metric::Max),
    ("iops", Metric::Iops),
    ("bandwidth", Metric::Bandwidth),
    ("cpu", Metric::Cpu),
    ("calls", Metric::Calls),
    ("disk", Metric::Disk),
    ("regret", Metric::Regret),
    ("errors", Metric::Errors),
];

/// More of anything than a run can show, in the units of the record: of nanoseconds, eleven days.
const MOST: f64 = 1e15;

type Units = &'static [(&'static str, f64)];

const TIMES: Units = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
];
const RATES: Units = &[("", 1.0), ("k", 1e3), ("M", 1e6)];
const BANDWIDTHS: Units = &[("KiB/s", 1.0 / 1024.0), ("MiB/s", 1.0), ("GiB/s", 1024.0)];
const SHARES: Units = &[("%", 0.01)];
const COUNTS: Units = &[("", 1.0)];

impl Metric {
    fn units(self) -> Units {
        match self {
            Self::Latency(_) | Self::Max | Self::Cpu => TIMES,
            Self::Iops => RATES,
            Self::Bandwidth => BANDWIDTHS,
            Self::Disk | Self::Regret => SHARES,
            Self::Calls | Self::Errors => COUNTS,
        }
    }

    /// Whether it means something also of a cell that does not count: it is what tells so.
    fn is_of_every_cell(self) -> bool {
        match self {
            Self::Errors | Self::Disk => true,
            Self::Latency(_) | Self::Max | Self::Iops => false,
            Self::Bandwidth | Self::Cpu | Self::Calls | Self::Regret => false,
        }
    }

    fn of(self, cell: &Cell, ranking: &Ranking<'_>) -> Option<f64> {
        match self {
            Self::Latency(quantile) => {
                percentile(cell.latency.as_ref()?, quantile).map(|ns| ns as f64)
            }
            Self::Max => cell.latency.as_ref().map(|latency| latency.ns_max as f64),
            Self::Iops => iops(cell),
            Self::Bandwidth => mib_per_second(cell),
            Self::Cpu => cpu_ns_per_op(cell),
            Self::Calls => calls_per_op(cell),
            Self::Disk => disk_share(cell, ranking.profile),
            Self::Regret => of_cell(ranking, cell).map(|regret| regret.hi - 1.0),
            Self::Errors => {
                let (errors, short) = failures(cell);
                let failed = errors.saturating_add(short);
                Some(failed.saturating_add(wrong(cell)) as f64)
            }
        }
    }

    /// The figure that none is below: only a regret can be, where the library is ahead.
    fn least(self) -> f64 {
        match self {
            Self::Regret => -1.0,
            Self::Latency(_) | Self::Max | Self::Cpu | Self::Iops => 0.0,
            Self::Bandwidth | Self::Disk | Self::Calls | Self::Errors => 0.0,
        }
    }

    /// Refuses a limit that every figure keeps, or none: it would pass whatever was measured, or
    /// fail, and says nothing of it.
    fn check_limit(self, relation: Relation, value: f64) -> Result<f64, String> {
        let least = self.least();
        let is_end = matches!(relation, Relation::Below | Relation::AtLeast);
        let beyond = if value < least || (is_end && value <= least) {
            format!("below {}", self.write(least))
        } else if value > MOST {
            format!("above {}", self.write(MOST))
        } else {
            return Ok(value);
        };
        Err(format!(
            "no such figure is {beyond}, so that it is kept always or never; name a value that \
             can be kept and missed"
        ))
    }

    fn write(self, figure: f64) -> String {
        match self {
            Self::Latency(_) | Self::Max | Self::Cpu => nanos(figure),
            Self::Iops => count(figure),
            Self::Bandwidth => format!("{figure:.1} MiB/s"),
            Self::Disk => percent(figure),
            Self::Regret => signed_percent(figure),
            Self::Calls => format!("{figure:.2}"),
            Self::Errors => format!("{figure:.0}"),
        }
    }
}

impl Limit {
    /// Reads `[KEY=VALUE[,KEY=VALUE..]:]METRIC<VALUE`, with `<=`, `>` and `>=` as well.
    ///
    /// # Errors
    /// A sentence that says what is wrong, and what is known in its place.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (selectors, rest) = match text.split_once(':') {
            Some((selectors, rest)) => (parse_selectors(selectors)?, rest),
            None => (Vec::new(), text),
        };
        let found = RELATIONS
            .iter()
            .filter_map(|(sign, relation)| Some((rest.find(sign)?, *sign, *relation)))
            .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())));
        let Some((at, sign, relation)) = found else {
            return Err(format!(
                "`{text}` has none of <, <=, >, >=; write it as `p99<200us`"
            ));
        };
        let name = rest[..at].trim();
        let metric = METRICS.iter().find(|(known, _)| *known == name);
        let Some((_, metric)) = metric else {
            let known: Vec<&str> = METRICS.iter().map(|(known, _)| *known).collect();
            let known = known.join(", ");
            return Err(format!(
                "`{text}`: `{name}` is not known; known are {known}"
            ));
        };
        let value = parse_value(rest[at + sign.len()..].trim(), metric.units());
        let value = value.and_then(|value| metric.check_limit(relation, value));
        Ok(Self {
            text: text.to_owned(),
            selectors,
            metric: *metric,
            relation,
            value: value.map_err(|why| format!("`{text}`: {why}"))?,
        })
    }

    /// Checks every cell that is selected; without selectors, every one that has a round.
    ///
    /// # Errors
    /// A sentence if no measured cell is selected: a limit that is misspelt must not pass.
    pub fn check<'a>(&self, record: &'a Record) -> Result<Held<'a>, String> {
        let mut held = Held::default();
        for profile in &record.profiles {
            let ranking = Ranking::new(record, profile);
            let judged = |cell: &&Cell| is_judged(&cell.strategy);
            let open_loop = open::cells(record, profile);
            let all = ranking.cells.iter().chain(&open_loop).copied();
            let asked = all.filter(judged).filter(|cell| self.selects(cell));
            let concerns = self.concerns(&ranking);
            for cell in asked.filter(|cell| concerns(cell)) {
                let out = open::out(record, profile, cell);
                if !cell.rounds.is_empty() {
                    held.checked.push(match out {
                        Some(why) if !self.metric.is_of_every_cell() => does_not_count(cell, &why),
                        _ => self.check_cell(cell, &ranking),
                    });
                    continue;
                }
                let why = out.unwrap_or_else(|| "no round was completed".to_owned());
                // Whoever names no strategy does not ask for what could not be measured.
                let is_named = self.selectors.iter().any(|(key, _)| *key == Key::Strategy);
                match is_named {
                    false => held.left_out.push((cell, why)),
                    true => held.checked.push(does_not_count(cell, &why)),
                }
            }
        }
        if held.checked.is_empty() {
            let why = self.unknown(record).unwrap_or_default();
            return Err(format!("`{}` selects no measured cell{why}", self.text));
        }
        Ok(held)
    }

    /// The first selector of a value that no cell has, and the values that there are.
    fn unknown(&self, record: &Record) -> Option<String> {
        self.selectors.iter().find_map(|(key, asked)| {
            let judged = record.cells.iter().filter(|cell| is_judged(&cell.strategy));
            let mut known: Vec<String> = Vec::new();
            for value in judged.filter_map(|cell| key.of(cell)) {
                if !known.contains(&value) {
                    known.push(value);
                }
            }
            let name = key.name();
            match known.is_empty() {
                _ if known.contains(asked) => None,
                true => Some(format!(": no row has a {name}")),
                false => Some(format!(
                    ": no row has the {name} `{asked}`; known are {}",
                    known.join(", ")
                )),
            }
        })
    }

    /// Which cells it is for where no strategy is named: a regret is for the library's blocking
    /// calls, of which the better ones stand for all at each depth.
    fn concerns(&self, ranking: &Ranking<'_>) -> impl Fn(&Cell) -> bool {
        let is_named = |(key, _): &(Key, String)| *key == Key::Strategy;
        let is_for_all = self.metric != Metric::Regret || self.selectors.iter().any(is_named);
        let all = match is_for_all {
            true => Vec::new(),
            false => of_profile(ranking),
        };
        let (_, others) = blocking_and_others(&all);
        let others: Vec<String> = others.iter().map(|other| other.cell.clone()).collect();
        move |cell| is_for_all || is_blocking(&cell.strategy) && !others.contains(&cell.id)
    }

    fn check_cell<'a>(&self, cell: &'a Cell, ranking: &Ranking<'_>) -> Checked<'a> {
        let timed = matches!(self.metric, Metric::Latency(_) | Metric::Max);
        if timed && open::kept(cell).is_some_and(|kept| kept.is_saturated()) {
            return Checked {
                cell,
                figure: "without end: the rate was not kept".to_owned(),
                kept: false,
            };
        }
        if self.metric == Metric::Regret
            && of_cell(ranking, cell).is_some_and(|regret| !regret.is_known())
        {
            return Checked {
                cell,
                figure: "not known: the rounds scatter too much to tell".to_owned(),
                kept: false,
            };
        }
        let Some(figure) = self.metric.of(cell, ranking) else {
            let samples = cell.latency.as_ref().map_or(0, |latency| latency.samples);
            let figure = match self.metric {
                Metric::Latency(_) => format!("not known from {samples} samples"),
                Metric::Regret => "not known: it is how far the library is behind another \
                    strategy, in rounds enough to tell"
                    .to_owned(),
                _ => "not known".to_owned(),
            };
            let kept = false;
            return Checked { cell, figure, kept };
        };
        let kept = match self.relation {
            Relation::Below => figure < self.value,
            Relation::AtMost => figure <= self.value,
            Relation::Above => figure > self.value,
            Relation::AtLeast => figure >= self.value,
        };
        let figure = self.metric.write(figure);
        Checked { cell, figure, kept }
    }

    fn selects(&self, cell: &Cell) -> bool {
        let mut selectors = self.selectors.iter();
        selectors.all(|(key, value)| key.of(cell).is_some_and(|own| own == *value))
    }
}

fn does_not_count<'a>(cell: &'a Cell, why: &str) -> Checked<'a> {
    Checked {
        cell,
        figure: format!("does not count: {why}"),
        kept: false,
    }
}

fn parse_selectors(text: &str) -> Result<Vec<(Key, String)>, String> {
    let one = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let key = KEYS.iter().find(|(known, _)| *known == name.trim());
        match key {
            Some((_, key)) if !value.trim().is_empty() => Ok((*key, key.read(value.trim()))),
            _ => Err(format!(
                "`{part}` selects nothing; write it as `strategy=inflight`, with profile, \
                 strategy, depth, threads or rate"
            )),
        }
    };
    text.split(',').map(one).collect()
}

fn parse_value(text: &str, units: Units) -> Result<f64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit = text[digits.len()..].trim();
    let known = || {
        let names = units.iter().map(|(name, _)| *name);
        names
            .filter(|name| !name.is_empty())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let number: f64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is no number with a unit"))?;
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => Ok(number * scale),
        None if unit.is_empty() => Err(format!("`{text}` needs a unit: {}", known())),
        None if known().is_empty() => Err(format!("`{unit}`: this figure has no unit")),
        None => Err(format!(
            "the unit `{unit}` is not known here; use {}",
            known()
        )),
    }
}
