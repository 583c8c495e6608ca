//! The screen, against the files in `snapshots/`; `INFLIGHT_BLESS=1` writes them anew.

use inflight_report::ranking::Ranking;
use inflight_report::record::{
    Access, Finding, ProfileSummary, Record, STOPPED, Severity, Skipped, Sync,
};
use inflight_report::text::{Style, screen};
use inflight_report::{html, markdown, unsteady};

use crate::builder::{cached, cell, disk, empty, find, into_tmpfs, skip};

fn wide(record: &Record) -> String {
    drawn(record, 140)
}

fn drawn(record: &Record, width: usize) -> String {
    let colour = false;
    screen(record, Style { width, colour })
}

pub(crate) fn assert_snapshot(name: &str, text: &str) {
    let path = format!(
        "{}/tests/it/snapshots/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("INFLIGHT_BLESS").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("the snapshot is there");
    assert!(
        text == expected,
        "{name} differs from its snapshot:\n{text}"
    );
}

#[test]
fn a_finding_names_a_profile_where_it_concerns_all_of_it() {
    let mut record = disk(8);
    let mut finding = powersave();
    finding.affects = record.cells.iter().map(|cell| cell.id.clone()).collect();
    record.findings = vec![finding.clone()];
    let text = wide(&record)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let profile = record.profiles[0].name.clone();
    assert!(
        text.contains(&format!("It concerns all of {profile}. ")),
        "{text}"
    );
    let left_out = find(&mut record, "uring", 32).id.clone();
    finding.affects.retain(|id| *id != left_out);
    record.findings = vec![finding];
    let text = wide(&record)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        text.contains("It concerns ") && !text.contains("all of"),
        "{text}"
    );
}

fn powersave() -> Finding {
    Finding {
        id: "governor".to_owned(),
        severity: Severity::Warning,
        what: "The frequency governor is powersave".to_owned(),
        why_it_matters: "Rounds may differ more than they have to.".to_owned(),
        fix: "set it to performance for the run".to_owned(),
        affects: Vec::new(),
    }
}

#[test]
fn a_disk_that_rewards_depth() {
    let mut record = disk(8);
    record.findings.push(powersave());
    assert_snapshot("disk", &wide(&record));
}

#[test]
fn tmpfs_is_no_disk() {
    let mut record = disk(8);
    into_tmpfs(&mut record);
    let text = wide(&record);
    assert!(text.contains("this is no disk") && !text.contains('▸'));
    assert_snapshot("tmpfs", &text);
}

#[test]
fn io_uring_is_blocked() {
    let mut record = disk(8);
    let reason = "io_uring_setup is refused by the seccomp filter of the container (EPERM)";
    skip(&mut record, &["uring", "uring-tuned"], reason);
    find(&mut record, "inflight", 32).rounds = cell("threads", 16, 180_000, 5_500, 8).rounds;
    let text = wide(&record);
    assert!(text.contains("Blocked here: io_uring_setup is refused by the seccomp filter"));
    assert_snapshot("blocked", &text);
}

#[test]
fn a_noisy_disk_is_inconclusive() {
    let mut record = empty(8);
    record.cells.push(cell("pread", 1, 10_000, 3_000, 8));
    record.cells.push(cell("uring", 1, 10_300, 2_900, 8));
    for (at, round) in record.cells[1].rounds.iter_mut().enumerate() {
        round.ops = round.ops * [92, 112, 95, 109, 90, 118, 97, 106][at] / 100;
    }
    let text = wide(&record);
    assert!(text.contains("No clear winner after 8 rounds; keep pread, 1 thread (simplest)."));
    assert_snapshot("inconclusive", &text);
}

#[test]
fn interrupted_before_the_first_round_was_complete() {
    let mut record = disk(0);
    (record.interrupted, record.rounds_planned) = (true, 8);
    record.cells.iter_mut().for_each(|cell| cell.latency = None);
    let text = wide(&record);
    assert!(text.contains("interrupted before a round was complete"));
    assert_snapshot("interrupted", &text);
}

#[test]
fn a_round_that_was_only_begun_is_not_counted() {
    let interrupted = |record: &mut Record| {
        (record.interrupted, record.rounds_planned) = (true, 6);
        wide(record)
    };
    let mut later = disk(5);
    for cell in later.cells.iter_mut().skip(1) {
        cell.rounds.pop();
    }
    let text = interrupted(&mut later);
    assert!(
        text.contains("interrupted after 4 of 6 shuffled rounds"),
        "{text}"
    );
    let mut first = disk(1);
    for cell in first.cells.iter_mut().skip(1) {
        cell.rounds.clear();
        let reason = STOPPED.to_owned();
        cell.skipped = Some(Skipped { reason });
    }
    let text = interrupted(&mut first);
    assert!(
        text.contains("interrupted after 0 of 6 shuffled rounds"),
        "{text}"
    );
}

