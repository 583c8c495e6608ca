//! Every how many operations one is timed: the same in all cells of a profile.
//!
//! Were it found for each cell by itself, luck would be in it: a calibration that was disturbed
//! takes operations for slow, and its cell then reads the clock more often than its neighbours, in
//! every round. That alone made a strategy faster than itself by 9 %.

use std::time::Duration;

use anyhow::Result;

use crate::measure::caught::caught;
use crate::measure::clock::Clock;
use crate::measure::meter::Meter;
use crate::measure::run::{Place, Running};
use crate::strategy::{Job, Lane, Way, pread};

/// Timing an operation may take this part of it before only a part of them is timed: one in 100, so
/// that it is less than 2 % also where the median operation is faster than the first ones were.
const TIMING_SHARE: u64 = 100;
/// At most one operation in this many is left untimed in a row.
const MOST_UNTIMED: u32 = 4096;

/// Finds out how often the cells read the clock: as often as the fastest of them may.
///
/// `pread` is asked as well, for those that cannot be, so that other strategies beside it change
/// little. Who does nothing at all answers for itself alone. Whoever cannot run says so in its
/// first round, also where that is because of the files.
pub(crate) fn agree(cells: &mut [&mut Running], job: &Job<'_>, place: &Place<'_>) {
    if place.ground.prepare().is_err() {
        return;
    }
    let alone = Job {
        depth: 1,
        ..job.clone()
    };
    let plain = of_lane(Way::Lanes(pread::with_lane), &alone);
    agree_beside(plain.unwrap_or(1), cells, job);
}

fn agree_beside(plain: u32, cells: &mut [&mut Running], job: &Job<'_>) {
    let mut agreed = plain;
    for cell in &mut *cells {
        let job = Job {
            depth: cell.shape.depth / cell.shape.threads.max(1),
            ..job.clone()
        };
        let skipped = cell.cell.skipped.is_some();
        let own = match cell.strategy.way() {
            way if !skipped && cell.cell.rate_per_s.is_none() => of_lane(way, &job),
            _ => None,
        };
        match cell.strategy.works() {
            true => agreed = agreed.max(own.unwrap_or(1)),
            false => cell.sample_every = own,
        }
    }
    for cell in cells.iter_mut().filter(|cell| cell.strategy.works()) {
        cell.sample_every = Some(agreed);
    }
}

fn of_lane(way: Way, job: &Job<'_>) -> Option<u32> {
    let Way::Lanes(with_lane) = way else {
        return None;
    };
    let mut every = 1;
    let asked = caught(|| {
        with_lane(job, &mut |lane| {
            every = calibrate(lane, job.clock)?;
            Ok(())
        })
    });
    asked.is_ok().then_some(every)
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
            return Ok(sample_every(op_ps, cost_ps(clock)));
        }
        every *= 2;
    }
}

/// What timing one operation costs, in picoseconds: two readings of the clock, and an entry in the
/// histograms. The least of several tries, so that being interrupted once does not count.
pub(crate) fn cost_ps(clock: Clock) -> u64 {
    const TIMED: u64 = 2_000;
    let mut meter = Meter::new(clock);
    meter.record(Duration::from_secs(1));
    let mut one_try = || {
        let begin_ns = clock.now_ns();
        for _ in 0..TIMED {
            let begun_ns = meter.read_clock();
            let ended_ns = meter.read_clock();
            meter.latency(ended_ns - begun_ns);
        }
        (clock.now_ns() - begin_ns) * 1_000 / TIMED
    };
    (0..20).map(|_| one_try()).min().unwrap_or(0).max(1)
}

/// For operations that take this long, where timing one takes that long. A power of two, so that
/// two runs mostly find the same.
fn sample_every(op_ps: u64, timing_ps: u64) -> u32 {
    let every = (timing_ps * TIMING_SHARE).div_ceil(op_ps.max(1));
    u32::try_from(every)
        .unwrap_or(MOST_UNTIMED)
        .clamp(1, MOST_UNTIMED)
        .next_power_of_two()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::plan::PlannedCell;
    use crate::profile::load;
    use crate::strategy::one_by_one::{OneByOne, Perform};
    use crate::strategy::{ALONE, Body, Modes, Strategy};
    use crate::work::Step;

    /// Takes a while for each operation, on the processor.
    struct Busy {
        clock: Clock,
        each_ns: u64,
        block: [u8; 4096],
    }

    impl Perform for Busy {
        const SYSCALLS: u64 = 0;

        fn perform(&mut self, step: &Step) -> i32 {
            let until_ns = self.clock.now_ns() + self.each_ns;
            while self.clock.now_ns() < until_ns {}
            i32::try_from(step.wanted()).expect("a block")
        }

        fn block(&mut self, bytes: usize) -> &mut [u8] {
            &mut self.block[..bytes]
        }
    }

    struct Takes<const NS: u64> {
        works: bool,
    }

    impl<const NS: u64> Strategy for Takes<NS> {
        fn name(&self) -> &'static str {
            "takes"
        }

        fn about(&self) -> &'static str {
            "for a test"
        }

        fn works(&self) -> bool {
            self.works
        }

        fn way(&self) -> Way {
            Way::Lanes(|job: &Job<'_>, body: Body<'_>| {
                let busy = Busy {
                    clock: job.clock,
                    each_ns: NS,
                    block: [0; 4096],
                };
                OneByOne::unverified(job, busy).lend(job, body)
            })
        }
    }

    #[test]
    fn all_that_work_read_the_clock_as_seldom_as_the_fastest_must() {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let job = Job {
            paths: &[PathBuf::from("/dev/null")],
            ..Job::of(&work)
        };
        let slow: &Takes<1_000_000> = &Takes { works: true };
        let fast: &Takes<0> = &Takes { works: true };
        let idle: &Takes<0> = &Takes { works: false };
        let agreed_by = |strategies: &[&'static dyn Strategy]| {
            let begin = |strategy: &&'static dyn Strategy| {
                let planned = PlannedCell::new(*strategy, ALONE);
                planned.begin(&profile.name, Modes::new())
            };
            let mut cells: Vec<Running> = strategies.iter().map(begin).collect();
            let mut all: Vec<&mut Running> = cells.iter_mut().collect();
            agree_beside(1, &mut all, &job);
            let each = cells.iter().map(|cell| cell.sample_every.unwrap());
            each.collect::<Vec<u32>>()
        };
        // On a busy machine what is fast may have had no processor.
        let is_seldom = (0..50).any(|_| {
            let one = agreed_by(&[fast, slow, slow, idle]);
            assert!(one[0] == one[1] && one[1] == one[2], "{one:?}");
            one[0] > 1
        });
        assert!(is_seldom, "the fastest is timed as often as others");
        let is_counted = (0..50).all(|_| {
            let other = agreed_by(&[slow, idle]);
            other[0] >= other[1]
        });
        assert!(!is_counted, "what does nothing is not counted");
    }

    #[test]
    fn slow_operations_are_all_timed_and_fast_ones_sampled() {
        assert_eq!(sample_every(27_000_000, 50_000), 1);
        assert_eq!(sample_every(1_200_000, 50_000), 8);
        assert_eq!(sample_every(0, 50_000), MOST_UNTIMED);
    }
}
