//! The plain ring in an open loop: what is due begins, and the ring is waited on for a completion
//! or until the next operation is due.

use std::io;

use anyhow::{Context, Result};
use io_uring::types::{SubmitArgs, Timespec};

use super::slots::{is_passing, slot_of};
use super::uring::{Plain, push};
use super::{Lane, Modes};
use crate::measure::meter::Meter;
use crate::measure::pace::Pace;

pub(super) struct ByTheClock<'p> {
    plain: Plain,
    pace: &'p Pace,
    /// Slots with nothing in flight.
    free: Vec<u32>,
    /// When the operation is due that was taken and waits for its time.
    early_ns: Option<u64>,
}

impl<'p> ByTheClock<'p> {
    /// A lane on a ring that has nothing in flight.
    pub(super) fn new(mut plain: Plain, pace: &'p Pace) -> Self {
        let slots = plain.slots.as_mut().expect("present until dropped");
        // None begins because another one ended.
        slots.stop();
        Self {
            free: (0..slots.depth()).collect(),
            plain,
            pace,
            early_ns: None,
        }
    }

    /// Begins what is due, as long as there is a free slot.
    fn begin(&mut self, now_ns: u64) {
        let slots = self.plain.slots.as_mut().expect("present until dropped");
        let mut queue = self.plain.ring.submission();
        while let Some(&slot) = self.free.last() {
            let was_early = self.early_ns.take();
            let Some(due_ns) = was_early.or_else(|| self.pace.take(now_ns)) else {
                return;
            };
            if due_ns > now_ns {
                self.early_ns = Some(due_ns);
                return;
            }
            if was_early.is_some() {
                self.pace.waited(due_ns, now_ns);
            }
            self.free.pop();
            push(
                &mut queue,
                &self.plain.files,
                slot,
                &slots.begin(slot, due_ns),
            );
            self.plain.in_flight += 1;
        }
    }

    /// Hands over what was queued, and waits for a completion or until an operation is due.
    fn enter(&mut self, now_ns: u64) -> Result<()> {
        let left_ns = self.early_ns.map(|due_ns| due_ns.saturating_sub(now_ns));
        let entered = match left_ns {
            None => self.plain.ring.submit_and_wait(1),
            Some(left_ns) => {
                let left = Timespec::from(std::time::Duration::from_nanos(left_ns));
                let args = SubmitArgs::new().timespec(&left);
                self.plain.ring.submitter().submit_with_args(1, &args)
            }
        };
        match entered {
            Err(error) if !is_passing(&error) && !is_time(&error) => {
                Err(error).context("io_uring_enter")
            }
            _ => Ok(()),
        }
    }

    fn collect(&mut self, meter: &mut Meter) {
        let slots = self.plain.slots.as_mut().expect("present until dropped");
        let (_, mut queue, completions) = self.plain.ring.split();
        for completion in completions {
            let slot = slot_of(completion.user_data());
            let mut goes_on = false;
            slots.complete(slot, completion.result(), meter, |slot, place| {
                push(&mut queue, &self.plain.files, slot, &place);
                goes_on = true;
            });
            if !goes_on {
                self.free.push(slot);
                self.plain.in_flight -= 1;
            }
        }
    }
}

/// The time is over that was to be waited. Source: io_uring_enter(2), ETIME.
fn is_time(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETIME)
}

impl Lane for ByTheClock<'_> {
    fn turn(&mut self, meter: &mut Meter) -> Result<()> {
        let now_ns = meter.read_clock();
        self.begin(now_ns);
        if self.plain.in_flight > 0 {
            meter.syscalls(1);
            self.enter(now_ns)?;
            meter.read_clock();
            self.collect(meter);
        } else if let Some(due_ns) = self.early_ns {
            // Nothing to wait for but the clock; it is counted as waited for when it begins.
            self.pace.sleep_until(due_ns);
        }
        Ok(())
    }

    fn finish(&mut self, meter: &mut Meter) -> Result<()> {
        // The last operation may have been taken, and not be due yet.
        while self.early_ns.is_some() || self.plain.in_flight > 0 {
            self.turn(meter)?;
        }
        Ok(())
    }

    fn effective(&self) -> Modes {
        self.plain.effective()
    }
}
