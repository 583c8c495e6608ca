//! Progress where nothing can move, as in a file: one line a round.

use std::io::{Write, stderr};

use super::event::Event;
use super::words;

/// Writes lines that stay.
pub(crate) fn tell(event: &Event<'_>) {
    match event {
        Event::Message { text } => say(text),
        Event::Round {
            profile,
            round,
            rounds,
            left_ns,
        } => say(&format!(
            "{profile}: round {round}/{rounds}, {}",
            words::left(*left_ns)
        )),
        Event::Interrupted => say(words::INTERRUPTED),
        Event::Start(_) | Event::Writing { .. } | Event::Cell(_) | Event::End { .. } => {}
    }
}

/// One line that stays.
pub(crate) fn say(text: &str) {
    // If stderr is gone, nobody wants to read this.
    _ = writeln!(stderr(), "{text}");
}
