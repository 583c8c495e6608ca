//! What is measured and how it is reported.

use inflight_report::heat::decode;
use inflight_report::record::{Cell, Round, Severity};

use crate::support::{all_timed, directory, record, record_enough, run, stderr};

const STRATEGIES: [&str; 15] = [
    "null",
    "pread",
    "preadv2-nowait",
    "threads",
    "tokio",
    "mmap",
    "libaio",
    "uring",
    "uring-tuned",
    "inflight",
    "inflight-threads",
    "inflight-mapped",
    "inflight-local",
    "inflight-async",
    "inflight-async-1",
];
const SMALL: &[&str] = &["--size", "16m", "--rounds", "2"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let time: &[&str] = match args.contains(&"--cell-time") {
        true => &[],
        false => &["--cell-time", "20"],
    };
    [SMALL, time, args].concat()
}

fn calls_per_op(cell: &Cell) -> Option<f64> {
    let ops: u64 = cell.rounds.iter().map(|round| round.ops).sum();
    let calls: Option<u64> = cell.rounds.iter().map(|round| round.syscalls).sum();
    Some(calls? as f64 / ops as f64)
}

#[test]
fn the_calls_of_an_engine_are_told_for_all_threads_and_tasks_that_share_it() {
    let directory = directory();
    let strategies = "inflight-threads,inflight-local,inflight-async,inflight-async-1";
    let args = [
        "--strategy",
        strategies,
        "--depth",
        "4",
        "--cell-time",
        "100",
    ];
    for (profile, least, most) in [
        ("cached-random-read", 0.02, 1.5),
        ("group-commit", 0.5, 3.5),
    ] {
        let (code, record) = record(
            directory.path(),
            &with(&[&args, &["--profile", profile][..]].concat()),
        );
        assert_eq!(code, 0);
        for cell in &record.cells {
            let backend = cell.effective.get("backend");
            if !backend.is_some_and(|backend| backend.starts_with("uring")) {
                println!("skipped: {} is not by a ring: {backend:?}", cell.id);
                continue;
            }
            let calls = calls_per_op(cell).unwrap_or_else(|| panic!("{}: not told", cell.id));
            println!("{}: {calls:.3} calls per operation", cell.id);
            assert!((least..most).contains(&calls), "{}: {calls}", cell.id);
        }
    }
}

#[test]
fn a_cached_run_reports_every_strategy() {
    let directory = directory();
    let names = STRATEGIES.join(",");
    let args = [
        "--profile",
        "cached-random-read",
        "--depth",
        "1,32",
        "--seed",
        "7",
        "--strategy",
        &names,
    ];
    let args = [SMALL, &args].concat();
    let (code, record) = record_enough(directory.path(), &args, 100, all_timed);
    assert_eq!(code, 0);
    assert_eq!(record.schema, "inflight.bench/1");
    assert_eq!(
        (record.seed, record.rounds_planned, record.interrupted),
        (7, 2, false)
    );
    assert_eq!(record.target.size_bytes, 16 << 20);
    assert!(record.target.scratch && !record.target.fs.is_empty());
    for name in STRATEGIES {
        let mut cells = record.cells.iter().filter(|cell| cell.strategy == name);
        assert!(cells.next().is_some(), "{name}");
    }
    for cell in &record.cells {
        match &cell.skipped {
            Some(skipped) => may_be_skipped(cell, &skipped.reason),
            None => check_cached(cell),
        }
    }
}

/// Only a ring may be missing, only for a reason, and not where it is required.
fn may_be_skipped(cell: &Cell, reason: &str) {
    println!("skipped: {}: {reason}", cell.id);
    if cell.strategy == "libaio" {
        return assert!(reason.contains("direct I/O"), "{reason}");
    }
    assert!(cell.strategy.starts_with("uring"), "{}", cell.id);
    assert!(reason.contains("io_uring"), "{reason}");
    let required = std::env::var("INFLIGHT_REQUIRE").is_ok_and(|what| what == "uring");
    assert!(!required, "INFLIGHT_REQUIRE=uring, but: {reason}");
}

