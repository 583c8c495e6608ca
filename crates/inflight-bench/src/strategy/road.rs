//! Which way the library takes, in its own words: for the record, and for `--explain`.

use std::path::PathBuf;

use ::inflight::Engine;
use ::inflight::fs::{Explanation, File};
use anyhow::{Context, Result};

use super::inflight::open_all;
use super::{Modes, modes};
use crate::work::Work;

/// How a program hands its operations over.
#[derive(Clone, Copy)]
pub(super) enum Host {
    /// It waits for each.
    Alone,
    /// In a queue or a batch.
    Together,
    /// As futures.
    Awaited,
}

impl Host {
    /// Of a thread that has so many in flight.
    pub(super) fn of_depth(depth: u32) -> Self {
        match depth {
            ..=1 => Self::Alone,
            _ => Self::Together,
        }
    }

    fn words(self, told: &Explanation) -> String {
        let way = match self {
            Self::Alone => told.alone,
            Self::Together => told.batched,
            Self::Awaited => told.awaited,
        };
        format!("{way}, because {}", told.why)
    }
}

/// The way of the next transfer of this file, by what the library has learned of it so far.
/// Nothing is transferred.
pub(super) fn of(file: &File, work: &Work, host: Host) -> Option<String> {
    let bytes = usize::try_from(work.block_bytes).ok()?;
    let buffer = || file.aligned_buf(bytes).ok();
    let reads = work.access.reads() || work.read_back;
    let read = match reads {
        true => Some(host.words(&file.read_at(buffer()?, 0).explain())),
        false => None,
    };
    let write = match work.access.writes() {
        true => Some(host.words(&file.write_at(buffer()?, 0).explain())),
        false => None,
    };
    let sync = work
        .syncs_each()
        .then(|| host.words(&file.sync_data().explain()));
    let parts = [("reads", read), ("writes", write), ("syncs", sync)];
    let parts: Vec<_> = parts
        .into_iter()
        .filter_map(|(what, words)| Some((what, words?)))
        .collect();
    let (_, first) = parts.first()?;
    if parts.iter().all(|(_, words)| words == first) {
        return Some(first.clone());
    }
    let part = |(what, words): &(&str, String)| format!("{what}: {words}");
    Some(parts.iter().map(part).collect::<Vec<_>>().join("; "))
}

/// The same as a mode that took effect.
pub(super) fn mode(files: &[File], work: &Work, host: Host) -> Modes {
    let road = files.first().and_then(|file| of(file, work, host));
    road.map_or_else(Modes::new, |road| modes(&[("road", &road)]))
}

/// What the library could not do as it would have, if there was anything.
pub(super) fn given_up(engine: &Engine) -> Modes {
    let fallbacks = engine.stats().fallbacks;
    if fallbacks.is_empty() {
        return Modes::new();
    }
    let told: Vec<&str> = fallbacks.iter().map(|given_up| &*given_up.reason).collect();
    modes(&[("fallbacks", &told.join("; "))])
}

/// The way that an operation would take on files of which nothing is known yet.
pub(super) fn at_first(paths: &[PathBuf], direct: bool, work: &Work, host: Host) -> Result<String> {
    let files = open_all(&Engine::new()?, paths, direct, work)?;
    let file = files.first().context("there is a file")?;
    of(file, work, host).context("there is no memory for a buffer")
}
