//! Two ways of doing the same, in turn.

use std::time::Instant;

const ROUNDS: usize = 31;

/// Times of one operation, in nanoseconds: the medians of all rounds.
pub(crate) struct InTurn {
    pub(crate) a_ns: f64,
    pub(crate) b_ns: f64,
    /// Of the first to the second in the same round: a quarter of the rounds had less, half, and
    /// three quarters.
    pub(crate) ratio: [f64; 3],
}

/// Runs both in each round, each of them first in every other one; once before that for nothing.
pub(crate) fn in_turn(ops: usize, mut a: impl FnMut(), mut b: impl FnMut()) -> InTurn {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64 / ops as f64
    };
    time(&mut a);
    time(&mut b);
    let round = |round: usize| match round % 2 {
        0 => {
            let a = time(&mut a);
            (a, time(&mut b))
        }
        _ => {
            let b = time(&mut b);
            (time(&mut a), b)
        }
    };
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(round).collect();
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(of).collect();
        figures.sort_by(f64::total_cmp);
        figures
    };
    let ratios = sorted(|(a, b)| a / b);
    InTurn {
        a_ns: sorted(|(a, _)| *a)[ROUNDS / 2],
        b_ns: sorted(|(_, b)| *b)[ROUNDS / 2],
        ratio: [ROUNDS / 4, ROUNDS / 2, ROUNDS - 1 - ROUNDS / 4].map(|at| ratios[at]),
    }
}
