//! `inflight doctor`: what this machine and the place named have against fast disk I/O.
//!
//! One file for each check, and each changes nothing: it reads `/proc` and `/sys`, asks the kernel,
//! and at most reads one block of a file. A check answers with [`Found`]s; `explain` has
//! a paragraph for each of their ids. `inflight bench` runs the cheap checks, and ties what
//! they find to the cells that it spoils (`crate::findings`).

mod explain;
mod found;
mod probe;
mod site;

mod cgroup;
mod clock;
mod device;
mod direct_io;
mod file_system;
mod governor;
mod halt;
mod huge_pages;
mod io_uring;
mod iopoll;
mod kernel;
mod memlock;
mod numa;
mod queue;
mod read_ahead;
mod scheduler;
mod space;
mod write_cache;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use inflight_report::doctor::{Examination, Line, SCHEMA, Status};
use inflight_report::record::Tool;
use inflight_report::text::doctor::examination;

use crate::measure::clock::utc_now;
use crate::{exit, show};

pub(crate) use explain::is_explained;
pub(crate) use found::{Found, Spoils};
pub(crate) use io_uring::{CHOICE as BACKEND, NO_FILE_FIX, NO_FILE_SO, no_file};
pub(crate) use site::Site;
#[cfg(test)]
pub(crate) use site::Tree;

/// The flags of `inflight doctor`.
#[derive(Args, Debug)]
#[command(after_long_help = exit::DOCTOR_CODES)]
pub(crate) struct Flags {
    /// A directory or a file: the disk below it is looked at.
    #[arg(default_value = ".")]
    target: PathBuf,

    /// Write the examination as JSON to stdout, instead of the text.
    #[arg(long)]
    json: bool,

    /// Say more about one line, named by the word in brackets at its end; `all` for every one.
    #[arg(long, value_name = "ID", conflicts_with = "json")]
    explain: Option<String>,

    /// Ask the kernel for rings, in a process that may be killed for it.
    #[arg(long, hide = true)]
    probe: bool,
}

/// One check: what it looks at, and what it found.
type Check = fn(&Site) -> Vec<Found>;

/// Those that start nothing and open nothing: `inflight bench` runs them as well.
const CHEAP: &[Check] = &[
    kernel::check,
    file_system::check,
    device::check,
    iopoll::check,
    scheduler::check,
    queue::check,
    read_ahead::check,
    write_cache::check,
    space::check,
    |site| seen(site, "proc/self/status", cgroup::check),
    governor::check,
    halt::check,
    |site| seen(site, "sys/kernel", huge_pages::check),
    clock::check,
    |site| seen(site, "sys/kernel", numa::check),
];

/// A check that takes what it does not find for what is not there, and so has to be able to look.
fn seen(site: &Site, needs: &str, check: Check) -> Vec<Found> {
    let found = check(site);
    if site.has(needs) {
        return found;
    }
    let mount = needs.split('/').next().unwrap_or_default();
    let unseen = found.into_iter().map(|found| {
        let finding = format!("this could not be looked at: /{mount} is not mounted here");
        Found::unknown(&found.line.id, finding)
    });
    unseen.collect()
}

/// Those that ask the kernel by trying.
const TRYING: &[Check] = &[io_uring::check, memlock::check, direct_io::check];

/// Examines, prints, and returns the exit code.
pub(crate) fn run(flags: &Flags) -> Result<u8> {
    if flags.probe {
        probe::answer();
        return Ok(exit::DONE);
    }
    if let Some(id) = &flags.explain {
        show::print(&explain::text(id)?)?;
        return Ok(exit::DONE);
    }
    let site = Site::examine(&flags.target)?;
    let found = TRYING.iter().chain(CHEAP).flat_map(|check| check(&site));
    let examined = Examination {
        schema: SCHEMA.to_owned(),
        tool: Tool {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: site.ring().backend(),
        },
        taken_utc: utc_now(),
        lines: found.map(|found| found.line).collect(),
        machine: site.machine.clone(),
        target: site.target.clone(),
    };
    let text = match flags.json {
        true => serde_json::to_string_pretty(&examined)? + "\n",
        false => examination(&examined, show::style()),
    };
    show::print(&text)?;
    Ok(match examined.count(Status::Problem) {
        0 => exit::DONE,
        _ => exit::CANNOT,
    })
}

/// What makes a place unfit for measuring a disk, that it is memory: known before anything is.
pub(crate) fn unfit_place(named: &Path) -> Result<Vec<String>> {
    let found = file_system::check(&Site::examine(named)?).into_iter();
    let unfit = found.filter(|found| found.line.status == Status::Problem);
    let told = unfit.map(|Found { line, .. }| {
        let Line {
            finding,
            consequence,
            fix,
            ..
        } = line;
        format!("{finding}. {consequence}. Fix: {fix}")
    });
    Ok(told.collect())
}

/// What the cheap checks have to say against figures that were measured at this place.
pub(crate) fn cheap(site: &Site) -> Vec<Found> {
    let found = CHEAP.iter().flat_map(|check| check(site));
    let spoils = |found: &Found| {
        let fine = matches!(found.line.status, Status::Ok | Status::Unknown);
        !fine && found.spoils != Spoils::Nothing
    };
    found.filter(spoils).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_is_not_called_right() {
        let ids = ["cgroup-io", "cgroup-cpu", "huge-pages", "numa"];
        let status = |site: &Site| {
            let found = CHEAP.iter().flat_map(|check| check(site));
            let lines: Vec<Line> = found.map(|found| found.line).collect();
            ids.map(|id| {
                let line = lines.iter().find(|line| line.id == id);
                line.expect("it is examined").status
            })
        };
        let bare = Tree::of(&[]);
        assert_eq!(status(&bare.site(&[])), [Status::Unknown; 4]);
        let mounted = Tree::of(&[("proc/self/status", ""), ("sys/kernel/x", "")]);
        let seen = status(&mounted.site(&[]));
        assert!(!seen.contains(&Status::Unknown), "{seen:?}");
    }
}
