//! Lines, their width and their colour.
//!
//! A record may come from another machine: control characters are taken out of every line
//! before colours are put in, so that no record can drive the reader's terminal.

use super::Style;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Text is not folded into less than this, however narrow the terminal is.
const NARROWEST: usize = 40;

/// Columns that labels of statements take; a longer one takes what it needs.
const LABEL: usize = 11;

/// What colour a line, or a part of it, has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    /// None.
    Plain,
    /// All of it in bold.
    Bold,
    /// All of it in red.
    Red,
    /// Its last word in red.
    RedEnd,
}

/// The lines so far.
pub(super) struct Screen {
    style: Style,
    text: String,
}

impl Screen {
    /// An empty screen.
    pub(super) fn new(style: Style) -> Self {
        let text = String::new();
        Self { style, text }
    }

    /// Columns there are.
    pub(super) fn width(&self) -> usize {
        self.style.width.max(NARROWEST)
    }

    /// Adds an empty line.
    pub(super) fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Adds one line, as it is.
    pub(super) fn line(&mut self, text: impl AsRef<str>, paint: Paint) {
        let text = clean(text.as_ref());
        let text = text.trim_end();
        let painted = match paint {
            _ if !self.style.colour => text.to_owned(),
            Paint::Plain => text.to_owned(),
            Paint::Bold => format!("{BOLD}{text}{RESET}"),
            Paint::Red => format!("{RED}{text}{RESET}"),
            Paint::RedEnd => {
                let (start, end) = text.rsplit_once(' ').unwrap_or(("", text));
                format!("{start} {RED}{end}{RESET}")
            }
        };
        self.text.push_str(&painted);
        self.text.push('\n');
    }

    /// Adds sentences, folded between words, every line indented.
    pub(super) fn prose(&mut self, text: &str, indent: usize, paint: Paint) {
        for line in fold(&clean(text), self.width() - indent) {
            self.line(format!("{:indent$}{line}", ""), paint);
        }
    }

    /// Adds a label with sentences beside it; the paint is for the label.
    pub(super) fn statement(&mut self, label: &str, text: &str, paint: Paint) {
        let columns = LABEL.max(label.chars().count() + 1);
        let folded = fold(&clean(text), self.width() - columns - 1);
        for (at, line) in folded.iter().enumerate() {
            if at > 0 || !self.style.colour || paint == Paint::Plain {
                let label = if at == 0 { label } else { "" };
                self.line(format!(" {label:columns$}{line}"), Paint::Plain);
                continue;
            }
            let colour = if paint == Paint::Bold { BOLD } else { RED };
            let label = format!(" {colour}{label:columns$}{RESET}");
            self.text.push_str(&label);
            self.line(line, Paint::Plain);
        }
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// Every character that is not seen becomes a space: a record is not to control the terminal.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|letter| if is_unseen(letter) { ' ' } else { letter })
        .collect()
}

/// Whether a character is one that controls: the terminal, where a line ends, or in which direction
/// it is read, which can make one command look like another (Unicode, "Bidirectional Algorithm").
pub(crate) fn is_unseen(letter: char) -> bool {
    let marks = matches!(letter, '\u{200E}' | '\u{200F}');
    let turns = marks || matches!(letter, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(letter, '\u{2028}' | '\u{2029}');
    letter.is_control() || turns || breaks
}

/// Folds text between words; a word that is too long stays whole.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
    }
    lines
}
