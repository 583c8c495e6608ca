//! What is going on, on stderr: a moving line on a terminal, one plain line a round otherwise.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use inflight_report::record::Cell;

use crate::measure::run::Watch;
use crate::signals;
use crate::size::human;

/// Writes to stderr only; stdout carries the result.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a constant"));
            bar
        });
        Self { bar }
    }

    /// One line that stays.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // If stderr is gone, nobody wants to read this.
            None => _ = writeln!(stderr(), "{text}"),
        }
    }

    fn show(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.tick();
        }
    }

    /// Before the first byte is written.
    pub(crate) fn writing(&self, size_bytes: u64, directory: &Path, kept: bool) {
        let (size, place) = (human(size_bytes), directory.display());
        let end = if kept { "kept" } else { "removed" };
        self.say(&format!(
            "writing {size} of random bytes to {place}, {end} afterwards"
        ));
    }

    pub(crate) fn written(&self, done_bytes: u64, size_bytes: u64) {
        if done_bytes < size_bytes {
            self.show(format!(
                "writing {} of {}",
                human(done_bytes),
                human(size_bytes)
            ));
        } else {
            self.show("bringing the data to the device".to_owned());
        }
    }

    pub(crate) fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Progress of the rounds of one profile.
pub(crate) struct Rounds<'a> {
    pub(crate) progress: &'a Progress,
    pub(crate) profile: &'a str,
    pub(crate) rounds: u32,
    /// Cells that are measured later, in other profiles.
    pub(crate) cells_later: u32,
    pub(crate) cells_left: u32,
    pub(crate) began: Instant,
    pub(crate) cells_done: u32,
}

impl Rounds<'_> {
    fn left(&self) -> Duration {
        let cells = self.cells_left + self.cells_later;
        self.began.elapsed() / self.cells_done.max(1) * cells
    }
}

impl Watch for Rounds<'_> {
    fn cell_done(&mut self, block: u32, cell: &Cell) {
        self.cells_done += 1;
        self.cells_left = self.cells_left.saturating_sub(1);
        if self.progress.bar.is_none() {
            return;
        }
        let rate = cell.rounds.last().map_or_else(String::new, |round| {
            let seconds = round.duration_ns as f64 / 1e9;
            format!(" · {:.1} k/s", round.ops as f64 / seconds / 1e3)
        });
        self.progress.show(format!(
            "{} · round {}/{} · {} depth {}{rate} · {} s left",
            self.profile,
            block + 1,
            self.rounds,
            cell.strategy,
            cell.depth,
            self.left().as_secs()
        ));
    }

    fn block_done(&mut self, block: u32) {
        if self.progress.bar.is_none() {
            let (profile, rounds) = (self.profile, self.rounds);
            let left = self.left().as_secs();
            self.progress.say(&format!(
                "{profile}: round {}/{rounds}, {left} s left",
                block + 1
            ));
        }
    }

    fn stopped(&self) -> bool {
        signals::interrupted()
    }
}
