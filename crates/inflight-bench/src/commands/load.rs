//! Reading records that were stored.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use inflight_report::Record;

use crate::exit::usage;

/// Reads a record.
pub(super) fn record(path: &Path) -> Result<Record> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    serde_json::from_str(&text)
        .map_err(|error| usage(format!("{shown} is no record of `inflight bench`: {error}")))
}
