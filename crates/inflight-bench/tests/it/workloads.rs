//! The workloads of the built-in profiles: each does what it says, with every strategy that can.

use std::os::unix::fs::FileExt;
use std::path::Path;

use inflight_report::Record;
use inflight_report::record::Cell;
use tempfile::TempDir;

use crate::support::{Running, Zram, bench, directory, record, record_enough, run, scratch_files};

const TINY: &[&str] = &["--size", "16m", "--rounds", "1", "--cell-time", "5"];

/// A record of this profile at these depths, by every strategy.
fn measured(directory: &Path, profile: &str, depths: &str) -> Record {
    let args = ["--profile", profile, "--depth", depths];
    let (code, record) = record(directory, &[TINY, &args].concat());
    assert_eq!(code, 0, "{profile}");
    record
}

fn of<'r>(record: &'r Record, strategy: &str) -> &'r Cell {
    let mut cells = record.cells.iter();
    let found = cells.find(|cell| cell.strategy == strategy && cell.depth == 1);
    found.unwrap_or_else(|| panic!("no cell of {strategy}"))
}

/// System calls per operation of a strategy that counts them.
fn calls(record: &Record, strategy: &str) -> f64 {
    let round = &of(record, strategy).rounds[0];
    round.syscalls.unwrap() as f64 / round.ops as f64
}

/// Every cell was measured without a fault, or says why not.
fn check(record: &Record) {
    for cell in &record.cells {
        let id = &cell.id;
        if let Some(skipped) = &cell.skipped {
            println!("skipped: {id}: {}", skipped.reason);
            let ring = cell.strategy.starts_with("uring") && skipped.reason.contains("io_uring");
            let narrow = ["mmap", "libaio", "preadv2-nowait", "uring-iopoll"];
            let narrow = narrow.contains(&cell.strategy.as_str());
            let unfit = narrow || skipped.reason.contains("batch");
            assert!(
                ring || unfit || is_memory(record),
                "{id}: {}",
                skipped.reason
            );
            continue;
        }
        assert_eq!(cell.rounds.len(), 1, "{id}");
        for round in &cell.rounds {
            assert_eq!((round.errors, round.short, round.wrong), (0, 0, 0), "{id}");
        }
    }
}

/// Whether no profile can be cold here.
fn is_memory(record: &Record) -> bool {
    record.target.fs == "tmpfs"
}

