//! What is asked of a device once for many files.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// What has been read of a device, and when.
type Known = BTreeMap<Device, (Instant, Option<u32>)>;

/// Of the whole process, because devices are.
static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

/// Numbers are used again for other devices, and limits can be changed. An outdated limit costs
/// speed only: what is too large for the device is split by a worker of the kernel.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// Most devices remembered.
const KNOWN_MAX: usize = 64;

/// The device that a file is, or that its file system is on.
pub(super) fn device_of(statx: &libc::statx) -> Device {
    let is_device = u32::from(statx.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    match is_device {
        true => (statx.stx_rdev_major, statx.stx_rdev_minor),
        false => (statx.stx_dev_major, statx.stx_dev_minor),
    }
}

/// What a device takes in one request, in bytes, if sysfs tells.
pub(super) fn device_limit_bytes(device: Device) -> Option<u32> {
    // In the child of a fork it may be held by a thread that is not there.
    match KNOWN.try_lock() {
        Ok(mut known) => recall(&mut known, device, Instant::now(), || ask(device)),
        Err(_) => ask(device),
    }
}

/// What is known of a device, or the answer to asking now.
fn recall(
    known: &mut Known,
    device: Device,
    now: Instant,
    ask: impl FnOnce() -> Option<u32>,
) -> Option<u32> {
    if let Some((since, limit)) = known.get(&device)
        && now.duration_since(*since) < KNOWN_FOR
    {
        return *limit;
    }
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    let limit = ask();
    known.insert(device, (now, limit));
    limit
}

fn ask(device: Device) -> Option<u32> {
    let kib: u32 = of_queue(device, "max_sectors_kb")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What sysfs tells of a device's queue.
pub(super) fn of_queue((major, minor): Device, attribute: &str) -> Option<String> {
    // A partition has its queue one level up.
    ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/{attribute}");
        fs::read_to_string(path).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_asked_once_in_a_while() {
        let mut known = Known::new();
        let begun = Instant::now();
        let mut asked = 0;
        let mut limit_at = |device, after| {
            let ask = || {
                asked += 1;
                Some(asked)
            };
            recall(&mut known, device, begun + after, ask)
        };
        assert_eq!(limit_at((8, 0), Duration::ZERO), Some(1));
        assert_eq!(limit_at((8, 0), KNOWN_FOR / 2), Some(1));
        assert_eq!(limit_at((8, 1), KNOWN_FOR / 2), Some(2));
        assert_eq!(limit_at((8, 0), KNOWN_FOR), Some(3));
        assert_eq!(limit_at((8, 1), KNOWN_FOR), Some(2));
    }

    #[test]
    fn not_more_devices_are_remembered_than_there_is_room_for() {
        let mut known = Known::new();
        let now = Instant::now();
        for minor in 0..1000 {
            assert_eq!(
                recall(&mut known, (8, minor), now, || Some(minor)),
                Some(minor)
            );
            assert!(known.len() <= KNOWN_MAX);
        }
    }
}
