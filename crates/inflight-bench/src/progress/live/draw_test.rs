//! What stands where, on a terminal made of memory.
#![allow(clippy::unwrap_used)] // Clippy knows tests by their attribute; helpers have none.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::draw::{COLOURS, depth_axis, draw, round_up};
use super::story::Story;
use crate::progress::event::{Done, Event, Outcome, Planned, Shown, Start};

const DEPTHS: [u32; 3] = [1, 4, 16];
/// One slice: most operations fast, few slow.
const HEAT: &str = "60:90,8,2,0,0,0,0,1;60:90,8,2";

/// A story in which `uring` grows with the depth, `pread` does not, and `null` is out of scale.
fn story(rounds: u32) -> Story {
    let mut story = Story::default();
    let ids = |strategy: &'static str| {
        DEPTHS.map(|depth| (format!("direct/{strategy}/{depth}"), strategy, depth))
    };
    let cells: Vec<_> = ["null", "pread", "uring"]
        .into_iter()
        .flat_map(ids)
        .collect();
    let planned = cells.iter().map(|(id, strategy, depth)| Planned {
        id: id.clone(),
        profile: "direct",
        strategy,
        depth: *depth,
        threads: 1,
    });
    story.hear(&Event::Start(Start::new(
        8,
        60_000_000_000,
        planned.collect(),
    )));
    for round in 1..=rounds {
        for (id, strategy, depth) in &cells {
            let rate = match *strategy {
                "null" => 3e7,
                "pread" => 10_000.0,
                _ => 10_000.0 * f64::from(*depth),
            };
            story.hear(&Event::Cell(done(id, strategy, *depth, round, rate)));
        }
    }
    story
}

fn done<'a>(id: &'a str, strategy: &'a str, depth: u32, round: u32, rate: f64) -> Done<'a> {
    Done {
        id,
        profile: "direct",
        round,
        rounds: 8,
        outcome: Outcome::Ran {
            ops: 1,
            bytes: 4096,
            errors: 0,
            duration_ns: 1,
            ns_p50: Some(70_000),
            ns_p99: Some(98_000),
        },
        left_ns: 41_000_000_000,
        shown: Shown {
            name: format!("{strategy} at depth {depth}"),
            noun: "reads",
            rates: (0..round).map(|_| rate).collect(),
            heat: Some(HEAT),
        },
    }
}

fn drawn(story: &Story, columns: u16, rows: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(story, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let columns = usize::from(buffer.area.width);
    cells.chunks(columns).map(<[&str]>::concat).collect()
}

/// Columns and rows of the cells that satisfy a condition.
fn places(buffer: &Buffer, wanted: impl Fn(&str, Color) -> bool) -> Vec<(u16, u16)> {
    let cells = (0..).zip(&buffer.content);
    let found = cells.filter(|(_, cell)| wanted(cell.symbol(), cell.fg));
    found.map(|(at, _)| buffer.pos_of(at)).collect()
}

fn is_braille(symbol: &str) -> bool {
    symbol
        .chars()
        .any(|c| ('\u{2801}'..='\u{28ff}').contains(&c))
}

#[test]
fn the_fastest_comes_first_and_the_harness_not_at_all() {
    let text = lines(&drawn(&story(3), 120, 40));
    let row = |name: &str| text.iter().position(|line| line.contains(name));
    let (uring, pread) = (row("━━ uring at depth 16"), row("━━ pread at depth"));
    assert!(uring.is_some() && uring < pread, "{text:#?}");
    let line = &text[uring.unwrap()];
    for part in ["160 k reads/s", "p99 98.0 µs", "███"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(line.starts_with('▸'), "it had its turn last: {line}");
    assert_eq!(row("null"), None);
    assert!(text[0].contains("direct · round 3/8"));
    assert!(text.iter().any(|line| line.contains("41 s left")));
}

#[test]
fn a_curve_rises_with_its_rates() {
    let buffer = drawn(&story(2), 120, 40);
    let height = |colour| {
        let curve = places(&buffer, |symbol, fg| is_braille(symbol) && fg == colour);
        let left = *curve.iter().min().unwrap();
        let right = *curve.iter().max().unwrap();
        (i32::from(left.1) - i32::from(right.1), right.0 - left.0)
    };
    let (pread, width) = height(COLOURS[0]);
    let (uring, _) = height(COLOURS[1]);
    assert_eq!(pread, 0);
    assert!(uring > 10, "only {uring} rows");
    assert!(width > 40, "only {width} columns");
}

#[test]
fn latencies_grow_to_the_right_with_the_rounds() {
    let columns = |rounds| {
        let buffer = drawn(&story(rounds), 120, 40);
        let dense = places(&buffer, |symbol, _| symbol == "█");
        let map = dense.into_iter().filter(|(x, y)| *x > 66 && *y < 20);
        let mut columns: Vec<u16> = map.map(|(x, _)| x).collect();
        columns.dedup();
        columns.sort_unstable();
        columns.dedup();
        columns.len()
    };
    let (one, half, all) = (columns(1), columns(4), columns(8));
    assert!(one > 0);
    assert!((one * 3..=one * 5).contains(&half), "{one} {half} {all}");
    assert!((one * 7..=one * 9).contains(&all), "{one} {half} {all}");
    let rare = places(&drawn(&story(8), 120, 40), |symbol, _| symbol == "░");
    assert!(!rare.is_empty(), "the slow ones are lost");
}

#[test]
fn a_small_terminal_shows_what_fits() {
    for (columns, rows) in [(1, 1), (20, 3), (80, 24), (60, 12), (300, 100)] {
        let text = lines(&drawn(&story(1), columns, rows));
        assert_eq!(text.len(), usize::from(rows));
    }
    let narrow = lines(&drawn(&story(1), 80, 24)).concat();
    assert!(narrow.contains("against depth") && !narrow.contains("over the rounds"));
    let low = lines(&drawn(&story(1), 80, 12)).concat();
    assert!(low.contains("uring at depth 16") && !low.contains("against depth"));
}

#[test]
fn before_the_first_cell_it_says_what_is_written() {
    let mut story = story(0);
    story.hear(&Event::Writing {
        done_bytes: 1 << 20,
        size_bytes: 4 << 20,
    });
    let text = lines(&drawn(&story, 100, 30));
    assert!(text[0].contains("writing 1 MiB of 4 MiB"), "{}", text[0]);
}

#[test]
fn axes_end_at_round_figures() {
    assert_eq!(
        [0.0, 1.0, 1.1, 160e3, 5e5].map(round_up),
        [1.0, 1.0, 1.5, 200e3, 5e5]
    );
    let (bounds, labels) = depth_axis(1, 128);
    assert_eq!((bounds, labels.len()), ([0.0, 7.0], 8));
    assert_eq!(depth_axis(3, 48).1, ["3", "48"]);
    assert_eq!(depth_axis(32, 32).1, ["", "32", ""]);
}
