//! One row a cell, for spreadsheets and scripts: plain numbers, the unit in the title.
//!
//! A figure that is not known is an empty field. Rounds and histograms are in the JSON only.

use crate::figures::{calls_per_op, cpu_ns_per_op, disk_share, failures, full_rounds, iops};
use crate::figures::{mib_per_second, percentile};
use crate::open;
use crate::ranking::Ranking;
use crate::record::{Cell, Record};
use crate::stats::compare;
use crate::text::clean;

const TITLES: [&str; 29] = [
    "profile",
    "strategy",
    "depth",
    "threads",
    "block_size_bytes",
    "rounds",
    "ops_per_s",
    "mib_per_s",
    "ratio_to_pread",
    "ratio_lo",
    "ratio_hi",
    "ratio_level",
    "ns_p50",
    "ns_p90",
    "ns_p99",
    "ns_p999",
    "ns_p9999",
    "ns_max",
    "cpu_ns_per_op",
    "calls_per_op",
    "device_share",
    "errors",
    "short",
    "out_of_ranking",
    "due_per_s",
    "done_per_s",
    "backlog",
    "unserved",
    "rate",
];

/// The record as comma-separated values, with a line of titles.
///
/// # Panics
/// Never: writing to memory does not fail, and all that is written is text.
#[must_use]
pub fn cells(record: &Record) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |fields: &[String]| {
        let written = writer.write_record(fields);
        written.expect("every row has as many fields as there are titles");
    };
    write(&TITLES.map(str::to_owned));
    for profile in &record.profiles {
        let ranking = Ranking::new(record, profile);
        let open_loop = open::cells(record, profile);
        let cells = ranking.cells.iter().chain(&open_loop);
        let rows = cells.map(|cell| fields(record, &ranking, cell));
        rows.for_each(|row| write(&row));
    }
    let bytes = writer.into_inner().expect("memory takes everything");
    String::from_utf8(bytes).expect("text stays text")
}

/// A field of text. Where a spreadsheet would take it for a formula, it begins with a quotation
/// mark that is not shown there.
fn text(text: &str) -> String {
    let text = clean(text);
    match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text,
    }
}

fn fields(record: &Record, ranking: &Ranking<'_>, cell: &Cell) -> [String; 29] {
    let figure = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let kept = open::kept(cell);
    let is_saturated = kept.is_some_and(|kept| kept.is_saturated());
    // Of a rate that was too much they say how long it lasted.
    let latency = cell.latency.as_ref().filter(|_| !is_saturated);
    let at = |quantile| figure(latency.and_then(|found| Some(percentile(found, quantile)? as f64)));
    let measured = full_rounds(cell) > 0;
    let is_closed = !open::is_open(cell);
    let interval = ranking
        .baseline
        .filter(|_| is_closed)
        .and_then(|baseline| compare(cell, baseline));
    let out = ranking.out.iter().find(|(out, _)| out.id == cell.id);
    let skipped = cell.skipped.as_ref().map(|skipped| skipped.reason.clone());
    let why = match is_closed {
        true => skipped.or(out.map(|(_, why)| why.clone())),
        false => open::out(record, ranking.profile, cell),
    };
    let rate = kept.map_or("", |_| if is_saturated { "saturated" } else { "kept" });
    let (errors, short) = failures(cell);
    let failed = |count: u64| {
        if measured {
            count.to_string()
        } else {
            String::new()
        }
    };
    [
        text(&cell.profile),
        text(&cell.strategy),
        cell.depth.to_string(),
        cell.threads.to_string(),
        ranking.profile.block_size_bytes.to_string(),
        full_rounds(cell).to_string(),
        figure(iops(cell)),
        figure(mib_per_second(cell)),
        figure(interval.map(|found| found.ratio)),
        figure(interval.map(|found| found.lo)),
        figure(interval.map(|found| found.hi)),
        figure(interval.map(|found| found.level)),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(0.9999),
        figure(latency.map(|found| found.ns_max as f64)),
        figure(cpu_ns_per_op(cell)),
        figure(calls_per_op(cell)),
        // Of writes it is what the device took: the column `disk` of the screen.
        figure(disk_share(cell, ranking.profile)),
        failed(errors),
        failed(short),
        text(&why.unwrap_or_default()),
        figure(cell.rate_per_s.map(|rate| rate as f64)),
        figure(kept.map(|kept| kept.done)),
        figure(kept.map(|kept| kept.backlog)),
        figure(kept.map(|kept| kept.unserved as f64)),
        rate.to_owned(),
    ]
}
