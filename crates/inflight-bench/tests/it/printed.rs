//! What is printed without a disk: help, completions, manual pages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
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
    let told = "there is no command `nonsense`: `inflight --help` lists them\n";
    assert!(stderr(&output).ends_with(told), "{}", stderr(&output));
}

#[test]
fn a_help_fits_on_a_screen_and_ends_with_examples() {
    let first = printed(&["--help"]);
    assert!(first.lines().count() <= 24, "{first}");
    for help in [&first, &printed(&["bench", "-h"])] {
        assert!(help.contains("\nExamples:\n  inflight bench"), "{help}");
    }
    for (flag, short) in [("--seed", false), ("--profile", true)] {
        assert_eq!(printed(&["bench", "-h"]).contains(flag), short, "{flag}");
        assert!(printed(&["bench", "--help"]).contains(flag), "{flag}");
    }
    let pages = commands().into_iter().filter(|name| name != "help");
    for name in pages {
        let lines = printed(&[&name, "-h"]).lines().count();
        assert!(lines <= 42, "inflight {name} -h has {lines} lines");
    }
    let unknown = inflight()
        .arg("nonsense")
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn the_long_help_lists_profiles_and_both_defaults_of_rounds() {
    let long = printed(&["bench", "--help"]);
    let words: Vec<&str> = long.split_whitespace().collect();
    let told = words.join(" ");
    for name in ["cold-range-read,", "group-commit,", "many-files-cold."] {
        assert!(told.contains(name), "{name}: {told}");
    }
    assert!(
        told.contains("`default` is direct-random-read, cached"),
        "{told}"
    );
    assert!(told.contains("[default: 8, with --quick 6]"), "{told}");
}

#[test]
fn the_doctor_tells_its_exit_codes_too() {
    let long = printed(&["doctor", "--help"]);
    let told = "  3    something cannot be done here";
    assert!(
        long.contains("Exit codes:") && long.contains(told),
        "{long}"
    );
    assert!(!printed(&["doctor", "-h"]).contains("Exit codes"));
}

#[test]
fn exit_codes_are_in_the_long_help_and_in_the_manual_page() {
    let (short, long) = (printed(&["bench", "-h"]), printed(&["bench", "--help"]));
    assert!(!short.contains("Exit codes"), "{short}");
    assert!(long.contains("\nExamples:\n  inflight bench"), "{long}");
    for text in [long, printed(&["man", "bench"])] {
        assert!(text.contains("Exit codes:"), "{text}");
        for code in ["0    done", "4    refused", "130  stopped by"] {
            assert!(text.contains(code), "{code}: {text}");
        }
    }
    assert!(printed(&["--help"]).contains("ways of reading and writing a disk"));
}

/// A profile that reads and one that writes, as the flag takes them.
fn profiles(directory: &std::path::Path) -> String {
    let path = directory.join("durable.toml");
    let text = include_str!("../../../../profiles/cached-random-read.toml");
    let text = text.replace("random-read", "random-write");
    let text = text.replace("\"warm\"", "\"unused\"") + "\nsync = \"each\"\n";
    std::fs::write(&path, text).unwrap();
    format!("direct-random-read,{}", path.display())
}

#[test]
fn a_dry_run_prints_a_job_that_fio_accepts_and_writes_nothing() {
    let directory = directory();
    let target = directory.path().join("with:colon");
    std::fs::create_dir(&target).unwrap();
    let place = target.to_str().unwrap();
    let profiles = profiles(directory.path());
    let small = ["--size", "64m", "--rounds", "3", "--profile", &profiles];
    let job = printed(&[&["bench", place, "--dry-run"], &small[..]].concat());
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
    for told in [
        "; test data: 64 MiB",
        " 3 rounds of ",
        "; expected: ",
        "  uring: depth 1",
    ] {
        assert!(job.contains(told), "{told}\n{job}");
    }
    assert!(
        job.contains("\nrw=randwrite\n") && job.contains("\nfdatasync=1\n"),
        "{job}"
    );
    let sections = job.lines().filter(|line| line.starts_with('[')).count();
    assert!(sections > 2, "{job}");
    let file = directory.path().join("job.fio");
    std::fs::write(&file, &job).unwrap();
    let mut fio = Command::new("fio");
    match fio.arg("--parse-only").arg(&file).output() {
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
            assert!(output.status.success(), "{told}\n{job}");
        }
        Err(error) => println!("skipped in part: fio cannot be started: {error}"),
    }
}

#[test]
fn a_plan_for_a_name_that_fio_cannot_take_is_printed_without_the_job() {
    let directory = directory();
    let target = directory.path().join(OsStr::from_bytes(b"not-\xff-text"));
    std::fs::create_dir(&target).unwrap();
    let mut command = inflight();
    command.args(["bench", "--dry-run", "--size", "64m"]);
    let output = command.arg(&target).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let plan = String::from_utf8(output.stdout).unwrap();
    for told in [
        "; The same as a job for fio is left out: fio takes only paths that are UTF-8.",
        "; test data: 64 MiB",
        "  uring: depth 1",
    ] {
        assert!(plan.contains(told), "{told}\n{plan}");
    }
    assert!(plan.lines().all(|line| line.starts_with(';')), "{plan}");
    assert!(!plan.contains("below"), "{plan}");
}

#[test]
fn a_job_for_a_file_that_is_there_writes_to_nothing() {
    let directory = directory();
    let file = directory.path().join("data");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let (place, profiles) = (file.to_str().unwrap(), profiles(directory.path()));
    let job = printed(&["bench", place, "--dry-run", "--profile", &profiles]);
    assert!(job.contains("rw=randread"), "{job}");
    assert!(
        job.contains("; durable writes, and has no section here"),
        "{job}"
    );
    for writes in ["rw=write", "rw=randwrite", "rw=randrw"] {
        assert!(!job.contains(writes), "{writes}\n{job}");
    }
}
