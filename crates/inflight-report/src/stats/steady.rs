//! Steady state: whether a device that is written to has settled.
//!
//! A fresh SSD is faster than it will be, and one that tidies up is slower; either shows as a
//! trend or as a spread of its last rounds.

/// Rounds that have to agree.
const WINDOW: usize = 5;

/// Largest spread of the window that is steady, as a share of its mean.
const MOST_EXCURSION: f64 = 0.20;

/// Largest move of the fitted line across the window that is steady, as a share of its mean.
const MOST_SLOPE: f64 = 0.10;

/// What the last five rounds say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Largest less smallest, over the mean.
    pub excursion: f64,
    /// Last less first point of the line of least squares, over the mean; negative when it falls.
    pub slope: f64,
}

impl Steady {
    /// Whether the window counts as steady.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.excursion <= MOST_EXCURSION && self.slope.abs() <= MOST_SLOPE
    }
}

/// Looks at the last five figures; `None` if there are fewer, or if they are zero.
///
/// # Source
/// SNIA Solid State Storage Performance Test Specification, "Steady State": five rounds, excursion
/// within 20 % of the average, slope within 10 %.
#[must_use]
pub fn steady(figures: &[f64]) -> Option<Steady> {
    let window = &figures[figures.len().checked_sub(WINDOW)?..];
    let mean = window.iter().sum::<f64>() / WINDOW as f64;
    let largest = window.iter().copied().fold(f64::MIN, f64::max);
    let smallest = window.iter().copied().fold(f64::MAX, f64::min);
    // Times are -2, -1, 0, 1, 2: their squares add up to 10, and the line is 4 steps long.
    let products = window
        .iter()
        .zip([-2.0, -1.0, 0.0, 1.0, 2.0])
        .map(|(figure, time)| figure * time);
    let rise = products.sum::<f64>() / 10.0 * 4.0;
    (mean > 0.0).then(|| Steady {
        excursion: (largest - smallest) / mean,
        slope: rise / mean,
    })
}
