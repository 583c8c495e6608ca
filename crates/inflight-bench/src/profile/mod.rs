//! What is asked of the device: a profile is a small TOML file that a user can copy and edit.
//!
//! A profile says what, never how: nothing here names a strategy. The profiles that are part of
//! the program, and the names of sets of them, are in `built_in`.

mod built_in;

use std::path::Path;

use anyhow::{Context, Result, bail};
use inflight_report::record::{Access, ProfileSummary, Sync};
use serde::Deserialize;

use crate::exit::usage;
use crate::size;
use crate::text;
use crate::work::Work;

pub(crate) use built_in::{DEFAULT_SET, list};

/// The largest queue depth that is accepted: no device has more requests than this.
pub(crate) const MAX_DEPTH: u32 = 4096;
/// More files than this have no place among the descriptors of a process.
const MAX_FILES: u32 = 512;

const PAGE_BYTES: u32 = 4096;

/// One workload, with one block size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profile {
    pub(crate) name: String,
    /// Of several that differ in block size: what their names begin with.
    stem: Option<String>,
    pub(crate) block_bytes: u32,
    pub(crate) asked: Asked,
}

/// More than this is no profile.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The keys of a profile file; an unknown key is an error.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// One line for people, without the block size, which is put before it.
    pub(crate) title: String,
    /// Which programs it stands for, and what it is to show.
    #[serde(default)]
    pub(crate) reason: String,
    pub(crate) access: Access,
    /// With several, the profile is one for each.
    block_size_bytes: Sizes,
    /// Of ranges, which are then between this and the block size.
    #[serde(default)]
    smallest_range_bytes: Option<u32>,
    pub(crate) queue_depths: Vec<u32>,
    /// As many operations as the depth begin together, and all end before the next begin.
    #[serde(default)]
    pub(crate) batched: bool,
    pub(crate) direct_io: DirectIo,
    pub(crate) page_cache: PageCache,
    #[serde(default = "one")]
    pub(crate) files: u32,
    #[serde(default)]
    pub(crate) sync: Sync,
    /// Of a mixed access.
    #[serde(default)]
    read_percent: Option<u32>,
    /// Each operation reads back what it has written.
    #[serde(default)]
    pub(crate) read_back: bool,
    /// The content of every block that was read is checked.
    #[serde(default)]
    pub(crate) verify: bool,
}

fn one() -> u32 {
    1
}

/// One block size, or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a multiple of 512 bytes up to 16 MiB, or a list of such numbers"
)]
enum Sizes {
    One(u32),
    Several(Vec<u32>),
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
    Cold,
    /// Every other block is there.
    Half,
}

