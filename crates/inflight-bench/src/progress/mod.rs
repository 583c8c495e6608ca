//! What is going on, on stderr; stdout carries the result.
//!
//! A run tells what happens as [`Event`]s, between two cells and never while one is measured. One
//! view shows them: a moving line on a terminal, a line a round elsewhere, JSON or the whole
//! screen where that was asked for.

mod event;
mod line;
#[cfg(feature = "live")]
mod live;
mod pace;
mod plain;
mod rounds;
mod words;

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::plan::Plan;
use crate::size::human;
use crate::{exit, signals};
use event::{Event, Planned, Start};
use line::Line;

pub(crate) use pace::Pace;
pub(crate) use rounds::Rounds;

/// How often a thread that ends the program tries to be the only one that shows something.
const TRIES: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// The views that can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A moving line on a terminal, a line a round elsewhere.
    #[default]
    Auto,
    /// One JSON object a line, described in docs/progress.md.
    Json,
    #[cfg(feature = "live")]
    #[value(skip)]
    Live,
}

/// Shows what happens; shared with the thread that waits for signals.
pub(crate) struct Progress {
    state: Mutex<State>,
}

struct State {
    view: View,
    pace: Pace,
    /// Of the test data; nobody wants to know it more exactly.
    percent_written: u64,
    /// Whether it was told that the first signal came.
    acknowledged: bool,
    resting: bool,
}

impl State {
    /// Tells once that the first signal came, as long as something is left to be interrupted.
    fn acknowledge(&mut self) {
        if !self.resting && !self.acknowledged {
            self.acknowledged = true;
            self.view.tell(&Event::Interrupted);
        }
    }
}

enum View {
    Plain,
    Line(Line),
    Json,
    #[cfg(feature = "live")]
    Live(Box<live::Live>),
}

impl View {
    fn new(form: Form) -> Self {
        match form {
            Form::Json => Self::Json,
            Form::Auto if stderr().is_terminal() => Self::Line(Line::new()),
            Form::Auto => Self::Plain,
            #[cfg(feature = "live")]
            Form::Live => match live::Live::new() {
                Ok(live) => Self::Live(Box::new(live)),
                Err(reason) => {
                    plain::say(&format!("no full screen: {reason}"));
                    Self::new(Form::Auto)
                }
            },
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        match self {
            Self::Plain => plain::tell(event),
            Self::Line(line) => line.tell(event),
            Self::Json => {
                let line = serde_json::to_string(event).expect("no map, no failing writer");
                // If stderr is gone, nobody wants to read this.
                _ = writeln!(stderr(), "{line}");
            }
            #[cfg(feature = "live")]
            Self::Live(live) => {
                if live.tell(event).is_err() {
                    *self = Self::new(Form::Auto);
                    self.tell(event);
                }
            }
        }
    }
}

impl Progress {
    pub(crate) fn new(form: Form) -> Self {
        let state = State {
            view: View::new(form),
            pace: Pace::default(),
            percent_written: 0,
            acknowledged: false,
            resting: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A view that panicked shows less, or nothing; that is no reason to stop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: &Event<'_>) {
        self.state().view.tell(event);
    }

    /// The plan, before anything is done.
    pub(crate) fn start(&self, plan: &Plan) {
        let cells = plan.profiles.iter().flat_map(|planned| {
            let profile = planned.profile.name.as_str();
            planned.runs().map(move |cell| Planned {
                id: cell.id(profile),
                profile,
                strategy: cell.strategy.name(),
                depth: cell.shape.depth,
                threads: cell.shape.threads,
            })
        });
        let expected_ns = nanos(plan.expected());
        self.tell(&Event::Start(Start::new(
            plan.rounds,
            expected_ns,
            cells.collect(),
        )));
    }

    /// How long what is planned takes, going by what is done.
    pub(crate) fn pace(&self) -> Pace {
        self.state().pace
    }

    /// Fresh rounds of a profile begin; so long do those of all profiles go on at most, where
    /// anything but their number ends them.
    pub(crate) fn fresh(&self, what: &str, left: Option<Duration>) {
        let left = left.map(|left| format!(", at most {}", words::left(nanos(left))));
        self.say(&format!("{what}{}", left.unwrap_or_default()));
    }

    /// One line that stays.
    pub(crate) fn say(&self, text: &str) {
        self.tell(&Event::Message { text });
    }

    /// Before the first byte is written.
    pub(crate) fn writing(&self, size_bytes: u64, directory: &Path, kept: bool) {
        let (size, place) = (human(size_bytes), directory.display());
        let end = if kept { "kept" } else { "removed" };
        self.say(&format!(
            "writing {size} of random bytes to {place}, {end} afterwards"
        ));
        self.state().percent_written = 0;
    }

    pub(crate) fn written(&self, done_bytes: u64, size_bytes: u64) {
        let percent = done_bytes.saturating_mul(100) / size_bytes.max(1);
        let mut state = self.state();
        if percent != state.percent_written {
            state.percent_written = percent;
            state.view.tell(&Event::Writing {
                done_bytes,
                size_bytes,
            });
        }
    }

    /// The first signal came.
    pub(crate) fn interrupted(&self) {
        self.state().acknowledge();
    }

    /// What moves has moved for the last time; results come next.
    pub(crate) fn rest(&self) {
        let mut state = self.state();
        // The thread that is to tell may come too late.
        if signals::interrupted() {
            state.acknowledge();
        }
        state.resting = true;
        if !matches!(state.view, View::Json) {
            state.view = View::Plain;
        }
    }

    /// The end, whatever it is. An error that was told here is no error of the caller's any more.
    pub(crate) fn end(&self, result: Result<u8>) -> Result<u8> {
        self.rest();
        if !matches!(self.state().view, View::Json) {
            return result;
        }
        let (exit_code, error) = match result {
            Ok(code) => (code, None),
            Err(error) => (exit::code_of(&error), Some(format!("{error:#}"))),
        };
        self.tell(&Event::End { exit_code, error });
        Ok(exit_code)
    }

    /// Gives the terminal back, for a thread that ends the program; whoever else wants to show
    /// something waits until what is returned is dropped.
    pub(crate) fn silence(&self) -> impl Sized + use<'_> {
        // Whoever has it may be stuck, as nobody reads from a full pipe.
        let held = (0..TRIES).find_map(|_| {
            let state = self.state.try_lock().ok();
            if state.is_none() {
                std::thread::sleep(BETWEEN_TRIES);
            }
            state
        });
        #[cfg(feature = "live")]
        live::screen::leave();
        held
    }
}

/// Saturates after 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
