//! What is printed without a disk: help, completions, manual pages.

use std::process::{Command, Stdio};

use crate::support::{directory, inflight, stderr};

/// Standard output of the command, which must succeed.
fn printed(args: &[&str]) -> String {
    let output = inflight().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The names under `Commands:` in the help.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.trim().is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert!(names.contains(&"bench".to_owned()), "{names:?}");
    names
}

#[test]
fn every_shell_accepts_its_completions_and_they_know_every_command() {
    let directory = directory();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")] {
        let text = printed(&["completions", shell]);
        for name in commands() {
            assert!(text.contains(&name), "{shell}: no {name}");
        }
        assert!(text.contains("export-json"), "{shell}");
        let path = directory.path().join(shell);
        std::fs::write(&path, text).unwrap();
        let accepted = Command::new(shell).arg(check).arg(&path).output();
        match accepted {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", stderr(&output)),
            Err(error) => println!("skipped in part: {shell} cannot be started: {error}"),
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let pages = commands().into_iter().filter(|name| name != "help");
    for name in pages {
        let page = printed(&["man", &name]);
        let title = format!(".TH inflight-{name} 1");
        assert!(page.contains(&title), "{name}: {page}");
        assert!(
            printed(&["man"]).contains(&name),
            "{name} is not in the list"
        );
    }
    let output = inflight().args(["man", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("no command `nonsense`"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_help_fits_on_a_screen() {
    let pages = commands().into_iter().filter(|name| name != "help");
    for name in pages {
        let lines = printed(&[&name, "-h"]).lines().count();
        assert!(lines <= 50, "inflight {name} -h has {lines} lines");
    }
    let unknown = inflight()
        .arg("nonsense")
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}
