//! Reading what was stored.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, anyhow};
use inflight_report::Record;
use inflight_report::merged::{self, Merged};
use inflight_report::record::load;
use serde::Deserialize;

use crate::exit::usage;

/// What a file can hold.
pub(super) enum Stored {
    /// A record of one run.
    One(Box<Record>),
    /// Records of many machines.
    Merged(Box<Merged>),
}

/// Tells stored formats apart.
#[derive(Deserialize)]
struct Kind {
    schema: String,
}

/// Reads a record, from its JSON or from a page that holds it; or a merged one.
pub(super) fn stored(path: &Path) -> Result<Stored> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => usage(format!("{shown} cannot be read: {error}")),
        _ => anyhow!("{shown} cannot be read: {error}"),
    })?;
    let kind = serde_json::from_str::<Kind>(&text);
    if kind.is_ok_and(|kind| kind.schema == merged::SCHEMA) {
        let merged = serde_json::from_str(&text);
        let merged = merged.map_err(|error| usage(format!("{shown}: {error}")))?;
        return Ok(Stored::Merged(Box::new(merged)));
    }
    let record = load(&text).map_err(|error| usage(format!("{shown}: {error}")))?;
    Ok(Stored::One(Box::new(record)))
}

/// Reads a record of one run.
pub(super) fn record(path: &Path) -> Result<Record> {
    match stored(path)? {
        Stored::One(record) => Ok(*record),
        Stored::Merged(_) => Err(usage(format!(
            "{} holds the records of several machines; name one of a single run",
            path.display()
        ))),
    }
}
