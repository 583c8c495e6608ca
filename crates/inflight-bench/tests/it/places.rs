//! Places whose figures are not a disk's, or are not of what was asked for: each is made for real,
//! in a mount namespace or control group of its own, and measured there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use inflight_report::record::{Cell, Record};
use inflight_report::truth::out_of_ranking;
use seccompiler::SeccompAction;

use crate::doctor::groups::Group;
use crate::doctor::places::{can_loop, loops};
use crate::doctor::refused::filtered;
use crate::doctor::{can, can_mount, is_root};
use crate::support::{bench, directory, inflight, record, stderr};

const SHORT: &[&str] = &["--rounds", "2", "--cell-time", "100", "--depth", "1"];
const JSON: &[&str] = &["--export-json", "-"];

fn finding<'r>(record: &'r Record, id: &str) -> &'r inflight_report::record::Finding {
    let found = record.findings.iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("no finding {id}: {:?}", record.findings))
}

/// Why the only cell does not count.
fn out(record: &Record) -> Option<String> {
    let cell: &Cell = &record.cells[0];
    let skipped = cell.skipped.as_ref().map(|skipped| skipped.reason.clone());
    skipped.or_else(|| out_of_ranking(cell, &record.profiles[0], &record.target))
}

/// What a command writes that runs with a [file system](loops) on the loop device `$disk`, which it
/// names `DISK`.
fn on_loop(path: &Path, make: &str, measure: &Command) -> Option<Record> {
    let (script, _) = loops(path, &["disk"], &format!("{{ {make}; }} >&2"));
    let script = script
        + "for argument do shift; [ \"$argument\" = DISK ] && argument=$disk; \
           set -- \"$@\" \"$argument\"; done\nexec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", &script])
        .arg(measure.get_program())
        .args(measure.get_args())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: {}", stderr(&output));
        return None;
    }
    let read = serde_json::from_slice(&output.stdout);
    Some(read.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output))))
}

#[test]
fn direct_io_that_goes_through_the_page_cache_is_not_taken_for_a_disk() {
    let test = "direct_io_that_goes_through_the_page_cache_is_not_taken_for_a_disk";
    if !can_loop(test) {
        return;
    }
    let directory = directory();
    let which = ["--profile", "direct-random-read", "--strategy", "pread"];
    // So little that most of it is read again and again.
    let args = [SHORT, JSON, &which, &["--size", "256k"]].concat();
    let measure = bench(&directory.path().join("mounted"), &args);
    // The kernel takes O_DIRECT of a journalled file, and reads it into the page cache.
    let make = "mkfs.ext4 -q $disk; mount -o data=journal $disk POINT";
    let Some(record) = on_loop(directory.path(), make, &measure) else {
        return;
    };
    let why = out(&record).expect("the page cache has answered");
    assert!(why.contains("page cache"), "{why}");
    let told = finding(&record, "file-system");
    assert!(told.what.contains("data=journal"), "{told:?}");
}

#[test]
fn data_that_was_compressed_is_not_taken_for_a_disk() {
    let test = "data_that_was_compressed_is_not_taken_for_a_disk";
    if !can_mount(test) || !can(test, "mkfs.btrfs", &["--version"]) {
        return;
    }
    let directory = directory();
    let which = ["--profile", "direct-random-read", "--strategy", "pread"];
    let file = directory.path().join("mounted/data");
    let measure = bench(&file, &[SHORT, JSON, &which].concat());
    let make = "mkfs.btrfs -q -f $disk; mount -t btrfs -o compress-force=zlib $disk POINT; \
                yes inflight | head -c 16M > POINT/data; sync -f POINT/data";
    let Some(record) = on_loop(directory.path(), make, &measure) else {
        return;
    };
    let why = out(&record).expect("a few kilobytes were read of the disk");
    assert!(why.contains("less than 90 %"), "{why}");
}

