//! The page, read by a strict parser.

use std::collections::BTreeSet;

use hdrhistogram::Histogram;
use inflight_report::heat::{BANDS, band, encode};
use inflight_report::record::{Finding, Heat, LoadError, ProfileSummary, Severity, load};
use inflight_report::{Record, histogram, html};
use roxmltree::{Document, Node, ParsingOptions};

use crate::builder::{disk, into_tmpfs, skip};

/// A disk with everything that a record can have.
pub(crate) fn full() -> Record {
    let mut record = disk(8);
    for cell in &mut record.cells {
        let wait_ns = 1_000 + u64::from(cell.depth) * 20_000;
        let mut spread = Histogram::<u64>::new(3).expect("three digits");
        for (ns, count) in [(wait_ns, 90_000), (wait_ns * 2, 9_000), (wait_ns * 9, 500)] {
            spread.record_n(ns, count).expect("it grows");
        }
        if let Some(latency) = &mut cell.latency {
            latency.samples = spread.len();
            latency.hist_v2_b64 = histogram::encode(&spread).expect("it fits");
        }
        let slice = |at: usize| {
            let mut counts = vec![0; BANDS];
            counts[band(wait_ns)] = 900;
            counts[band(wait_ns) + 2 + at % 3] = 30;
            counts
        };
        let slices: Vec<Vec<u32>> = (0..8).map(slice).collect();
        let round = || encode(slices.iter().map(Vec::as_slice));
        let rounds = cell.rounds.iter().map(|_| round()).collect();
        cell.heat = (cell.strategy != "fio").then_some(Heat { rounds });
        for round in &mut cell.rounds {
            round.worker_ns = Some(round.sys_ns / 10);
        }
    }
    record
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
}

fn has_class(node: &Node<'_, '_>, class: &str) -> bool {
    let classes = node.attribute("class").unwrap_or_default();
    classes.split(' ').any(|one| one == class)
}

fn charts<'a, 'input>(page: &'a Document<'input>) -> Vec<Node<'a, 'input>> {
    let chart = |node: &Node<'_, '_>| node.has_tag_name("figure") && has_class(node, "chart");
    page.descendants().filter(chart).collect()
}

fn texts(node: Node<'_, '_>, class: &str) -> Vec<String> {
    let found = node.descendants().filter(|node| has_class(node, class));
    let text = |node: Node<'_, '_>| node.text().unwrap_or_default().to_owned();
    found.map(text).collect()
}

/// Marks, names of axes, and the same figures as a table.
fn check_chart(chart: Node<'_, '_>) {
    let id = chart.attribute("id").unwrap_or_default();
    assert!(!id.is_empty());
    let drawings: Vec<_> = chart
        .descendants()
        .filter(|node| node.has_tag_name("svg") && has_class(node, "plot"))
        .collect();
    assert!(!drawings.is_empty(), "{id} has no drawing");
    for drawing in drawings {
        let name = drawing.attribute("aria-label").unwrap_or_default();
        assert!(!name.is_empty(), "{id}: a drawing says nothing aloud");
        let labels = texts(drawing, "label");
        assert!(!labels.is_empty(), "{id}: no axis has a name");
        assert!(labels.iter().all(|label| !label.is_empty()), "{id}");
        assert!(texts(drawing, "tick").len() >= 2, "{id}: too few ticks");
    }
    let is_mark = |node: &Node<'_, '_>| match node.tag_name().name() {
        "use" => true,
        "rect" => !has_class(node, "ground"),
        "path" => has_class(node, "h") && !node.attribute("d").unwrap_or_default().is_empty(),
        _ => false,
    };
    assert!(
        chart.descendants().any(|node| is_mark(&node)),
        "{id} has no marks"
    );
    let rows = chart.descendants().filter(|node| node.has_tag_name("tr"));
    assert!(rows.count() >= 2, "{id} has no table");
    let caption = chart
        .descendants()
        .find(|node| node.has_tag_name("caption"));
    assert!(
        caption.is_some_and(|caption| caption.text().is_some()),
        "{id}"
    );
}

/// Every mark of every drawing is at a number.
fn check_numbers(page: &str) {
    for wrong in ["NaN", "inf ", "inf\"", "Infinity"] {
        let drawn = page
            .split("<svg")
            .skip(1)
            .filter_map(|after| after.split("</svg>").next());
        assert!(
            !drawn.into_iter().any(|svg| svg.contains(wrong)),
            "{wrong} is drawn"
        );
    }
}

#[test]
fn every_chart_has_marks_axes_and_a_table() {
    let page = html::page(&full());
    let document = parsed(&page);
    let charts = charts(&document);
    let kinds: BTreeSet<&str> = charts
        .iter()
        .filter_map(|chart| chart.attribute("id")?.rsplit('-').next())
        .collect();
    let expected = [
        "rate", "frontier", "latency", "nines", "cdf", "heat", "cpu", "calls", "rounds",
    ];
    assert_eq!(kinds, BTreeSet::from(expected));
    charts.into_iter().for_each(check_chart);
    check_numbers(&page);
}