#[test]
fn a_durable_write_is_a_write_and_a_sync() {
    let directory = directory();
    let record = measured(directory.path(), "durable-append,group-commit", "1,4");
    check(&record);
    assert!((calls(&record, "pread") - 2.0).abs() < 0.1);
    let round = &of(&record, "pread").rounds[0];
    assert_eq!(round.bytes, round.ops * 4096);
    if let Some(device) = round.device {
        assert!(device.written_bytes >= round.bytes, "{round:?}");
    }
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn the_limit_of_a_log_is_one_flush_for_all_its_clients() {
    let directory = directory();
    let record = measured(directory.path(), "group-commit,durable-append", "1,4");
    let cells: Vec<_> = record.cells.iter().collect();
    let limits = cells.iter().filter(|cell| cell.strategy == "one-flush");
    let mut profiles = Vec::new();
    for limit in limits {
        profiles.push(limit.profile.as_str());
        assert_eq!((limit.depth, limit.threads), (4, 1), "{}", limit.id);
        let round = &limit.rounds[0];
        assert_eq!((round.errors, round.short), (0, 0), "{}", limit.id);
        assert_eq!(round.ops % 4, 0, "{}", limit.id);
        // Four writes and a sync.
        assert_eq!(round.syscalls, Some(round.ops / 4 * 5), "{}", limit.id);
    }
    profiles.sort_unstable();
    assert_eq!(profiles, ["durable-append", "group-commit"]);
}

#[test]
fn what_was_written_and_synced_is_read_back() {
    let directory = directory();
    let record = measured(directory.path(), "write-fsync-read", "1,8");
    check(&record);
    assert!((calls(&record, "pread") - 3.0).abs() < 0.1);
}

#[test]
fn a_block_device_is_read_and_never_written() {
    let test = "a_block_device_is_read_and_never_written";
    let Some(zram) = Zram::add(test, "32M") else {
        return;
    };
    let node = zram.node();
    let noise: Vec<u8> = (0..32 << 17_u64).flat_map(noise).collect();
    std::fs::write(&node, &noise).unwrap();
    let profiles = "direct-random-read,cached-random-read,durable-append,many-files";
    let (code, record) = record(&node, &[TINY, &["--profile", profiles]].concat());
    assert_eq!((code, record.target.fs.as_str()), (0, "no file system"));
    assert_eq!(record.target.stack[0].name, zram.name());
    let cells = record.cells.iter();
    let (reads, others): (Vec<_>, Vec<_>) =
        cells.partition(|cell| cell.profile.ends_with("random-read"));
    let pread = reads.iter().filter(|cell| cell.strategy == "pread");
    assert_eq!(pread.filter(|cell| cell.rounds[0].ops > 0).count(), 2);
    for cell in others {
        let reason = &cell.skipped.as_ref().unwrap().reason;
        assert!(reason.contains("name a directory"), "{reason}");
    }
    assert!(std::fs::read(&node).unwrap() == noise, "it was written to");
}

/// Eight bytes that do not compress.
fn noise(number: u64) -> [u8; 8] {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .to_le_bytes()
}

#[test]
fn reads_are_mixed_with_writes() {
    let directory = directory();
    let args = ["--profile", "mixed-70-30", "--depth", "1,8"];
    let small = ["--size", "16m", "--rounds", "1"];
    let has_both = |record: &Record| {
        let device = of(record, "pread").rounds[0].device;
        device.is_none_or(|device| device.reads > 0 && device.writes > 0) || is_memory(record)
    };
    let args = [&args[..], &small].concat();
    let (code, record) = record_enough(directory.path(), &args, 5, has_both);
    assert_eq!(code, 0);
    check(&record);
    let round = &of(&record, "pread").rounds[0];
    let Some(device) = round.device.filter(|_| !is_memory(&record)) else {
        println!("skipped in part: there is no block device");
        return;
    };
    assert!(device.reads > 0 && device.writes > 0, "{device:?}");
}

#[test]
fn older_and_special_ways_are_measured_or_say_why_not() {
    let directory = directory();
    let strategies = "libaio,uring-busy,uring-sqpoll,uring-iopoll,pread";
    let profiles = "direct-random-read,mixed-70-30,direct-random-write";
    let args = [
        "--profile",
        profiles,
        "--strategy",
        strategies,
        "--depth",
        "1,16",
    ];
    let (code, record) = record(directory.path(), &[TINY, &args].concat());
    if is_memory(&record) {
        println!("skipped: the build directory is not on a disk");
        return;
    }
    assert_eq!(code, 0);
    check(&record);
    let cells = |of| record.cells.iter().filter(move |cell| cell.strategy == of);
    for cell in cells("libaio") {
        assert!(cell.rounds[0].ops > 0, "{}", cell.id);
    }
    for cell in cells("uring-busy").filter(|cell| cell.skipped.is_none()) {
        assert!(cell.rounds[0].ops > 0, "{}", cell.id);
        let flags = cell.effective["ring-flags"].as_str();
        // One that defers and does not say so would never show a completion.
        assert!(
            flags.contains("taskrun-flag") || !flags.contains("defer-taskrun"),
            "{}: {flags}",
            cell.id
        );
    }
    for cell in cells("uring-iopoll") {
        match &cell.skipped {
            Some(skipped) => {
                let says_why =
                    ["no queues to poll", "io_uring"].map(|why| skipped.reason.contains(why));
                assert!(says_why.contains(&true), "{}: {skipped:?}", cell.id);
            }
            None => {
                let reads = cell
                    .effective
                    .get("reads")
                    .is_none_or(|reads| reads == "polled");
                assert!(
                    reads && cell.effective["ring-flags"] == "iopoll",
                    "{cell:?}"
                );
            }
        }
    }
    for cell in cells("uring-sqpoll") {
        assert_eq!(cell.requested["ring-flags"], "sqpoll", "{}", cell.id);
        if cell.skipped.is_none() {
            assert_eq!(cell.effective["ring-flags"], "sqpoll", "{}", cell.id);
        }
    }
}

/// The kernel's thread may complete what it has not given back the entries of.
#[test]
fn a_ring_with_a_thread_of_the_kernel_always_has_room_for_what_begins_next() {
    let directory = directory();
    let cells = ["--strategy", "uring-sqpoll", "--depth", "32"];
    let short = ["--size", "16m", "--rounds", "4", "--cell-time", "40"];
    let args = [&["--profile", "cached-random-read"], &cells[..], &short].concat();
    let output = run(
        directory.path(),
        &[&args[..], &["--export-json", "-"]].concat(),
    );
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("panicked"), "{told}");
    let code = output.status.code();
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    match &record.cells[0].skipped {
        Some(skipped) => println!("skipped: {}", skipped.reason),
        None => assert_eq!((code, record.cells[0].rounds.len()), (Some(0), 4)),
    }
}

