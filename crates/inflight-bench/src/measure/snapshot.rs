//! A snapshot: everything whose difference makes a measured stretch.

use inflight_report::record::DeviceWork;

use crate::measure::clock::Clock;
use crate::measure::meter::Counters;
use crate::measure::usage::{DeviceMeter, Usage};
use crate::measure::workers::{Spent, Workers};

/// Time, counters, and what the process has used.
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    pub(crate) counters: Counters,
    pub(crate) usage: Usage,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) workers: Option<Spent>,
    pub(crate) device: Option<DeviceWork>,
}

impl Snapshot {
    /// The beginning of a stretch: the clock last, so that taking the snapshot is not measured.
    ///
    /// The workers were found before, halfway through the warm-up of a lane on this thread: it
    /// rests while the snapshot is taken, and collects at once, within the stretch, what was
    /// completed meanwhile. So here is only what takes a few microseconds, beside any number of
    /// threads.
    pub(crate) fn begin(
        device: &DeviceMeter,
        clock: Clock,
        workers: &Workers,
        counters: impl FnOnce() -> Counters,
    ) -> Self {
        let workers = workers.spent();
        let (device_bytes, work) = (device.fetched_bytes(), device.work());
        let usage = Usage::now();
        let at_ns = clock.now_ns();
        Self {
            at_ns,
            counters: counters(),
            usage,
            device_bytes,
            workers,
            device: work,
        }
    }

    /// The end of a stretch: the clock first, and what takes longest last.
    ///
    /// So the processor time of a stretch is that between its two readings of the clock and of the
    /// few microseconds beside them; that of a worker that was not there yet when they were looked
    /// for includes what it did in the warm-up.
    pub(crate) fn end(
        device: &DeviceMeter,
        clock: Clock,
        workers: &mut Workers,
        counters: impl FnOnce() -> Counters,
    ) -> Self {
        let counters = counters();
        let at_ns = clock.now_ns();
        let usage = Usage::now();
        Self {
            at_ns,
            counters,
            usage,
            device_bytes: device.fetched_bytes(),
            device: device.work(),
            workers: workers.spent_by_all(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anyhow::Result;

    use crate::measure::meter::Meter;
    use crate::measure::workers::LOOKS;
    use crate::strategy::Lane;

    /// A lane that notes how often its thread has looked for workers when it is driven, and at the
    /// borders of what is measured.
    #[derive(Default)]
    pub(crate) struct Noting(Vec<Noted>);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Noted {
        Driven(u32),
        Border(u32),
    }

    impl Lane for Noting {
        fn turn(&mut self, meter: &mut Meter) -> Result<()> {
            meter.read_clock();
            meter.complete_all(1);
            self.0.push(Noted::Driven(LOOKS.get()));
            Ok(())
        }

        fn settle(&mut self, _meter: &mut Meter) {
            self.0.push(Noted::Border(LOOKS.get()));
        }
    }

    impl Noting {
        /// That workers were looked for within the warm-up, that the lane was driven after that,
        /// and went on at the border, and that they were looked for again when it had ended.
        pub(crate) fn check(mut self) {
            self.0.dedup();
            let looks = LOOKS.get();
            let expected = [
                Noted::Driven(looks - 2),
                Noted::Driven(looks - 1),
                Noted::Border(looks - 1),
                Noted::Driven(looks - 1),
                Noted::Border(looks),
            ];
            assert_eq!(self.0, expected);
        }
    }
}