impl Profile {
    /// Whether this is its name, or that of all its block sizes.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.stem.as_deref() == Some(name)
    }

    pub(crate) fn direct(&self) -> bool {
        self.asked.direct_io == DirectIo::Required
    }

    pub(crate) fn cached(&self) -> bool {
        self.asked.page_cache == PageCache::Warm
    }

    pub(crate) fn cold(&self) -> bool {
        self.asked.page_cache == PageCache::Cold
    }

    pub(crate) fn half_cached(&self) -> bool {
        self.asked.page_cache == PageCache::Half
    }

    /// Whether some of what is read is not in memory, so that what was read has to be thrown out
    /// again before the next reads.
    pub(crate) fn misses(&self) -> bool {
        self.cold() || self.half_cached()
    }

    /// Whether one flush could serve several of its operations: each is a write to the only file
    /// and its sync.
    pub(crate) fn shares_flushes(&self) -> bool {
        let asked = &self.asked;
        asked.sync == Sync::Each && !asked.read_back && !asked.batched && asked.files == 1
    }

    pub(crate) fn writes(&self) -> bool {
        self.asked.access.writes()
    }

    pub(crate) fn grows(&self) -> bool {
        self.asked.access == Access::Append
    }

    /// The work of this profile on files of this size.
    pub(crate) fn work(&self, file_bytes: u64) -> Work {
        let Asked { access, .. } = self.asked;
        Work {
            access,
            block_bytes: self.block_bytes,
            least_bytes: self.least_bytes(),
            read_percent: self.asked.read_percent.unwrap_or(0),
            sync: self.asked.sync,
            batched: self.asked.batched,
            read_back: self.asked.read_back,
            verify: self.asked.verify,
            misses: self.misses(),
            // What was read once is no longer cold.
            without_repeats: self.misses() && access == Access::RandomRead,
            files: self.asked.files,
            file_bytes,
        }
    }

    /// Whether operations differ in length.
    pub(crate) fn varies(&self) -> bool {
        self.least_bytes() != self.block_bytes
    }

    /// Takes another block size, and the name that goes with it. Ranges have none that could be
    /// another one.
    pub(crate) fn resize(&mut self, block_bytes: u32) -> Result<()> {
        if let Some(least) = self.asked.smallest_range_bytes {
            let Self { name, .. } = self;
            let (least, most) = (
                size::human(least.into()),
                size::human(self.block_bytes.into()),
            );
            return Err(usage(format!(
                "--block-size: {name} reads ranges of {least} to {most}, not blocks of one size: \
                 leave the one or the other out"
            )));
        }
        self.block_bytes = block_bytes;
        self.check_halves()?;
        if let Some(stem) = &self.stem {
            self.name = sized(stem, block_bytes);
        }
        Ok(())
    }

    fn least_bytes(&self) -> u32 {
        self.asked.smallest_range_bytes.unwrap_or(self.block_bytes)
    }

    pub(crate) fn summary(&self) -> ProfileSummary {
        let block_bytes = u64::from(self.block_bytes);
        let blocks = match self.asked.smallest_range_bytes {
            Some(least) => {
                let (least, most) = (size::human(u64::from(least)), size::human(block_bytes));
                format!("{least} to {most}")
            }
            None => size::before_noun(block_bytes),
        };
        ProfileSummary {
            name: self.name.clone(),
            title: format!("{blocks} {}", self.asked.title),
            block_size_bytes: self.block_bytes,
            direct: self.direct(),
            cached: self.cached(),
            access: self.asked.access,
            read_percent: self.asked.read_percent,
            cold: self.cold(),
            half_cached: self.half_cached(),
            files: self.asked.files,
            sync: self.asked.sync,
            batched: self.asked.batched,
            read_back: self.asked.read_back,
            verified: self.asked.verify,
            reason: self.asked.reason.clone(),
        }
    }

    /// Of a block that begins or ends within a page its neighbours would bring in a part.
    fn check_halves(&self) -> Result<()> {
        if self.half_cached() && !self.block_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(usage(format!(
                "{} has one block in two in memory, and needs blocks of whole pages: a multiple of \
                 4 KiB",
                self.name
            )));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let asked = &self.asked;
        size::check_block(self.block_bytes)?;
        check_depths(&asked.queue_depths)?;
        if self.direct() && asked.page_cache != PageCache::Unused {
            bail!("direct_io = \"required\" goes with page_cache = \"unused\" only");
        }
        if self.half_cached() && asked.access != Access::RandomRead {
            bail!("page_cache = \"half\" goes with access = \"random-read\" only");
        }
        self.check_halves()?;
        if !(1..=MAX_FILES).contains(&asked.files) {
            bail!("files = {} is outside 1..={MAX_FILES}", asked.files);
        }
        if (asked.access == Access::Mixed) != asked.read_percent.is_some() {
            bail!("read_percent belongs to access = \"mixed\", and to nothing else");
        }
        if asked.read_percent.is_some_and(|percent| percent > 100) {
            bail!("read_percent is more than 100");
        }
        if (asked.access == Access::RangeRead) != asked.smallest_range_bytes.is_some() {
            bail!("smallest_range_bytes belongs to access = \"range-read\", and to nothing else");
        }
        let least = self.least_bytes();
        size::check_block(least)?;
        if least > self.block_bytes {
            bail!("smallest_range_bytes is more than block_size_bytes");
        }
        if !self.writes() && (asked.sync != Sync::None || asked.read_back) {
            bail!("sync and read_back belong to an access that writes");
        }
        Ok(())
    }
}

