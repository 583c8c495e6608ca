//! Steps: a heading, a duration, and the name of the one that failed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The steps of one run.
pub(super) struct Steps {
    started: Instant,
    passed: u32,
}

impl Steps {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            passed: 0,
        }
    }

    /// Runs one step. A failure carries the step's name.
    pub(super) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let started = Instant::now();
        work().with_context(|| format!("check: step `{name}` failed"))?;
        println!("    {name}: passed in {}\n", in_words(started.elapsed()));
        self.passed += 1;
        Ok(())
    }

    /// Prints the summary, the last line of a run that passed.
    pub(super) fn finish(&self) {
        let duration = in_words(self.started.elapsed());
        println!("check: {} steps passed in {duration}", self.passed);
    }
}

fn in_words(duration: Duration) -> String {
    match duration.as_secs() {
        0..=9 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..=59 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(in_words(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(in_words(Duration::from_millis(59_990)), "59 s");
        assert_eq!(in_words(Duration::from_secs(192)), "3 min 12 s");
    }

    #[test]
    fn a_failure_names_its_step_and_does_not_count() {
        let mut steps = Steps::start();
        let error = steps
            .step("planted", || anyhow::bail!("cause"))
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "check: step `planted` failed: cause");
        assert_eq!(steps.passed, 0);
    }
}
