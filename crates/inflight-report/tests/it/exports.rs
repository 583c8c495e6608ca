//! Records for other programs: CSV and Markdown.

use std::collections::BTreeMap;

use inflight_report::{csv, markdown};

use crate::builder::{disk, skip};
use crate::text::assert_snapshot;

#[test]
fn every_cell_is_a_row_with_plain_numbers() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "no buffers, \"none\" at all");
    let text = csv::cells(&record);
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<BTreeMap<String, String>> =
        reader.deserialize().collect::<Result<_, _>>().unwrap();
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
fn the_markdown_of_a_record() {
    assert_snapshot("disk-markdown", &markdown::record(&disk(8)));
}
