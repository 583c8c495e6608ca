//! Runs every example of the library: what is only compiled may panic at its first line.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build::Example;

/// Bytes of the file that some are given: 64 blocks and a byte.
const BYTES: usize = (64 << 12) + 1;

/// Every example, whether it is given a file, and what it says among other things.
const EXAMPLES: [(&str, bool, &str); 9] = [
    ("batch", false, "500 records of 16 files; "),
    (
        "blocking",
        false,
        "32 blocks were written, made durable and read back\n",
    ),
    ("epoll", false, "32 blocks were served\n"),
    ("local", true, "262145 bytes\n"),
    ("log", false, "800 records are there\n"),
    ("lookup", false, "value 141 of file 3\nvalue 1 of file 0\n"),
    ("registered", false, "256 chunks read; "),
    ("smol", true, "262144 bytes\n"),
    ("tokio", true, "262145 bytes in 65 reads\n"),
];

pub(super) fn run(built: &[Example]) -> Result<()> {
    for example in built {
        let is_known = EXAMPLES.iter().any(|(name, ..)| *name == example.name);
        ensure!(is_known, "{}: say here what it prints", example.name);
    }
    let mut file = tempfile::NamedTempFile::new().context("the folder for test files")?;
    file.write_all(&vec![7; BYTES])?;
    for (name, takes_file, says) in EXAMPLES {
        let example = built.iter().find(|example| example.name == name);
        let example = example.with_context(|| format!("{name} has not been built"))?;
        let mut command = Command::new(&example.executable);
        // Left over from an experiment, it would decide what the example runs on.
        command.env_remove("INFLIGHT_BACKEND");
        command.args(takes_file.then(|| file.path()));
        let output = command
            .output()
            .with_context(|| format!("starting {name}"))?;
        let (said, complained) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.success(),
            "{name}: {}: {complained}",
            output.status
        );
        ensure!(
            said.contains(says),
            "{name} has not said {says:?} but: {said}"
        );
    }
    Ok(())
}