fn check_cached(cell: &Cell) {
    let id = &cell.id;
    assert_eq!(cell.rounds.len(), 2, "{id}");
    for round in &cell.rounds {
        assert!(round.duration_ns > 0, "{id}");
        assert_eq!(round.bytes, round.ops * 4096, "{id}");
        assert_eq!((round.errors, round.short), (0, 0), "{id}");
    }
    // A single short round may pass before a crowd of tasks has been started.
    let ops: u64 = cell.rounds.iter().map(|round| round.ops).sum();
    assert!(ops > 0, "{id}");
    let samples = cell.latency.as_ref().unwrap().samples;
    assert!(samples > 0, "{id}");
    let heat = &cell.heat.as_ref().unwrap().rounds;
    assert_eq!(heat.len(), cell.rounds.len(), "{id}");
    let slices = heat.iter().flat_map(|round| decode(round).unwrap());
    let counted: u64 = slices.flat_map(|slice| slice.counts).sum();
    assert_eq!(
        counted, samples,
        "{id}: every timed operation is in a slice"
    );
    if cell.strategy == "pread" {
        let has_none = |round: &Round| round.worker_ns.is_none_or(|ns| ns == 0);
        assert!(
            cell.rounds.iter().all(has_none),
            "{id}: it has no kernel workers"
        );
    }
    let Some(calls) = calls_per_op(cell) else {
        // The threads of a pool do not count theirs.
        let has_pool = cell.strategy.starts_with("inflight") || cell.strategy == "tokio";
        assert!(has_pool, "{id}");
        return;
    };
    match (cell.strategy.as_str(), cell.depth) {
        ("null" | "mmap", _) => assert!(calls == 0.0, "{id}: {calls}"),
        // But for what the kernel has not been asked about yet.
        ("inflight-mapped", _) => assert!(calls < 0.5, "{id}: {calls}"),
        ("pread" | "threads", _) => assert!(calls > 0.99 && calls < 1.01, "{id}: {calls}"),
        ("uring" | "uring-tuned", 32) => assert!(calls < 0.5, "{id}: {calls}"),
        _ => assert!(calls > 0.0 && calls < 2.5, "{id}: {calls}"),
    }
}

#[test]
fn a_direct_run_reads_from_the_device_and_shuffles_its_rounds() {
    let directory = directory();
    let args = with(&[
        "--profile",
        "direct-random-read",
        "--depth",
        "1,4,16",
        "--seed",
        "3",
    ]);
    let args = [&args[..], &["--strategy", "null,pread,threads,mmap"]].concat();
    let (code, record) = record(directory.path(), &args);
    if record
        .findings
        .iter()
        .any(|finding| finding.severity == Severity::Blocker)
    {
        println!("skipped: the build directory is not on a disk");
        return;
    }
    assert_eq!(code, 0);
    let pread = record
        .cells
        .iter()
        .find(|cell| cell.strategy == "pread")
        .unwrap();
    for round in &pread.rounds {
        assert!(
            round.device_bytes.unwrap() >= round.bytes / 10 * 9,
            "{round:?}"
        );
    }
    let mmap = record
        .cells
        .iter()
        .find(|cell| cell.strategy == "mmap")
        .unwrap();
    assert!(mmap.rounds.is_empty());
    assert!(mmap.skipped.as_ref().unwrap().reason.contains("page cache"));
    let order = |block| {
        let rounds = record
            .cells
            .iter()
            .flat_map(move |cell| cell.rounds.iter().filter(move |round| round.block == block));
        let mut order: Vec<u32> = rounds.map(|round| round.order).collect();
        let unsorted = order.clone();
        order.sort_unstable();
        (order, unsorted)
    };
    let (sorted, first) = order(0);
    assert!(
        sorted
            .iter()
            .copied()
            .eq(0..u32::try_from(sorted.len()).unwrap())
    );
    assert!(
        first != sorted || order(1).1 != sorted,
        "the order of the list was never changed"
    );
}

