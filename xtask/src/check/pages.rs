//! The documentation: its pages, and the tests in them.
//!
//! `cargo doc` would have every dependency compiled a second time, as far as rustdoc needs it.
//! `cargo test --doc` hands rustdoc what has been built, so there this program is taken for
//! rustdoc, and makes the pages from the same arguments before it has the tests run.

use std::env;
use std::ffi::OsString;
use std::process::{self, Command, ExitCode};

use anyhow::Result;

use super::build::with_clippy;

/// Set for the runs of this program that are in place of rustdoc: the real one.
const REAL: &str = "XTASK_RUSTDOC";

/// Makes the pages of all libraries and runs the tests in them; a warning is a failure.
pub(super) fn run(name: &str) -> Result<()> {
    let real = env::var_os("RUSTDOC").unwrap_or_else(|| OsString::from("rustdoc"));
    // Its path is another's by now, if it has been built anew.
    let this = format!("/proc/{}/exe", process::id());
    let mut command = super::cargo("test");
    command.args(["--workspace", "--all-features", "--doc"]);
    command.args(super::locked());
    command.env("RUSTDOC", this).env(REAL, real);
    super::told(name, with_clippy(&mut command))
}

/// What rustdoc does with these arguments and more, if this program is to be rustdoc.
pub(crate) fn in_place_of_rustdoc() -> Option<ExitCode> {
    let real = env::var_os(REAL)?;
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let pages = pages(&arguments).into_iter();
    // Where cargo asks for something else, there are no pages to be made.
    let runs = pages.chain([arguments]);
    for arguments in runs {
        match Command::new(&real).args(arguments).status() {
            Ok(status) if status.success() => {}
            Ok(_) => return Some(ExitCode::FAILURE),
            Err(error) => {
                eprintln!("{}: {error}", real.display());
                return Some(ExitCode::FAILURE);
            }
        }
    }
    Some(ExitCode::SUCCESS)
}

/// The arguments that make pages of what these would test, if they test anything.
fn pages(tests: &[OsString]) -> Option<Vec<OsString>> {
    let mut tests_something = false;
    let mut pages = vec![
        OsString::from("-Dwarnings"),
        OsString::from("--out-dir"),
        crate::target("doc").into(),
    ];
    let mut arguments = tests.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--test") => tests_something = true,
            Some("--test-run-directory" | "--test-args") => _ = arguments.next(),
            _ => pages.push(argument.clone()),
        }
    }
    tests_something.then_some(pages)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn pages_are_made_of_what_is_tested_and_of_nothing_else() {
        assert_eq!(pages(&arguments("--version --verbose")), None);
        let tests = "--crate-name a --test a/lib.rs --test-run-directory /a --warn=missing_docs";
        let pages = pages(&arguments(tests)).unwrap();
        let rest: Vec<&OsStr> = pages.iter().skip(3).map(OsString::as_os_str).collect();
        let expected = ["--crate-name", "a", "a/lib.rs", "--warn=missing_docs"];
        assert_eq!(rest, expected.map(OsStr::new));
    }
}