#[test]
fn a_reader_that_speaks_finds_headings_in_order_and_a_name_for_every_drawing() {
    let page = html::page(&full());
    let document = parsed(&page);
    assert_eq!(document.root_element().attribute("lang"), Some("en"));
    let level = |node: Node<'_, '_>| {
        let level = node.tag_name().name().strip_prefix('h')?;
        level.parse::<u32>().ok()
    };
    let levels: Vec<u32> = document.descendants().filter_map(level).collect();
    assert_eq!(levels[0], 1);
    assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1);
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{levels:?}"
    );
    for drawing in document
        .descendants()
        .filter(|node| node.has_tag_name("svg"))
    {
        let is_named = drawing.attribute("role") == Some("img")
            && drawing
                .attribute("aria-label")
                .is_some_and(|name| !name.is_empty());
        let is_silent = drawing.attribute("aria-hidden") == Some("true");
        assert!(
            is_named || is_silent,
            "{:?}",
            drawing.attributes().collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_map_over_time_is_drawn_for_every_strategy_that_has_one() {
    let page = html::page(&full());
    let document = parsed(&page);
    let maps = document
        .descendants()
        .filter(|node| has_class(node, "heat"));
    // All but `null`, which does nothing, and fio, which does not tell.
    assert_eq!(maps.count(), 6);
}

#[test]
fn ids_are_unique_and_references_lead_somewhere() {
    let mut record = full();
    record.profiles.push(ProfileSummary {
        name: "direct random/read".to_owned(),
        ..record.profiles[0].clone()
    });
    let page = html::page(&record);
    let document = parsed(&page);
    let ids: Vec<&str> = document
        .descendants()
        .filter_map(|node| node.attribute("id"))
        .collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
    let nodes = || document.descendants();
    let links = nodes().filter_map(|node| node.attribute("href")?.strip_prefix('#'));
    let named = nodes().filter_map(|node| node.attribute("aria-labelledby"));
    for id in links.chain(named) {
        assert!(unique.contains(id), "{id} is nowhere");
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = html::page(&full());
    for forbidden in ["http:", "https:", "//cdn", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let document = parsed(&page);
    for node in document.descendants() {
        assert!(node.attribute("src").is_none());
        let href = node.attribute("href").unwrap_or("#");
        assert!(href.starts_with('#') || href == "data:,", "{href}");
    }
}

#[test]
fn the_record_is_inside_and_comes_back() {
    let record = full();
    let back = load(&html::page(&record)).unwrap();
    let json = |record: &Record| serde_json::to_value(record).unwrap();
    assert_eq!(json(&back), json(&record));
    let alone = load(&serde_json::to_string_pretty(&record).unwrap()).unwrap();
    assert_eq!(json(&alone), json(&record));
}

#[test]
fn what_is_no_record_is_refused_with_the_reason() {
    assert_eq!(load("<html></html>").err(), Some(LoadError::NoRecord));
    let page = html::page(&full());
    let (start, _) = page.rsplit_once("</script>").unwrap();
    let (cut, _) = start.rsplit_once("</script>").unwrap();
    assert_eq!(load(cut).err(), Some(LoadError::NoRecord));
    let (head, packed) = start.rsplit_once("\"inflight-record\">").unwrap();
    for spoilt in ["", "?", &packed[..packed.len() / 10 * 5]] {
        let refused = load(&format!("{head}\"inflight-record\">{spoilt}</script>")).err();
        assert!(matches!(refused, Some(LoadError::Broken(_))), "{refused:?}");
    }
    let other = load(r#"{"schema": "inflight.bench/9"}"#).err();
    assert_eq!(
        other,
        Some(LoadError::OtherSchema("inflight.bench/9".to_owned()))
    );
    for text in ["", "no", "{}", r#"{"schema": "inflight.bench/1"}"#] {
        let refused = load(text).err();
        assert!(
            matches!(refused, Some(LoadError::Broken(_))),
            "{text}: {refused:?}"
        );
    }
}

#[test]
fn a_record_from_elsewhere_can_not_add_markup() {
    let evil = "</script><script>alert(1)</script><b onclick='x'>\"&\u{1b}\u{ffff}";
    let mut record = full();
    record.target.path = evil.to_owned();
    record.target.fs = evil.to_owned();
    record.machine.cpu_model = Some(evil.to_owned());
    record.profiles[0].title = evil.to_owned();
    record.profiles[0].reason = evil.to_owned();
    record.cells[3].strategy = evil.to_owned();
    record.findings.push(Finding {
        id: evil.to_owned(),
        severity: Severity::Warning,
        what: evil.to_owned(),
        why_it_matters: evil.to_owned(),
        fix: evil.to_owned(),
        affects: vec![evil.to_owned()],
    });
    skip(&mut record, &["uring-tuned"], evil);
    let page = html::page(&record);
    let document = parsed(&page);
    let scripts = document
        .descendants()
        .filter(|node| node.has_tag_name("script"));
    assert_eq!(scripts.count(), 2);
    assert!(
        document
            .descendants()
            .all(|node| node.attribute("onclick").is_none())
    );
    assert_eq!(load(&page).unwrap().target.path, evil);
}

#[test]
fn memory_in_place_of_a_disk_is_not_drawn() {
    let mut record = full();
    into_tmpfs(&mut record);
    let page = html::page(&record);
    let document = parsed(&page);
    assert!(charts(&document).is_empty());
    assert!(page.contains("this is memory and not a disk"));
    assert!(page.contains("All figures"));
}

#[test]
fn a_run_without_io_uring_or_without_anything_is_drawn_as_far_as_it_goes() {
    let mut record = full();
    let rings = ["uring", "uring-tuned"];
    skip(
        &mut record,
        &rings,
        "io_uring is blocked by the seccomp filter",
    );
    let page = html::page(&record);
    let document = parsed(&page);
    charts(&document).into_iter().for_each(check_chart);
    assert!(page.contains("io_uring is blocked by the seccomp filter"));
    let mut record = full();
    for cell in &mut record.cells {
        cell.rounds.clear();
        (cell.latency, cell.heat) = (None, None);
    }
    let page = html::page(&record);
    assert!(charts(&parsed(&page)).is_empty());
    record.profiles.clear();
    record.cells.clear();
    parsed(&html::page(&record));
}

#[test]
fn what_can_not_be_read_is_left_out_and_the_rest_is_drawn() {
    let mut record = full();
    for cell in &mut record.cells {
        let latency = cell.latency.as_mut().unwrap();
        latency.hist_v2_b64 = "no histogram".to_owned();
        let rounds = vec!["9999:1".to_owned()];
        cell.heat = Some(Heat { rounds });
        cell.depth = 0;
    }
    let page = html::page(&record);
    let document = parsed(&page);
    let charts = charts(&document);
    assert!(charts.len() >= 5);
    charts.into_iter().for_each(check_chart);
    check_numbers(&page);
}

#[test]
fn twenty_five_profiles_are_one_page() {
    let mut record = full();
    let (profile, cells) = (record.profiles[0].clone(), record.cells.clone());
    for number in 1..25 {
        let name = format!("profile-{number}");
        for cell in &cells {
            let mut cell = cell.clone();
            cell.id = format!("{name}/{}/{}", cell.strategy, cell.depth);
            cell.profile.clone_from(&name);
            record.cells.push(cell);
        }
        record.profiles.push(ProfileSummary {
            name,
            ..profile.clone()
        });
    }
    let page = html::page(&record);
    let document = parsed(&page);
    assert_eq!(charts(&document).len(), 25 * 9);
    let links = document
        .descendants()
        .filter(|node| node.has_tag_name("nav"))
        .count();
    assert_eq!(links, 1);
}

/// What a mail takes, and a browser opens at once.
const MOST_BYTES: usize = 1 << 20;

#[test]
fn the_page_of_a_default_run_is_smaller_than_a_mebibyte() {
    let kept = "../../docs/measurements/2026-11-21-policy-virtio-2cpu/disk-default.json";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(kept);
    let record = load(&std::fs::read_to_string(path).unwrap()).unwrap();
    let page = html::page(&record);
    let document = parsed(&page);
    let charts = charts(&document);
    assert_eq!(charts.len(), 4 * 9);
    charts.into_iter().for_each(check_chart);
    assert!(page.len() < MOST_BYTES, "{} bytes", page.len());
}

/// The table round by round of a page with one profile.
fn round_by_round(page: &str) -> String {
    let at = page.find("<caption>Rate of each round").expect("the table");
    let end = page[at..].find("</table>").expect("its end");
    page[at..at + end].to_owned()
}

#[test]
fn a_round_with_a_large_number_is_one_row() {
    let mut record = full();
    let rows = |record: &Record| {
        let table = round_by_round(&html::page(record));
        let rows = table.matches("<tr>").count();
        (rows, table)
    };
    let before = rows(&record).0;
    // The last one would be 4,294,967,296 rows.
    for number in [200_000, u32::MAX] {
        for cell in &mut record.cells {
            cell.rounds[7].block = number;
        }
        let (found, table) = rows(&record);
        assert_eq!(found, before, "{number}");
        let last = u64::from(number) + 1;
        assert!(table.contains(&format!(">{last}<")), "{number}: {table}");
    }
}

#[test]
fn of_more_rounds_than_anybody_reads_the_table_has_the_first() {
    let mut record = disk(170);
    // Each cell has rounds of its own: 170 of 12.
    let rounds = record.cells.iter_mut().flat_map(|cell| &mut cell.rounds);
    for (number, round) in (0..).zip(rounds) {
        round.block = number;
    }
    let table = round_by_round(&html::page(&record));
    let told = "of its strategy; the first 1000 of ";
    assert!(table.contains(told), "{}", &table[..200]);
    assert_eq!(table.matches("<tr>").count(), 1_001, "and the titles");
    for cell in &mut record.cells {
        cell.rounds.truncate(8);
    }
    let table = round_by_round(&html::page(&record));
    assert!(table.contains("of its strategy<"), "nothing is missing");
}
