//! Reading what was stored.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, anyhow};
use inflight_report::Record;
use inflight_report::merged::{self, Merged};
use inflight_report::record::load;
use serde::Deserialize;

use crate::exit::usage;
use crate::size::human;
use crate::text;

/// No record is larger, even of many machines: one of a run has some MiB.
const MOST_BYTES: u64 = 1 << 30;

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
    let text = text::read(path, MOST_BYTES);
    let text = text.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::IsADirectory => {
            usage(format!("{shown} cannot be read: {error}"))
        }
        ErrorKind::FileTooLarge => usage(format!(
            "{shown} is no record: it has more than {}; name the file of a record",
            human(MOST_BYTES)
        )),
        ErrorKind::InvalidData => usage(format!(
            "{shown} is no record: it is not text; name a file that --export-json or --report wrote"
        )),
        _ => anyhow!("{shown} cannot be read: {error}"),
    })?;
    let kind = serde_json::from_str::<Kind>(&text);
    if kind.is_ok_and(|kind| kind.schema == merged::SCHEMA) {
        let merged = merged::load(&text);
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
