//! The profiles that are part of the program, and names for sets of them.

/// A profile by its file's name.
macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../profiles/", $name, ".toml")))),*]
    };
}

/// Those on the same test data are neighbours, so that it is made once.
const BUILT_IN: &[(&str, &str)] = built_in![
    "direct-random-read",
    "cached-random-read",
    "cold-random-read",
    "half-cached-random-read",
    "cold-range-read",
    "direct-range-read",
    "direct-large-read",
    "buffered-sequential-read",
    "buffered-random-read",
    "buffered-sequential-write",
    "buffered-random-write",
    "direct-random-write",
    "direct-large-write",
    "mixed-70-30",
    "write-fsync-read",
    "durable-append",
    "group-commit",
    "cached-sequential-read",
    "many-files",
    "many-files-cold",
];

/// The set that is measured unless something else is asked for.
pub(crate) const DEFAULT_SET: &str = "default";

/// Names of sets, and which profiles they stand for.
const SETS: &[(&str, &[&str])] = &[
    (
        DEFAULT_SET,
        &[
            "direct-random-read",
            "cached-random-read",
            "cold-random-read",
            "durable-append",
        ],
    ),
    // The rows of a published comparison of system calls and io_uring for databases.
    (
        "o1",
        &[
            "buffered-sequential-read",
            "buffered-random-read",
            "buffered-sequential-write",
            "buffered-random-write",
        ],
    ),
];

/// The text of the profile of this name.
pub(super) fn text(name: &str) -> Option<&'static str> {
    let mut known = BUILT_IN.iter();
    known.find_map(|(known, text)| (*known == name).then_some(*text))
}

/// The names of the profiles in the set of this name.
pub(super) fn set(name: &str) -> Option<Vec<&'static str>> {
    if name == "all" {
        return Some(BUILT_IN.iter().map(|(name, _)| *name).collect());
    }
    let mut known = SETS.iter();
    known.find_map(|(known, members)| (*known == name).then(|| members.to_vec()))
}

/// All profiles, and what the sets stand for, for the help.
pub(crate) fn list() -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let set = |(name, members): &(&str, &[&str])| format!("`{name}` is {}.", members.join(", "));
    let sets: Vec<String> = SETS.iter().map(set).collect();
    format!("Profiles are {}.\n\n{}", names.join(", "), sets.join(" "))
}

/// All names: of profiles, then of sets.
pub(super) fn names() -> Vec<&'static str> {
    let profiles = BUILT_IN.iter().map(|(name, _)| *name);
    let sets = SETS.iter().map(|(name, _)| *name);
    profiles.chain(sets).chain(["all"]).collect()
}
