//! Progress on the whole screen: curves and latencies that grow while they are measured.
//!
//! It takes no keys but those that send signals, and draws between two cells only, a few times a
//! second: what draws would take the processor from what is measured.

mod draw;
#[cfg(test)]
mod draw_test;
mod heat_map;
pub(super) mod screen;
mod story;

use std::io::{self, BufWriter, IsTerminal, Stderr, stderr};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use super::event::Event;
use super::plain;
use story::Story;

/// More often is too fast for eyes.
const BETWEEN_FRAMES: Duration = Duration::from_millis(200);

/// The screen; taken when there is something to show, given back when dropped.
pub(super) struct Live {
    story: Story,
    open: Option<Open>,
}

struct Open {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
    drawn: Option<Instant>,
    /// Messages from here on were seen on this screen only.
    first_message: usize,
}

/// The screen is not, or no longer, to be had.
pub(super) struct Lost;

impl Live {
    /// # Errors
    /// Why there is no screen to draw on.
    pub(super) fn new() -> Result<Self, &'static str> {
        if !stderr().is_terminal() {
            return Err("stderr is not a terminal");
        }
        if std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
            return Err("this terminal (TERM) only takes lines");
        }
        Ok(Self {
            story: Story::default(),
            open: None,
        })
    }

    /// Shows what happened.
    ///
    /// # Errors
    /// [`Lost`], when it has to be shown elsewhere.
    pub(super) fn tell(&mut self, event: &Event<'_>) -> Result<(), Lost> {
        let opens = matches!(event, Event::Writing { .. } | Event::Cell(_));
        if opens && self.open.is_none() {
            let first_message = self.story.messages.len();
            self.open = Some(Open::new(first_message).map_err(|_| Lost)?);
        }
        match &mut self.open {
            None if matches!(event, Event::Message { .. }) => plain::tell(event),
            Some(_) if !screen::is_ours() => return Err(Lost),
            _ => {}
        }
        self.story.hear(event);
        let urgent = matches!(event, Event::Interrupted | Event::Message { .. });
        match &mut self.open {
            Some(open) if urgent || open.is_due() => open.draw(&self.story).map_err(|_| Lost),
            _ => Ok(()),
        }
    }
}

impl Open {
    fn new(first_message: usize) -> io::Result<Self> {
        screen::enter()?;
        let out = BufWriter::new(stderr());
        let terminal = Terminal::new(CrosstermBackend::new(out));
        let terminal = terminal.inspect_err(|_| screen::leave())?;
        Ok(Self {
            terminal,
            drawn: None,
            first_message,
        })
    }

    fn is_due(&self) -> bool {
        self.drawn
            .is_none_or(|drawn| drawn.elapsed() >= BETWEEN_FRAMES)
    }

    fn draw(&mut self, story: &Story) -> io::Result<()> {
        self.terminal.draw(|frame| draw::draw(story, frame))?;
        self.drawn = Some(Instant::now());
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        screen::leave();
        let seen_here = &self.story.messages[open.first_message..];
        seen_here.iter().for_each(|text| plain::say(text));
    }
}
