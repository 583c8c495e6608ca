//! Records of many machines in one, `inflight.merged/1`: nothing is averaged and nothing lost.
//!
//! Each record stays whole, under the name of its machine. What is added are the latencies of all
//! machines together, from the sum of their histograms. A merged record is a function of the set
//! of its records alone, so merging may be done in any order and in any number of steps.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::figures::{full_rounds, iops, percentile};
use crate::histogram::{self, HistogramError};
use crate::open;
use crate::ranking::Ranking;
use crate::record::{self, Cell, Latency, LatencyClock, LoadError, Record};
use crate::stats::median;
use crate::units::count;
use crate::whole::defect;

/// The name and version of the stored format.
pub const SCHEMA: &str = "inflight.merged/1";

/// Records of the same plan, from many machines.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Merged {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The plan that all of them measured.
    pub plan_hash: String,
    /// The records, by the name of their machine.
    #[serde(deserialize_with = "distinct")]
    pub nodes: BTreeMap<String, Record>,
    /// Every cell that any of them measured, over all machines.
    pub cells: Vec<MergedCell>,
}

/// One cell over all machines.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MergedCell {
    /// Id of the cell, the same in every record.
    pub id: String,
    /// Profile name.
    pub profile: String,
    /// The machines whose figures count, with their operations per second (median over rounds).
    pub iops: BTreeMap<String, f64>,
    /// The machines whose figures do not count, with the reason.
    pub left_out: BTreeMap<String, String>,
    /// Latencies of the machines that count, together; each weighs as many samples as it took.
    pub latency: Option<Latency>,
}

/// Why records could not be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeError {
    /// There is nothing to merge.
    Nothing,
    /// Two records have the same name: one of them would be lost.
    SameName(String),
    /// The same run was named twice, and would be counted twice.
    SameRun(String, String),
    /// Two records measured different plans.
    DifferentPlans(String, String),
    /// A cell has one id and is not the same in two records.
    DifferentCells(String, String, String),
    /// The histograms of a cell cannot be added up.
    Histogram(String, HistogramError),
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "there is nothing to merge"),
            Self::SameName(name) => write!(
                f,
                "two records are called `{name}`; give them names, as `host1=FILE host2=FILE`"
            ),
            Self::SameRun(a, b) => write!(f, "`{a}` and `{b}` are the same run"),
            Self::DifferentPlans(a, b) => write!(
                f,
                "`{a}` and `{b}` measured different plans; measure with the same command everywhere"
            ),
            Self::DifferentCells(cell, a, b) => write!(
                f,
                "the cell `{cell}` of `{a}` is another than that of `{b}`: one of the two was not \
                 written by `inflight`; measure it again"
            ),
            Self::Histogram(cell, why) => write!(f, "{cell}: {why}"),
        }
    }
}

impl std::error::Error for MergeError {}

impl Merged {
    /// Merges named records.
    ///
    /// # Errors
    /// [`MergeError`], by what stands in the way.
    pub fn of(named: impl IntoIterator<Item = (String, Record)>) -> Result<Self, MergeError> {
        let mut nodes: BTreeMap<String, Record> = BTreeMap::new();
        for (name, record) in named {
            if nodes.contains_key(&name) {
                return Err(MergeError::SameName(name));
            }
            let same = |other: &Record| {
                let run =
                    |record: &Record| (record.seed, record.started_utc.clone(), record.took_ns);
                run(other) == run(&record)
            };
            if let Some((other, _)) = nodes.iter().find(|(_, other)| same(other)) {
                return Err(MergeError::SameRun(other.clone(), name));
            }
            nodes.insert(name, record);
        }
        let Some((first, record)) = nodes.first_key_value() else {
            return Err(MergeError::Nothing);
        };
        let plan_hash = record.plan_hash.clone();
        if let Some((name, _)) = nodes.iter().find(|(_, node)| node.plan_hash != plan_hash) {
            return Err(MergeError::DifferentPlans(first.clone(), name.clone()));
        }
        check_cells(&nodes)?;
        let cells = cells(&nodes)?;
        Ok(Self {
            schema: SCHEMA.to_owned(),
            plan_hash,
            nodes,
            cells,
        })
    }

    /// Some node's cell of this id: strategy, depth and threads are the same on all.
    #[must_use]
    pub fn cell(&self, id: &str) -> Option<&Cell> {
        let mut cells = self.nodes.values().flat_map(|record| &record.cells);
        cells.find(|cell| cell.id == id)
    }
}

impl MergedCell {
    /// Slowest, median and fastest machine, in operations per second.
    #[must_use]
    pub fn range(&self) -> Option<[f64; 3]> {
        let rates: Vec<f64> = self.iops.values().copied().collect();
        let least = rates.iter().copied().reduce(f64::min)?;
        let most = rates.iter().copied().reduce(f64::max)?;
        Some([least, median(rates)?, most])
    }

    /// The slowest machine, where there are several.
    #[must_use]
    pub fn slowest(&self) -> Option<&str> {
        let slowest = self.iops.iter().min_by(|a, b| a.1.total_cmp(b.1));
        let (name, _) = slowest.filter(|_| self.iops.len() > 1)?;
        Some(name)
    }
}

/// Reads a merged record from its JSON. Its records are held to what is asked of one alone, and put
/// together anew: of figures that do not follow from them, nothing is shown.
///
/// # Errors
/// [`LoadError`], by how far it got.
pub fn load(json: &str) -> Result<Merged, LoadError> {
    let broken = |why: &dyn fmt::Display| LoadError::Broken(why.to_string());
    let stored: Merged = serde_json::from_str(json).map_err(|why| broken(&why))?;
    for (name, node) in &stored.nodes {
        if node.schema != record::SCHEMA {
            return Err(LoadError::OtherSchema(node.schema.clone()));
        }
        if let Some(why) = defect(node) {
            return Err(broken(&format!("of `{name}`, {why}")));
        }
    }
    Merged::of(stored.nodes).map_err(|why| broken(&why))
}

