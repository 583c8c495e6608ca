//! Progress on a terminal: one line that moves.

use std::io::stderr;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::event::Event;
use super::words;
use crate::terminal;

/// More often is too fast for eyes.
const PER_SECOND: u8 = 5;

/// The line.
pub(super) struct Line {
    bar: ProgressBar,
}

impl Line {
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(PER_SECOND);
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a constant"));
        Self { bar }
    }

    pub(super) fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Message { text } => self.bar.println(text),
            Event::Interrupted => self.bar.println(words::INTERRUPTED),
            Event::Writing {
                done_bytes,
                size_bytes,
            } => self.show(words::writing(*done_bytes, *size_bytes)),
            Event::Cell(done) => self.show(words::cell(done, terminal::columns(stderr()))),
            Event::Start(_) | Event::Round { .. } | Event::End { .. } => {}
        }
    }

    fn show(&self, text: String) {
        self.bar.set_message(text);
        self.bar.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