#[test]
fn a_narrow_terminal_drops_columns_and_folds_sentences() {
    let record = disk(8);
    for width in [60, 80, 100, 110, 120] {
        let text = drawn(&record, width);
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= width, "{longest} columns on {width}:\n{text}");
        for always in ["strategy", "reads/s", "vs pread", "disk"] {
            assert!(text.contains(always), "{always} is missing on {width}");
        }
    }
    let titles = |width| {
        let text = drawn(&record, width);
        let titles = text.lines().find(|line| line.contains("vs pread"));
        titles.unwrap().to_owned()
    };
    assert!(titles(140).contains("max") && titles(140).contains("CPU/read"));
    assert!(!titles(110).contains(" max ") && titles(110).contains("CPU/read"));
    assert!(!titles(80).contains("CPU/read") && titles(80).contains("p50"));
    assert_eq!(drawn(&record, 0), drawn(&record, 40));
}

#[test]
fn calls_stay_where_a_profile_is_about_them() {
    let of = |profile: ProfileSummary| {
        let mut record = disk(8);
        for cell in &mut record.cells {
            cell.profile.clone_from(&profile.name);
        }
        record.profiles = vec![profile];
        let text = drawn(&record, 110);
        assert!(!text.contains(" max "), "there is room for all:\n{text}");
        text.contains("calls/")
    };
    assert!(!of(cached()));
    let appends = ProfileSummary {
        access: Access::Append,
        sync: Sync::Each,
        ..cached()
    };
    assert!(of(appends));
    let batched = ProfileSummary {
        batched: true,
        cold: true,
        cached: false,
        ..cached()
    };
    assert!(of(batched));
    let told = ProfileSummary {
        reason: "Many small reads; system calls are counted.".to_owned(),
        ..cached()
    };
    assert!(of(told));
}

/// The same disk, written to or both.
fn disk_with(access: Access) -> Record {
    let mut record = disk(8);
    record.profiles[0].access = access;
    // Nothing is faster than plain calls.
    for round in &mut find(&mut record, "pread", 1).rounds {
        round.ops *= 100;
    }
    record
}

#[test]
fn plain_calls_are_called_by_what_they_do() {
    let named = |access| {
        let text = wide(&disk_with(access));
        let page = html::page(&disk_with(access));
        let page = page.split("<script").next().unwrap().to_owned();
        (text, page, markdown::record(&disk_with(access)))
    };
    let (text, page, markdown) = named(Access::RandomWrite);
    for words in [
        "▸ pwrite, 1 thread",
        "pwrite, 16 threads",
        "  vs pwrite  ",
        " vs pwrite: ratio",
        "Keep one pwrite loop",
        "one pwrite loop and",
        "it is 0.010x (0.010-0.010) pwrite.",
    ] {
        assert!(text.contains(words), "{words:?} is missing:\n{text}");
    }
    assert!(page.contains("pwrite, threads") && page.contains("vs pwrite"));
    assert!(markdown.contains("| vs pwrite |"), "{markdown}");
    for output in [&text, &page, &markdown] {
        // The id of a cell has the name of its strategy.
        let without_ids = output.replace("/pread/", "");
        let mut words = without_ids.split(|letter: char| !letter.is_alphanumeric());
        assert!(!words.any(|word| word == "pread"), "{output}");
    }
    let (text, page, _) = named(Access::Mixed);
    assert!(text.contains("pread/pwrite, 1 thread"), "{text}");
    assert!(text.contains("vs pread/pwrite"), "{text}");
    assert!(page.contains("pread/pwrite, threads"));
    let (text, ..) = named(Access::SequentialRead);
    assert!(!text.contains("pwrite"), "{text}");

    let mut record = disk_with(Access::RandomRead);
    record
        .profiles
        .push(disk_with(Access::Append).profiles.remove(0));
    let text = wide(&record);
    assert!(text.contains("vs pread, vs pwrite: ratio"), "{text}");
}

