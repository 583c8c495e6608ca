//! Whether a record that was read is one that a run can have written.
//!
//! What a table and a verdict rest on is found by names and numbers: a profile by its name, a cell
//! by its id, the rounds that two cells share by their numbers. Where one of these is there twice,
//! figures would be put together that do not belong together.

use std::collections::BTreeSet;

use crate::record::{Cell, Record};

/// What is wrong with a record, if anything is.
pub(crate) fn defect(record: &Record) -> Option<String> {
    let mut profiles = BTreeSet::new();
    let mut names = record.profiles.iter().map(|profile| &*profile.name);
    if let Some(name) = names.find(|name| !profiles.insert(*name)) {
        return Some(format!("the profile `{name}` is in it twice"));
    }
    let mut ids = BTreeSet::new();
    record.cells.iter().find_map(|cell| {
        let Cell { id, profile, .. } = cell;
        if !ids.insert(id) {
            Some(format!("the cell `{id}` is in it twice"))
        } else if !profiles.contains(&**profile) {
            Some(format!("the cell `{id}` is of a profile that is not in it"))
        } else if cell.depth == 0 {
            Some(format!("the cell `{id}` has nothing in flight"))
        } else {
            let mut blocks = BTreeSet::new();
            let mut rounds = cell.rounds.iter().map(|round| round.block);
            if let Some(twice) = rounds.find(|block| !blocks.insert(*block)) {
                return Some(format!("the cell `{id}` has the round {twice} twice"));
            }
            if blocks.len() > MOST_ROUNDS {
                return Some(format!("the cell `{id}` has {} rounds", blocks.len()));
            }
            // Each round has its turns once, so what is left is its own.
            let mut turns = cell.turns.iter().map(|one| one.block);
            let other = turns.find(|block| !blocks.remove(block))?;
            Some(format!(
                "the cell `{id}` has turns of the round {other} twice, or without it"
            ))
        }
    })
}

/// Rounds of a cell in a record that is read, more than a day of measuring has: comparing takes as
/// long as the cube of them.
const MOST_ROUNDS: usize = 20_000;
