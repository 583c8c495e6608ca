//! `inflight show RECORD`: the result again, without measuring again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::load;
use crate::exit;
use crate::exports::Exports;
use crate::show;

/// The flags of `inflight show`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// A record, as --export-json wrote it.
    record: PathBuf,

    #[command(flatten)]
    exports: Exports,
}

/// Shows a record, or writes it in another form.
pub(crate) fn show(flags: &Flags) -> Result<u8> {
    flags.exports.check()?;
    show::show(&load::record(&flags.record)?, &flags.exports)?;
    Ok(exit::DONE)
}