#[test]
fn every_profile_gives_every_cell_figures_or_a_reason() {
    let directory = directory();
    // The largest blocks need more data than the others.
    let short = ["--size", "64m", "--rounds", "1", "--cell-time", "2"];
    let args = ["--profile", "all", "--depth", "4"];
    let (code, record) = record(directory.path(), &[&short[..], &args].concat());
    assert_eq!(code, 0);
    check(&record);
    let names: Vec<&str> = record.profiles.iter().map(|one| &*one.name).collect();
    for name in [
        "direct-range-read",
        "direct-large-write-1m",
        "many-files-cold",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for profile in &record.profiles {
        let cells = record.cells.iter();
        let of_profile: Vec<&Cell> = cells.filter(|cell| cell.profile == profile.name).collect();
        let cell = |strategy: &str| {
            let found = of_profile.iter().find(|cell| cell.strategy == strategy);
            found.unwrap_or_else(|| panic!("no cell of {strategy} in {}", profile.name))
        };
        if is_memory(&record) && (profile.direct || profile.cold || profile.half_cached) {
            continue;
        }
        let plain = cell("pread");
        assert!(plain.rounds.iter().all(|round| round.ops > 0), "{plain:?}");
        for (strategy, takes_part) in [("inflight", true), ("tokio", !profile.batched)] {
            let found = cell(strategy);
            assert_eq!(found.skipped.is_none(), takes_part, "{}", found.id);
        }
    }
    assert!(scratch_files(directory.path()).is_empty());
}

#[test]
fn many_files_are_read_and_checked_also_in_batches_of_ranges_and_cold() {
    let directory = directory();
    for profile in ["many-files,many-files-cold", "cold-range-read"] {
        let record = measured(directory.path(), profile, "1,8");
        check(&record);
        let files = if profile.starts_with("many") { 128 } else { 1 };
        assert_eq!(record.profiles[0].files, files);
        assert_eq!(record.profiles[0].verified, files > 1);
    }
}

#[test]
fn what_is_written_goes_where_it_belongs_and_the_file_still_tells_what_it_is() {
    let directory = directory();
    let profiles = "buffered-random-write,buffered-sequential-write";
    let args = ["--profile", profiles, "--depth", "1,8", "--keep-file"];
    let (code, record) = record(directory.path(), &[TINY, &args].concat());
    assert_eq!(code, 0);
    check(&record);
    let files = scratch_files(directory.path());
    assert_eq!(files.len(), 1);
    let content = std::fs::read(&files[0]).unwrap();
    assert_eq!(content.len(), 16 << 20);
    assert!(content.starts_with(b"inflight test data"));
    for (number, sector) in (0u64..).zip(content.chunks(512)) {
        assert_eq!(sector[504..], (number * 512).to_le_bytes(), "{number}");
    }
}

#[test]
fn wrong_content_is_noticed_and_does_not_count() {
    let directory = directory();
    let args = ["--profile", "many-files", "--strategy", "pread"];
    let long = ["--size", "16m", "--rounds", "3", "--cell-time", "200"];
    let command = [&args[..], &long, &["--export-json", "-"]].concat();
    let mut running = Running::start(&mut bench(directory.path(), &command));
    running.wait_for("round 1/3");
    for path in scratch_files(directory.path()) {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0; 4096], 8192).unwrap();
    }
    let output = running.end();
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    let cell = &record.cells[0];
    assert!(cell.rounds.iter().any(|round| round.wrong > 0));
    assert!(cell.rounds.iter().all(|round| round.wrong < round.ops));
    let ranking = inflight_report::ranking::Ranking::new(&record, &record.profiles[0]);
    assert!(
        ranking.out[0].1.contains("other bytes"),
        "{:?}",
        ranking.out
    );
}

