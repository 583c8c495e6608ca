//! Which programs the library's integration tests became.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const LIBRARY: &str = "crates/inflight/Cargo.toml";

/// Builds every test of the workspace and returns the integration tests of the library.
pub(super) fn build() -> Result<Vec<PathBuf>> {
    let mut command = super::cargo_tests();
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    // Diagnostics stay visible; only the messages for programs are read.
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo test --no-run: {}",
        output.status
    );
    let messages = String::from_utf8(output.stdout).context("the messages of cargo")?;
    let programs = integration_tests(&messages, &crate::repository().join(LIBRARY));
    ensure!(
        !programs.is_empty(),
        "the library has no integration tests: nothing to run again"
    );
    Ok(programs)
}

/// The executables of the targets of kind `test` in the package with this manifest.
fn integration_tests(messages: &str, manifest: &Path) -> Vec<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| {
            let kinds = message["target"]["kind"].as_array();
            message["reason"] == "compiler-artifact"
                && message["manifest_path"].as_str().map(Path::new) == Some(manifest)
                && kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"))
        })
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_integration_tests_of_the_library_are_taken() {
        let artifact = |package: &str, kind: &str, program: &str| {
            let manifest = format!("/r/{package}/Cargo.toml");
            json!({
                "reason": "compiler-artifact",
                "manifest_path": manifest,
                "target": { "kind": [kind] },
                "executable": program,
            })
        };
        let messages = [
            json!({ "reason": "build-finished", "success": true }),
            artifact("a", "lib", "/t/lib"),
            artifact("b", "test", "/t/b"),
            artifact("a", "test", "/t/it"),
        ];
        let messages = messages.map(|message| message.to_string()).join("\n");
        let found = integration_tests(&messages, Path::new("/r/a/Cargo.toml"));
        assert_eq!(found, [PathBuf::from("/t/it")]);
    }
}
