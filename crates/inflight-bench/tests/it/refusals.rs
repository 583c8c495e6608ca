//! What the command does not do.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;

use inflight_report::Record;

use crate::support::{Running, bench, directory, limited, record, run, scratch_files, stderr};

#[test]
fn an_existing_file_is_only_read() {
    let directory = directory();
    let path = directory.path().join("data");
    let content: Vec<u8> = (0..4u32 << 20)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    std::fs::write(&path, content).unwrap();
    let state = |path: &Path| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(path).unwrap().hash(&mut hasher);
        (
            hasher.finish(),
            std::fs::metadata(path).unwrap().modified().unwrap(),
        )
    };
    let before = state(&path);
    let args = ["--rounds", "1", "--cell-time", "5", "--depth", "1,4"];
    let (code, record) = record(&path, &args);
    assert_eq!(code, 0);
    assert!(!record.target.scratch);
    assert_eq!(record.target.size_bytes, 4 << 20);
    assert_eq!(state(&path), before);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn more_than_an_existing_file_holds_is_a_usage_error() {
    let directory = directory();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let output = run(&path, &["--size", "2m"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn a_symbolic_link_is_refused() {
    let directory = directory();
    let (path, link) = (directory.path().join("data"), directory.path().join("link"));
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let output = run(&link, &["--quick"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("symbolic link"));
}

#[test]
fn what_is_neither_file_nor_disk_is_a_usage_error() {
    let output = run(Path::new("/dev/null"), &["--quick"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("nor a block device"));
}

#[test]
fn a_disk_is_not_filled() {
    let directory = directory();
    let output = run(directory.path(), &["--size", "900t"]);
    assert_eq!(output.status.code(), Some(4));
    let told = stderr(&output);
    assert!(
        told.contains("900 TiB") && told.contains("are free"),
        "{told}"
    );
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn blocks_that_there_is_no_memory_for_are_told_and_the_other_cells_go_on() {
    let directory = directory();
    let args = "--profile direct-large-read --block-size 4m --size 64m --depth 1,512 --rounds 1 \
                --cell-time 5 --strategy pread,uring,libaio,tokio,inflight,inflight-async \
                --export-json -";
    // Below what 512 blocks take, above what everything else does.
    let program = format!(
        "ulimit -v 1500000; exec {} bench {} {args}",
        env!("CARGO_BIN_EXE_inflight"),
        directory.path().display()
    );
    let mut command = Command::new("sh");
    let output = command.arg("-c").arg(program).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let reason = |depth: u32| {
        let of_depth = record.cells.iter().filter(move |cell| cell.depth == depth);
        of_depth.map(|cell| (&cell.strategy, cell.skipped.as_ref().map(|it| &it.reason)))
    };
    let told: Vec<_> = reason(1).filter_map(|(_, reason)| reason).collect();
    assert!(told.is_empty(), "{told:?}");
    for (strategy, reason) in reason(512) {
        let reason = reason.unwrap_or_else(|| panic!("{strategy} had memory"));
        let is_told = reason.contains("no memory for the blocks") && reason.contains("--depth");
        assert!(is_told, "{strategy}: {reason}");
    }
    assert_eq!(reason(512).count(), 5, "one pread has one in flight");
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn an_unknown_key_in_a_profile_is_a_usage_error() {
    let directory = directory();
    let path = directory.path().join("mine.toml");
    let text = include_str!("../../../../profiles/direct-random-read.toml");
    std::fs::write(&path, format!("{text}\nqueue_dept = 3\n")).unwrap();
    let output = run(directory.path(), &["--profile", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("queue_dept"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_profile_of_ones_own_is_measured() {
    let directory = directory();
    let path = directory.path().join("mine.toml");
    let text = include_str!("../../../../profiles/cached-random-read.toml");
    std::fs::write(&path, text.replace("= 4096", "= 8192")).unwrap();
    let mine = ["--profile", path.to_str().unwrap(), "--strategy", "pread"];
    let small = ["--size", "1m", "--rounds", "1", "--cell-time", "5"];
    let (code, record) = record(directory.path(), &[&mine[..], &small].concat());
    assert_eq!(code, 0);
    assert_eq!(record.profiles[0].name, "mine");
    assert_eq!(record.profiles[0].block_size_bytes, 8192);
    let round = &record.cells[0].rounds[0];
    assert_eq!(round.bytes, round.ops * 8192);
}

#[test]
fn wrong_flags_are_usage_errors() {
    let directory = directory();
    let wrong: [&[&str]; 12] = [
        &["--profile", "nonsense"],
        &["--strategy", "nonsense"],
        &["--depth", "0"],
        &["--block-size", "1000"],
        &["--block-size", "2k", "--profile", "cold-range-read"],
        &["--size", "4k"],
        &["--export-json", "/nonexistent/dir/file.json"],
        &["--size", "1m", "--profile", "all"],
        &["--size", "1m", "--profile", "all", "--dry-run"],
        &["--dry-run", "--explain"],
        &["--dry-run", "--export-json", "-"],
        &["--explain", "--report", "page.html"],
    ];
    for args in wrong {
        let output = run(directory.path(), args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    let said = |args: &[&str]| stderr(&run(directory.path(), args));
    let size = said(&["--size", "1"]);
    assert!(size.contains("1 byte of test data is too little"), "{size}");
    let large = ["--profile", "direct-random-read,direct-large-read"];
    let size = said(&[&large[..], &["--size", "3m"]].concat());
    let needed = "direct-large-read-4m: at least 16 blocks of 4 MiB, which are 64 MiB";
    assert!(size.contains(needed), "{size}");
    let missing = said(&["--export-json", "/nonexistent/file.json"]);
    let why = "--export-json: /nonexistent/file.json cannot be made: No such file or directory";
    assert!(missing.contains(why), "{missing}");
    let taken = said(&["--report", directory.path().to_str().unwrap()]);
    assert!(taken.contains("cannot be made: Is a directory"), "{taken}");
    let below_a_file = said(&["--export-csv", "/proc/version/cells.csv"]);
    assert!(below_a_file.contains("Not a directory"), "{below_a_file}");
    let ranges = stderr(&run(directory.path(), wrong[4]));
    assert!(
        ranges.contains("reads ranges of 4 KiB to 256 KiB"),
        "{ranges}"
    );
    let output = run(&directory.path().join("nothing"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn a_missing_fio_is_told_before_anything_is_written() {
    let directory = directory();
    let output = run(directory.path(), &["--fio=/nonexistent/fio"]);
    assert_eq!(output.status.code(), Some(3));
    let told = stderr(&output);
    assert!(told.contains("install the package `fio`"), "{told}");
    assert!(!told.contains("writing"), "{told}");
}

#[test]
fn a_missing_fio_among_other_strategies_is_a_row_that_was_not_run() {
    let directory = directory();
    let output = bench(directory.path(), &["--strategy", "fio,pread", "--profile"])
        .args(["cached-random-read", "--size", "1m", "--depth", "1"])
        .args(["--rounds", "1", "--cell-time", "5", "--export-json", "-"])
        .env("PATH", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let [plain, fio] = &record.cells[..] else {
        panic!("two cells: {:?}", record.cells);
    };
    assert_eq!(plain.rounds.len(), 1);
    let why = &fio.skipped.as_ref().unwrap().reason;
    assert!(why.contains("install the package `fio`"), "{why}");
}

#[test]
fn what_has_no_place_on_a_file_is_told_before_anything_is_measured() {
    let directory = directory();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![1; 16 << 20]).unwrap();
    let short = ["--rounds", "1", "--cell-time", "5", "--strategy", "pread"];
    let told = |profiles| {
        stderr(&run(
            &path,
            &[&short[..], &["--profile", profiles]].concat(),
        ))
    };
    let writes = told("group-commit,many-files");
    assert!(!writes.contains("measuring for"), "{writes}");
    let both = told("cached-random-read,group-commit");
    let refused = both.find("group-commit: not run: what exists is never written");
    assert!(
        refused.is_some() && refused < both.find("measuring for"),
        "{both}"
    );
}

#[test]
fn a_place_that_takes_no_files_is_not_told_to_be_full() {
    let output = run(Path::new("/proc"), &[]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{told}");
    assert!(told.contains("no space for files"), "{told}");
}

#[test]
fn where_no_file_can_be_made_is_told_before_how_long_it_takes() {
    let directory = directory();
    // The name of a test file is longer than what is left of the longest path.
    let mut path = directory.path().to_owned();
    while path.as_os_str().len() < 4_075 {
        let left = 4_075 - path.as_os_str().len();
        path.push("d".repeat(left.min(200)));
    }
    std::fs::create_dir_all(&path).unwrap();
    let output = run(&path, &["--quick"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{told}");
    assert!(told.contains("no test file can be made in"), "{told}");
    assert!(!told.contains("measuring for"), "{told}");
    assert!(!told.contains("writing"), "{told}");
}

#[test]
fn a_profile_that_cannot_be_set_up_costs_nothing_that_was_measured_before() {
    let directory = directory();
    let profiles = "cached-random-read,group-commit,cold-random-read";
    let short = ["--size", "16m", "--rounds", "2", "--cell-time", "300"];
    let args = ["--profile", profiles, "--strategy", "pread"];
    let mut command = bench(directory.path(), &[&args[..], &short].concat());
    let mut running = Running::start(command.args(["--export-json", "-"]));
    running.wait_for("cached-random-read: round 1/2");
    // What is open can still be read, and nothing more can be made.
    std::fs::remove_dir_all(directory.path()).unwrap();
    std::fs::write(directory.path(), "no directory").unwrap();
    running.wait_for("group-commit: not run: no test file can be made");
    let output = running.end();
    std::fs::remove_file(directory.path()).unwrap();
    assert_eq!(output.status.code(), Some(4), "refused: {output:?}");
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let [read, written, cold] = &record.cells[..] else {
        panic!("one cell for each profile: {:?}", record.cells);
    };
    assert_eq!(read.rounds.len(), 2);
    for cell in [written, cold] {
        let why = cell.skipped.as_ref().map(|skipped| skipped.reason.as_str());
        assert!(
            why.is_some_and(|why| why.contains("no test file")),
            "{why:?}"
        );
    }
}

#[test]
fn a_profile_for_which_too_few_files_can_be_open_keeps_none_from_being_measured() {
    let directory = directory();
    let profiles = "many-files,cached-random-read";
    let short = ["--size", "16m", "--rounds", "1", "--cell-time", "20"];
    let args = ["--profile", profiles, "--strategy", "pread"];
    let json = ["--export-json", "-"];
    let inner = bench(directory.path(), &[&args[..], &short, &json].concat());
    let output = limited("-n 100", &inner);
    assert_eq!(output.status.code(), Some(4), "refused: {output:?}");
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let [many, cached] = &record.cells[..] else {
        panic!("one cell for each profile: {:?}", record.cells);
    };
    let why = many.skipped.as_ref().map(|skipped| skipped.reason.as_str());
    assert!(
        why.is_some_and(|why| why.contains("with `ulimit -n`")),
        "{why:?}"
    );
    assert_eq!(cached.rounds.len(), 1);
}

#[test]
fn a_large_block_that_cannot_bypass_the_cache_fails_as_a_small_one() {
    let test = "a_large_block_that_cannot_bypass_the_cache_fails_as_a_small_one";
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: {test}: there is no /dev/shm");
        return;
    };
    let short = ["--size", "64m", "--rounds", "1", "--cell-time", "20"];
    for profile in ["direct-random-read", "direct-large-read"] {
        let args = ["--strategy", "pread", "--profile", profile];
        let output = run(memory.path(), &[&args[..], &short].concat());
        assert_eq!(output.status.code(), Some(3), "{profile}: {output:?}");
    }
}
