//! What the reader is told.

use inflight_report::record::{Access, Record, Sync};
use inflight_report::verdict::{Verdict, verdicts};

use crate::builder::{cached, cell, confirm, disk, empty, find, into_tmpfs, serve, skip};

fn only(record: &Record) -> Verdict {
    let mut verdicts = verdicts(record);
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

fn line(verdict: &Verdict, label: &str) -> Option<String> {
    let found = verdict.lines.iter().find(|line| line.label == label)?;
    Some(found.text.clone())
}

#[track_caller]
fn assert_says(record: &Record, label: &str, words: &[&str]) {
    let text = line(&only(record), label).unwrap_or_default();
    for word in words {
        assert!(text.contains(word), "{label} does not say {word:?}: {text}");
    }
}

#[test]
fn the_simplest_of_those_that_tie_is_recommended() {
    let verdict = only(&disk(8));
    assert_eq!(
        verdict.pick.as_deref(),
        Some("direct-random-read/inflight/32")
    );
    assert!(verdict.settled);
    let mut record = disk(8);
    record.cells.retain(|cell| cell.strategy != "inflight");
    let pick = only(&record).pick;
    assert_eq!(pick.as_deref(), Some("direct-random-read/uring/32"));
}

#[test]
fn what_is_only_shown_is_never_recommended() {
    // `null` and `mmap` are the fastest two of this record.
    let mut record = disk(8);
    record
        .cells
        .retain(|cell| ["null", "mmap", "fio", "pread"].contains(&&*cell.strategy));
    let pick = only(&record).pick;
    assert_eq!(pick.as_deref(), Some("direct-random-read/pread/1"));
    assert_says(&record, "Verdict", &["Keep one pread loop"]);
}

#[test]
fn it_says_whether_io_uring_is_faster_by_how_much_and_at_what_cpu() {
    let record = disk(8);
    assert_says(
        &record,
        "io_uring",
        &[
            "Faster than plain calls on this disk.",
            "x (43",
            "one pread loop and 3.1x (3.1-3.1) the best thread pool (16 threads).",
            "CPU per read: 1.30 µs; one pread loop 3.10 µs, the best thread pool (16 threads) 5.40",
        ],
    );
    assert_says(
        &record,
        "How sure",
        &["in 8 of 8 rounds", "96.1 % interval"],
    );
}

#[test]
fn a_slow_ring_is_called_slow() {
    let mut record = empty(8);
    record.cells.push(cell("pread", 1, 400_000, 2_000, 8));
    record.cells.push(cell("uring", 1, 80_000, 9_000, 8));
    assert_says(
        &record,
        "io_uring",
        &["Slower than plain calls on this disk."],
    );
    assert_says(&record, "But", &["io_uring loses: it is 0.20x"]);
    assert_says(&record, "Verdict", &["Keep one pread loop"]);
}

#[test]
fn one_read_at_a_time_gains_what_depth_one_gains() {
    let mut record = disk(8);
    let start = "If your program waits for each read before the next, io_uring";
    assert_says(&record, "But", &[start, "gains nothing (1.01-1.01x)"]);
    find(&mut record, "uring", 1).rounds = cell("uring", 1, 16_000, 1, 8).rounds;
    assert_says(&record, "But", &[start, "gains 1.24x"]);
}

#[test]
fn the_library_is_measured_against_the_best_ring_at_the_same_depth() {
    let mut record = disk(8);
    let fine = ["inflight is 0.99x the tuned ring (0.99-0.99) at depth 32: no real difference."];
    assert_says(&record, "Library", &fine);
    find(&mut record, "inflight", 32).rounds = cell("inflight", 32, 500_000, 1, 8).rounds;
    assert_says(
        &record,
        "Library",
        &["0.88x the tuned ring", "clearly slower"],
    );
    skip(&mut record, &["uring", "uring-tuned"], "blocked");
    find(&mut record, "inflight", 32).rounds = cell("inflight", 32, 180_000, 1, 8).rounds;
    assert_says(
        &record,
        "Library",
        &["pread, 16 threads", "no real difference"],
    );
}

#[test]
fn what_brings_nothing_is_not_worth_it() {
    let mut record = disk(8);
    record.cells.retain(|cell| cell.strategy != "inflight");
    assert_says(
        &record,
        "Not worth",
        &[
            "Registered buffers and files: 1.01x",
            "More than 32 in flight: same speed, longer waits (median 57.1 µs, then 114 µs)",
        ],
    );
}

#[test]
fn io_uring_that_is_blocked_is_named_and_the_rest_is_ranked() {
    let mut record = disk(8);
    skip(
        &mut record,
        &["uring", "uring-tuned", "inflight"],
        "seccomp refuses it (EPERM)",
    );
    assert_says(
        &record,
        "io_uring",
        &["Blocked here: seccomp refuses it (EPERM)."],
    );
    assert_says(&record, "Verdict", &["Use pread, 16 threads: 14"]);
    assert_eq!(line(&only(&record), "But"), None);
}

#[test]
fn where_nothing_could_run_the_reason_is_given_once() {
    let mut record = disk(8);
    let all = [
        "null",
        "pread",
        "threads",
        "uring",
        "uring-tuned",
        "inflight",
        "mmap",
        "fio",
    ];
    skip(&mut record, &all, "the file system refuses direct I/O");
    let why = "None: nothing could be measured: the file system refuses direct I/O.";
    assert_says(&record, "Verdict", &[why]);
    assert_eq!(line(&only(&record), "io_uring"), None);
}

#[test]
fn nothing_is_durable_in_memory_and_the_figures_are_still_told() {
    let mut record = disk(8);
    (record.profiles[0].direct, record.profiles[0].access) = (false, Access::Append);
    record.profiles[0].sync = Sync::Each;
    let regret = line(&only(&record), "Regret");
    let but = " But nothing here is durable: tmpfs is memory, and a sync does nothing.";
    let headline = |record: &Record| line(&only(record), "Verdict").unwrap();
    assert!(!headline(&record).contains("durable"), "it is a disk");
    into_tmpfs(&mut record);
    assert!(headline(&record).ends_with(but), "{}", headline(&record));
    assert!(regret.is_some() && line(&only(&record), "Regret") == regret);
    record.profiles[0].sync = Sync::None;
    assert!(!headline(&record).contains("durable"), "none was asked for");
}

#[test]
fn no_more_rounds_are_advised_than_can_be_asked_for() {
    let said = |permille: u64| {
        let mut record = empty(200);
        record.cells.push(cell("pread", 1, 10_000, 3_000, 200));
        let mut ring = cell("uring", 1, 10_000, 3_000, 200);
        for (at, round) in ring.rounds.iter_mut().enumerate() {
            let scatter = [90, 112, 95, 109, 90, 112, 97, 106][at % 8];
            round.ops = round.ops * permille * scatter / 100_000;
        }
        record.cells.push(ring);
        line(&only(&record), "How sure").unwrap_or_default()
    };
    let fewer = said(1_023);
    assert!(fewer.contains("(--rounds 640)"), "{fewer}");
    // 1,154 by the width of its interval.
    let more = said(1_024);
    assert!(more.contains("too close to 3 %"), "{more}");
}

#[test]
fn memory_is_no_disk() {
    let mut record = disk(8);
    into_tmpfs(&mut record);
    let verdict = only(&record);
    assert_eq!((verdict.pick, verdict.settled), (None, false));
    assert_eq!(verdict.lines.len(), 1);
    assert_says(
        &record,
        "Verdict",
        &["this is no disk", "tmpfs", "no verdict about disks"],
    );
}

#[test]
fn a_cell_that_lies_leaves_the_ranking_and_the_others_stay() {
    let mut record = disk(8);
    serve(&mut record, 50);
    assert_says(
        &record,
        "Verdict",
        &["None: no figure counts", "page cache"],
    );
    let honest = cell("pread", 1, 12_900, 3_100, 8).rounds;
    find(&mut record, "pread", 1).rounds = honest;
    let pick = only(&record).pick;
    assert_eq!(pick.as_deref(), Some("direct-random-read/pread/1"));
}

#[test]
fn what_is_not_for_every_program_alone_is_no_verdict_and_says_so() {
    let mut record = disk(8);
    record.cells.retain(|cell| cell.strategy == "mmap");
    assert!(!record.cells.is_empty());
    let verdict = only(&record);
    assert_eq!((verdict.pick, verdict.settled), (None, false));
    let why = "None: nothing that was measured is for every program; measure `pread` beside it.";
    assert_says(&record, "Verdict", &[why]);
}

#[test]
fn why_there_were_too_few_rounds_is_what_the_remedy_is_for() {
    let told = |planned, interrupted| {
        let mut record = disk(3);
        record.rounds_planned = planned;
        record.interrupted = interrupted;
        line(&only(&record), "Verdict").unwrap_or_default()
    };
    assert!(told(3, false).contains("(--rounds 6)"));
    assert!(told(8, false).contains("give it some with --max-time"));
    assert!(told(8, true).contains("let it end"));
    assert!(told(3, true).contains("let it end"));
}

#[test]
fn too_few_rounds_are_not_sure_and_say_so() {
    for (rounds, told) in [(1, "1 round is too few"), (5, "5 rounds are too few")] {
        let record = disk(rounds);
        let verdict = only(&record);
        assert!(!verdict.settled);
        assert_eq!(
            verdict.pick.as_deref(),
            Some("direct-random-read/pread/1"),
            "the simplest is kept, however far behind it seems"
        );
        assert_says(&record, "Verdict", &[told, "6 are needed", "keep pread"]);
        let in_front = "In front so far: io_uring, tuned at depth 32";
        assert_says(&record, "How sure", &[in_front]);
        assert_says(&record, "io_uring", &["Cannot be told apart"]);
        assert_says(&record, "Library", &["cannot be told apart yet"]);
        assert_eq!(line(&verdict, "Regret"), None);
        // An interval that does not reach its level has no ends to show.
        let all: String = verdict.lines.into_iter().map(|line| line.text).collect();
        assert!(!all.contains("x ("), "{all}");
    }
    let mut record = disk(6);
    assert!(only(&record).settled);
    // The rounds that count are those of whoever is in front.
    let others = record.cells.iter_mut();
    let others = others.filter(|cell| cell.id != "direct-random-read/pread/1");
    others.for_each(|cell| cell.rounds[0].ops = 0);
    assert_says(&record, "Verdict", &["5 rounds are too few"]);
}

#[test]
fn an_open_question_keeps_the_simpler_strategy() {
    let mut record = disk(8);
    for (at, round) in find(&mut record, "inflight", 32)
        .rounds
        .iter_mut()
        .enumerate()
    {
        round.ops = round.ops * [90, 112, 95, 109, 90, 112, 97, 106][at] / 100;
    }
    let verdict = only(&record);
    assert!(!verdict.settled);
    assert_eq!(
        verdict.pick.as_deref(),
        Some("direct-random-read/inflight/32")
    );
    assert_says(
        &record,
        "Verdict",
        &["No clear winner after 8 rounds; keep inflight at depth 32"],
    );
    assert_says(
        &record,
        "How sure",
        &[
            "Not sure.",
            "side by side it is",
            "About 114 rounds can tell (--rounds 114).",
        ],
    );
}

#[test]
fn the_outside_check_agrees_or_does_not() {
    let mut record = disk(8);
    let agrees = "in the same rounds 0.99x (0.98-0.99): agrees.";
    assert_says(&record, "Check", &[agrees]);
    find(&mut record, "fio", 32).rounds = cell("fio", 32, 300_000, 0, 8).rounds;
    assert_says(&record, "Check", &["does not agree"]);
    let plain = cell("fio-psync", 1, 13_000, 0, 8);
    record.cells.push(plain);
    let agrees = "pread, 1 thread 12.8 k; in the same rounds 1.01x (1.01-1.01): agrees.";
    assert_says(
        &record,
        "Check",
        &["does not agree", "fio one at a time does 1", agrees],
    );
}

#[test]
fn the_outside_check_is_held_against_the_same_rounds() {
    // Fresh rounds of our own, while something else uses the disk: fio took no part in them.
    let mut record = disk(8);
    for strategy in ["uring-tuned", "uring", "inflight"] {
        confirm(&mut record, strategy, 32, 250_000, 20);
    }
    assert_says(
        &record,
        "Check",
        &["in the same rounds 0.99x (0.99-0.99): agrees."],
    );
    // A disk that wavers, and fio with it or not.
    let wavers = |record: &mut Record, strategy: &str| {
        let rounds = find(record, strategy, 32).rounds.iter_mut();
        for (at, round) in rounds.enumerate() {
            round.ops = round.ops * [100, 40, 130, 70, 55, 160, 90, 120][at % 8] / 100;
        }
    };
    let mut record = disk(8);
    wavers(&mut record, "fio");
    assert_says(&record, "Check", &["cannot tell yet whether it agrees"]);
    ["uring", "uring-tuned", "inflight"]
        .into_iter()
        .for_each(|strategy| wavers(&mut record, strategy));
    assert_says(&record, "Check", &["0.99x (0.98-0.99): agrees."]);
    assert_says(&disk(5), "Check", &["0.99x: too few rounds to say"]);
}

#[test]
fn one_report_names_one_winner() {
    // Rings and a pool of 64 threads are alike, and the disk gets slower by half while they get
    // more fresh rounds, in which the others take no part.
    let mut record = empty(6);
    let cells = [
        ("uring", 64, 100_000),
        ("threads", 64, 99_500),
        ("threads", 2, 95_000),
        ("pread", 1, 90_000),
    ];
    for (strategy, depth, iops) in cells {
        record.cells.push(cell(strategy, depth, iops, 1_000, 6));
    }
    for (strategy, depth) in [("uring", 64), ("threads", 64), ("pread", 1)] {
        let iops = if depth == 1 { 90_000 } else { 100_000 };
        confirm(&mut record, strategy, depth, iops, 6);
    }
    for (strategy, depth) in [("uring", 64), ("threads", 64)] {
        confirm(&mut record, strategy, depth, 53_000, 10);
    }
    let rounds = find(&mut record, "threads", 64).rounds.iter_mut();
    for (at, round) in rounds.filter(|round| round.confirms).enumerate() {
        round.ops = round.ops * [103, 95][at % 2] / 100;
    }
    assert_says(&record, "Verdict", &["keep pread, 64 threads (simplest)"]);
    let verdict = only(&record);
    let all: String = verdict.lines.into_iter().map(|line| line.text).collect();
    assert!(!all.contains("2 threads"), "{all}");
    assert_says(
        &record,
        "io_uring",
        &["one pread loop and ", " pread, 64 threads."],
    );
}

#[test]
fn a_pool_that_is_named_stands_for_the_pools() {
    // The best pool has more threads than the one that is no real difference from it.
    let mut record = disk(8);
    record.cells.retain(|cell| cell.strategy != "inflight");
    record.cells.push(cell("threads", 64, 181_500, 5_400, 8));
    let best = "the best thread pool (64 threads)";
    assert_says(&record, "io_uring", &[best]);
    for (strategy, depth) in [("uring", 32), ("uring", 64), ("uring-tuned", 32)] {
        find(&mut record, strategy, depth).rounds = cell(strategy, depth, 90_000, 1, 8).rounds;
    }
    assert_says(&record, "Verdict", &["Use pread, 16 threads"]);
    assert_says(
        &record,
        "How sure",
        &["from the fastest, pread, 64 threads"],
    );
    assert_says(&record, "io_uring", &["x (0.50-0.50) pread, 16 threads."]);
}

#[test]
fn a_single_pool_is_not_called_the_best_one() {
    let mut record = disk(8);
    record
        .cells
        .retain(|cell| cell.strategy != "threads" || cell.threads == 4);
    assert_says(
        &record,
        "io_uring",
        &["one pread loop and ", " pread, 4 threads."],
    );
}

#[test]
fn every_profile_has_its_own_verdict() {
    let mut record = disk(8);
    record.profiles.push(cached());
    for strategy in ["pread", "uring"] {
        let mut cell = cell(
            strategy,
            1,
            if strategy == "pread" {
                900_000
            } else {
                500_000
            },
            1,
            8,
        );
        cell.profile = cached().name;
        cell.id = format!("cached-random-read/{strategy}/1");
        cell.rounds
            .iter_mut()
            .for_each(|round| round.device_bytes = Some(0));
        record.cells.push(cell);
    }
    let picks: Vec<_> = verdicts(&record)
        .into_iter()
        .map(|verdict| verdict.pick)
        .collect();
    let expected = [
        "direct-random-read/inflight/32",
        "cached-random-read/pread/1",
    ];
    assert_eq!(picks, expected.map(|id| Some(id.to_owned())));
}

#[test]
fn the_mapped_road_is_held_against_mmap_at_each_number_of_readers() {
    let measured = [
        ("pread", 1, 500_000),
        ("threads", 8, 900_000),
        ("mmap", 1, 1_000_000),
        ("mmap", 8, 1_800_000),
        ("inflight-mapped", 1, 800_000),
        ("inflight-mapped", 8, 1_800_000),
        ("inflight", 1, 510_000),
    ];
    let mut record = empty(8);
    record.profiles = vec![cached()];
    for (strategy, depth, rate) in measured {
        let mut cell = cell(strategy, depth, rate, 1_000, 8);
        cell.profile.clone_from(&record.profiles[0].name);
        cell.rounds
            .iter_mut()
            .for_each(|round| round.device_bytes = Some(0));
        record.cells.push(cell);
    }
    let both = [
        "inflight, mapped is 0.80x (0.80-0.80) mmap with 1 reader: clearly slower; ",
        "inflight, mapped is 1.00x (0.99-1.00) mmap with 8 readers: no real difference. ",
        "mmap copies nothing and reports no I/O errors.",
    ];
    assert_says(&record, "Mapped", &both);

    let mut without = record.clone();
    without
        .cells
        .retain(|cell| cell.strategy != "inflight-mapped");
    let copies = "inflight is 0.51x (0.51-0.51) mmap with 1 reader: clearly slower. mmap copies";
    assert_says(&without, "Mapped", &[copies]);

    let mut alone = record.clone();
    alone.cells.retain(|cell| cell.strategy != "mmap");
    let plain = "1.99x (1.99-2.00) pread, 8 threads: clearly faster.";
    assert_says(
        &alone,
        "Mapped",
        &["1.60x (1.59-1.61) pread, 1 thread: clearly", plain],
    );
    assert!(!line(&only(&alone), "Mapped").unwrap().contains("mmap"));

    alone
        .cells
        .retain(|cell| cell.strategy != "inflight-mapped");
    assert_eq!(line(&only(&alone), "Mapped"), None);

    // What the disk served has no place in a profile of cached data.
    find(&mut record, "mmap", 8)
        .rounds
        .iter_mut()
        .for_each(|round| round.device_bytes = Some(round.bytes));
    let told = line(&only(&record), "Mapped").unwrap();
    assert!(told.contains("pread, 8 threads: clearly"), "{told}");
}
