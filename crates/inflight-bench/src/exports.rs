//! The result in other forms, in files: JSON, CSV, Markdown, HTML.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use inflight_report::{Record, csv, html, markdown};

use crate::exit::usage;
use crate::show;

/// The flags for files, the same for every command that has a record.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Exports {
    /// Write the record to FILE as JSON; `-` writes it to stdout instead of the text.
    #[arg(long, value_name = "FILE")]
    export_json: Option<PathBuf>,

    /// Write a row for each cell to FILE, with plain numbers; `-` as above.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    export_csv: Option<PathBuf>,

    /// Write tables and verdicts to FILE as Markdown; `-` as above.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    export_markdown: Option<PathBuf>,

    /// Write a page with charts to FILE, which holds the record too; `-` as above.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

impl Exports {
    /// What would otherwise fail only after the measurement.
    pub(crate) fn check(&self) -> Result<()> {
        let files = self.files();
        if files.iter().filter(|(_, file)| is_stdout(file)).count() > 1 {
            return Err(usage("only one form can go to stdout"));
        }
        files
            .iter()
            .try_for_each(|(flag, file)| check_file(flag, file))
    }

    /// Writes all of them; says whether stdout got one.
    pub(crate) fn write(&self, record: &Record) -> Result<bool> {
        let mut stdout_taken = false;
        for (flag, file) in self.files() {
            let text = match flag {
                "--export-json" => serde_json::to_string_pretty(record)? + "\n",
                "--export-csv" => csv::cells(record),
                "--report" => html::page(record),
                _ => markdown::record(record),
            };
            write(file, &text)?;
            stdout_taken |= is_stdout(file);
        }
        Ok(stdout_taken)
    }

    /// Whether any form was asked for.
    pub(crate) fn any(&self) -> bool {
        !self.files().is_empty()
    }

    /// The first flag that asks for a form.
    pub(crate) fn first(&self) -> Option<&'static str> {
        self.files().first().map(|(flag, _)| *flag)
    }

    fn files(&self) -> Vec<(&'static str, &Path)> {
        let all = [
            ("--export-json", &self.export_json),
            ("--export-csv", &self.export_csv),
            ("--export-markdown", &self.export_markdown),
            ("--report", &self.report),
        ];
        let asked = all.into_iter();
        asked
            .filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
            .collect()
    }
}

/// Whether this name means stdout.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Refuses a file that cannot be made.
pub(crate) fn check_file(flag: &str, file: &Path) -> Result<()> {
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let of_errno = |errno| Some(io::Error::from_raw_os_error(errno));
    let error = match fs::metadata(parent) {
        _ if is_stdout(file) => None,
        Err(error) => Some(error),
        Ok(parent) if !parent.is_dir() => of_errno(libc::ENOTDIR),
        Ok(_) if file.is_dir() => of_errno(libc::EISDIR),
        Ok(_) => None,
    };
    let refused = |error| {
        let file = file.display();
        Err(usage(format!("{flag}: {file} cannot be made: {error}")))
    };
    error.map_or(Ok(()), refused)
}

/// Writes text to a file, or to stdout.
pub(crate) fn write(file: &Path, text: &str) -> Result<()> {
    if is_stdout(file) {
        return show::print(text);
    }
    fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}
