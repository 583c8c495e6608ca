//! The screen of a merged record: how far machines are apart, and all latencies together.

use super::Style;
use super::grid::{self, Column};
use super::paint::{Paint, Screen, clean};
use crate::merged::{Merged, MergedCell};
use crate::noun::heading;
use crate::open;
use crate::record::{Access, Latency};
use crate::strategy::name;
use crate::units::{MISSING, count, counted, nanos, or_missing};

const COLUMNS: [Column; 11] = [
    ("  strategy", false),
    ("depth", true),
    ("nodes", true),
    ("slowest", true),
    ("median", true),
    ("fastest", true),
    ("p50", true),
    ("p99", true),
    ("p99.9", true),
    ("max", true),
    ("slowest is", false),
];

/// What is another thing where rates were given.
const OPEN_LOOP: &str = "A row with a rate is of an open loop: latencies count from when \
    operations were due, and none of the nodes that kept the rate is the slowest. A node that did \
    not keep it is left out.";

/// Draws a merged record.
#[must_use]
pub fn merged(merged: &Merged, style: Style) -> String {
    let mut screen = Screen::new(style);
    let nodes = counted(merged.nodes.len(), "node");
    let text = format!(
        "{nodes}, plan {}. Operations per second of each node are its median over \
         rounds; percentiles are of all samples of all nodes together, not averages of theirs.",
        merged.plan_hash
    );
    screen.prose(&text, 1, Paint::Plain);
    let records = merged.nodes.values();
    if records.flat_map(|record| &record.cells).any(open::is_open) {
        screen.prose(OPEN_LOOP, 1, Paint::Plain);
    }
    let profiles = merged.nodes.values().flat_map(|record| &record.profiles);
    let mut drawn: Vec<&str> = Vec::new();
    for profile in profiles {
        if drawn.contains(&profile.name.as_str()) {
            continue;
        }
        drawn.push(&profile.name);
        screen.blank();
        screen.prose(&heading(profile), 1, Paint::Bold);
        let cells = merged.cells.iter();
        let cells = cells.filter(|cell| cell.profile == profile.name && !cell.iops.is_empty());
        let rows: Vec<_> = cells
            .map(|cell| (texts(merged, cell), Paint::Plain))
            .collect();
        grid::draw(&mut screen, &COLUMNS, &rows);
    }
    let mut told: Vec<(&str, &str)> = Vec::new();
    for cell in &merged.cells {
        for (node, why) in &cell.left_out {
            if !told.contains(&(node, why)) {
                told.push((node, why));
            }
        }
    }
    if !told.is_empty() {
        screen.blank();
    }
    for (node, why) in told {
        let cells = merged.cells.iter();
        let is_so = |cell: &&MergedCell| cell.left_out.get(node).is_some_and(|other| other == why);
        let ids: Vec<&str> = cells.filter(is_so).map(|cell| cell.id.as_str()).collect();
        let text = format!("{node}: {}: {why}", ids.join(", "));
        screen.statement("left out", &text, Paint::Plain);
    }
    screen.finish()
}

fn texts(merged: &Merged, cell: &MergedCell) -> Vec<String> {
    let latency = |figure: fn(&Latency) -> Option<u64>| {
        let found = cell.latency.as_ref().and_then(figure);
        or_missing(found.map(|ns| ns as f64), nanos)
    };
    let rate = |at: usize| or_missing(cell.range().map(|range| range[at]), count);
    let one = merged.cell(&cell.id);
    let mut profiles = merged.nodes.values().flat_map(|record| &record.profiles);
    let own = profiles.find(|profile| profile.name == cell.profile);
    let access = own.map_or_else(Access::default, |profile| profile.access);
    let name = one.map_or_else(|| cell.id.clone(), |cell| name(cell, access));
    let given = one.and_then(|cell| cell.rate_per_s);
    let slowest = cell.slowest().filter(|_| given.is_none());
    let texts = [
        match given {
            Some(rate) => format!("  {name}, {}/s", count(rate as f64)),
            None => format!("  {name}"),
        },
        one.map_or_else(String::new, |cell| cell.depth.to_string()),
        cell.iops.len().to_string(),
        rate(0),
        rate(1),
        rate(2),
        latency(|found| Some(found.ns_p50)),
        latency(|found| found.ns_p99),
        latency(|found| found.ns_p999),
        latency(|found| Some(found.ns_max)),
        slowest.unwrap_or(MISSING).to_owned(),
    ];
    texts.iter().map(|text| clean(text)).collect()
}