/// Refuses depths that cannot be measured.
fn check_depths(depths: &[u32]) -> Result<()> {
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

/// The profiles for the names given: built-in names, names of sets, or paths of TOML files.
pub(crate) fn load(names: &[String]) -> Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> = Vec::new();
    for name in names {
        let found = match built_in::set(name) {
            Some(members) => {
                let loaded: Result<Vec<_>> = members.iter().map(|name| load_one(name)).collect();
                loaded?.concat()
            }
            None => load_one(name)?,
        };
        for profile in found {
            match profiles.iter().find(|known| known.name == profile.name) {
                None => profiles.push(profile),
                Some(known) if *known == profile => {}
                Some(_) => {
                    return Err(usage(format!(
                        "two profiles are named {}, and are not the same: give one of the files \
                         another name",
                        profile.name
                    )));
                }
            }
        }
    }
    Ok(profiles)
}

/// Whether this names a file, not a profile that is built in.
pub(crate) fn is_file(name: &Path) -> bool {
    name.extension()
        .is_some_and(|extension| extension == "toml")
}

fn load_one(name: &str) -> Result<Vec<Profile>> {
    if let Some(text) = built_in::text(name) {
        return parse(name, text);
    }
    let path = Path::new(name);
    if !is_file(path) {
        return Err(usage(format!(
            "unknown profile `{name}`; known are {}, or the path of a .toml file",
            built_in::names().join(", ")
        )));
    }
    let text = text::read(path, MAX_FILE_BYTES)
        .map_err(|error| usage(format!("profile {name} cannot be read: {error}")))?;
    let stem = path.file_stem().context("a profile file needs a name")?;
    parse(&stem.to_string_lossy(), &text)
}

/// One profile for each block size; where there are several, the name tells which it is.
fn parse(name: &str, text: &str) -> Result<Vec<Profile>> {
    let asked: Asked =
        toml::from_str(text).map_err(|error| usage(format!("profile {name}: {error}")))?;
    let profile = |name: String, stem: Option<String>, block_bytes: u32| {
        let asked = asked.clone();
        let profile = Profile {
            name,
            stem,
            block_bytes,
            asked,
        };
        profile
            .check()
            .map_err(|error| usage(format!("profile {}: {error}", profile.name)))?;
        Ok(profile)
    };
    match &asked.block_size_bytes {
        Sizes::One(block_bytes) => Ok(vec![profile(name.to_owned(), None, *block_bytes)?]),
        Sizes::Several(sizes) if sizes.is_empty() => Err(usage(format!(
            "profile {name}: block_size_bytes has no block size"
        ))),
        Sizes::Several(sizes) => {
            let each = sizes.iter().map(|&block_bytes| {
                let stem = Some(name.to_owned());
                profile(sized(name, block_bytes), stem, block_bytes)
            });
            each.collect()
        }
    }
}

