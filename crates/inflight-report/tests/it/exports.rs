//! Records for other programs: CSV and Markdown.

use std::collections::BTreeMap;

use inflight_report::record::{Access, DeviceWork, Finding, Record, Severity};
use inflight_report::{csv, html, markdown};

use crate::builder::{disk, find, skip};
use crate::text::assert_snapshot;

fn rows(record: &Record) -> Vec<BTreeMap<String, String>> {
    let text = csv::cells(record);
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let rows = reader.deserialize().collect::<Result<_, _>>();
    rows.expect("every row has the same fields")
}

#[test]
fn every_cell_is_a_row_with_plain_numbers() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "no buffers, \"none\" at all");
    let rows = rows(&record);
    assert_eq!(rows.len(), record.cells.len());
    let find = |strategy: &str, depth: &str| {
        let wanted =
            |row: &&BTreeMap<String, String>| row["strategy"] == strategy && row["depth"] == depth;
        rows.iter().find(wanted).unwrap()
    };
    let ring = find("uring", "32");
    let number = |title: &str| ring[title].parse::<f64>().unwrap();
    assert!((number("ops_per_s") / 555_000.0 - 1.0).abs() < 0.01);
    assert!((number("ratio_to_pread") - 43.5).abs() < 0.5);
    assert!(number("ratio_lo") < number("ratio_hi") && number("ratio_level") > 0.95);
    assert_eq!(number("device_share"), 1.0);
    assert_eq!(
        (ring["rounds"].as_str(), ring["errors"].as_str()),
        ("8", "0")
    );
    let skipped = find("uring-tuned", "32");
    assert_eq!(skipped["out_of_ranking"], "no buffers, \"none\" at all");
    for unknown in ["ops_per_s", "ratio_lo", "errors", "ns_p99", "device_share"] {
        assert_eq!(skipped[unknown], "", "{unknown}");
    }
}

#[test]
fn text_of_a_record_cannot_control_the_terminal() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "none\u{1b}]0;title\u{7}");
    record.cells[0].strategy.push_str("\u{1b}[31m");
    let text = csv::cells(&record);
    let controls = text.chars().filter(|letter| letter.is_control());
    assert!(controls.eq(text.chars().filter(|letter| *letter == '\n')));
    assert!(text.contains("none ]0;title "), "{text}");
}

#[test]
fn text_of_a_record_is_no_formula_and_turns_no_other_text_round() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "=HYPERLINK(\"x\")\u{202E}");
    let text = csv::cells(&record);
    assert!(text.contains("\"'=HYPERLINK(\"\"x\"\") \""), "{text}");
    assert!(!html::page(&record).contains('\u{202E}'));
    let page = markdown::record(&record);
    assert!(
        !page.contains('\u{202E}') && page.contains("HYPERLINK"),
        "{page}"
    );
}

#[test]
fn the_share_of_writes_is_what_the_device_took() {
    let mut record = disk(8);
    record.profiles[0].access = Access::RandomWrite;
    let rounds = record.cells.iter_mut().flat_map(|cell| &mut cell.rounds);
    for round in rounds.filter(|round| round.device_bytes.is_some()) {
        round.device_bytes = Some(0);
        round.device = Some(DeviceWork {
            written_bytes: round.bytes * 2,
            ..DeviceWork::default()
        });
    }
    find(&mut record, "pread", 1).rounds[0].device = None;
    for row in rows(&record) {
        let share = match row["strategy"].as_str() {
            "null" | "fio" | "pread" => "",
            _ => "2",
        };
        assert_eq!(row["device_share"], share, "{row:?}");
    }
}

#[test]
fn the_markdown_of_a_record() {
    assert_snapshot("disk-markdown", &markdown::record(&disk(8)));
}

#[test]
fn markdown_says_what_is_to_be_said_against_figures() {
    let mut record = disk(8);
    find(&mut record, "uring", 32).rounds[3].errors = 1_000_000;
    let empty = &mut find(&mut record, "threads", 4).rounds[2];
    (empty.ops, empty.bytes) = (0, 0);
    let road = ("road".to_owned(), "a ring of its own".to_owned());
    find(&mut record, "inflight", 32).effective.extend([road]);
    skip(&mut record, &["uring-tuned"], "no buffers to register");
    record.findings = vec![Finding {
        id: "governor".to_owned(),
        severity: Severity::Warning,
        what: "The frequency governor is powersave".to_owned(),
        why_it_matters: String::new(),
        fix: String::new(),
        affects: Vec::new(),
    }];
    let text = markdown::record(&record);
    for said in [
        "| ✗ io\\_uring | 32 |",
        "- **not ranked**: io\\_uring (depth 32): of 3190263 operations, 1000000 failed",
        "- **not ranked**: mmap (depth 1): copies nothing",
        "- **errors**: io\\_uring (depth 32): 1000000 failed and 0 were short",
        "- **empty**: pread, 4 threads: 1 of 8 rounds completed nothing, left out",
        "- **not run**: io\\_uring, tuned (depth 32): no buffers to register",
        "- **road**: inflight (depth 32): a ring of its own",
        "- **Warning**: The frequency governor is powersave.",
        "✗ does not count",
        "= no real difference (within 3 %); ? cannot tell yet",
        "regret: how far the library may be behind",
        ", 8 shuffled rounds of 500 ms, ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let marked = text.lines().filter(|line| line.starts_with("| ✗"));
    assert_eq!(marked.count(), 1, "{text}");
    assert!(!markdown::record(&disk(8)).contains('✗'));
    for cell in &mut record.cells {
        cell.rounds.clear();
    }
    let text = markdown::record(&record);
    assert!(
        text.contains("No figures") && !text.contains("| strategy |"),
        "{text}"
    );
}
