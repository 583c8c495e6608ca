//! Reading what was stored.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Result, anyhow};
use inflight_report::Record;
use inflight_report::merged::{self, Merged};
use inflight_report::record::load;
use serde::Deserialize;

use crate::exit::usage;
use crate::size::human;

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
    let text = File::open(path).and_then(|file| read(file, MOST_BYTES));
    let text = text.map_err(|error| match error.kind() {
        ErrorKind::NotFound => usage(format!("{shown} cannot be read: {error}")),
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

/// Reads a file to its end, which has to come: a device may have none.
fn read(file: File, most_bytes: u64) -> io::Result<String> {
    let too_large = || io::Error::from(ErrorKind::FileTooLarge);
    if file.metadata()?.len() > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let read = file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    match u64::try_from(read).is_ok_and(|read| read <= most_bytes) {
        true => String::from_utf8(bytes)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error())),
        false => Err(too_large()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_read_up_to_a_limit() {
        let endless = || File::open("/dev/zero").unwrap();
        let kind = read(endless(), 1 << 16).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::FileTooLarge);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "text").unwrap();
        assert_eq!(read(file.reopen().unwrap(), 4).unwrap(), "text");
        let kind = read(file.reopen().unwrap(), 3).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::FileTooLarge);
        std::fs::write(file.path(), [0xff]).unwrap();
        let kind = read(file.reopen().unwrap(), 4).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidData);
    }
}
