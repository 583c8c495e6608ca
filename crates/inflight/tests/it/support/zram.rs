//! A block device that is memory: whoever asks it does the copying. The tests of the command have
//! it too.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A zram device of its own, not one that somebody may be using.
pub(crate) struct Zram(String);

impl Zram {
    /// One of this size, as sysfs takes it; none where there can be none, which is said.
    pub(crate) fn add(test: &str, size: &str) -> Option<Self> {
        let Ok(number) = fs::read_to_string("/sys/class/zram-control/hot_add") else {
            println!("skipped: {test}: no zram device can be added");
            return None;
        };
        let zram = Self(number.trim().to_owned());
        let disksize = format!("/sys/block/{}/disksize", zram.name());
        fs::write(disksize, size).expect("a new device takes a size");
        Some(zram)
    }

    pub(crate) fn name(&self) -> String {
        format!("zram{}", self.0)
    }

    /// Where it can be opened.
    pub(crate) fn node(&self) -> PathBuf {
        Path::new("/dev").join(self.name())
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let reset = format!("/sys/block/{}/reset", self.name());
        let is_gone = given_back(|| fs::write(&reset, "1").is_ok())
            && given_back(|| fs::write("/sys/class/zram-control/hot_remove", &self.0).is_ok());
        assert!(thread::panicking() || is_gone, "{} is left", self.name());
    }
}

/// Whether something can be given back before long: a child that another test has forked may have
/// it open for a moment, as may another mount namespace.
pub(crate) fn given_back(give: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if give() {
            return true;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
