//! Names that keep whoever opens them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use inflight::Engine;
use inflight::fs::{Open, OpenOptions};

/// A FIFO: opening it for reading blocks a thread until [`Fifo::release`].
pub(crate) struct Fifo(PathBuf);

impl Fifo {
    pub(crate) fn new(folder: &Path) -> Self {
        let path = folder.join("fifo");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo is part of coreutils").success());
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn opening(&self, engine: &Engine) -> Open {
        OpenOptions::new()
            .read(true)
            .engine(engine)
            .opening(&self.0)
    }

    /// Waits for who opens it, and lets them.
    pub(crate) fn release(&self) {
        drop(fs::OpenOptions::new().write(true).open(&self.0));
    }
}