/// The name of one of several profiles that differ in block size.
fn sized(stem: &str, block_bytes: u32) -> String {
    let size = size::human(u64::from(block_bytes)).replace("iB", "");
    let size = size.replace(' ', "").to_lowercase();
    // Two sizes may be the same number when it is rounded.
    match size::parse(&size) == Ok(block_bytes.into()) {
        true => format!("{stem}-{size}"),
        false => format!("{stem}-{block_bytes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(from: &str, to: &str) -> String {
        let text = built_in::text("direct-random-read").unwrap();
        assert!(text.contains(from), "{from}");
        let parsed = parse("mine", &text.replace(from, to));
        parsed.unwrap_err().to_string()
    }

    #[test]
    fn every_built_in_profile_is_valid_and_says_why_it_is_there() {
        let profiles = load(&["all".to_owned()]).unwrap();
        let mut names: Vec<&str> = profiles.iter().map(|one| &*one.name).collect();
        assert!(names.contains(&"buffered-random-write-8k"), "{names:?}");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for profile in &profiles {
            let summary = profile.summary();
            assert!(!summary.reason.is_empty(), "{}", profile.name);
            assert_eq!(summary.access.writes(), profile.writes());
            let mixed = summary.access == Access::Mixed;
            assert_eq!(summary.read_percent.is_some(), mixed, "{}", profile.name);
        }
        for name in built_in::names() {
            assert!(!load(&[name.to_owned()]).unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn titles_begin_with_the_size() {
        let title = |name: &str| load(&[name.to_owned()]).unwrap()[0].summary().title;
        assert!(title("direct-random-read").starts_with("4 KiB random reads"));
        assert!(title("cold-range-read").starts_with("4 KiB to 256 KiB "));
        let mut sectors = load(&["durable-append".to_owned()]).unwrap().remove(0);
        sectors.resize(512).expect("its block size can be chosen");
        let title = sectors.summary().title;
        assert!(title.starts_with("512-byte blocks appended"), "{title}");
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let told = refusal("access =", "engine = \"uring\"\naccess =");
        assert!(told.contains("unknown field `engine`"), "{told}");
    }

    #[test]
    fn what_does_not_go_together_is_an_error() {
        for page_cache in ["\"warm\"", "\"cold\""] {
            assert!(refusal("\"unused\"", page_cache).contains("page_cache"));
        }
        let half = "\"sequential-read\"\npage_cache = \"half\"";
        let text = built_in::text("half-cached-random-read").unwrap();
        let text = text.replace("\"random-read\"", half);
        let text = text.replace("page_cache = \"half\"     #", "#");
        let refused = parse("mine", &text).unwrap_err().to_string();
        assert!(
            refused.contains("page_cache = \"half\" goes with"),
            "{refused}"
        );
        let mut half = load(&["half-cached-random-read".to_owned()]).unwrap();
        let refused = half[0].resize(6144).unwrap_err().to_string();
        assert!(refused.contains("whole pages"), "{refused}");
        let access = "\"random-read\"";
        assert!(refusal(access, "\"mixed\"").contains("read_percent"));
        assert!(refusal(access, "\"range-read\"").contains("smallest_range_bytes"));
        assert!(refusal(access, "\"random-read\"\nsync = \"each\"").contains("sync"));
        assert!(refusal(access, "\"random-read\"\nfiles = 0").contains("files"));
    }

    #[test]
    fn several_block_sizes_make_several_profiles() {
        let text = built_in::text("direct-random-read").unwrap();
        let text = text.replace("= 4096", "= [4096, 2097152]");
        let names = parse("mine", &text).unwrap().into_iter();
        let names: Vec<String> = names.map(|profile| profile.name).collect();
        assert_eq!(names, ["mine-4k", "mine-2m"]);
        // Both are 1.0 MiB.
        let text = text.replace("[4096, 2097152]", "[1049088, 1050624]");
        let names = parse("mine", &text).unwrap().into_iter();
        let names: Vec<String> = names.map(|profile| profile.name).collect();
        assert_eq!(names, ["mine-1049088", "mine-1050624"]);
        assert!(refusal("= 4096", "= []").contains("has no block size"));
        assert!(refusal("= 4096", "= -1").contains("a multiple of 512 bytes"));
    }

    #[test]
    fn one_name_is_of_one_profile() {
        let name = "direct-random-read";
        let twice = [name, "default", name].map(str::to_owned);
        let known = load(&twice).unwrap();
        assert_eq!(known.iter().filter(|known| known.name == name).count(), 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("direct-random-read.toml");
        let text = built_in::text(name).unwrap();
        let both = [name.to_owned(), path.to_string_lossy().into_owned()];
        std::fs::write(&path, text).unwrap();
        assert_eq!(load(&both).unwrap().len(), 1);
        std::fs::write(&path, text.replace("= 4096", "= 8192")).unwrap();
        let refused = load(&both).unwrap_err().to_string();
        assert!(refused.contains("two profiles are named"), "{refused}");
        std::fs::write(&path, " ".repeat(2 << 20)).unwrap();
        let refused = load(&both[1..]).unwrap_err().to_string();
        assert!(refused.contains("too large"), "{refused}");
    }
}
