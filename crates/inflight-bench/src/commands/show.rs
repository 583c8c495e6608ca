//! `inflight show RECORD`: the result again, without measuring again; or what to make of it.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use inflight_report::text;

use super::code;
use super::load::{self, Stored};
use crate::exit::{self, usage};
use crate::exports::{Exports, Inputs};
use crate::show;

const EXAMPLES: &str = "\
Examples:
  inflight show result.json
  inflight show result.json --export-csv result.csv
  inflight show result.json --code rust > src/main.rs";

/// The flags of `inflight show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// A record, as `bench --export-json` or `merge --export-json` wrote it.
    #[arg(required_unless_present = "code")]
    record: Option<PathBuf>,

    /// Print the program that does what the verdict recommends, instead of the result.
    #[arg(
        long,
        value_name = "LANGUAGE",
        conflicts_with_all = ["export_json", "export_csv", "export_markdown", "report"]
    )]
    code: Option<Language>,

    /// The profile whose verdict --code follows, instead of the first one.
    #[arg(long, value_name = "NAME", requires_all = ["code", "record"])]
    profile: Option<String>,

    #[command(flatten)]
    exports: Exports,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Language {
    Rust,
}

/// Shows a record, or writes it in another form.
pub(crate) fn show(flags: &Flags) -> Result<u8> {
    let inputs = Inputs::of(&flags.record);
    flags.exports.check(&inputs)?;
    if let Some(Language::Rust) = flags.code {
        let program = match &flags.record {
            Some(path) => code::rust(&load::record(path)?, flags.profile.as_deref())?,
            None => code::unmeasured(),
        };
        show::print(&program)?;
        return Ok(exit::DONE);
    }
    let Some(path) = &flags.record else {
        return Err(usage("name a record"));
    };
    match load::stored(path)? {
        Stored::One(record) => show::show(&record, &flags.exports, &inputs)?,
        Stored::Merged(_) if flags.exports.any() => {
            let text = "the records of several machines are shown as text only";
            return Err(usage(text));
        }
        Stored::Merged(merged) => show::print(&text::merged(&merged, show::style()))?,
    }
    Ok(exit::DONE)
}
