//! `inflight show RECORD`: the result again, without measuring again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inflight_report::text;

use super::load::{self, Stored};
use crate::exit::{self, usage};
use crate::exports::Exports;
use crate::show;

/// The flags of `inflight show`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// A record, as `bench --export-json` or `merge --export-json` wrote it.
    record: PathBuf,

    #[command(flatten)]
    exports: Exports,
}

/// Shows a record, or writes it in another form.
pub(crate) fn show(flags: &Flags) -> Result<u8> {
    flags.exports.check()?;
    match load::stored(&flags.record)? {
        Stored::One(record) => show::show(&record, &flags.exports)?,
        Stored::Merged(_) if flags.exports.any() => {
            let text = "the records of several machines are shown as text only";
            return Err(usage(text));
        }
        Stored::Merged(merged) => show::print(&text::merged(&merged, show::style()))?,
    }
    Ok(exit::DONE)
}