#[test]
fn the_cache_of_a_device_is_emptied_and_halved_where_it_is_used() {
    let test = "the_cache_of_a_device_is_emptied_and_halved_where_it_is_used";
    if !can_loop(test) {
        return;
    }
    let directory = directory();
    let which = [
        "--profile",
        "cold-random-read,half-cached-random-read",
        "--strategy",
        "pread",
        // A quarter of the device, and so short a time that no block is read twice.
        "--size",
        "64m",
        "--cell-time",
        "20",
    ];
    let few = ["--rounds", "2", "--depth", "1"];
    let measure = bench(Path::new("DISK"), &[JSON, &few, &which].concat());
    // It is detached when nobody has it open any more.
    let make = "exec 9<$disk";
    let Some(record) = on_loop(directory.path(), make, &measure) else {
        return;
    };
    assert_eq!(record.cells.len(), 2);
    for (cell, shares) in record.cells.iter().zip([0.95..1.5, 0.4..0.7]) {
        assert!(cell.skipped.is_none(), "{:?}", cell.skipped);
        for round in &cell.rounds {
            let device_bytes = round.device_bytes.expect("a loop device counts");
            let share = device_bytes as f64 / round.bytes as f64;
            let has_blocks_left = round.bytes < 64 << 20;
            // Of few reads any share may be served.
            assert!(
                round.ops < 1000 || !has_blocks_left || shares.contains(&share),
                "{round:?}"
            );
        }
    }
}

#[test]
fn a_mounted_disk_is_only_read() {
    let test = "a_mounted_disk_is_only_read";
    if !can_loop(test) {
        return;
    }
    let directory = directory();
    let which = [
        "--profile",
        "direct-random-read,durable-append,buffered-random-write",
        "--strategy",
        "pread",
    ];
    let size = ["--size", "16m"];
    let measure = bench(Path::new("DISK"), &[SHORT, JSON, &which, &size].concat());
    // Mounted for reading, so that nobody but the command could change it.
    let make = format!(
        "mkfs.ext4 -q $disk; mount -o ro,noload $disk POINT; cp --sparse=always $disk '{}'",
        directory.path().join("before").display()
    );
    let Some(record) = on_loop(directory.path(), &make, &measure) else {
        return;
    };
    assert!(record.cells[0].rounds.iter().all(|round| round.ops > 0));
    for cell in &record.cells[1..] {
        let why = &cell.skipped.as_ref().unwrap().reason;
        assert!(why.contains("name a directory"), "{why}");
    }
    let content = |name: &str| fs::read(directory.path().join(name)).unwrap();
    assert!(content("disk") == content("before"), "it was written to");
}

#[test]
fn cached_data_that_has_no_room_in_a_control_group_is_not_measured() {
    let test = "cached_data_that_has_no_room_in_a_control_group_is_not_measured";
    let Some(group) = Group::new(test, "memory") else {
        return;
    };
    let directory = directory();
    let which = ["--profile", "cached-random-read", "--strategy", "pread"];
    group.set("memory.limit_in_bytes", &(64 << 20).to_string());
    let of_size = |size| {
        let args = [SHORT, JSON, &which, &["--size", size]].concat();
        let command = bench(directory.path(), &args);
        let output = group.enter(&command).output().unwrap();
        let record: Result<Record, _> = serde_json::from_slice(&output.stdout);
        record.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    };
    let record = of_size("256m");
    let skipped = record.cells[0].skipped.as_ref();
    let why = &skipped.expect("there is no room").reason;
    assert!(why.starts_with("256 MiB of data do not fit"), "{why}");
    assert!(
        why.contains("MiB of memory are available in the control group /"),
        "{why}"
    );
    assert!(
        record
            .findings
            .iter()
            .all(|finding| finding.id != "cgroup-memory")
    );
    let record = of_size("16m");
    assert!(record.cells[0].rounds.iter().all(|round| round.ops > 0));
    assert_eq!(out(&record), None);
    assert!(finding(&record, "cgroup-memory").what.contains("64 MiB"));
}

