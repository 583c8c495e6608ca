//! What is asked of the device: a profile is a small TOML file that a user can copy and edit.
//!
//! A profile says what, never how: nothing here names a strategy.

use std::path::Path;

use anyhow::{Context, Result, bail};
use inflight_report::record::ProfileSummary;
use serde::Deserialize;

use crate::exit::usage;
use crate::size;

/// The profiles that are part of the program, by name.
const BUILT_IN: &[(&str, &str)] = &[
    (
        "direct-random-read",
        include_str!("../../../profiles/direct-random-read.toml"),
    ),
    (
        "cached-random-read",
        include_str!("../../../profiles/cached-random-read.toml"),
    ),
];

/// The largest queue depth that is accepted: no device has more requests than this.
pub(crate) const MAX_DEPTH: u32 = 4096;

/// One workload.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) asked: Asked,
}

/// The keys of a profile file; an unknown key is an error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// One line for people, without the block size, which is put before it.
    pub(crate) title: String,
    pub(crate) access: Access,
    pub(crate) block_size_bytes: u32,
    pub(crate) queue_depths: Vec<u32>,
    pub(crate) direct_io: DirectIo,
    pub(crate) page_cache: PageCache,
}

/// The order and direction of the operations.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    RandomRead,
}

/// Whether the operations pass the page cache by.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DirectIo {
    Required,
    Disabled,
}

/// The state of the page cache before the first operation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PageCache {
    Unused,
    Warm,
}

impl Profile {
    pub(crate) fn direct(&self) -> bool {
        self.asked.direct_io == DirectIo::Required
    }

    pub(crate) fn cached(&self) -> bool {
        self.asked.page_cache == PageCache::Warm
    }

    pub(crate) fn summary(&self) -> ProfileSummary {
        ProfileSummary {
            name: self.name.clone(),
            title: format!(
                "{} {}",
                size::human(u64::from(self.asked.block_size_bytes)),
                self.asked.title
            ),
            block_size_bytes: self.asked.block_size_bytes,
            direct: self.direct(),
            cached: self.cached(),
            files: 1,
            ..ProfileSummary::default()
        }
    }

    fn check(&self) -> Result<()> {
        size::check_block(self.asked.block_size_bytes)?;
        check_depths(&self.asked.queue_depths)?;
        if self.direct() && self.cached() {
            bail!("direct_io = \"required\" and page_cache = \"warm\" exclude each other");
        }
        match self.asked.access {
            Access::RandomRead => Ok(()),
        }
    }
}

/// Refuses depths that cannot be measured.
pub(crate) fn check_depths(depths: &[u32]) -> Result<()> {
    if depths.is_empty() {
        bail!("at least one queue depth is needed");
    }
    match depths
        .iter()
        .find(|depth| !(1..=MAX_DEPTH).contains(*depth))
    {
        Some(depth) => bail!("queue depth {depth} is outside 1..={MAX_DEPTH}"),
        None => Ok(()),
    }
}

/// The profiles for the names given: built-in names, paths of TOML files, or `all`.
pub(crate) fn load(names: &[String]) -> Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> = Vec::new();
    for name in names {
        let found = if name == "all" {
            BUILT_IN
                .iter()
                .map(|(name, text)| parse(name, text))
                .collect::<Result<Vec<_>>>()?
        } else {
            vec![load_one(name)?]
        };
        for profile in found {
            if !profiles.iter().any(|known| known.name == profile.name) {
                profiles.push(profile);
            }
        }
    }
    Ok(profiles)
}

fn load_one(name: &str) -> Result<Profile> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(name, text);
    }
    let path = Path::new(name);
    if path.extension().is_none_or(|extension| extension != "toml") {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        return Err(usage(format!(
            "unknown profile `{name}`; known are {}, all, or the path of a .toml file",
            known.join(", ")
        )));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("profile {name} cannot be read: {error}")))?;
    let stem = path.file_stem().context("a profile file needs a name")?;
    parse(&stem.to_string_lossy(), &text)
}

fn parse(name: &str, text: &str) -> Result<Profile> {
    let asked = toml::from_str(text).map_err(|error| usage(format!("profile {name}: {error}")))?;
    let profile = Profile {
        name: name.to_owned(),
        asked,
    };
    profile
        .check()
        .map_err(|error| usage(format!("profile {name}: {error}")))?;
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_valid() {
        let profiles = load(&["all".to_owned()]).unwrap();
        assert_eq!(profiles.len(), BUILT_IN.len());
        assert!(profiles[0].direct() && !profiles[0].cached());
        assert!(profiles[1].cached() && !profiles[1].direct());
        assert!(
            profiles[0]
                .summary()
                .title
                .starts_with("4 KiB random reads")
        );
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let text = format!("{}\nengine = \"uring\"\n", BUILT_IN[0].1);
        let error = parse("mine", &text).unwrap_err().to_string();
        assert!(error.contains("unknown field `engine`"), "{error}");
    }

    #[test]
    fn direct_and_warm_exclude_each_other() {
        let text = BUILT_IN[0].1.replace("\"unused\"", "\"warm\"");
        assert!(parse("mine", &text).is_err());
    }
}
