//! What a profile and its operations are called.

use crate::record::{Access, ProfileSummary, Sync};

/// Bytes of a block from which on bandwidth says more than a count.
const LARGE_BYTES: u32 = 64 << 10;

/// One operation of a profile, and several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noun {
    /// In a sentence.
    pub one: &'static str,
    /// Before `/s`.
    pub many: &'static str,
    /// After `CPU/`.
    pub short: &'static str,
}

/// What a profile is called above what is told of it. A title that ends in brackets has the name in
/// the same ones.
pub(crate) fn heading(profile: &ProfileSummary) -> String {
    let ProfileSummary { title, name, .. } = profile;
    match title.strip_suffix(')') {
        Some(open) => format!("{open}, {name})"),
        None => format!("{title} ({name})"),
    }
}

/// What the operations of this profile are called.
#[must_use]
pub fn of(profile: &ProfileSummary) -> Noun {
    let noun = |one, many, short| Noun { one, many, short };
    match (profile.access, profile.sync) {
        (Access::RandomRead | Access::SequentialRead, _) => noun("read", "reads", "read"),
        (Access::RangeRead, _) => noun("range", "ranges", "range"),
        (Access::Mixed, _) => noun("operation", "operations", "op"),
        (_, Sync::Each) if profile.read_back => {
            noun("write that is read back", "checked writes", "write")
        }
        (_, Sync::Each) => noun("durable write", "durable writes", "write"),
        (_, Sync::None | Sync::End) => noun("write", "writes", "write"),
    }
}

/// Whether blocks are so large that bandwidth says more than a count.
pub(crate) fn are_large(profile: &ProfileSummary) -> bool {
    profile.block_size_bytes >= LARGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_called_what_they_are() {
        let many = |access, sync, read_back| {
            let profile = ProfileSummary {
                access,
                sync,
                read_back,
                ..ProfileSummary::default()
            };
            of(&profile).many
        };
        assert_eq!(many(Access::RandomRead, Sync::None, false), "reads");
        assert_eq!(many(Access::RangeRead, Sync::None, false), "ranges");
        assert_eq!(many(Access::Mixed, Sync::Each, false), "operations");
        assert_eq!(many(Access::SequentialWrite, Sync::End, false), "writes");
        assert_eq!(many(Access::Append, Sync::Each, false), "durable writes");
        assert_eq!(many(Access::Append, Sync::Each, true), "checked writes");
    }
}