/// Reads records by their names, of which none may be there twice: one of them would be lost.
fn distinct<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Record>, D::Error> {
    struct Nodes;

    impl<'de> Visitor<'de> for Nodes {
        type Value = BTreeMap<String, Record>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("records by the names of their machines")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut nodes = BTreeMap::new();
            while let Some((name, node)) = map.next_entry::<String, Record>()? {
                if nodes.contains_key(&name) {
                    return Err(A::Error::custom(MergeError::SameName(name)));
                }
                nodes.insert(name, node);
            }
            Ok(nodes)
        }
    }

    from.deserialize_map(Nodes)
}

/// Refuses cells that share their id alone: their figures would be put together.
fn check_cells(nodes: &BTreeMap<String, Record>) -> Result<(), MergeError> {
    let mut known: BTreeMap<&str, (&str, &Cell)> = BTreeMap::new();
    for (name, record) in nodes {
        for cell in &record.cells {
            let (first, one) = *known.entry(&cell.id).or_insert((name, cell));
            let is_same = one.profile == cell.profile
                && one.strategy == cell.strategy
                && (one.depth, one.threads) == (cell.depth, cell.threads)
                && one.rate_per_s == cell.rate_per_s;
            if !is_same {
                let [first, name] = [first, name].map(str::to_owned);
                return Err(MergeError::DifferentCells(cell.id.clone(), first, name));
            }
        }
    }
    Ok(())
}

/// Every cell, in the order of the first record that has it.
fn cells(nodes: &BTreeMap<String, Record>) -> Result<Vec<MergedCell>, MergeError> {
    let mut merged: Vec<MergedCell> = Vec::new();
    let mut counted: BTreeMap<String, Vec<&Latency>> = BTreeMap::new();
    for (node, record) in nodes {
        for profile in &record.profiles {
            let ranking = Ranking::new(record, profile);
            let open_loop = open::cells(record, profile);
            for cell in ranking.cells.iter().chain(&open_loop).copied() {
                let at = merged.iter().position(|known| known.id == cell.id);
                let at = at.unwrap_or_else(|| {
                    merged.push(blank(cell));
                    merged.len() - 1
                });
                match figure(record, &ranking, cell) {
                    Ok(rate) => {
                        merged[at].iops.insert(node.clone(), rate);
                        let latencies = counted.entry(cell.id.clone()).or_default();
                        latencies.extend(&cell.latency);
                    }
                    Err(why) => {
                        merged[at].left_out.insert(node.clone(), why);
                    }
                }
            }
        }
    }
    for cell in &mut merged {
        let latencies = counted.remove(&cell.id).unwrap_or_default();
        let sum = add_up(&latencies);
        cell.latency = sum.map_err(|why| MergeError::Histogram(cell.id.clone(), why))?;
    }
    Ok(merged)
}

/// The operations per second of a cell, or why its figures do not count.
fn figure(record: &Record, ranking: &Ranking<'_>, cell: &Cell) -> Result<f64, String> {
    let incomplete = || "no round is complete".to_owned();
    if open::is_open(cell) {
        return match (open::out(record, ranking.profile, cell), open::kept(cell)) {
            (Some(why), _) => Err(why),
            // Its latencies say how long the round was, and would be those of all nodes.
            (None, Some(kept)) if kept.is_saturated() => Err(format!(
                "the rate was not kept: {} of {} operations a second were done",
                count(kept.done),
                count(kept.asked)
            )),
            (None, Some(kept)) if full_rounds(cell) > 0 => Ok(kept.done),
            (None, _) => Err(incomplete()),
        };
    }
    let out = ranking.out.iter().find(|(out, _)| out.id == cell.id);
    let skipped = cell.skipped.as_ref().map(|skipped| &skipped.reason);
    match skipped.or(out.map(|(_, why)| why)) {
        Some(why) => Err(why.clone()),
        None => iops(cell).ok_or_else(incomplete),
    }
}

fn blank(cell: &Cell) -> MergedCell {
    MergedCell {
        id: cell.id.clone(),
        profile: cell.profile.clone(),
        iops: BTreeMap::new(),
        left_out: BTreeMap::new(),
        latency: None,
    }
}

/// The latencies of several cells together: counts are added, and percentiles taken from the sum.
fn add_up(latencies: &[&Latency]) -> Result<Option<Latency>, HistogramError> {
    let stored = latencies.iter().map(|latency| latency.hist_v2_b64.as_str());
    let Some(sum) = histogram::merge(stored)? else {
        return Ok(None);
    };
    let sample_every = latencies.iter().map(|latency| latency.sample_every).max();
    let mut together = Latency {
        // Those of one cell have one clock: a rate is part of its id.
        clock: latencies
            .first()
            .map_or_else(LatencyClock::default, |latency| latency.clock),
        sample_every: sample_every.unwrap_or(1),
        samples: sum.len(),
        ns_p50: sum.value_at_quantile(0.5),
        ns_p99: None,
        ns_p999: None,
        ns_max: sum.max(),
        hist_v2_b64: histogram::encode(&sum)?,
    };
    together.ns_p99 = percentile(&together, 0.99);
    together.ns_p999 = percentile(&together, 0.999);
    Ok(Some(together))
}
