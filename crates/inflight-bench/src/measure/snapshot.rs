//! A snapshot: everything whose difference makes a measured stretch.

use crate::measure::clock::Clock;
use crate::measure::meter::Counters;
use crate::measure::usage::{DeviceBytes, Usage};
use crate::measure::workers::Workers;

/// Time, counters, and what the process has used.
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    pub(crate) counters: Counters,
    pub(crate) usage: Usage,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) workers: Option<Workers>,
}

impl Snapshot {
    /// The beginning of a stretch: the clock last, so that taking the snapshot is not measured.
    pub(crate) fn begin(
        device: &DeviceBytes,
        clock: Clock,
        counters: impl FnOnce() -> Counters,
    ) -> Self {
        let workers = Workers::now();
        let device_bytes = device.now();
        let usage = Usage::now();
        let at_ns = clock.now_ns();
        Self {
            at_ns,
            counters: counters(),
            usage,
            device_bytes,
            workers,
        }
    }

    /// The end of a stretch: the clock first.
    pub(crate) fn end(
        device: &DeviceBytes,
        clock: Clock,
        counters: impl FnOnce() -> Counters,
    ) -> Self {
        let counters = counters();
        let at_ns = clock.now_ns();
        let usage = Usage::now();
        Self {
            at_ns,
            counters,
            usage,
            device_bytes: device.now(),
            workers: Workers::now(),
        }
    }
}
