//! The stored format of an examination of a machine, `inflight.doctor/1`.
//!
//! Changes are additive only, as in [`crate::record`], whose machine and target are used here. What
//! is drawn from it is in [`crate::text::doctor`]; the examining is the command's business.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Machine, Target, Tool};

/// The name and version of the stored format.
pub const SCHEMA: &str = "inflight.doctor/1";

/// One examination: what was looked at, and a line for everything that was looked for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Examination {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The program that examined.
    pub tool: Tool,
    /// When, UTC, as `2026-01-31T12:00:00Z`.
    pub taken_utc: String,
    /// The machine.
    pub machine: Machine,
    /// The place that was named, and what it is on.
    pub target: Target,
    /// What was found, in the order of the checks.
    pub lines: Vec<Line>,
}

impl Examination {
    /// How many lines have this status.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        let of_it = |line: &&Line| line.status == status;
        self.lines.iter().filter(of_it).count()
    }
}

/// One thing that was looked for: whether it is so, what follows, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Stable name of what was looked for; `inflight doctor --explain ID` has a paragraph on it.
    pub id: String,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub finding: String,
    /// What follows from it; empty where nothing does.
    pub consequence: String,
    /// What to do about it, as a command to copy where there is one; empty where nothing helps.
    pub fix: String,
}

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Good to know; nothing is lost.
    Note,
    /// Costs speed, or makes figures mean something else than they seem to.
    Warning,
    /// Keeps fast disk I/O from working here.
    Problem,
    /// Could not be found out, with the reason.
    Unknown,
}
