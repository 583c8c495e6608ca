//! The result: as text on stdout, or as JSON where it was asked for.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use inflight_report::Record;

/// Shows the record; `-` as file means JSON on stdout, instead of the text.
pub(crate) fn show(record: &Record, export_json: Option<&Path>) -> Result<()> {
    let json = || serde_json::to_string_pretty(record).map(|text| text + "\n");
    if export_json == Some(Path::new("-")) {
        std::io::stdout().write_all(json()?.as_bytes())?;
        return Ok(());
    }
    if let Some(file) = export_json {
        fs::write(file, json()?)
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}
