//! `inflight-mapped`: the library on files that nobody changes, from a mapping where the page cache
//! has them (`OpenOptions::mapped`).
//!
//! It stands beside `mmap`, whose speed it is after: it does wait for the disk with many reads in
//! flight, and reports errors. Where the files are in memory a read is a copy, so as many threads
//! read as `mmap` has; where they are not, a queue for each processor keeps the disk busy.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use ::inflight::Engine;
use ::inflight::fs::{File, OpenOptions};
use anyhow::{Context, Result};

use super::inflight::{InCommon, with_files};
use super::lost_pages;
use super::mmap::check_lengths;
use super::pread::Pread;
use super::threads::Threads;
use super::{Body, Job, Modes, Shape, Strategy, Way, modes};
use crate::profile::Profile;

pub(crate) struct InflightMapped;

impl Strategy for InflightMapped {
    fn name(&self) -> &'static str {
        "inflight-mapped"
    }

    fn about(&self) -> &'static str {
        "the library, on files that nobody changes, from a mapping"
    }

    /// Only for who makes the promise.
    fn by_default(&self) -> bool {
        false
    }

    fn shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        let threads = |depth: u32| match profile.misses() {
            true if depth.is_multiple_of(cpus) => cpus,
            true => 1,
            false => depth,
        };
        let depths = profile.asked.queue_depths.iter();
        let shape = |&depth: &u32| Shape {
            depth,
            threads: threads(depth),
        };
        depths.map(shape).collect()
    }

    /// As the library waited for: one operation in each thread.
    fn open_shapes(&self, profile: &Profile, cpus: u32) -> Vec<Shape> {
        [Pread.shapes(profile, cpus), Threads.shapes(profile, cpus)].concat()
    }

    fn requested(&self, _job: &Job<'_>) -> Modes {
        modes(&[
            ("mapping", "of what is resident"),
            ("reports-errors", "yes"),
        ])
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        if profile.direct() {
            return Some("a mapping goes through the page cache: it has no direct I/O");
        }
        let writes = profile.writes();
        writes.then_some("the mapped files of the library are those that nobody changes")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    // The promise that nobody changes the file would be broken.
    check_lengths(job)?;
    static LIVE: InCommon = InCommon::new();
    lost_pages::are_noticed(|| {
        with_files(job, body, |engine| match job.depth {
            1 => LIVE.get(job.paths, || open_mapped(engine, job.paths)),
            // A queue may have an engine of its own.
            _ => open_mapped(engine, job.paths),
        })
    })
}

fn open_mapped(engine: &Engine, paths: &[PathBuf]) -> Result<Arc<[File]>> {
    let open = |path: &PathBuf| {
        let options = OpenOptions::new().read(true).engine(engine);
        // SAFETY: the scratch files are changed by nobody while a profile that only reads runs;
        // whoever names a file of their own is told in `--help` that it is only read.
        let file = unsafe { options.mapped() }.open(path);
        file.context("the library cannot open a file")
    };
    paths.iter().map(open).collect()
}
