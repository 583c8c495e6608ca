//! The command as a user meets it: the real binary, on real files.
//!
//! No test judges a figure: only what is reported, what is left behind, and the exit code.
#![allow(clippy::unwrap_used)] // Clippy knows tests by their attribute; helpers have none.

mod confirmed;
mod doctor;
mod exports;
mod interrupts;
mod open_loop;
mod pitfalls;
mod places;
mod printed;
mod programs;
mod progress;
mod records;
mod refusals;
mod results;
mod scratch_file;
#[cfg(feature = "live")]
mod screen;
mod slow_disk;
mod support;
mod workloads;