#[test]
fn polling_that_is_refused_by_each_operation_is_not_measured() {
    let directory = directory();
    let which = ["--strategy", "uring-iopoll", "--size", "16m"];
    let profiles = "direct-random-read,direct-random-write,durable-append";
    let profiles = ["--profile", profiles];
    let (_, record) = record(directory.path(), &[SHORT, &which, &profiles].concat());
    let disk = record.target.stack.first();
    if disk.and_then(|disk| disk.io_poll) != Some(false) {
        println!("skipped: there is no disk here, or it has poll queues");
        return;
    }
    let [reads, writes, synced] = [0, 1, 2].map(|at| &record.cells[at]);
    assert!(synced.skipped.is_some(), "such a ring cannot sync");
    if let Some(skipped) = &writes.skipped {
        println!("skipped: {}", skipped.reason);
        return;
    }
    let why = &reads.skipped.as_ref().unwrap().reason;
    // The ring was set up all the same: only the operation tells.
    assert!(why.contains("no queues to poll"), "{why}");
    assert!(why.contains("not supported"), "{why}");
    // Writes are accepted, and not polled.
    assert_eq!(writes.requested["ring-flags"], "iopoll");
    assert!(writes.effective["writes"].starts_with("not polled"));
    let text = inflight_report::text::screen(&record, inflight_report::text::Style::default());
    assert!(text.contains("not polled"), "{text}");
    // Nor are large ones, which a worker of the kernel makes by calls that succeed.
    let large = [
        "--profile",
        "direct-large-read",
        "--strategy",
        "uring-iopoll",
    ];
    let (_, record) = self::record(
        directory.path(),
        &[SHORT, &large, &["--size", "64m"]].concat(),
    );
    assert!(!record.cells.is_empty());
    for cell in &record.cells {
        assert!(cell.skipped.is_some(), "{}: {:?}", cell.id, cell.effective);
    }
}

#[test]
fn a_queue_longer_than_the_disk_takes_is_told() {
    let directory = directory();
    // Tasks take no part in batches.
    let which = [
        "--profile",
        "direct-range-read",
        "--strategy",
        "uring,inflight-local",
    ];
    let short = ["--rounds", "1", "--cell-time", "100", "--size", "16m"];
    let found = |depth: &str| {
        let args = [&short[..], &which, &["--depth", depth]].concat();
        record(directory.path(), &args).1
    };
    let within = found("1");
    let taken = within
        .target
        .stack
        .first()
        .and_then(|disk| disk.nr_requests);
    let Some(taken) = taken.filter(|taken| *taken < 2_000) else {
        println!("skipped: there is no disk here, or it takes very many requests");
        return;
    };
    let beyond = found(&(taken * 2).to_string());
    let id = "depth-above-nr-requests";
    assert!(within.findings.iter().all(|finding| finding.id != id));
    let told = finding(&beyond, id);
    assert!(told.what.contains(&taken.to_string()), "{told:?}");
    let ran = beyond.cells.iter().filter(|cell| cell.skipped.is_none());
    let ran: Vec<&String> = ran.map(|cell| &cell.id).collect();
    assert!(ran.len() < beyond.cells.len());
    assert_eq!(told.affects.iter().collect::<Vec<_>>(), ran);
}

#[test]
fn what_workers_of_the_kernel_do_is_counted() {
    let directory = directory();
    let which = ["--profile", "buffered-random-write", "--strategy", "uring"];
    let short = ["--rounds", "2", "--cell-time", "100", "--depth", "8"];
    let size = ["--size", "16m"];
    let (_, record) = record(directory.path(), &[&which[..], &short, &size].concat());
    let cell = &record.cells[0];
    if record.target.fs != "ext4" || cell.skipped.is_some() {
        println!("skipped: no ext4, which hands writes to workers, or no io_uring");
        return;
    }
    let worked = cell.rounds.iter().filter_map(|round| round.worker_ns);
    assert!(worked.sum::<u64>() > 0, "{:?}", cell.rounds);
}

#[test]
fn buffers_that_cannot_be_registered_are_told_with_the_limit() {
    let test = "buffers_that_cannot_be_registered_are_told_with_the_limit";
    let drop = ["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"];
    let with_true = [&drop[..], &["true"]].concat();
    if !is_root() || !can(test, "setpriv", &with_true) || !can(test, "prlimit", &["true"]) {
        println!("skipped: {test}: needs root, setpriv and prlimit");
        return;
    }
    let directory = directory();
    let which = ["--profile", "cached-random-read", "--strategy"];
    let short = ["--rounds", "1", "--cell-time", "100", "--size", "16m"];
    let more = ["uring-tuned", "--depth", "32"];
    let plain = bench(
        directory.path(),
        &[&which[..], &more, &short, JSON].concat(),
    );
    let output = Command::new("prlimit")
        .args(["--memlock=65536:65536", "setpriv"])
        .args(drop)
        .arg(plain.get_program())
        .args(plain.get_args())
        .output()
        .unwrap();
    let record: Record = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    if let Some(skipped) = &record.cells[0].skipped {
        println!("skipped: {test}: {}", skipped.reason);
        return;
    }
    let told = finding(&record, "buffers-not-registered");
    assert!(told.what.contains("64 KiB"), "{told:?}");
    assert_eq!(told.affects, [record.cells[0].id.clone()]);
    assert!(record.cells[0].effective["registered-buffers"].starts_with("no"));
}

