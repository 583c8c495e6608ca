//! Lints and builds every target in one pass, and says which programs to be run came of it.
//!
//! `clippy-driver` is rustc with more lints: what it has looked at it also compiles. `cargo clippy`
//! stops before that, so that everything would be read a second time to build the tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

pub(super) const LIBRARY: &str = "inflight";

/// Every target that clippy knows: libraries, programs, tests, benchmarks and examples.
const EVERYTHING: [&str; 4] = ["--workspace", "--all-targets", "--all-features", "--quiet"];

/// A program full of tests.
#[derive(Debug)]
pub(super) struct Program {
    /// Its package and its target: unlike any other's.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The folder of the package, where cargo would run it.
    pub(super) folder: PathBuf,
    /// In `tests/`, not beside the code.
    integration: bool,
}

impl Program {
    /// Whether it is to be run again in every environment.
    pub(super) fn is_of_the_library(&self) -> bool {
        self.integration && self.folder.file_name().is_some_and(|name| name == LIBRARY)
    }
}

/// An example of the library.
#[derive(Debug)]
pub(super) struct Example {
    pub(super) name: String,
    pub(super) executable: PathBuf,
}

/// Has the packages of the workspace, and no others, compiled by clippy. All commands that share
/// what they build say so, because to cargo it is another compiler.
pub(super) fn with_clippy(command: &mut Command) -> &mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// Lints and builds; a warning is a failure. Returns the programs with tests, those with most to do
/// first, and the examples.
pub(super) fn run() -> Result<(Vec<Program>, Vec<Example>)> {
    let mut command = super::cargo("build");
    command.args(EVERYTHING).args(super::locked());
    let mut cargo = with_clippy(&mut command)
        .arg("--message-format=json")
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;

    let (mut programs, mut examples) = (Vec::new(), Vec::new());
    let mut complaints = 0_u32;
    let messages = cargo.stdout.take().expect("it has been piped");
    for line in BufReader::new(messages).lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line.context("the messages of cargo")?)
        else {
            continue;
        };
        if let Some(complaint) = complaint(&message) {
            complaints += 1;
            eprintln!("{complaint}");
        }
        programs.extend(program(&message));
        examples.extend(example(&message));
    }
    let status = cargo.wait().context("waiting for cargo")?;
    ensure!(status.success(), "cargo build, with clippy: {status}");
    ensure!(complaints == 0, "{complaints} warnings");
    ensure!(
        programs.iter().any(Program::is_of_the_library),
        "the library has no integration tests: nothing to run again"
    );
    programs.sort_by_key(|program| !program.integration);
    Ok((programs, examples))
}

/// Has cargo build, and returns the programs with tests that came of it: target and place of each.
pub(crate) fn programs(command: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    command.arg("--message-format=json-render-diagnostics");
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo: {}", output.status);
    let messages = String::from_utf8(output.stdout).context("the messages of cargo")?;
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    let programs = messages.flatten().filter_map(|message| {
        let program = program(&message)?;
        let target = message["target"]["name"].as_str()?;
        Some((target.to_owned(), program.executable))
    });
    Ok(programs.collect())
}

/// What the compiler or clippy says of the code, as it would say it to the user. Cargo says it
/// again for what has not changed since.
fn complaint(message: &Value) -> Option<&str> {
    let said = &message["message"];
    let about_code = message["reason"] == "compiler-message";
    let serious = said["level"] == "warning" || said["level"] == "error";
    (about_code && serious).then(|| said["rendered"].as_str().unwrap_or("no words"))
}

/// The program with tests that is told of. Benchmarks are built as tests are, but are none.
fn program(message: &Value) -> Option<Program> {
    let target = &message["target"];
    let kind = target["kind"].as_array()?.first()?.as_str()?;
    let tests = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    if !tests || kind == "bench" {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    Some(Program {
        name: format!("{package} {}", target["name"].as_str()?),
        executable: PathBuf::from(message["executable"].as_str()?),
        folder: folder.to_owned(),
        integration: kind == "test",
    })
}

/// The example that is told of. Cargo builds each once more as a program with tests, of which there
/// are none.
fn example(message: &Value) -> Option<Example> {
    let target = &message["target"];
    let is_example = target["kind"].as_array()?.first()? == "example";
    if !is_example || message["profile"]["test"] == true {
        return None;
    }
    Some(Example {
        name: target["name"].as_str()?.to_owned(),
        executable: PathBuf::from(message["executable"].as_str()?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(package: &str, kind: &str, name: &str, test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/r/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": format!("/t/{name}-1"),
        })
    }

    #[test]
    fn only_programs_with_tests_are_taken() {
        assert!(program(&json!({ "reason": "build-finished", "success": true })).is_none());
        assert!(program(&artifact("inflight", "bin", "inflight", false)).is_none());
        assert!(program(&artifact("inflight", "bench", "path", true)).is_none());
        let beside = program(&artifact("inflight", "lib", "inflight", true)).unwrap();
        assert!(!beside.is_of_the_library());
        let other = program(&artifact("inflight-bench", "test", "it", true)).unwrap();
        assert!(!other.is_of_the_library());

        let found = program(&artifact("inflight", "test", "it", true)).unwrap();
        assert!(found.is_of_the_library());
        assert_eq!(found.name, "inflight it");
        assert_eq!(found.executable, Path::new("/t/it-1"));
        assert_eq!(found.folder, Path::new("/r/inflight"));
    }

    #[test]
    fn examples_are_those_that_can_be_started() {
        let found = example(&artifact("inflight", "example", "batch", false)).unwrap();
        assert_eq!(found.name, "batch");
        assert_eq!(found.executable, Path::new("/t/batch-1"));
        assert!(example(&artifact("inflight", "example", "batch", true)).is_none());
        assert!(example(&artifact("inflight", "bin", "inflight", false)).is_none());
    }

    #[test]
    fn warnings_and_errors_are_complaints_and_notes_are_not() {
        let said = |level: &str| {
            json!({
                "reason": "compiler-message",
                "message": { "level": level, "rendered": format!("{level}: unused") },
            })
        };
        assert_eq!(complaint(&said("warning")), Some("warning: unused"));
        assert_eq!(complaint(&said("error")), Some("error: unused"));
        assert_eq!(complaint(&said("failure-note")), None);
        assert_eq!(complaint(&artifact("a", "lib", "a", false)), None);
    }
}
