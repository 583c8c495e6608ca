//! A snapshot: everything whose difference makes a measured stretch.

use inflight_report::record::DeviceWork;

use crate::measure::clock::Clock;
use crate::measure::meter::Counters;
use crate::measure::usage::{DeviceMeter, Usage};
use crate::measure::workers::Workers;

/// Time, counters, and what the process has used.
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    pub(crate) counters: Counters,
    pub(crate) usage: Usage,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) workers: Option<Workers>,
    pub(crate) device: Option<DeviceWork>,
}

impl Snapshot {
    /// The beginning of a stretch: the clock last, so that taking the snapshot is not measured.
    pub(crate) fn begin(
        device: &DeviceMeter,
        clock: Clock,
        counters: impl FnOnce() -> Counters,
    ) -> Self {
        let workers = Workers::now();
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

    /// The end of a stretch: the clock first.
    pub(crate) fn end(
        device: &DeviceMeter,
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
            device_bytes: device.fetched_bytes(),
            device: device.work(),
            workers: Workers::now(),
        }
    }
}
