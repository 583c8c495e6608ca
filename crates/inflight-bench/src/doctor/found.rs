//! What a check answers with.

use inflight_report::doctor::{Line, Status};

/// A line of the examination, and which figures of a benchmark it spoils.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) line: Line,
    pub(crate) spoils: Spoils,
}

/// Cells of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoils {
    /// All of them.
    Everything,
    /// Those that pass the page cache by.
    Direct,
    /// Those whose requests get as far as the device: past the page cache, cold, or synced.
    Device,
    /// Those that bring what they have written to the device.
    Syncs,
    /// Those that read one block after the other through a page cache that holds none.
    ReadAhead,
    /// Those that read through a map of what is not in the page cache.
    ColdMaps,
    /// Those that go through the page cache.
    Buffered,
    /// Those that use a ring.
    Rings,
    /// None that a benchmark has.
    Nothing,
}

impl Found {
    fn new(status: Status, id: &str, finding: impl Into<String>) -> Self {
        Self {
            line: Line {
                id: id.to_owned(),
                status,
                finding: finding.into(),
                consequence: String::new(),
                fix: String::new(),
            },
            spoils: Spoils::Everything,
        }
    }

    /// As it should be.
    pub(super) fn ok(id: &str, finding: impl Into<String>) -> Self {
        Self::new(Status::Ok, id, finding)
    }

    /// Good to know.
    pub(super) fn note(id: &str, finding: impl Into<String>) -> Self {
        Self::new(Status::Note, id, finding)
    }

    /// Costs speed, or deceives.
    pub(crate) fn warning(id: &str, finding: impl Into<String>) -> Self {
        Self::new(Status::Warning, id, finding)
    }

    /// Keeps fast I/O from working.
    pub(super) fn problem(id: &str, finding: impl Into<String>) -> Self {
        Self::new(Status::Problem, id, finding)
    }

    /// Could not be found out; the finding has the reason.
    pub(super) fn unknown(id: &str, finding: impl Into<String>) -> Self {
        Self::new(Status::Unknown, id, finding)
    }

    /// What follows.
    pub(super) fn so(mut self, consequence: impl Into<String>) -> Self {
        self.line.consequence = consequence.into();
        self
    }

    /// What to do.
    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.line.fix = fix.into();
        self
    }

    /// Which figures it spoils, if not all.
    pub(crate) fn spoils(mut self, spoils: Spoils) -> Self {
        self.spoils = spoils;
        self
    }
}
