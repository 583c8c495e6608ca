//! What happens in the course of a run: everything that is shown or told of it is made of these.
//!
//! As JSON they are the stream of `--progress json`, described in `docs/progress.md`. Fields are
//! only added; anything else gets a new number.

use serde::Serialize;

/// The name of the stream's format.
const SCHEMA: &str = "inflight.progress/1";

/// Something that happened.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event<'a> {
    /// What is going to happen.
    Start(Start<'a>),
    /// A line for people.
    Message { text: &'a str },
    /// So much of the test data was written.
    Writing { done_bytes: u64, size_bytes: u64 },
    /// A cell ran, or could not.
    Cell(Done<'a>),
    /// All cells of a profile had their turn.
    Round {
        profile: &'a str,
        round: u32,
        rounds: u32,
        left_ns: u64,
    },
    /// The first signal came: the current cell will be the last.
    Interrupted,
    /// Nothing follows.
    End {
        exit_code: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The plan.
#[derive(Serialize)]
pub(crate) struct Start<'a> {
    schema: &'static str,
    version: &'static str,
    pub(crate) rounds: u32,
    /// Of all rounds; making the test data comes on top.
    pub(crate) expected_ns: u64,
    pub(crate) cells: Vec<Planned<'a>>,
}

impl<'a> Start<'a> {
    pub(crate) fn new(rounds: u32, expected_ns: u64, cells: Vec<Planned<'a>>) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            rounds,
            expected_ns,
            cells,
        }
    }
}

/// A cell that will be measured.
#[derive(Serialize)]
pub(crate) struct Planned<'a> {
    pub(crate) id: String,
    pub(crate) profile: &'a str,
    pub(crate) strategy: &'a str,
    pub(crate) depth: u32,
    pub(crate) threads: u32,
}

/// A cell that had its turn.
#[derive(Serialize)]
pub(crate) struct Done<'a> {
    pub(crate) id: &'a str,
    pub(crate) profile: &'a str,
    /// From 1.
    pub(crate) round: u32,
    pub(crate) rounds: u32,
    #[serde(flatten)]
    pub(crate) outcome: Outcome<'a>,
    pub(crate) left_ns: u64,
    /// What the record says beside its figures, for those who draw.
    #[serde(skip)]
    pub(crate) shown: Shown<'a>,
}

/// What came of a turn.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Outcome<'a> {
    Ran {
        ops: u64,
        bytes: u64,
        errors: u64,
        duration_ns: u64,
        /// Of the cell's rounds so far, as far as there are samples enough.
        #[serde(skip_serializing_if = "Option::is_none")]
        ns_p50: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ns_p99: Option<u64>,
    },
    Skipped {
        skipped: &'a str,
    },
}

/// How a cell is drawn.
#[derive(Default)]
pub(crate) struct Shown<'a> {
    /// The strategy with its depth, as reports call it.
    pub(crate) name: String,
    /// What its operations are called, in the plural.
    pub(crate) noun: &'static str,
    /// Operations per second in each round so far.
    pub(crate) rates: Vec<f64>,
    /// Latencies over time in this round, as the record stores them.
    #[cfg_attr(
        not(feature = "live"),
        expect(dead_code, reason = "only the full screen has room for it")
    )]
    pub(crate) heat: Option<&'a str>,
}
