//! Files that hold the result in other forms.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::doctor::{can, is_root};
use crate::support::{Zram, bench, directory, inflight, limited, scratch_files, stderr};

/// The shortest measurement.
const SHORT: &[&str] = &[
    "--size",
    "1m",
    "--rounds",
    "1",
    "--cell-time",
    "5",
    "--profile",
    "cached-random-read",
    "--strategy",
    "pread",
    "--depth",
    "1",
];

fn measure(directory: &Path, args: &[&str]) -> Output {
    // Where a record goes that cannot be written.
    let mut command = bench(directory, &[SHORT, args].concat());
    command.env("TMPDIR", directory).output().unwrap()
}

#[test]
fn a_record_that_cannot_be_written_is_kept_elsewhere() {
    let (directory, elsewhere) = (directory(), directory());
    let args = [SHORT, &["--export-json", "/dev/full"]].concat();
    let mut command = bench(directory.path(), &args);
    let output = command.env("TMPDIR", elsewhere.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let kept = fs::read_dir(elsewhere.path()).unwrap().next().unwrap();
    let kept = kept.unwrap().path();
    let told = format!("the record is kept in {}", kept.display());
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    let again = inflight().arg("show").arg(&kept).output().unwrap();
    assert_eq!(again.stdout, output.stdout, "{}", stderr(&again));
}

#[test]
fn a_form_that_cannot_be_written_costs_nothing_of_the_screen_and_no_other_form() {
    let directory = directory();
    let (json, csv) = (Path::new("/dev/full"), directory.path().join("cells.csv"));
    let files = ["--export-json", "/dev/full", "--export-csv"];
    let output = measure(
        directory.path(),
        &[&files[..], &[csv.to_str().unwrap()]].concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let why = format!("{} cannot be written: No space left", json.display());
    assert!(stderr(&output).contains(&why), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("cached-random-read"), "{text}");
    assert!(fs::read_to_string(csv).unwrap().contains("pread"));
}

#[test]
fn where_no_file_can_be_made_is_told_before_anything_is_measured() {
    let directory = directory();
    let output = measure(directory.path(), &["--export-json", "/proc/x.json"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("/proc/x.json cannot be made"), "{told}");
    assert!(!told.contains("writing"), "{told}");
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn one_file_for_two_forms_is_refused_however_it_is_spelled() {
    let directory = directory();
    let path = directory.path().join("a.json");
    let again = directory.path().join(".").join("a.json");
    let (path, again) = (path.to_str().unwrap(), again.to_str().unwrap());
    for (flag, other) in [("--export-csv", path), ("--report", again)] {
        let args = ["--export-json", path, flag, other];
        let output = measure(directory.path(), &args);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("name the same file"), "{told}");
    }
    let nowhere = ["--export-json", "/dev/null", "--export-csv", "/dev/null"];
    assert_eq!(
        measure(directory.path(), &nowhere).status.code(),
        Some(0),
        "nothing is lost there"
    );
}

/// A record of the documentation.
fn kept_record() -> PathBuf {
    let kept = "../../docs/measurements/2026-11-21-virtio-2cpu/disk-futures.json";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kept)
}

/// That a command is refused for its export, and leaves this file as it is.
fn keeps(file: &Path, command: &mut Command) {
    let before = fs::read(file).unwrap();
    let output = command.output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("would overwrite"), "{told}");
    assert_eq!(fs::read(file).unwrap(), before);
}

#[test]
fn no_export_overwrites_what_is_measured() {
    let directory = directory();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("data"), vec![7; 1 << 20]).unwrap();
    std::os::unix::fs::symlink(at("data"), at("link")).unwrap();
    fs::hard_link(at("data"), at("twin")).unwrap();
    for flag in [
        "--export-json",
        "--export-csv",
        "--export-markdown",
        "--report",
    ] {
        for name in ["data", "link", "twin"] {
            keeps(
                &at("data"),
                bench(&at("data"), SHORT).arg(flag).arg(at(name)),
            );
        }
    }
    let profile = at("profile.toml");
    let built_in = include_str!("../../../../profiles/cached-random-read.toml");
    fs::write(&profile, built_in).unwrap();
    let mut command = bench(directory.path(), &["--export-json"]);
    keeps(
        &profile,
        command.arg(&profile).arg("--profile").arg(&profile),
    );
    // What is beside it, and in a directory that is measured, is another file.
    let record = at("record.json");
    let args = [SHORT, &["--export-json", record.to_str().unwrap()]].concat();
    for target in [directory.path(), &at("data")] {
        let output = bench(target, &args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn no_export_overwrites_a_record_that_is_read() {
    let directory = directory();
    let (a, b) = (
        directory.path().join("a.json"),
        directory.path().join("b.json"),
    );
    for path in [&a, &b] {
        fs::copy(kept_record(), path).unwrap();
    }
    let named = format!("node={}", b.display());
    let mut compared = inflight();
    keeps(
        &b,
        compared
            .arg("compare")
            .args([&a, &b])
            .arg("--export-markdown")
            .arg(&b),
    );
    let mut merged = inflight();
    keeps(
        &b,
        merged
            .arg("merge")
            .arg(&a)
            .arg(named)
            .arg("--export-json")
            .arg(&b),
    );
    let mut shown = inflight();
    keeps(&a, shown.arg("show").arg(&a).arg("--report").arg(&a));
}

#[test]
fn no_export_goes_to_a_block_device() {
    let Some(zram) = Zram::add("no_export_goes_to_a_block_device", "1M") else {
        return;
    };
    let device = zram.node();
    let mut command = inflight();
    command.arg("show").arg(kept_record());
    let output = command.arg("--export-csv").arg(&device).output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("is a block device"), "{told}");
    let first = &mut [1; 512];
    File::open(&device).unwrap().read_exact(first).unwrap();
    assert_eq!(*first, [0; 512]);
}

#[test]
fn an_old_record_survives_a_new_one_that_cannot_be_written_whole() {
    let directory = directory();
    let old = directory.path().join("old.json");
    let output = measure(directory.path(), &["--export-json", old.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let before = fs::read(&old).unwrap();
    let record = kept_record();
    // A file may not become longer than some blocks of 512 or 1,024 bytes.
    let mut show = inflight();
    show.arg("show").arg(&record).arg("--export-json").arg(&old);
    let output = limited("-f 1", &show);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("File too large"));
    assert_eq!(fs::read(&old).unwrap(), before);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_name_that_leads_to_a_file_goes_on_doing_so() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = directory();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    let output = measure(directory.path(), &["--export-csv", link.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&file).unwrap().contains("pread"));
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

/// Whoever has opened it may append to it, as a shell does with `>>`.
#[test]
fn a_stream_that_leads_to_a_file_is_refused_and_what_the_file_has_is_kept() {
    let directory = directory();
    let log = directory.path().join("log");
    for name in ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
        fs::write(&log, "precious\n").unwrap();
        let mut command = bench(directory.path(), &[SHORT, &["--export-csv", name]].concat());
        command.stdout(File::options().append(true).open(&log).unwrap());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("`-` writes to stdout"),
            "{}",
            stderr(&output)
        );
        assert_eq!(fs::read_to_string(&log).unwrap(), "precious\n");
    }
    let output = measure(directory.path(), &["--export-csv", "/dev/stdout"]);
    assert_eq!(output.status.code(), Some(0), "a pipe: {}", stderr(&output));
}

#[test]
fn a_name_may_be_as_long_as_names_can_be_and_a_longer_one_is_told_before() {
    let directory = directory();
    let named = |length: usize| {
        let file = directory.path().join("x".repeat(length));
        let output = measure(directory.path(), &["--export-csv", file.to_str().unwrap()]);
        (output.status.code(), stderr(&output), file.exists())
    };
    let (code, told, made) = named(255);
    assert!(code == Some(0) && made, "{told}");
    let (code, told, made) = named(256);
    assert!(code == Some(2) && !made, "{told}");
    assert!(told.contains("File name too long"), "{told}");
    assert!(!told.contains("writing"), "{told}");
}

#[test]
fn a_file_that_cannot_be_replaced_is_overwritten_if_there_is_room_and_else_kept() {
    use std::os::unix::fs::PermissionsExt;
    let test = "a_file_that_cannot_be_replaced_is_overwritten_if_there_is_room_and_else_kept";
    let powerless = ["--bounding-set", "-dac_override"];
    if is_root() && !can(test, "setpriv", &[&powerless[..], &["true"]].concat()) {
        return;
    }
    let directory = directory();
    let file = directory.path().join("file");
    let fixed = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(directory.path(), mode).unwrap();
    };
    // A file may not become longer than some blocks of 512 or 1,024 bytes.
    let small = "ulimit -f 1; exec";
    let export = |begin: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{begin} \"$@\""), "sh"]);
        if is_root() {
            command.arg("setpriv").args(powerless);
        }
        command.arg(inflight().get_program());
        command.arg("show").arg(kept_record());
        command.arg("--export-json").arg(&file).output().unwrap()
    };
    for old in ["an old record", &"long ".repeat(1 << 20)] {
        fs::write(&file, old).unwrap();
        fixed(0o555);
        let full = export(small);
        let kept = fs::read_to_string(&file).unwrap() == old;
        let written = export("exec");
        fixed(0o755);
        assert_eq!(full.status.code(), Some(1), "{}", stderr(&full));
        assert!(stderr(&full).contains("File too large"));
        assert!(kept, "the old file is gone");
        assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
        let shown = inflight().arg("show").arg(&file).output().unwrap();
        assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn a_file_that_is_mounted_is_overwritten() {
    let test = "a_file_that_is_mounted_is_overwritten";
    if !is_root() || !can(test, "unshare", &["--mount", "true"]) {
        println!("skipped: {test}: needs root and a mount of its own");
        return;
    }
    let directory = directory();
    let (file, behind) = (
        directory.path().join("file"),
        directory.path().join("behind"),
    );
    for path in [&file, &behind] {
        fs::write(path, "old").unwrap();
    }
    let mounted = "mount --bind \"$1\" \"$2\"; exec \"$0\" show \"$3\" --export-csv \"$2\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", mounted])
        .arg(inflight().get_program())
        .args([&behind, &file, &kept_record()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(fs::read_to_string(&behind).unwrap().contains("pread"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}
