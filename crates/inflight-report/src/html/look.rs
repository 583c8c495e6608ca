//! How a strategy looks, everywhere in a page: colour, marker and dash.
//!
//! Ways of one kind share a hue: plain calls, runtimes, rings, the library. Markers and dashes
//! tell them apart without colours. Hues are those of Okabe and Ito, which people see apart
//! whatever cones they have; darkened on paper, so that lines keep a contrast of 3 to 1.
//!
//! # Source
//! M. Okabe, K. Ito, "Color Universal Design", 2008.

use super::markup::{esc, put, short};

/// The look of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Number of a colour of the style sheet.
    pub(super) colour: usize,
    /// Number of a marker.
    marker: usize,
    /// Number of a dash.
    dash: usize,
}

/// Outlines around the origin, about ten units wide: circle, square, triangles, diamonds, star.
const MARKERS: [&str; 8] = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4-4h8v8h-8z",
    "M0-5.2L5 3.8H-5z",
    "M0 5.2L5-3.8H-5z",
    "M0-5.6L5 0L0 5.6L-5 0z",
    "M-1.6-5h3.2v3.4H5v3.2H1.6V5h-3.2V1.6H-5v-3.2h3.4z",
    "M-5 0L-1.2-1.2L0-5L1.2-1.2L5 0L1.2 1.2L0 5L-1.2 1.2z",
    "M-5.2-2.6h10.4v5.2h-10.4z",
];

const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

const fn look(colour: usize, marker: usize, dash: usize) -> Look {
    Look {
        colour,
        marker,
        dash,
    }
}

/// What is known by name; whatever else there is takes what is left, in order of appearance.
const KNOWN: [(&str, Look); 21] = [
    ("null", look(0, 7, 2)),
    ("pread", look(0, 7, 0)),
    ("threads", look(1, 1, 0)),
    ("preadv2-nowait", look(1, 7, 1)),
    ("libaio", look(6, 6, 3)),
    ("tokio", look(2, 2, 1)),
    ("mmap", look(3, 4, 2)),
    ("one-flush", look(3, 6, 1)),
    ("uring", look(4, 3, 0)),
    ("uring-tuned", look(5, 4, 0)),
    ("uring-busy", look(5, 1, 3)),
    ("uring-sqpoll", look(5, 5, 1)),
    ("uring-iopoll", look(5, 6, 2)),
    ("inflight", look(7, 0, 0)),
    ("inflight-threads", look(7, 5, 0)),
    ("inflight-mapped", look(7, 3, 3)),
    ("inflight-local", look(7, 1, 1)),
    ("inflight-async", look(7, 2, 2)),
    ("inflight-async-1", look(7, 4, 3)),
    ("fio", look(8, 5, 2)),
    ("fio-psync", look(8, 7, 3)),
];

/// The look of a strategy; `nth` counts those that are not known.
pub(super) fn of(strategy: &str, nth: usize) -> Look {
    let known = KNOWN.iter().find(|(name, _)| *name == strategy);
    known.map_or_else(
        || look([6, 2, 8][nth % 3], nth % 8, 1 + nth % 3),
        |known| known.1,
    )
}

/// Whether a strategy has a look of its own.
pub(super) fn is_known(strategy: &str) -> bool {
    KNOWN.iter().any(|(name, _)| *name == strategy)
}

/// The attribute of a line with these dashes, where it needs one.
fn dashes(dash: usize) -> String {
    match DASHES[dash] {
        "" => String::new(),
        dash => format!(" stroke-dasharray=\"{dash}\""),
    }
}

/// The markers, and each on a piece of line, once for a page; drawings and legends refer to them.
pub(super) fn definitions() -> String {
    let mut svg =
        String::from("<svg width=\"0\" height=\"0\" class=\"defs\" aria-hidden=\"true\">");
    svg.push_str("<defs>");
    for (number, outline) in MARKERS.iter().enumerate() {
        put!(&mut svg, "<path id=\"m{number}\" d=\"{outline}\"/>");
        for dash in 0..DASHES.len() {
            put!(
                &mut svg,
                "<symbol id=\"k{number}{dash}\" viewBox=\"0 0 36 14\">\
                 <path class=\"line\" d=\"M1 7h34\"{}/>\
                 <use href=\"#m{number}\" x=\"18\" y=\"7\"/></symbol>",
                dashes(dash)
            );
        }
    }
    svg.push_str("</defs></svg>\n");
    svg
}

impl Look {
    /// The attribute of a line, where it needs one.
    pub(super) fn dashes(self) -> String {
        dashes(self.dash)
    }

    /// A marker at a place, with what is said when it is pointed at.
    pub(super) fn mark(self, x: f64, y: f64, said: &str) -> String {
        let (marker, said, x, y) = (self.marker, esc(said), short(x), short(y));
        format!("<use href=\"#m{marker}\" x=\"{x}\" y=\"{y}\"><title>{said}</title></use>")
    }

    /// A piece of line with its marker, for a legend: one of [`definitions`].
    pub(super) fn swatch(self) -> String {
        let (colour, marker, dash) = (self.colour, self.marker, self.dash);
        format!(
            "<svg class=\"swatch c{colour}\" aria-hidden=\"true\">\
             <use href=\"#k{marker}{dash}\"/></svg>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_strategies_look_the_same_even_without_colours() {
        for (at, (name, look)) in KNOWN.iter().enumerate() {
            for (other, same) in &KNOWN[..at] {
                assert_ne!(look, same, "{name} and {other}");
                let bare = |look: &Look| (look.marker, look.dash);
                assert_ne!(bare(look), bare(same), "{name} and {other} without colours");
            }
        }
    }
}
