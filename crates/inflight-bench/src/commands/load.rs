//! Reading records that were stored.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use inflight_report::Record;
use inflight_report::record::load;

use crate::exit::usage;

/// Reads a record, from its JSON or from a page that holds it.
pub(super) fn record(path: &Path) -> Result<Record> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    load(&text).map_err(|error| usage(format!("{shown}: {error}")))
}
