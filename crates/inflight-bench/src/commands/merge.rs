//! `inflight merge [NAME=]FILE..`: records of many machines in one.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use inflight_report::merged::{MergeError, Merged};
use inflight_report::{Record, text};

use super::load::{self, Stored};
use crate::exit::{self, refused, usage};
use crate::exports::{Inputs, check_file, is_stdout, write};
use crate::show::{print, style};

const EXAMPLES: &str = "\
Examples:
  inflight merge node1.json node2.json node3.json
  inflight merge db1=a/result.json db2=b/result.json --export-json all.json
  inflight show all.json";

/// The flags of `inflight merge`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Records of the same plan, NAME being the machine's, else the file's; or merged ones, whose
    /// machines keep their names.
    #[arg(required = true, value_name = "[NAME=]FILE")]
    records: Vec<OsString>,

    /// Write the merged record to FILE as JSON; `-` writes it to stdout instead of the text.
    #[arg(long, value_name = "FILE")]
    export_json: Option<PathBuf>,
}

/// Merges and shows.
pub(crate) fn merge(flags: &Flags) -> Result<u8> {
    let sources = flags.records.iter().map(|source| named(source));
    let sources: Vec<(Option<String>, &Path)> = sources.collect();
    let inputs = Inputs::of(sources.iter().map(|(_, path)| path));
    if let Some(file) = &flags.export_json {
        check_file("--export-json", file, &inputs)?;
    }
    let mut records = Vec::new();
    for (name, path) in sources {
        records.extend(read(name.as_deref(), path)?);
    }
    let merged = Merged::of(records).map_err(|why| match why {
        MergeError::DifferentPlans(..)
        | MergeError::DifferentCells(..)
        | MergeError::Histogram(..) => refused(why.to_string()),
        _ => usage(why.to_string()),
    })?;
    if !flags.export_json.as_deref().is_some_and(is_stdout) {
        print(&text::merged(&merged, style()))?;
    }
    if let Some(file) = &flags.export_json {
        let text = serde_json::to_string_pretty(&merged)? + "\n";
        write(file, &text, &inputs)?;
    }
    Ok(exit::DONE)
}

/// The name of a machine, if it is given, and the file of its record, whose name may be no text.
fn named(source: &OsStr) -> (Option<String>, &Path) {
    let mut parts = source.as_bytes().splitn(2, |byte| *byte == b'=');
    match (parts.next(), parts.next()) {
        // A file may have such a name.
        (Some(name), Some(path)) if !Path::new(source).exists() => {
            let name = String::from_utf8_lossy(name).into_owned();
            (Some(name), Path::new(OsStr::from_bytes(path)))
        }
        _ => (None, Path::new(source)),
    }
}

/// The records of one argument, with the names of their machines.
fn read(name: Option<&str>, path: &Path) -> Result<Vec<(String, Record)>> {
    let named_by_file = || {
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        stem.to_string_lossy().into_owned()
    };
    match (load::stored(path)?, name) {
        (Stored::One(record), name) => {
            let name = name.map_or_else(named_by_file, str::to_owned);
            Ok(vec![(name, *record)])
        }
        (Stored::Merged(merged), None) => Ok(merged.nodes.into_iter().collect()),
        (Stored::Merged(_), Some(name)) => Err(usage(format!(
            "{} is merged already, and its machines keep their names: leave `{name}=` out, or \
             merge the records that it was made of under other names",
            path.display()
        ))),
    }
}
