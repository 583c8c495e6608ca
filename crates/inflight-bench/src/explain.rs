//! `inflight bench --explain`: why each profile is there, and which way the library would take.
//!
//! Measures nothing. The library decides by the file, so that it is asked about one: the file that
//! was named, or a small one that is made and removed.

use std::iter;
use std::path::PathBuf;

use anyhow::Result;
use inflight_report::record::Cell;
use inflight_report::text::{self, names};

use crate::cli::Options;
use crate::plan::{Plan, PlannedProfile};
use crate::scratch::Scratch;
use crate::strategy::{Modes, Road};
use crate::target::{self, Place};
use crate::{exit, show};

/// Blocks of the file that is made.
const BLOCKS: u64 = 4;

/// Prints it and returns the exit code.
pub(crate) fn print(options: &Options, plan: &Plan) -> Result<u8> {
    let place = target::examine(&options.target)?;
    for planned in &plan.profiles {
        let told = planned.profile.summary();
        let about = iter::once(told.reason).chain(roads(&place, planned));
        let about: Vec<String> = about.collect();
        let title = format!("{}: {}", told.name, told.title);
        show::print(&text::paragraphs(&title, &about, show::style()))?;
    }
    Ok(exit::DONE)
}

/// The ways of the library's cells, those with one way together.
fn roads(place: &Place, planned: &PlannedProfile) -> Vec<String> {
    let profile = &planned.profile;
    let file_bytes = u64::from(profile.block_bytes) * BLOCKS;
    let (path, _made) = match place {
        Place::File { .. } if profile.writes() => {
            return vec!["an existing file is never written".to_owned()];
        }
        Place::File { path, .. } => (path.clone(), None),
        Place::Directory(directory) => {
            match Scratch::create(directory, file_bytes, 1, 0, &mut |_| {}) {
                Ok(made) => (made.path.clone(), Some(made)),
                Err(error) => return vec![format!("no way of the library: {error:#}")],
            }
        }
    };
    let paths: Vec<PathBuf> = vec![path];
    let work = profile.work(file_bytes);
    let profiles = [profile.summary()];
    let mut ways: Vec<(String, Vec<Cell>)> = Vec::new();
    for cell in planned.runs() {
        let on = Road {
            paths: &paths,
            work: &work,
            direct: profile.direct(),
            depth: cell.shape.depth / cell.shape.threads.max(1),
        };
        let Some(told) = cell.strategy.road(&on) else {
            continue;
        };
        let told = told.unwrap_or_else(|error| format!("not known: {error:#}"));
        let cell = cell.begin(&profile.name, Modes::new()).cell;
        match ways.iter_mut().find(|(known, _)| *known == told) {
            Some((_, cells)) => cells.push(cell),
            None => ways.push((told, vec![cell])),
        }
    }
    let line = |(told, cells): &(String, Vec<Cell>)| {
        let cells: Vec<&Cell> = cells.iter().collect();
        format!("{}: {told}", names(&cells, &profiles))
    };
    ways.iter().map(line).collect()
}