/// A filter that has only heard of some of the calls lets a ring be set up.
#[test]
fn rows_of_a_half_filtered_ring_say_what_was_refused() {
    let directory = directory();
    let which = ["--profile", "cached-random-read", "--depth", "32"];
    let strategies = ["--strategy", "uring,uring-tuned,inflight-async-1"];
    let short = ["--rounds", "1", "--cell-time", "20", "--size", "1m"];
    let args = [&which[..], &strategies, &short, JSON].concat();
    let refused = |call: i64| {
        let answer = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let output = filtered(&mut bench(directory.path(), &args), &[call], answer);
        let record: Record = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        let found = &record.findings;
        println!("{found:#?}");
        record
    };
    let record = refused(libc::SYS_io_uring_enter);
    let told = finding(&record, "io-uring-blocked");
    assert!(told.what.contains("seccomp filter"), "{told:?}");
    assert!(told.fix.contains("io_uring_enter"), "{told:?}");
    assert_eq!(told.affects.len(), 2, "{told:?}");

    let record = refused(libc::SYS_io_uring_register);
    let told = finding(&record, "buffers-not-registered");
    assert!(told.what.contains("io_uring_register"), "{told:?}");
    assert!(!told.fix.contains("ulimit"), "{told:?}");
    let told = finding(&record, "fallback");
    assert!(told.what.contains("seccomp filter"), "{told:?}");
    assert_eq!(told.affects, ["cached-random-read/inflight-async-1/32"]);
}

/// A runtime that gets only some of its threads waits for those for ever.
#[test]
fn where_threads_run_out_rows_say_so_and_nothing_panics() {
    let test = "where_threads_run_out_rows_say_so_and_nothing_panics";
    let Some(group) = Group::new(test, "pids") else {
        return;
    };
    let directory = directory();
    let which = ["--profile", "cached-random-read", "--depth", "8"];
    let strategies = ["--strategy", "pread,tokio,inflight-async"];
    let short = ["--rounds", "1", "--cell-time", "20", "--size", "1m"];
    let args = [&which[..], &strategies, &short, JSON].concat();
    let mut refused = 0;
    for limit in 3..8 {
        group.set("pids.max", &limit.to_string());
        let output = group.enter(&bench(directory.path(), &args)).output();
        let output = output.unwrap();
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
        let record: Record = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{limit}: {error}: {}", stderr(&output)));
        for cell in &record.cells {
            let Some(skipped) = &cell.skipped else {
                continue;
            };
            let reason = &skipped.reason;
            assert!(reason.contains("pids.max"), "{limit}: {reason}");
            refused += 1;
        }
    }
    assert!(refused > 0, "threads never ran out");
}

#[test]
fn a_quick_look_at_memory_says_where_to_look_instead() {
    let Ok(directory) = tempfile::TempDir::new_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    let args = ["--profile", "direct-random-read", "--strategy", "pread"];
    let mut command = inflight();
    command
        .arg("bench")
        .arg(directory.path())
        .args(args)
        .args(SHORT);
    let output = command.args(["--size", "16m"]).output().unwrap();
    // Before it is measured, and again with the figures.
    let told = stderr(&output);
    let (known, measuring) = (told.find("this is memory"), told.find("measuring for"));
    assert!(known.is_some() && known < measuring, "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert_eq!(output.status.code(), Some(3));
    assert!(text.contains("this is no disk"), "{text}");
    assert!(
        text.contains("name a directory on a disk, such as /var/tmp"),
        "{text}"
    );
}
