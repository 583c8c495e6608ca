//! What the guest has told, line by line, and what it comes to.
//!
//! What is not told is a failure: a program without its end, a result without its test, a kernel
//! that says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Words by which a kernel complains of itself.
const COMPLAINTS: [&str; 9] = [
    "BUG:",
    "BUG at",
    "WARNING:",
    "Oops",
    "Call Trace:",
    "Kernel panic",
    "general protection fault",
    "blocked for more than",
    "self-detected stall",
];

/// Everything that the guest has told until now.
#[derive(Default)]
pub(super) struct Told {
    /// What the kernel calls itself, once it runs.
    pub(super) release: Option<String>,
    pub(super) programs: Vec<Program>,
    trouble: Vec<String>,
    done: bool,
}

/// A program full of tests.
#[derive(Default)]
pub(super) struct Program {
    name: String,
    /// How many tests it was about to run.
    announced: Option<u64>,
    pub(super) passed: u64,
    pub(super) failed: BTreeSet<String>,
    pub(super) ignored: u64,
    /// How many tests have said so, by their reason.
    pub(super) skips: BTreeMap<String, u64>,
    /// The last sum of results: those of its children come before its own.
    sum: Option<[u64; 3]>,
    listing: bool,
    /// How it ended.
    end: Option<String>,
}

impl Told {
    /// Takes a line. What is not in the form of the guest is trouble too.
    pub(super) fn hear(&mut self, line: &str) {
        let line = line.trim_end_matches('\r');
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, self.programs.last_mut()) {
            ("hello", _) => self.release = Some(rest.to_owned()),
            ("begin", _) => self.programs.push(Program {
                name: rest.to_owned(),
                ..Program::default()
            }),
            ("out", Some(program)) => program.hear(rest),
            ("err", Some(program)) => program.hear_error(rest),
            ("end", Some(program)) => match rest.strip_prefix(&format!("{} ", program.name)) {
                Some(end) => program.end = Some(end.to_owned()),
                None => self.trouble.push(format!("another end: {rest}")),
            },
            ("done", _) => self.done = true,
            ("trouble", _) => self.trouble.push(rest.to_owned()),
            _ => self.trouble.push(format!("not understood: {line}")),
        }
    }

    /// Why this is no success, for programs that were to be run; empty if it is one.
    pub(super) fn complaints(&self, planned: &[String], all: bool) -> Vec<String> {
        let mut complaints = self.trouble.clone();
        if self.release.is_none() {
            complaints.push("the kernel has not come to run anything".to_owned());
        }
        for name in planned {
            match self.programs.iter().find(|program| program.name == *name) {
                Some(program) => complaints.extend(program.complaints(all)),
                None => complaints.push(format!("{name}: has not been run")),
            }
        }
        if self.programs.iter().all(|program| program.passed == 0) {
            complaints.push("no test has passed".to_owned());
        }
        if !self.done {
            complaints.push("the guest has not come to its end".to_owned());
        }
        complaints
    }
}

impl Program {
    fn hear(&mut self, line: &str) {
        if let Some(count) = announcement(line) {
            self.announced.get_or_insert(count);
        }
        if let Some(sum) = sum(line) {
            [self.passed, _, self.ignored] = sum;
            self.sum = Some(sum);
            self.listing = false;
            if sum[1] == 0 {
                // Those of a child that was to fail; its own are listed before its own sum.
                self.failed.clear();
            }
        }
        if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|line| line.strip_suffix(" ... FAILED"))
        {
            self.failed.insert(name.to_owned());
        }
        // Twice: first with what each has printed, then their names alone.
        match line.strip_prefix("    ") {
            Some(name) if self.listing && !name.contains(' ') => {
                self.failed.insert(name.to_owned());
            }
            _ => self.listing |= line == "failures:",
        }
    }

    fn hear_error(&mut self, line: &str) {
        if let Some(skip) = line.strip_prefix("skipped: ") {
            let reason = skip.split_once(": ").map_or(skip, |(_, reason)| reason);
            *self.skips.entry(reason.to_owned()).or_default() += 1;
        }
    }

    fn complaints(&self, all: bool) -> Vec<String> {
        let name = &self.name;
        let mut complaints = Vec::new();
        match self.end.as_deref() {
            Some("code 0") => {}
            Some(end) => complaints.push(format!("{name}: ended with {end}")),
            None => complaints.push(format!("{name}: its end has not been told")),
        }
        let [passed, failed, ignored] = self.sum.unwrap_or_default();
        if self.sum.is_none() || self.announced != Some(passed + failed + ignored) {
            complaints.push(format!(
                "{name}: results are lost: {:?} tests announced, {:?} told",
                self.announced, self.sum
            ));
        }
        if all && passed == 0 {
            complaints.push(format!("{name}: no test has passed"));
        }
        let failures = self.failed.iter();
        complaints.extend(failures.map(|test| format!("{name}: failed: {test}")));
        if failed > 0 && self.failed.is_empty() {
            complaints.push(format!("{name}: {failed} failed, without a name"));
        }
        complaints
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skips: u64 = self.skips.values().sum();
        let failed = self.sum.map_or(self.failed.len() as u64, |sum| sum[1]);
        write!(
            f,
            "{}: {} passed, {failed} failed, {} ignored; {skips} skips with a reason",
            self.name, self.passed, self.ignored
        )
    }
}