#[test]
fn a_runtime_reads_what_was_asked_and_times_it() {
    let directory = directory();
    let args = [
        "--profile",
        "cached-random-read",
        "--strategy",
        "tokio",
        "--depth",
        "1,3,64,600",
    ];
    let args = [SMALL, &args].concat();
    let (code, record) = record_enough(directory.path(), &args, 200, all_timed);
    assert_eq!(code, 0);
    let depths: Vec<u32> = record.cells.iter().map(|cell| cell.depth).collect();
    assert_eq!(depths, [1, 3, 64, 600]);
    for cell in &record.cells {
        check_cached(cell);
        assert_eq!(calls_per_op(cell), None, "{}", cell.id);
        assert!(cell.effective.contains_key("worker-threads"), "{}", cell.id);
        let sample_every = cell.latency.as_ref().unwrap().sample_every;
        assert!(sample_every >= (cell.depth / 4).clamp(1, 8), "{}", cell.id);
    }
}

#[test]
fn memory_is_not_taken_for_a_disk() {
    let Ok(memory) = tempfile::TempDir::new_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    let args = with(&[
        "--profile",
        "direct-random-read",
        "--strategy",
        "pread",
        "--depth",
        "1",
    ]);
    let (code, record) = record(memory.path(), &args);
    if record.target.fs != "tmpfs" {
        println!("skipped: /dev/shm is on {}", record.target.fs);
        return;
    }
    assert_eq!(code, 3);
    let finding = record
        .findings
        .iter()
        .find(|finding| finding.id == "tmpfs-target")
        .unwrap();
    assert_eq!(finding.severity, Severity::Blocker);
    assert!(finding.fix.contains("disk"));
}

#[test]
fn the_text_goes_to_stdout_and_progress_to_stderr() {
    let directory = directory();
    let args = with(&[
        "--profile",
        "cached-random-read",
        "--strategy",
        "pread",
        "--depth",
        "1",
    ]);
    let file = directory.path().join("record.json");
    let file_arg = file.to_str().unwrap();
    let output = run(
        directory.path(),
        &[&args[..], &["--export-json", file_arg]].concat(),
    );
    assert_eq!(output.status.code(), Some(0));
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(stdout.contains("pread"), "{stdout}");
    assert!(!stdout.contains("round 1/2"), "{stdout}");
    let stderr = stderr(&output);
    assert!(stderr.contains("writing 16 MiB"), "{stderr}");
    assert!(stderr.contains("round 2/2"), "{stderr}");
    let text = std::fs::read_to_string(file).unwrap();
    let record: inflight_report::Record = serde_json::from_str(&text).unwrap();
    assert_eq!(record.cells.len(), 1);
}

#[test]
fn fio_takes_part_as_an_outside_check() {
    if std::process::Command::new("fio")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: fio is not installed");
        return;
    }
    let directory = directory();
    let args = [
        "--cell-time",
        "200",
        "--profile",
        "cached-random-read",
        "--strategy",
        "pread",
        "--depth",
        "4",
        "--fio",
    ];
    let (code, record) = record(directory.path(), &with(&args));
    assert_eq!(code, 0);
    let fio = record
        .cells
        .iter()
        .find(|cell| cell.strategy == "fio")
        .unwrap();
    let mut cells = record.cells.iter();
    let plain = cells.find(|cell| cell.strategy == "fio-psync").unwrap();
    assert_eq!((plain.depth, plain.rounds.len()), (1, 2), "{plain:?}");
    assert!(
        plain
            .rounds
            .iter()
            .all(|round| round.ops > 0 && round.errors == 0)
    );
    assert_eq!(plain.effective["ioengine"], "psync");
    if let Some(skipped) = &fio.skipped {
        // Where io_uring is blocked, fio cannot have it either.
        println!("skipped: {}", skipped.reason);
        return;
    }
    assert_eq!(fio.rounds.len(), 2);
    for round in &fio.rounds {
        assert!(round.ops > 0 && round.user_ns + round.sys_ns > 0);
        assert_eq!((round.device_bytes, round.syscalls), (None, None));
    }
    assert!(fio.latency.as_ref().unwrap().samples > 0);
}
