//! Scales: from figures to places in a drawing, with the ticks that people expect.

/// How far apart two figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As far as they differ.
    Linear,
    /// As far as their logarithms differ; figures have to be above zero.
    Log,
}

/// From figures to places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    kind: Kind,
    lo: f64,
    hi: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// The figures `lo` to `hi` at the places `from` to `to`.
    pub(super) fn new(kind: Kind, (lo, hi): (f64, f64), (from, to): (f64, f64)) -> Self {
        let (lo, hi) = match kind {
            Kind::Linear if hi > lo => (lo, hi),
            Kind::Linear => (lo, lo + 1.0),
            Kind::Log => {
                let lo = lo.max(f64::MIN_POSITIVE);
                (lo, hi.max(lo * 1.000_001))
            }
        };
        Self {
            kind,
            lo,
            hi,
            from,
            to,
        }
    }

    /// The place of a figure, at an end of the scale if it is beyond it.
    pub(super) fn at(&self, figure: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (figure - self.lo) / (self.hi - self.lo),
            Kind::Log => (figure.max(f64::MIN_POSITIVE) / self.lo).ln() / (self.hi / self.lo).ln(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round figures within the scale, about as many as asked for.
    pub(super) fn ticks(&self, about: u32) -> Vec<f64> {
        match self.kind {
            Kind::Linear => linear_ticks(self.lo, self.hi, about),
            Kind::Log => log_ticks(self.lo, self.hi, about),
        }
    }
}

/// The end of a linear scale from zero that has a tick above this figure.
pub(super) fn rounded_up(figure: f64, about: u32) -> f64 {
    let step = step(figure.max(f64::MIN_POSITIVE), about);
    (figure / step).ceil().max(1.0) * step
}

/// 1, 2 or 5 times a power of ten.
fn step(span: f64, about: u32) -> f64 {
    let rough = span / f64::from(about.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    let fits = times
        .into_iter()
        .find(|times| times * power >= rough * 0.999);
    fits.unwrap_or(10.0) * power
}

fn linear_ticks(lo: f64, hi: f64, about: u32) -> Vec<f64> {
    let step = step(hi - lo, about);
    let first = (lo / step - 1e-9).ceil();
    let ticks = (0..=about * 3).map(|at| (first + f64::from(at)) * step);
    ticks.take_while(|tick| *tick <= hi + step * 1e-9).collect()
}

/// Powers of ten; within two decades also their doubles and fives, over many only some.
fn log_ticks(lo: f64, hi: f64, about: u32) -> Vec<f64> {
    let decades = (hi / lo).log10();
    let (times, every): (&[f64], f64) = if decades < 2.0 {
        (&[1.0, 2.0, 5.0], 1.0)
    } else {
        (&[1.0], (decades / f64::from(about.max(1))).ceil())
    };
    let first = lo.log10().floor();
    let powers = (0..64).map(|at| first + f64::from(at) * every);
    let powers = powers.take_while(|power| *power <= hi.log10());
    let ticks = powers.flat_map(|power| times.iter().map(move |times| times * 10f64.powf(power)));
    let within = |tick: &f64| *tick >= lo * 0.999 && *tick <= hi * 1.001;
    ticks.filter(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_scale_gives_factors_the_same_room() {
        let scale = Scale::new(Kind::Log, (1.0, 100.0), (0.0, 200.0));
        assert!((scale.at(10.0) - 100.0).abs() < 1e-9);
        assert_eq!((scale.at(0.0), scale.at(1e9)), (0.0, 200.0));
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = Scale::new(Kind::Linear, (0.0, 620_000.0), (0.0, 1.0));
        assert_eq!(linear.ticks(4), [0.0, 200_000.0, 400_000.0, 600_000.0]);
        assert_eq!(rounded_up(620_000.0, 4), 800_000.0);
        let wide = Scale::new(Kind::Log, (700.0, 2e6), (0.0, 1.0));
        assert_eq!(wide.ticks(8), [1e3, 1e4, 1e5, 1e6]);
        let narrow = Scale::new(Kind::Log, (30.0, 300.0), (0.0, 1.0));
        assert_eq!(narrow.ticks(8), [50.0, 100.0, 200.0]);
    }

    #[test]
    fn a_scale_of_one_figure_divides_by_nothing() {
        for kind in [Kind::Linear, Kind::Log] {
            let scale = Scale::new(kind, (0.0, 0.0), (10.0, 20.0));
            assert!(scale.at(0.0).is_finite() && scale.at(5.0).is_finite());
            assert!(scale.ticks(5).len() < 20);
        }
    }
}
