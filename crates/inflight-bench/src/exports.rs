//! The result in other forms, in files: JSON, CSV, Markdown, HTML.

mod inputs;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use inflight_report::{Record, csv, html, markdown};

use crate::exit::usage;
use crate::progress::Progress;
use crate::show;

pub(crate) use inputs::Inputs;

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
    /// What would otherwise fail only after the measurement, or destroy what is read.
    pub(crate) fn check(&self, inputs: &Inputs) -> Result<()> {
        let files = self.files();
        if files.iter().filter(|(_, file)| is_stdout(file)).count() > 1 {
            return Err(usage("only one form can go to stdout"));
        }
        let mut taken: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for (flag, file) in files {
            check_file(flag, file, inputs)?;
            if is_open_elsewhere(file) {
                return Err(usage(format!(
                    "{flag} {0}: that is a stream which leads to a file, and what the file has \
                     would be lost; `-` writes to stdout, or name the file itself",
                    file.display()
                )));
            }
            // What a device or a pipe is given twice is there twice.
            if is_stdout(file) || is_special(file) {
                continue;
            }
            if let Some(other) = taken.insert(resolved(file), flag) {
                let file = file.display();
                return Err(usage(format!(
                    "{other} and {flag} name the same file, {file}, which holds one form only"
                )));
            }
        }
        Ok(())
    }

    /// What stdout gets instead of the text, if a form was asked for there.
    pub(crate) fn on_stdout(&self, record: &Record) -> Result<Option<String>> {
        let mut files = self.files().into_iter();
        let asked = files.find(|(_, file)| is_stdout(file));
        asked.map(|(flag, _)| form(flag, record)).transpose()
    }

    /// Writes all files. One that fails keeps no other from being written.
    pub(crate) fn write_files(&self, record: &Record, inputs: &Inputs) -> Result<()> {
        let files = self.files().into_iter();
        let files = files.filter(|(_, file)| !is_stdout(file));
        let tried = files.map(|(flag, file)| write(file, &form(flag, record)?, inputs));
        let failed: Vec<String> = tried
            .filter_map(|tried| Some(format!("{:#}", tried.err()?)))
            .collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(anyhow!(failed.join("; "))),
        }
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

/// The form that a flag asks for.
fn form(flag: &str, record: &Record) -> Result<String> {
    Ok(match flag {
        "--export-json" => serde_json::to_string_pretty(record)? + "\n",
        "--export-csv" => csv::cells(record),
        "--report" => html::page(record),
        _ => markdown::record(record),
    })
}

/// Refuses a file that cannot be made, or that may not be overwritten.
pub(crate) fn check_file(flag: &str, file: &Path, inputs: &Inputs) -> Result<()> {
    if is_stdout(file) {
        return Ok(());
    }
    let allowed = inputs.refuse(file);
    allowed.map_err(|why| usage(format!("{flag}: {why}")))?;
    try_to_make(file).map_err(|error| {
        let file = file.display();
        usage(format!("{flag}: {file} cannot be made: {error}"))
    })
}

/// Makes the file that would be written first, and removes it.
fn try_to_make(file: &Path) -> io::Result<()> {
    if file.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    // To open a pipe can take as long as nobody reads it.
    if is_special(file) {
        return Ok(());
    }
    let target = resolved(file);
    match make_beside(&target) {
        Ok((_, beside)) => {
            fs::remove_file(beside)?;
            try_name(&target)
        }
        Err(error) => {
            let opened = open_existing(file);
            opened.map(drop).map_err(|_| error)
        }
    }
}

