//! Steps: a heading, a duration, and the name of the one that failed.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// As many steps are done at a time where they may be: tests wait about as long as they compute.
const AT_A_TIME: usize = 2;

type Work<'a> = Box<dyn FnOnce(&str) -> Result<()> + Send + 'a>;

/// One of several steps that may be done in any order.
pub(super) struct Step<'a> {
    name: String,
    work: Work<'a>,
}

impl<'a> Step<'a> {
    /// The work is told the step's name, with which what it prints is to begin: see [`tell`].
    pub(super) fn new(
        name: impl Into<String>,
        work: impl FnOnce(&str) -> Result<()> + Send + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            work: Box::new(work),
        }
    }

    fn run(self) -> Result<()> {
        println!("==> {}", self.name);
        let started = Instant::now();
        let outcome = (self.work)(&self.name);
        let (name, duration) = (self.name, in_words(started.elapsed()));
        outcome.with_context(|| format!("check: step `{name}` failed"))?;
        println!("    {name}: passed in {duration}\n");
        Ok(())
    }
}

/// The steps of one run.
pub(super) struct Steps {
    started: Instant,
    passed: usize,
}

impl Steps {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            passed: 0,
        }
    }

    /// Runs one step. A failure carries the step's name.
    pub(super) fn step(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<()> + Send,
    ) -> Result<()> {
        Step::new(name, |_: &str| work()).run()?;
        self.passed += 1;
        Ok(())
    }

    /// Runs steps in their order, [`AT_A_TIME`]. After a failure none is begun.
    pub(super) fn together(&mut self, steps: Vec<Step<'_>>) -> Result<()> {
        let count = steps.len();
        let steps = Mutex::new(steps.into_iter());
        let next = || steps.lock().expect("nothing panics under it").next();
        let work = || {
            while let Some(step) = next() {
                if let Err(error) = step.run() {
                    // Said now: what runs beside it may take long.
                    eprintln!("{error:#}");
                    while next().is_some() {}
                    return Err(error);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: [_; AT_A_TIME] = std::array::from_fn(|_| scope.spawn(work));
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("it does not panic"))
        })?;
        self.passed += count;
        Ok(())
    }

    /// Prints the summary, the last line of a run that passed.
    pub(super) fn finish(&self) {
        let duration = in_words(self.started.elapsed());
        println!("check: {} steps passed in {duration}", self.passed);
    }
}

/// Runs a command; each line that it prints begins with this name, because another step prints at
/// the same time.
pub(super) fn tell(name: &str, command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|out| Box::new(out) as _),
        child.stderr.take().map(|err| Box::new(err) as _),
    ];
    thread::scope(|scope| {
        for pipe in pipes.into_iter().flatten() {
            scope.spawn(|| {
                for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                    println!("{name}: {}", String::from_utf8_lossy(&line));
                }
            });
        }
    });
    child.wait()
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
    use std::sync::Barrier;

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

    #[test]
    fn steps_are_done_together_and_none_is_begun_after_a_failure() {
        let mut steps = Steps::start();
        let meeting = Barrier::new(AT_A_TIME);
        let meet = |name| {
            Step::new(name, |_| {
                meeting.wait();
                Ok(())
            })
        };
        steps.together(vec![meet("one"), meet("two")]).unwrap();
        assert_eq!(steps.passed, 2);

        let fail = |name| {
            Step::new(name, |_| {
                meeting.wait();
                anyhow::bail!("cause")
            })
        };
        let never = Step::new("never", |_| unreachable!("two have failed"));
        let error = steps
            .together(vec![fail("same"), fail("same"), never])
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "check: step `same` failed: cause");
        assert_eq!(steps.passed, 2);
    }
}
