//! The record: what is known before the measurement, and what was measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use inflight_report::Record;
use inflight_report::record::{Cell, Heat, LatencyClock, NO_TIME, SCHEMA, STOPPED, Skipped, Tool};
use inflight_report::{regret, unsteady};

use crate::cli::Options;
use crate::doctor::{self, Site};
use crate::findings::{self, Blocked, Facts};
use crate::measure::clock::Clock;
use crate::measure::run::Running;
use crate::measure::{host, storage};
use crate::plan::Plan;
use crate::target::TestData;

/// The record before the first measurement.
pub(crate) fn blank(
    options: &Options,
    plan: &Plan,
    data: &TestData,
    paths: &[PathBuf],
    clock: Clock,
) -> Result<Record> {
    let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos());
    Ok(Record {
        schema: SCHEMA.to_owned(),
        tool: Tool {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: String::new(),
        },
        started_utc: String::new(),
        took_ns: 0,
        seed: options.seed,
        argv: std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect(),
        plan_hash: plan.hash(data.size_bytes),
        rounds_planned: plan.rounds,
        cell_duration_ns: nanoseconds(plan.measured)?,
        warmup_ns: nanoseconds(plan.warmup)?,
        interrupted: false,
        machine: host::machine(clock),
        target: storage::target(
            paths.first().context("there is a file")?,
            data.size_bytes,
            data.is_scratch(),
            &options.target,
        )?,
        profiles: plan
            .profiles
            .iter()
            .map(|planned| planned.profile.summary())
            .collect(),
        findings: Vec::new(),
        reread: None,
        cells: Vec::new(),
        regrets: Vec::new(),
    })
}

/// Puts what was measured into the record.
pub(crate) fn finish(record: &mut Record, measured: Vec<Running>) -> Result<()> {
    let mut blocked = Vec::new();
    for running in measured {
        let Running {
            mut cell,
            latencies,
            heat,
            sample_every,
            denied,
            ..
        } = running;
        let clock = match cell.rate_per_s {
            None => LatencyClock::Closed,
            Some(_) => LatencyClock::Intended,
        };
        cell.latency = latencies.store(sample_every.unwrap_or(1), clock)?;
        cell.heat = (!heat.is_empty()).then_some(Heat { rounds: heat });
        if cell.rounds.is_empty() && cell.skipped.is_none() {
            let reason = if record.interrupted { STOPPED } else { NO_TIME }.to_owned();
            cell.skipped = Some(Skipped { reason });
        }
        if let (Some(fix), Some(skipped)) = (denied, &cell.skipped) {
            let (id, why) = (cell.id.clone(), skipped.reason.clone());
            blocked.push(Blocked { id, why, fix });
        }
        record.cells.push(cell);
    }
    let facts = Facts {
        machine: &record.machine,
        target: &record.target,
        cells: &record.cells,
        profiles: &record.profiles,
        reread: record.reread.as_ref(),
        unsteady: unsteady::findings(record),
        blocked,
    };
    let place = Path::new(&record.target.path);
    let site = Site::of(place, record.machine.clone(), record.target.clone());
    record.findings = findings::all(facts, doctor::cheap(&site));
    record.regrets = regret::regrets(record);
    record.tool.backend = backend(&record.cells);
    Ok(())
}

/// What the library says about its backend, from the cells in which it took part.
fn backend(cells: &[Cell]) -> String {
    let told = cells.iter().find_map(|cell| cell.effective.get("backend"));
    told.cloned()
        .unwrap_or_else(|| "the library took no part".to_owned())
}
