//! Trials in pairs of runs, one made as chosen and one the other way: what changes meanwhile falls
//! on both.

/// How long runs have taken, for the same work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs<const N: usize> {
    chosen_ns: [u64; N],
    other_ns: [u64; N],
    /// Runs that have been entered.
    entered: usize,
}

impl<const N: usize> Pairs<N> {
    pub(super) const NONE: Self = Self {
        chosen_ns: [0; N],
        other_ns: [0; N],
        entered: 0,
    };

    /// Whether the run that is on is made as chosen. Which kind is first in a pair changes, so that
    /// what grows or shrinks meanwhile falls on both.
    pub(super) fn is_as_chosen(&self) -> bool {
        let (pair, place) = (self.entered / 2, self.entered % 2);
        pair % 2 == place
    }

    /// Enters the run that is on.
    pub(super) fn enter(&mut self, ns: u64) {
        let place = self.entered / 2;
        match self.is_as_chosen() {
            true => self.chosen_ns[place] = ns,
            false => self.other_ns[place] = ns,
        }
        self.entered += 1;
    }

    /// How many pairs are whole.
    pub(super) fn made(&self) -> usize {
        self.entered / 2
    }

    pub(super) fn are_all_made(&self) -> bool {
        self.entered == 2 * N
    }

    /// The whole pairs, as chosen and the other way.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, u64)> {
        let pairs = self.chosen_ns.into_iter().zip(self.other_ns);
        pairs.take(self.made())
    }

    /// Twice how long the run in the middle of each kind has taken, of the whole pairs.
    pub(super) fn middle(&self) -> (u64, u64) {
        let made = self.made();
        let middle = |mut runs: [u64; N]| {
            let runs = &mut runs[..made];
            runs.sort_unstable();
            runs[(made - 1) / 2].saturating_add(runs[made / 2])
        };
        (middle(self.chosen_ns), middle(self.other_ns))
    }

    /// How long the fastest runs of each kind have taken together, so many of each.
    pub(super) fn fastest(&self, count: usize) -> (u64, u64) {
        let sum = |mut runs: [u64; N]| {
            runs.sort_unstable();
            runs[..count].iter().sum()
        };
        (sum(self.chosen_ns), sum(self.other_ns))
    }
}