/// Makes a file of this name and removes it, if there is none: a name may be too long, for example.
fn try_name(target: &Path) -> io::Result<()> {
    match File::create_new(target) {
        Ok(_) => fs::remove_file(target),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes text to a file, or to stdout. An old file is left as it is if that fails.
pub(crate) fn write(file: &Path, text: &str, inputs: &Inputs) -> Result<()> {
    if is_stdout(file) {
        return show::print(text);
    }
    // Since they were checked, minutes may have passed.
    inputs.refuse(file)?;
    replace(file, text, inputs).with_context(|| format!("{} cannot be written", file.display()))
}

/// Keeps a record that could not be written where it was to go: measuring it took minutes. Where
/// that fails too, the first error is the one to tell.
pub(crate) fn rescue(record: &Record, progress: &Progress) {
    let path = env::temp_dir().join(format!("inflight-{}.json", process::id()));
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(0o600);
    let made = new.open(&path).ok();
    let Some((mut file, text)) = made.zip(form("--export-json", record).ok()) else {
        return;
    };
    let shown = path.display();
    match file.write_all(text.as_bytes()) {
        Ok(()) => progress.say(&format!(
            "the record is kept in {shown}: inflight show {shown}"
        )),
        Err(_) => _ = fs::remove_file(&path),
    }
}

/// Writes a file under another name, which becomes its own when it is whole.
fn replace(file: &Path, text: &str, inputs: &Inputs) -> Result<()> {
    if is_special(file) {
        return write_over(file, text, inputs);
    }
    let target = resolved(file);
    let (made, beside) = match make_beside(&target) {
        Ok(made) => made,
        // A file may be writable in a directory that is not.
        Err(_) if target.exists() => return write_over(&target, text, inputs),
        Err(error) => return Err(error.into()),
    };
    let filled = fill(made, &target, text);
    // A link may lead elsewhere by now than when it was asked about.
    if let Err(refusal) = inputs.refuse(&target) {
        _ = fs::remove_file(beside);
        return Err(refusal);
    }
    let replaced = filled.and_then(|()| fs::rename(&beside, &target));
    let Err(error) = replaced else {
        return Ok(());
    };
    // That it could not be written is the error to tell.
    _ = fs::remove_file(beside);
    match error.kind() {
        // A file that is mounted, as those of containers are, stays where it is.
        ErrorKind::ResourceBusy => write_over(&target, text, inputs),
        _ => Err(error.into()),
    }
}

/// Writes to what is there, unless it may not be overwritten.
fn write_over(file: &Path, text: &str, inputs: &Inputs) -> Result<()> {
    let special = is_special(file);
    let mut opened = match special {
        true => OpenOptions::new().write(true).open(file)?,
        false => open_existing(file)?,
    };
    // What is open stays what it is, whatever its name leads to by now.
    let found = opened.metadata()?;
    inputs.refuse_found(file, &found)?;
    let written = match special {
        true => opened.write_all(text.as_bytes()),
        false => overwrite(&opened, found.len(), text.as_bytes()),
    };
    Ok(written?)
}

/// For writing, and for reading where that is allowed.
fn open_existing(file: &Path) -> io::Result<File> {
    let both = OpenOptions::new().read(true).write(true).open(file);
    both.or_else(|_| OpenOptions::new().write(true).open(file))
}

/// Overwrites an open file. If that can be read it keeps what it has where there is no room for
/// more: what takes room is written first, behind that.
fn overwrite(file: &File, old_bytes: u64, text: &[u8]) -> io::Result<()> {
    let over = usize::try_from(old_bytes).unwrap_or(usize::MAX);
    let (over, beyond) = text.split_at(over.min(text.len()));
    let mut old = vec![0; over.len()];
    let is_known = file.read_exact_at(&mut old, 0).is_ok();
    let bytes = u64::try_from(text.len()).map_err(io::Error::other)?;
    let written = file
        .write_all_at(beyond, old_bytes.min(bytes))
        .and_then(|()| file.sync_data())
        .and_then(|()| file.write_all_at(over, 0))
        .and_then(|()| file.set_len(bytes))
        .and_then(|()| file.sync_data());
    if written.is_err() && is_known {
        // That it could not be written is the error to tell.
        _ = file.write_all_at(&old, 0);
        _ = file.set_len(old_bytes);
    }
    written
}

/// Gives a new file its text, and the permissions of the one that it replaces.
fn fill(mut made: File, target: &Path, text: &str) -> io::Result<()> {
    made.write_all(text.as_bytes())?;
    match fs::metadata(target) {
        Ok(old) => made.set_permissions(old.permissions()),
        Err(_) => Ok(()),
    }
}

/// Makes a file beside another, which has another name until it is whole: a short one, because that
/// of the other may be as long as a name can be.
fn make_beside(target: &Path) -> io::Result<(File, PathBuf)> {
    let mut number = 0;
    loop {
        let beside = target.with_file_name(format!(".inflight-{}-{number}.part", process::id()));
        match File::create_new(&beside) {
            Ok(made) => return Ok((made, beside)),
            // A process of this number was killed, or is in another container.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 99 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Where a file is, or would be, without symbolic links.
fn resolved(file: &Path) -> PathBuf {
    let below_parent = || {
        let parent = file.parent()?;
        let here = parent.as_os_str().is_empty().then_some(Path::new("."));
        let parent = fs::canonicalize(here.unwrap_or(parent)).ok()?;
        Some(parent.join(file.file_name()?))
    };
    let found = fs::canonicalize(file).ok();
    found.or_else(below_parent).unwrap_or(file.to_owned())
}

/// Whether this is an ordinary file by way of a descriptor that is open, as `/dev/stdout` may be:
/// whoever opened it may be appending to it.
fn is_open_elsewhere(file: &Path) -> bool {
    /// As many links as the kernel follows (path_resolution(7)).
    const MOST_LINKS: usize = 40;
    let mut at = file.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(link) = fs::read_link(&at) else {
            return false;
        };
        let parent = at.parent().unwrap_or(Path::new("/"));
        let parent = fs::canonicalize(parent).unwrap_or(parent.to_owned());
        if parent.starts_with("/proc") && parent.ends_with("fd") {
            return fs::metadata(&at).is_ok_and(|found| found.is_file());
        }
        at = parent.join(link);
    }
    false
}

/// Whether this is a pipe, a terminal or the like: written where it is.
fn is_special(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir())
}