#[test]
fn names_that_do_not_say_it_are_explained_where_they_stand() {
    let rows = [
        ("uring-sqpoll", "io_uring, kernel thread: "),
        ("uring-busy", "io_uring, never asleep: "),
        ("uring-iopoll", "io_uring, polled: "),
        ("libaio", "Linux AIO: "),
    ];
    let told = |record: &Record| {
        let text = wide(record);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut record = disk(8);
    for (strategy, words) in rows {
        assert!(!told(&record).contains(words), "{words}");
        let option = format!("(--strategy {strategy}).");
        record.cells.push(cell(strategy, 32, 500_000, 1_000, 8));
        let text = told(&record);
        assert!(text.contains(words) && text.contains(&option), "{text}");
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let mut record = disk(8);
    record.findings.push(powersave());
    find(&mut record, "pread", 1).rounds[0].errors = 3;
    let (width, colour) = (140, true);
    let coloured = screen(&record, Style { width, colour });
    assert!(coloured.contains("\x1b[1m▸") || coloured.contains("\x1b[1m ▸"));
    let mut plain = coloured.clone();
    for code in ["\x1b[1m", "\x1b[31m", "\x1b[0m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, wide(&record));
    into_tmpfs(&mut record);
    let coloured = screen(&record, Style { width, colour });
    assert!(
        coloured.contains("\x1b[31m0%\x1b[0m"),
        "a share that lies is red"
    );
}

#[test]
fn a_record_can_not_drive_the_terminal() {
    let mut record = disk(8);
    record.target.path = "\x1b]0;title\x07".to_owned();
    record.profiles[0].title = "a\nb\x1b[2J".to_owned();
    find(&mut record, "mmap", 1).strategy = "x\n\x1b[2J".to_owned();
    skip(&mut record, &["uring"], "because\x1b[31m of \nthis");
    let text = wide(&record);
    assert!(
        text.chars()
            .all(|letter| letter == '\n' || !letter.is_control())
    );
}

#[test]
fn findings_stand_worst_first_with_the_cells_they_spoil() {
    let mut record = disk(8);
    record.findings.push(powersave());
    let affects = vec![find(&mut record, "uring", 32).id.clone()];
    record.findings.push(Finding {
        severity: Severity::Blocker,
        what: "The device refuses polling.".to_owned(),
        affects,
        ..powersave()
    });
    let text = wide(&record);
    let place = |words: &str| text.find(words).expect(words);
    assert!(place(" Blocker    The device refuses polling. ") < place(" Warning    The frequency"));
    assert_eq!(
        text.matches("It concerns io_uring (depth 32). Fix: set it")
            .count(),
        1
    );
}

#[test]
fn no_cell_is_missing_without_a_word() {
    let mut record = disk(8);
    for round in &mut find(&mut record, "uring", 32).rounds {
        (round.errors, round.errno, round.ops) = (round.ops, Some(5), 0);
    }
    find(&mut record, "uring", 64).rounds.clear();
    find(&mut record, "pread", 1).rounds[3].ops = 0;
    let text = wide(&record);
    for words in [
        "not run    io_uring (depth 64): no round was completed",
        "empty      io_uring (depth 32): 8 of 8 rounds completed nothing, left out",
        "empty      pread, 1 thread: 1 of 8 rounds completed nothing, left out",
        "failed (Input/output error (os error 5)) and 0 were short; 0",
        "not ranked mmap (depth 1): copies nothing",
    ] {
        assert!(text.contains(words), "{words:?} is missing:\n{text}");
    }
}

#[test]
fn a_rate_that_goes_down_round_by_round_is_told_and_one_that_only_varies_is_not() {
    let mut record = disk(8);
    assert!(unsteady::findings(&record).is_empty());
    for (at, round) in (0..).zip(&mut find(&mut record, "uring", 32).rounds) {
        round.ops = 1_000_000 - at * 30_000;
    }
    record.findings = unsteady::findings(&record);
    let text = wide(&record)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let told = "became up to 13% slower, from the earlier half of the rounds to the later one";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("It concerns io_uring (depth 32)."), "{text}");
    assert_eq!(record.findings[0].affects, ["direct-random-read/uring/32"]);
    for (at, round) in (0..).zip(&mut find(&mut record, "uring", 32).rounds) {
        round.ops = 1_000_000 + at * 30_000;
    }
    assert!(unsteady::findings(&record)[0].what.contains("faster"));
}

#[test]
fn writes_that_have_not_settled_are_told() {
    let mut record = disk(8);
    find(&mut record, "uring", 32).rounds[6].ops /= 2;
    assert!(
        unsteady::findings(&record).is_empty(),
        "reads settle at once"
    );
    record.profiles[0].access = Access::RandomWrite;
    // What all cells of a round share is 22 %: it makes every cell unsteady.
    for cell in &mut record.cells {
        let rounds = cell.rounds.iter_mut().skip(3);
        let is_wanted = cell.strategy == "uring" && cell.depth == 32;
        rounds.for_each(|round| round.ops = 100_000);
        if is_wanted {
            cell.rounds[6].ops = 50_000;
        }
    }
    let found = unsteady::findings(&record);
    let found = found.iter().find(|found| found.id == unsteady::UNSETTLED);
    assert_eq!(found.unwrap().affects, ["direct-random-read/uring/32"]);
    into_tmpfs(&mut record);
    let found = unsteady::findings(&record);
    let is_told = found.iter().any(|found| found.id == unsteady::UNSETTLED);
    assert!(!is_told, "memory does not settle");
}

#[test]
fn rounds_for_which_there_was_no_time_are_told() {
    let left_out = |record: &Record| {
        let mut found = unsteady::findings(record).into_iter();
        found.find(|found| found.id == unsteady::LEFT_OUT)
    };
    let mut record = disk(8);
    assert!(left_out(&record).is_none());
    record.rounds_planned = 12;
    let found = left_out(&record).unwrap();
    assert!(found.what.starts_with("4 of 12 rounds"), "{}", found.what);
    assert!(found.affects.len() > 5);
    record.interrupted = true;
    assert!(left_out(&record).is_none(), "somebody wanted it so");
}

#[test]
fn cells_that_rested_for_lack_of_time_are_not_compared_and_told() {
    let mut record = disk(6);
    // The fastest in the only round that it had, and first among the simple.
    for (strategy, depth) in [("threads", 4), ("uring", 64)] {
        let cell = find(&mut record, strategy, depth);
        cell.rounds.truncate(1);
        cell.rounds[0].ops *= 9;
    }
    let ranking = Ranking::new(&record, &record.profiles[0]);
    let out: Vec<&str> = ranking.out.iter().map(|(cell, _)| &*cell.id).collect();
    let rested = [
        "direct-random-read/threads/4",
        "direct-random-read/uring/64",
    ];
    assert_eq!(out, rested);
    assert!(!ranking.tentative, "the others have enough");
    let found = unsteady::findings(&record);
    let found = found.iter().find(|found| found.id == unsteady::LEFT_OUT);
    assert_eq!(found.unwrap().affects, rested);
    let screen = wide(&record);
    let told = "not ranked pread, 4 threads; io_uring (depth 64): only 1 of 6 rounds was run";
    assert!(screen.contains(told), "{screen}");
    assert!(!screen.contains("No verdict yet"), "{screen}");
    record.interrupted = true;
    let stopped = Ranking::new(&record, &record.profiles[0]);
    assert!(stopped.out.is_empty(), "nobody was left out on purpose");
}

#[test]
fn what_a_verdict_needs_most_comes_first() {
    let record = disk(6);
    let ranking = Ranking::new(&record, &record.profiles[0]);
    let order = ranking.by_need();
    assert_eq!(order[0].id, "direct-random-read/pread/1");
    let strategies: Vec<&str> = order[..5].iter().map(|cell| &*cell.strategy).collect();
    for needed in ["uring-tuned", "inflight"] {
        assert!(strategies.contains(&needed), "{strategies:?}");
    }
    let measured = record.cells.iter().filter(|cell| !cell.rounds.is_empty());
    assert_eq!(order.len(), measured.count(), "nobody is forgotten");
}

#[test]
fn the_roads_of_the_library_stand_below_the_table_those_with_one_together() {
    let mut record = disk(8);
    for depth in [1, 32] {
        let effective = &mut find(&mut record, "inflight", depth).effective;
        effective.insert(
            "road".to_owned(),
            "the backend, because it waits".to_owned(),
        );
    }
    let text = wide(&record);
    let told = "road       inflight (depth 1, 32): the backend, because it waits";
    assert!(text.contains(told), "{text}");
}

#[test]
fn damaged_records_are_drawn_without_a_panic() {
    let mut record = disk(8);
    record.profiles.push(cached());
    record.cells.retain(|cell| cell.strategy != "pread");
    for (at, cell) in record.cells.iter_mut().enumerate() {
        match at % 4 {
            0 => cell
                .rounds
                .iter_mut()
                .for_each(|round| round.duration_ns = 0),
            1 => cell.rounds.iter_mut().for_each(|round| round.ops = 0),
            2 => cell
                .rounds
                .iter_mut()
                .for_each(|round| round.errors = u64::MAX),
            _ => cell.latency = None,
        }
    }
    let text = wide(&record);
    assert!(
        !text.contains("NaN") && !text.contains("infx") && !text.contains("inf "),
        "{text}"
    );
    assert!(text.contains('–'));
    record.profiles.clear();
    record.cells.clear();
    assert!(wide(&record).starts_with("inflight 0.1.0"));
}
