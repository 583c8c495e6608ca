//! A drawing with two axes.
//!
//! Widths are in units of the drawing, which scales with the page; the style sheet makes letters
//! larger where it is narrow.

use super::markup::{Pen, esc, put, short};
use super::scale::{Kind, Scale};

/// An axis before it has a place.
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) kind: Kind,
    /// Lowest and highest figure.
    pub(super) ends: (f64, f64),
    /// What is written at which figure; where it is absent, round figures are.
    pub(super) ticks: Option<Vec<(f64, String)>>,
    /// How a round figure is written.
    pub(super) write: fn(f64) -> String,
}

/// The size of a drawing and of the room around its plane.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// What one chart of two columns needs.
pub(super) const CHART: Size = Size {
    width: 560.0,
    height: 350.0,
    left: 68.0,
    right: 18.0,
    top: 34.0,
    bottom: 50.0,
};

/// One of several small drawings side by side.
pub(super) const SMALL: Size = Size {
    width: 400.0,
    height: 270.0,
    left: 66.0,
    right: 14.0,
    top: 34.0,
    bottom: 48.0,
};

/// A drawing that is filled mark by mark.
pub(super) struct Plot {
    size: Size,
    pub(super) x: Scale,
    pub(super) y: Scale,
    svg: String,
}

impl Plot {
    /// The frame, with axes, ticks, and what is read out instead of the drawing.
    pub(super) fn new(size: Size, said: &str, x: &Axis, y: &Axis) -> Self {
        let Size { width, height, .. } = size;
        let across = (size.left, width - size.right);
        let up = (height - size.bottom, size.top);
        let said = esc(said);
        let mut plot = Self {
            size,
            x: Scale::new(x.kind, x.ends, across),
            y: Scale::new(y.kind, y.ends, up),
            svg: format!(
                "<svg class=\"plot\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
                 aria-label=\"{said}\">"
            ),
        };
        plot.frame(x, y);
        plot
    }

    fn frame(&mut self, x: &Axis, y: &Axis) {
        let Size {
            left,
            right,
            top,
            bottom,
            width,
            height,
        } = self.size;
        let (end, floor) = (width - right, height - bottom);
        self.svg.push_str("<g class=\"axis\">");
        let mut lines = String::new();
        for (figure, text) in ticks(y, &self.y, 5) {
            let at = self.y.at(figure);
            put!(&mut lines, "M{left:.0} {}H{end:.0}", short(at));
            let (before, below) = (left - 8.0, short(at + 4.0));
            put!(
                &mut self.svg,
                "<text class=\"tick ty\" x=\"{before}\" y=\"{below}\">{}</text>",
                esc(&text)
            );
        }
        for (figure, text) in apart(ticks(x, &self.x, 6), &self.x) {
            let at = short(self.x.at(figure));
            put!(&mut lines, "M{at} {top:.0}V{floor:.0}");
            let below = floor + 19.0;
            put!(
                &mut self.svg,
                "<text class=\"tick tx\" x=\"{at}\" y=\"{below}\">{}</text>",
                esc(&text)
            );
        }
        put!(&mut self.svg, "<path class=\"grid\" d=\"{lines}\"/>");
        put!(
            &mut self.svg,
            "<path class=\"base\" d=\"M{left} {floor}H{end}\"/>"
        );
        let (middle, low, high) = ((left + end) / 2.0, height - 8.0, top - 16.0);
        put!(
            &mut self.svg,
            "<text class=\"label lx\" x=\"{middle}\" y=\"{low}\">{}</text>\
             <text class=\"label ly\" x=\"4\" y=\"{high}\">{}</text></g>",
            esc(&x.label),
            esc(&y.label)
        );
    }

    /// Adds markup.
    pub(super) fn add(&mut self, markup: &str) {
        self.svg.push_str(markup);
    }

    /// The coordinates of a line through these points.
    pub(super) fn line(&self, points: &[(f64, f64)]) -> String {
        let mut pen = Pen::default();
        for (place, (x, y)) in points.iter().enumerate() {
            let (across, down) = (self.x.at(*x), self.y.at(*y));
            match place {
                0 => pen.go(across, down),
                _ => pen.draw(across, down),
            }
        }
        pen.data()
    }

    /// The coordinates of the area between two lines: figure, lower and upper end.
    pub(super) fn band(&self, points: &[(f64, f64, f64)]) -> String {
        let upper = points.iter().map(|(x, _, hi)| (*x, *hi));
        let lower = points.iter().rev().map(|(x, lo, _)| (*x, *lo));
        let around: Vec<(f64, f64)> = upper.chain(lower).collect();
        self.line(&around) + "z"
    }

    /// The coordinates of dots, which are lines of no length with round ends.
    pub(super) fn dots(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut pen = Pen::default();
        for (x, y) in points {
            pen.dot(self.x.at(x), self.y.at(y));
        }
        pen.data()
    }

    /// The drawing.
    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

fn ticks(axis: &Axis, scale: &Scale, about: u32) -> Vec<(f64, String)> {
    let written = || {
        let ticks = scale.ticks(about).into_iter();
        ticks.map(|figure| (figure, (axis.write)(figure))).collect()
    };
    axis.ticks.clone().unwrap_or_else(written)
}

/// Leaves out ticks whose texts would run into each other.
fn apart(ticks: Vec<(f64, String)>, scale: &Scale) -> Vec<(f64, String)> {
    let mut free_from = f64::NEG_INFINITY;
    let fits = |(figure, text): &(f64, String)| {
        // A letter of the largest size takes about nine units.
        let half = text.chars().count() as f64 * 4.5 + 5.0;
        let at = scale.at(*figure);
        let fits = at - half >= free_from;
        if fits {
            free_from = at + half;
        }
        fits
    };
    ticks.into_iter().filter(fits).collect()
}
