//! What the screen shows: the profile that is measured now.

use std::time::{Duration, Instant};

use inflight_report::heat::{self, Slice};
use inflight_report::stats::median;

use crate::progress::event::{Done, Event, Outcome, Start};
use crate::progress::words;

/// Measures the harness: on the scale of a disk it would hide everything else.
const HARNESS: &str = "null";

/// A cell with what was measured of it so far.
#[derive(Default)]
pub(super) struct Entry {
    id: String,
    profile: String,
    pub(super) strategy: String,
    pub(super) depth: u32,
    pub(super) name: String,
    pub(super) rates: Vec<f64>,
    pub(super) ns_p99: Option<u64>,
    /// Latencies of all its rounds, in order of time.
    pub(super) slices: Vec<Slice>,
}

impl Entry {
    /// Median over rounds of operations per second; 0 before the first.
    pub(super) fn rate(&self) -> f64 {
        median(self.rates.clone()).unwrap_or(0.0)
    }
}

/// Everything that is shown.
#[derive(Default)]
pub(super) struct Story {
    entries: Vec<Entry>,
    pub(super) profile: String,
    pub(super) noun: &'static str,
    pub(super) round: u32,
    pub(super) rounds: u32,
    /// The cell that had its turn last.
    latest: Option<usize>,
    left_ns: u64,
    /// When the first cell had its turn.
    began: Option<Instant>,
    /// What goes on before the first cell.
    pub(super) preparing: String,
    pub(super) messages: Vec<String>,
}

impl Story {
    /// Takes part in what happens.
    pub(super) fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Start(start) => self.plan(start),
            Event::Message { text } => self.messages.push((*text).to_owned()),
            Event::Interrupted => self.messages.push(words::INTERRUPTED.to_owned()),
            Event::Writing {
                done_bytes,
                size_bytes,
            } => self.preparing = words::writing(*done_bytes, *size_bytes),
            Event::Cell(done) => self.cell(done),
            Event::Round { left_ns, .. } => self.left_ns = *left_ns,
            Event::End { .. } => {}
        }
    }

    fn plan(&mut self, start: &Start<'_>) {
        self.rounds = start.rounds;
        self.left_ns = start.expected_ns;
        let drawn = start.cells.iter().filter(|cell| cell.strategy != HARNESS);
        self.entries = drawn
            .map(|cell| Entry {
                id: cell.id.clone(),
                profile: cell.profile.to_owned(),
                strategy: cell.strategy.to_owned(),
                depth: cell.depth,
                ..Entry::default()
            })
            .collect();
    }

    fn cell(&mut self, done: &Done<'_>) {
        self.began.get_or_insert_with(Instant::now);
        self.preparing.clear();
        if self.profile != done.profile {
            done.profile.clone_into(&mut self.profile);
        }
        (self.round, self.left_ns) = (done.round, done.left_ns);
        self.noun = done.shown.noun;
        self.latest = self.entries.iter().position(|entry| entry.id == done.id);
        let Some(latest) = self.latest else { return };
        let entry = &mut self.entries[latest];
        entry.name.clone_from(&done.shown.name);
        if let Outcome::Ran { ns_p99, .. } = done.outcome {
            entry.ns_p99 = ns_p99;
            entry.rates.clone_from(&done.shown.rates);
            let heat = done.shown.heat.map(heat::decode);
            entry.slices.extend(heat.into_iter().flatten().flatten());
        }
    }

    /// The cells of the profile that is measured now, in the order of the plan.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Entry> {
        let now = |entry: &&Entry| entry.profile == self.profile;
        self.entries.iter().filter(now)
    }

    /// The strategies of that profile, in the order of the plan.
    pub(super) fn strategies(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for entry in self.cells() {
            if !names.contains(&entry.strategy.as_str()) {
                names.push(&entry.strategy);
            }
        }
        names
    }

    /// The best cell of each strategy that was measured, the fastest first.
    pub(super) fn best(&self) -> Vec<&Entry> {
        let of = |strategy| {
            let cells = self.cells().filter(move |entry| entry.strategy == strategy);
            cells
                .filter(|entry| !entry.rates.is_empty())
                .max_by(|a, b| a.rate().total_cmp(&b.rate()))
        };
        let strategies = self.strategies().into_iter();
        let mut best: Vec<&Entry> = strategies.filter_map(of).collect();
        best.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        best
    }

    /// Whether the strategy of this cell had its turn last.
    pub(super) fn is_latest(&self, entry: &Entry) -> bool {
        let latest = self.latest.map(|at| &self.entries[at]);
        latest.is_some_and(|latest| {
            (&latest.profile, &latest.strategy) == (&entry.profile, &entry.strategy)
        })
    }

    pub(super) fn left(&self) -> String {
        words::left(self.left_ns)
    }

    /// How much of the time has passed, from 0 to 1.
    pub(super) fn passed(&self) -> f64 {
        let passed = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        let left = Duration::from_nanos(self.left_ns);
        passed.as_secs_f64() / (passed + left).as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