#[test]
fn an_existing_file_is_never_written_whatever_the_profile() {
    let directory = directory();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7; 16 << 20]).unwrap();
    let profiles = "buffered-random-write-4k,durable-append,many-files,cached-random-read";
    let unknown = run(&path, &["--profile", "buffered-random-write-4k"]);
    assert_eq!(unknown.status.code(), Some(2));
    let profiles = profiles.replace("-4k", "");
    let args = [
        "--profile",
        &profiles,
        "--strategy",
        "pread",
        "--depth",
        "1",
    ];
    let (code, record) = record(&path, &[TINY, &args].concat());
    assert_eq!(code, 0);
    let measured: Vec<_> = record.cells.iter().map(|cell| cell.rounds.len()).collect();
    assert_eq!(measured, [0, 0, 0, 0, 1]);
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn each_profile_says_why_it_is_there_and_nothing_is_measured() {
    let directory = directory();
    let output = run(directory.path(), &["--profile", "all", "--explain"]);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.contains("durable-append: 4 KiB blocks appended"),
        "{told}"
    );
    assert!(told.contains("waits for the disk"), "{told}");
    let roads = "inflight, run loop (depth 1";
    assert!(
        told.contains(roads) && told.contains(", because it "),
        "{told}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn each_cell_of_the_library_is_stored_with_its_road_and_no_other_is() {
    let directory = directory();
    let args = ["--strategy", "pread,inflight,inflight-async,tokio"];
    let which = [
        "--profile",
        "cached-random-read,durable-append",
        "--depth",
        "1,8",
    ];
    let (_, record) = record(directory.path(), &[TINY, &args, &which].concat());
    for cell in record.cells.iter().filter(|cell| !cell.rounds.is_empty()) {
        let road = cell.effective.get("road");
        let of_library = cell.strategy.starts_with("inflight");
        assert_eq!(road.is_some(), of_library, "{}: {road:?}", cell.id);
        assert!(
            road.is_none_or(|road| road.contains(", because ")),
            "{road:?}"
        );
    }
    let cached = of(&record, "inflight");
    assert!(
        cached.effective["road"].starts_with("a plain call"),
        "{cached:?}"
    );
}

#[test]
fn batches_stand_beside_plain_calls_with_their_reasons() {
    let directory = directory();
    let args = ["--profile", "o1", "--strategy", "pread,uring"];
    let output = run(directory.path(), &[TINY, &args].concat());
    let told = String::from_utf8(output.stdout).unwrap();
    if told.contains("io_uring cannot") || told.contains("io_uring is") {
        println!("skipped in part: io_uring is blocked");
        return;
    }
    assert!(
        told.contains("side by side") && told.contains("batches of 5 "),
        "{told}"
    );
    for row in ["buffered-sequential-read-4k", "buffered-random-write-8k"] {
        assert!(told.matches(row).count() >= 3, "{row}: {told}");
    }
}

#[test]
fn memory_is_never_cold() {
    let Ok(memory) = TempDir::new_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    let profiles = "cold-random-read,half-cached-random-read";
    let args = ["--profile", profiles, "--strategy", "pread"];
    let (code, record) = record(memory.path(), &[TINY, &args].concat());
    if record.target.fs != "tmpfs" {
        println!("skipped: /dev/shm is on {}", record.target.fs);
        return;
    }
    assert_eq!((code, record.cells.len()), (3, 2));
    for cell in &record.cells {
        let skipped = cell.skipped.as_ref().unwrap();
        assert!(skipped.reason.contains("cannot be emptied"), "{skipped:?}");
    }
}

#[test]
fn of_a_file_that_is_half_cached_the_disk_serves_half_in_each_round() {
    let directory = directory();
    let args = ["--profile", "half-cached-random-read", "--depth", "1"];
    let short = ["--size", "64m", "--rounds", "3", "--cell-time", "100"];
    let plain = ["--strategy", "pread"];
    let (code, record) = record(directory.path(), &[&args[..], &short, &plain].concat());
    if is_memory(&record) {
        println!("skipped: this is memory, which is never cold");
        return;
    }
    assert_eq!(code, 0);
    let cell = of(&record, "pread");
    assert_eq!(cell.rounds.len(), 3);
    for round in &cell.rounds {
        let Some(device_bytes) = round.device_bytes else {
            println!("skipped: nobody knows what the device has served");
            return;
        };
        if round.ops < 1000 {
            println!("skipped: the disk is too slow for chance to be small");
            return;
        }
        let share = device_bytes as f64 / round.bytes as f64;
        assert!((0.4..0.7).contains(&share), "{round:?}");
    }
}
