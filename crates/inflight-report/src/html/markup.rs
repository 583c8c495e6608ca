//! Text of a page: escaping, and the few pieces that every part of it is made of.
//!
//! A record may come from another machine, so nothing of it enters a page but through [`esc`].
//! The page is well-formed XML as well as HTML, so that a strict parser can test it.

use std::fmt::Write;

use crate::text::is_unseen;

/// Text as it may stand in an element or between quotes; what XML has no place for becomes a
/// space.
pub(super) fn esc(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{FFFE}' | '\u{FFFF}' => safe.push(' '),
            letter if is_unseen(letter) => safe.push(' '),
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Adds formatted text.
macro_rules! put {
    ($into:expr, $($what:tt)*) => {
        $crate::html::markup::add($into, format_args!($($what)*))
    };
}
pub(super) use put;

/// What [`put`] stands for.
pub(super) fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}

/// A place in a drawing, in as few letters as a tenth of its unit takes.
pub(super) fn short(place: f64) -> String {
    let written = format!("{place:.1}");
    match written.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => written.replacen("0.", ".", usize::from(place.abs() < 1.0)),
    }
}

/// A pen that writes the data of a path: each place as its distance from the last, which takes
/// half the letters of the place itself.
#[derive(Default)]
pub(super) struct Pen {
    data: String,
    /// Where it is, in tenths: what was written, not what was meant, so that errors do not add up.
    at: (f64, f64),
}

impl Pen {
    /// Lifts the pen and puts it down there.
    pub(super) fn go(&mut self, x: f64, y: f64) {
        self.write("m", x, y);
    }

    /// Draws a line to there: what follows a place without a letter is a line.
    pub(super) fn draw(&mut self, x: f64, y: f64) {
        self.write(" ", x, y);
    }

    /// Draws a line to the right, this long.
    pub(super) fn along(&mut self, length: f64) {
        let tenths = (length * 10.0).round();
        put!(&mut self.data, "h{}", short(tenths / 10.0));
        self.at.0 += tenths;
    }

    /// Draws a dot there: a line of no length, with round ends.
    pub(super) fn dot(&mut self, x: f64, y: f64) {
        self.go(x, y);
        self.data += "h0";
    }

    fn write(&mut self, step: &str, x: f64, y: f64) {
        let tenths = ((x * 10.0).round(), (y * 10.0).round());
        let (across, down) = (
            short((tenths.0 - self.at.0) / 10.0),
            short((tenths.1 - self.at.1) / 10.0),
        );
        self.at = tenths;
        // A sign separates by itself.
        let step = if step == " " && across.starts_with('-') {
            ""
        } else {
            step
        };
        let between = if down.starts_with('-') { "" } else { " " };
        put!(&mut self.data, "{step}{across}{between}{down}");
    }

    /// What was written.
    pub(super) fn data(self) -> String {
        self.data
    }
}

/// A name that may stand as an id and after `#`.
pub(super) fn slug(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric();
    let letters = text.chars();
    let safe = letters.map(|letter| if plain(letter) { letter } else { '-' });
    safe.collect()
}

/// Figures that are not parted from their units where a line ends.
fn with_units(figures: &str) -> String {
    let (mut glued, mut after_digit) = (String::with_capacity(figures.len()), false);
    let mut letters = figures.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_unit = |next: &char| next.is_alphabetic() || *next == '%';
        match letter {
            ' ' if after_digit && letters.peek().is_some_and(is_unit) => glued.push('\u{a0}'),
            letter => glued.push(letter),
        }
        after_digit = letter.is_ascii_digit();
    }
    glued
}

/// A table: what it is about, its columns, and its rows, whose first cell names the row.
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Scrolls in a frame of its own, which the keyboard reaches.
    pub(super) fn html(&self) -> String {
        let caption = esc(&self.caption);
        let mut html = format!(
            "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\
             <table><caption>{caption}</caption><thead><tr>"
        );
        for column in &self.columns {
            put!(&mut html, "<th scope=\"col\">{}</th>", esc(column));
        }
        html.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            html.push_str("<tr>");
            for (place, cell) in row.iter().enumerate() {
                match place {
                    0 => put!(&mut html, "<th scope=\"row\">{}</th>", esc(cell)),
                    _ => put!(&mut html, "<td>{}</td>", esc(&with_units(cell))),
                }
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        html
    }
}

/// A chart with its heading, a sentence on how to read it, and the same figures as a table.
pub(super) struct Figure {
    /// Unique in the page.
    pub(super) id: String,
    pub(super) title: &'static str,
    pub(super) note: String,
    /// One drawing or several, as markup.
    pub(super) drawings: String,
    pub(super) table: Table,
    /// Whether it takes the whole width.
    pub(super) wide: bool,
}

impl Figure {
    pub(super) fn html(&self) -> String {
        let (id, title, note) = (&self.id, esc(self.title), esc(&self.note));
        let class = if self.wide { "chart wide" } else { "chart" };
        format!(
            "<figure class=\"{class}\" id=\"{id}\" aria-labelledby=\"{id}-t\">\
             <figcaption><h3 id=\"{id}-t\">{title}</h3><p>{note}</p></figcaption>{}\
             <details><summary>Table<span class=\"of\">: {title}</span></summary>{}</details>\
             </figure>\n",
            self.drawings,
            self.table.html()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_distances_ends_where_it_was_meant_to() {
        let mut pen = Pen::default();
        pen.go(0.04, 300.0);
        for step in 1..=1_000 {
            pen.draw(f64::from(step) * 0.333, 300.0);
        }
        pen.dot(5.0, 1.5);
        let data = pen.data();
        let (line, dot) = data.rsplit_once('m').unwrap();
        assert_eq!(dot, "-328-298.5h0");
        assert!(line.starts_with("m0 300 .3 0 .4 0 .3 0"), "{line}");
        let steps = line.split(' ').skip(2).step_by(2);
        let across = steps.map(|step| step.parse::<f64>().unwrap());
        assert!((across.sum::<f64>() - 333.0).abs() < 0.01, "{line}");
        let places = [-0.01, 12.0, -3.25, -0.5].map(short);
        assert_eq!(places, ["0", "12", "-3.2", "-.5"]);
    }

    #[test]
    fn figures_stay_with_their_units() {
        assert_eq!(
            with_units("12.9 k at 76 µs / –, +2 % (3 of 4)"),
            "12.9\u{a0}k at 76\u{a0}µs / –, +2\u{a0}% (3\u{a0}of 4)"
        );
    }

    #[test]
    fn nothing_of_a_record_becomes_markup() {
        assert_eq!(
            esc("<a href='x'>&\u{1b}\""),
            "&lt;a href=&#39;x&#39;&gt;&amp; &quot;"
        );
        assert_eq!(slug("O1 <8k>"), "O1--8k-");
    }
}