/// `running 7 tests`.
fn announcement(line: &str) -> Option<u64> {
    let count = line.strip_prefix("running ")?;
    let count = count
        .strip_suffix(" tests")
        .or(count.strip_suffix(" test"))?;
    count.parse().ok()
}

/// Passed, failed and ignored of `test result: ok. 7 passed; 0 failed; 0 ignored; ...`.
fn sum(line: &str) -> Option<[u64; 3]> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        let mut parts = counts.split("; ");
        parts.find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some([count("passed")?, count("failed")?, count("ignored")?])
}

/// The lines in which a kernel complains.
pub(super) fn complaints_of_kernel(console: &str) -> Vec<String> {
    let lines = console.lines().map(str::trim_end);
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word));
    lines.filter(complains).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "hello 6.1.0-56-amd64\r
begin it\r
out \r
out running 2 tests\r
out running 1 test\r
out test of_a_child ... ok\r
out test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out\r
err skipped: a: there is none\r
err skipped: b: there is none\r
out test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\r
end it code 0\r
done\r";

    fn complaints(text: &str) -> Vec<String> {
        let mut told = Told::default();
        text.lines().for_each(|line| told.hear(line));
        told.complaints(&["it".to_owned()], true)
    }

    #[test]
    fn a_run_that_is_told_to_its_end_is_a_success() {
        assert_eq!(complaints(GOOD), [""; 0]);
        let mut told = Told::default();
        GOOD.lines().for_each(|line| told.hear(line));
        let words = "it: 2 passed, 0 failed, 0 ignored; 2 skips with a reason";
        assert_eq!(told.programs[0].to_string(), words);
        assert_eq!(told.programs[0].skips["there is none"], 2);
        assert_eq!(told.release.as_deref(), Some("6.1.0-56-amd64"));
    }

    #[test]
    fn whatever_line_is_lost_it_is_no_success() {
        let needed = [
            "hello",
            "begin",
            "out running 2",
            "filtered out\r\nend",
            "end",
            "done",
        ];
        for (at, line) in GOOD.lines().enumerate() {
            let matters = needed.iter().any(|start| line.starts_with(start))
                || line.starts_with("out test result: ok. 2");
            let rest = GOOD.lines().enumerate().filter(|(other, _)| *other != at);
            let rest: Vec<&str> = rest.map(|(_, line)| line).collect();
            assert_eq!(complaints(&rest.join("\n")).is_empty(), !matters, "{line}");
        }
        for at in 0..GOOD.len() - "done".len() {
            assert!(!complaints(&GOOD[..at]).is_empty(), "cut at {at}");
        }
    }

    #[test]
    fn failures_have_names_and_ends_have_reasons() {
        let failed = GOOD
            .replace(
                "out test result: ok. 2 passed; 0 failed",
                "out failures:\r\nout     a::b\r\nout test result: FAILED. 1 passed; 1 failed",
            )
            .replace("end it code 0", "end it code 101");
        let wanted = ["it: ended with code 101", "it: failed: a::b"];
        assert_eq!(complaints(&failed), wanted);
        let killed = GOOD.replace("end it code 0", "end it signal 11");
        assert_eq!(complaints(&killed), ["it: ended with signal 11"]);
        let other = GOOD.replace("end it code 0", "end others code 0");
        assert_eq!(complaints(&other).len(), 2);
        let trouble = GOOD.replace("done", "trouble ext4 at /disk");
        assert_eq!(complaints(&trouble).len(), 2);
    }

    #[test]
    fn what_fails_in_a_child_is_its_parents_business() {
        let child = "out test a ... FAILED\r\nout failures:\r\nout     a\r\n\
                     out test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\r\nerr ";
        assert_eq!(complaints(&GOOD.replacen("err ", child, 1)), [""; 0]);
    }

    #[test]
    fn a_program_without_tests_is_no_success() {
        let none = GOOD
            .replace("running 2 tests", "running 0 tests")
            .replace("ok. 2 passed", "ok. 0 passed");
        assert_eq!(complaints(&none).len(), 2);
    }

    #[test]
    fn a_kernel_that_complains_is_heard() {
        let console = "[ 1.0] Run /init as init process\r\n[ 2.0] BUG: kernel NULL pointer\r\n\
                       [ 3.0] WARNING: CPU: 0 PID: 7 at io_uring/io_uring.c:1\r\n";
        assert_eq!(complaints_of_kernel(console).len(), 2);
    }
}
