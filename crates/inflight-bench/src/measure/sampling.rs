//! Every how many operations one is timed.

use anyhow::Result;

use crate::measure::clock::Clock;
use crate::measure::meter::Meter;
use crate::strategy::Lane;

/// Two readings of the clock may take this part of an operation before only a part of them is
/// timed: one in 50, which is 2 %.
const CLOCK_SHARE: u64 = 50;
/// At most one operation in this many is left untimed in a row.
const MOST_UNTIMED: u32 = 4096;

/// Every how many operations one is timed: decided once for a cell, then kept, so that its rounds
/// can be put together.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    pub(crate) known: Option<u32>,
}

impl Sampling {
    pub(crate) fn apply(self, lane: &mut dyn Lane, clock: Clock) -> Result<u32> {
        let every = match self.known {
            Some(every) => every,
            None => calibrate(lane, clock)?,
        };
        Ok(lane.sample_every(every))
    }
}

/// Finds the time of an operation from runs that grow until the clock can measure them.
fn calibrate(lane: &mut dyn Lane, clock: Clock) -> Result<u32> {
    const LONG_ENOUGH_NS: u64 = 1_000_000;
    let mut meter = Meter::new(clock);
    let mut every = 1;
    loop {
        let in_turn = lane.sample_every(every);
        if in_turn < every {
            return Ok(in_turn);
        }
        let begin_ns = clock.now_ns();
        lane.turn(&mut meter)?;
        let took_ns = clock.now_ns() - begin_ns;
        if took_ns >= LONG_ENOUGH_NS || every >= MOST_UNTIMED {
            let op_ps = took_ns * 1_000 / u64::from(in_turn);
            return Ok(sample_every(op_ps, clock.cost_ps()));
        }
        every *= 2;
    }
}

/// For operations that take this long, where reading the clock takes that long.
pub(crate) fn sample_every(op_ps: u64, clock_ps: u64) -> u32 {
    let every = (2 * clock_ps * CLOCK_SHARE).div_ceil(op_ps.max(1));
    u32::try_from(every)
        .unwrap_or(MOST_UNTIMED)
        .clamp(1, MOST_UNTIMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_operations_are_all_timed_and_fast_ones_sampled() {
        assert_eq!(sample_every(27_000_000, 25_000), 1);
        assert_eq!(sample_every(1_200_000, 25_000), 3);
        assert_eq!(sample_every(0, 25_000), MOST_UNTIMED);
    }
}
