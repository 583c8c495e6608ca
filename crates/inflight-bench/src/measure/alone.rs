//! One lane on the calling thread.

use std::time::Duration;

use anyhow::Result;

use crate::measure::clock::Clock;
use crate::measure::ground::Ground;
use crate::measure::meter::Meter;
use crate::measure::run::{Stretch, drive, length_of};
use crate::measure::snapshot::Snapshot;
use crate::measure::usage::DeviceMeter;
use crate::measure::workers::Workers;
use crate::strategy::{Body, Job, Lane};

/// Warms a lane up and measures it. What is in flight at the end of the warm-up goes on into the
/// measured time, so that neither begins with an empty queue.
pub(crate) fn measure(
    with_lane: fn(&Job<'_>, Body<'_>) -> Result<()>,
    job: &Job<'_>,
    sample_every: u32,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    let mut stretch = None;
    with_lane(job, &mut |lane| {
        let sample_every = lane.sample_every(sample_every);
        stretch = Some(measure_lane(lane, job, sample_every, device, ground)?);
        Ok(())
    })?;
    Ok(stretch.expect("a strategy that succeeds has handed over a lane"))
}

fn measure_lane(
    lane: &mut dyn Lane,
    job: &Job<'_>,
    sample_every: u32,
    device: &DeviceMeter,
    ground: &Ground<'_>,
) -> Result<Stretch> {
    let mut meter = Meter::new(job.clock);
    // What the warm-up wrote would be synced at the expense of what is measured.
    let synced_at_end = job.work.synced_at_end();
    let mut known = match synced_at_end {
        true => {
            ground.sync()?;
            Workers::find()
        }
        false => warm_up(lane, &mut meter, job.clock, job.warmup)?,
    };
    meter.record(job.measured);
    lane.settle(&mut meter);
    let before = Snapshot::begin(device, job.clock, &known, || meter.counters);
    let until_ns = deadline(job.clock, job.measured);
    drive(lane, &mut meter, |meter| {
        meter.last_reading_ns() >= until_ns
    })?;
    if synced_at_end {
        lane.finish(&mut meter)?;
        ground.sync()?;
    }
    let mut after = Snapshot::end(device, job.clock, &mut known, || meter.counters);
    lane.settle(&mut meter);
    after.counters.syscalls = meter.counters.syscalls;
    let effective = lane.effective();
    let stretch = Stretch::between(&before, &after, meter.timed, effective, sample_every);
    let syscalls = stretch.syscalls.filter(|_| lane.knows_syscalls());
    Ok(Stretch {
        syscalls,
        ..stretch
    })
}

/// Warms a lane up. Workers are looked for halfway: it rests meanwhile, and what has then been
/// completed is collected in the other half.
pub(super) fn warm_up(
    lane: &mut dyn Lane,
    meter: &mut Meter,
    clock: Clock,
    warmup: Duration,
) -> Result<Workers> {
    let half = |meter: &mut Meter, lane: &mut dyn Lane| {
        let until_ns = deadline(clock, warmup / 2);
        drive(lane, meter, |meter| meter.last_reading_ns() >= until_ns)
    };
    half(meter, lane)?;
    let known = Workers::find();
    half(meter, lane)?;
    Ok(known)
}

fn deadline(clock: Clock, after: Duration) -> u64 {
    clock.now_ns() + length_of(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::snapshot::tests::Noting;
    use crate::profile::load;

    #[test]
    fn workers_are_not_looked_for_between_the_warmup_and_what_is_measured() {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 20);
        let job = Job {
            warmup: Duration::from_millis(1),
            measured: Duration::from_millis(1),
            ..Job::of(&work)
        };
        let (device, ground) = (DeviceMeter::open(None), Ground::new(&profile, &[], 0));
        let mut lane = Noting::default();
        let stretch = measure_lane(&mut lane, &job, 1, &device, &ground).unwrap();
        assert!(stretch.counters.ops > 0);
        lane.check();
    }
}
