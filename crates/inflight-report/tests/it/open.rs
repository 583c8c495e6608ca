//! The open loop: a table of its own, and no place in any ranking.

use inflight_report::compare::Comparison;
use inflight_report::compare::limit::Limit;
use inflight_report::merged::Merged;
use inflight_report::open::{cells, is_only, kept};
use inflight_report::ranking::Ranking;
use inflight_report::record::{Access, Cell, LatencyClock, OpenRound, Record, Sync};
use inflight_report::text::{self, Style, screen};
use inflight_report::{csv, html, markdown, record, regret, verdict};

use crate::builder::{cell, disk, empty, into_tmpfs};
use crate::limits::latency;

/// A cell of so many operations due and done per second, in rounds of half a second.
fn by_clock(strategy: &str, due: u64, done: u64) -> Cell {
    let mut cell = cell(strategy, 1, done, 1_000, 8);
    for round in &mut cell.rounds {
        round.ops = done / 2;
        round.open = Some(OpenRound {
            due: due / 2,
            backlog: (due - done) / 2,
            unserved: (due - done) / 4,
            lag_ns: 60_000,
        });
    }
    cell.id = format!("{}@{due}", cell.id);
    cell.rate_per_s = Some(due);
    cell.latency = Some(latency(10_000));
    cell.latency.as_mut().expect("just set").clock = LatencyClock::Intended;
    cell
}

/// Two rates, one of which was too much; and a closed loop beside them if that is wanted.
fn measured(beside: Record) -> Record {
    let mut record = beside;
    record.cells.extend([
        by_clock("uring", 20_000, 20_000),
        by_clock("pread", 20_000, 15_000),
        by_clock("pread", 10_000, 9_950),
    ]);
    record
}

fn drawn(record: &Record) -> String {
    let style = Style {
        width: 160,
        colour: false,
    };
    screen(record, style)
}

#[test]
fn a_rate_that_was_given_is_neither_ranked_nor_regretted() {
    let (closed, both) = (disk(8), measured(disk(8)));
    let ids = |record: &Record| {
        let ranking = Ranking::new(record, &record.profiles[0]);
        let ranked = ranking.cells.iter().chain(&ranking.ranked);
        ranked.map(|cell| cell.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&closed), ids(&both));
    assert_eq!(regret::regrets(&closed), regret::regrets(&both));
    assert!(!is_only(&both, &both.profiles[0]));
    // What the closed loop says is what it says without them.
    let text = drawn(&both);
    let beginning = drawn(&closed);
    let table = beginning.split("▸ what the verdict").next().unwrap();
    assert!(text.starts_with(table.trim_end()), "{text}");
}

#[test]
fn nothing_that_was_synced_by_the_clock_is_durable_in_memory() {
    let mut record = measured(empty(8));
    (record.profiles[0].direct, record.profiles[0].access) = (false, Access::Append);
    record.profiles[0].sync = Sync::Each;
    let told = "memory     nothing here is durable: tmpfs is memory, and a sync does nothing";
    assert!(!drawn(&record).contains("durable:"));
    into_tmpfs(&mut record);
    assert!(drawn(&record).contains(told), "{}", drawn(&record));
}

#[test]
fn what_was_kept_and_what_was_not_is_told_with_the_backlog() {
    let record = measured(empty(8));
    let profile = &record.profiles[0];
    assert!(is_only(&record, profile));
    let rates: Vec<_> = cells(&record, profile)
        .iter()
        .map(|cell| cell.rate_per_s)
        .collect();
    assert_eq!(rates, [Some(10_000), Some(20_000), Some(20_000)]);
    let figures = kept(&by_clock("pread", 20_000, 15_000)).unwrap();
    assert!(figures.is_saturated());
    assert_eq!((figures.done, figures.backlog), (15_000.0, 2_500.0));
    assert_eq!(figures.unserved, 8 * 1_250);
    assert!(
        !kept(&by_clock("pread", 20_000, 19_900))
            .unwrap()
            .is_saturated()
    );
    // Where so few are due that none was in any round, none was missed; what failed was not done.
    let mut rare = by_clock("pread", 1, 1);
    assert_eq!(kept(&rare).unwrap().done, 1.0);
    rare = by_clock("pread", 20_000, 20_000);
    rare.rounds.iter_mut().for_each(|round| round.errors = 100);
    assert_eq!(kept(&rare).unwrap().done, 19_800.0);
    let text = drawn(&record);
    assert!(!text.contains("where others have up to"), "{text}");
    let mut deeper = record.clone();
    deeper.cells.last_mut().expect("there are some").depth = 16;
    let told = drawn(&deeper);
    assert!(
        told.contains("pread, 1 thread: one operation in flight, where others have up to 16"),
        "{told}"
    );
    assert!(
        text.contains("open loop: latencies from when operations were due"),
        "{text}"
    );
    let row = |done: &str| {
        let mut lines = text.lines().filter(|line| line.contains(done));
        lines.next().unwrap_or_else(|| panic!("no {done}: {text}"))
    };
    assert!(
        row("9.95 k").ends_with("kept") && row("9.95 k").contains("5.00 ms"),
        "{text}"
    );
    assert!(row("15.0 k").ends_with("saturated"), "{text}");
    assert!(
        !row("15.0 k").contains(" ms"),
        "a percentile of the length of the round: {text}"
    );
    assert!(
        text.contains("up to 2.50 k had not begun when a round was over"),
        "{text}"
    );
    assert!(text.contains("up to 60.0 µs late on average"), "{text}");
    assert!(
        !text.contains("Verdict") && !text.contains("vs pread"),
        "{text}"
    );
    assert!(verdict::verdicts(&record).is_empty());
}

#[test]
fn what_is_in_flight_when_a_short_round_is_over_saturates_nothing() {
    // 25 operations are due in each round, of which so many had not begun and so many not ended.
    let of = |waiting: u64, unfinished: u64| {
        let mut cell = by_clock("pread", 1_000, 1_000);
        for round in &mut cell.rounds {
            round.ops = 25 - unfinished;
            round.open = Some(OpenRound {
                due: 25,
                backlog: waiting,
                ..OpenRound::default()
            });
        }
        kept(&cell).unwrap().is_saturated()
    };
    assert!(!of(0, 1), "one is in flight");
    assert!(!of(0, 25), "all may be, if there are places for them");
    assert!(!of(1, 2), "one came just before the end");
    assert!(of(3, 4), "a queue has grown");
}

#[test]
fn other_forms_have_the_open_loop_too() {
    let record = measured(disk(8));
    let markdown = markdown::record(&record);
    assert!(
        markdown.contains("| due/s |") && markdown.contains("**saturated**"),
        "{markdown}"
    );
    let text = csv::cells(&record);
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let titles = reader.headers().unwrap().clone();
    let at = |title: &str| titles.iter().position(|known| known == title).unwrap();
    let rows: Vec<_> = reader.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), record.cells.len());
    let open: Vec<_> = rows
        .iter()
        .filter(|row| !row[at("due_per_s")].is_empty())
        .collect();
    assert_eq!(open.len(), 3);
    for row in open {
        assert_eq!(&row[at("ratio_to_pread")], "");
        // Of a rate that was too much, latencies would say how long it lasted.
        match &row[at("rate")] {
            "kept" => assert!(row[at("ns_p99")].parse::<f64>().unwrap() > 0.0),
            "saturated" => assert_eq!((&row[at("ns_p99")], &row[at("ns_max")]), ("", "")),
            other => panic!("{other}"),
        }
    }
    for record in [record, measured(empty(8))] {
        let page = html::page(&record);
        assert!(
            page.contains("id=\"open\"") && page.contains("#open"),
            "no section"
        );
        let back = record::load(&page).unwrap();
        assert_eq!(back.cells[0].rate_per_s, record.cells[0].rate_per_s);
    }
}

#[test]
fn a_limit_holds_for_the_open_loop_and_is_broken_by_a_rate_that_was_not_kept() {
    let record = measured(empty(8));
    let broken = |limit: &str| {
        let limit = Limit::parse(limit).unwrap();
        let held = limit.check(&record).unwrap();
        let broken = held.checked.iter().filter(|checked| !checked.kept);
        broken
            .map(|checked| checked.cell.id.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(broken("p99<1s"), ["direct-random-read/pread/1@20000"]);
    assert!(broken("rate=10000:p99<1s").is_empty());
    assert_eq!(broken("rate=10000:p99<1ms").len(), 1);
    let compared = Comparison::new(&record, &record);
    assert!(compared.rows.is_empty());
    assert_eq!(compared.left_out.len(), 3);
    assert!(compared.left_out[0].1.contains("given, not found"));
}

#[test]
fn open_loops_of_several_machines_are_merged_with_their_clock() {
    let node = |seed| Record {
        seed,
        ..measured(empty(8))
    };
    let nodes = [("a".to_owned(), node(1)), ("b".to_owned(), node(2))];
    let merged = Merged::of(nodes).expect("they fit together");
    let of = |id: &str| {
        let mut cells = merged.cells.iter();
        let cell = cells.find(|cell| cell.id == format!("direct-random-read/{id}"));
        cell.expect("it is in both")
    };
    let kept = of("uring/1@20000");
    assert_eq!(kept.iops["a"], 20_000.0);
    let latency = kept.latency.as_ref().expect("both have samples");
    assert_eq!(
        (latency.clock, latency.samples),
        (LatencyClock::Intended, 20_000)
    );
    let saturated = of("pread/1@20000");
    assert!(saturated.iops.is_empty() && saturated.latency.is_none());
    assert!(saturated.left_out["b"].contains("15.0 k of 20.0 k operations a second"));
    let style = Style {
        width: 160,
        colour: false,
    };
    let text = text::merged(&merged, style);
    let row = text
        .lines()
        .find(|line| line.contains("io_uring, 20.0 k/s"));
    assert!(
        row.is_some_and(|row| row.trim_end().ends_with('–')),
        "{text}"
    );
    assert!(
        text.contains("latencies count from when operations were due"),
        "{text}"
    );
    // What neither loop could complete is still said.
    let mut none = node(1);
    none.cells.iter_mut().for_each(|cell| cell.rounds.clear());
    let merged = Merged::of([("a".to_owned(), none)]).expect("it is one");
    let told = merged.cells.iter().map(|cell| &cell.left_out["a"]);
    assert!(told.clone().count() == 3 && told.clone().all(|why| why == "no round is complete"));
}

#[test]
fn a_limit_names_a_rate_as_the_flag_does() {
    let mut record = measured(empty(8));
    record.cells.push(by_clock("uring", 2_000_000, 2_000_000));
    for (rate, selected) in [("20k", 2), ("20K", 2), ("20000", 2), ("2m", 1), ("2M", 1)] {
        let limit = Limit::parse(&format!("rate={rate}:errors<=0")).expect("it is well formed");
        let held = limit.check(&record).expect("cells are selected");
        assert_eq!(held.checked.len(), selected, "{rate}");
    }
    for (wrong, told) in [
        ("30k", "`30000`; known are 20000, 10000"),
        ("20x", "rate `20x`"),
    ] {
        let limit = Limit::parse(&format!("rate={wrong}:errors<=0")).expect("it is well formed");
        let error = limit.check(&record).expect_err("nothing is selected");
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_title_and_a_name_share_their_brackets_wherever_they_are_told() {
    let mut old = measured(disk(8));
    old.profiles[0].title = "random reads, straight from the disk (direct)".to_owned();
    for cell in old
        .cells
        .iter_mut()
        .filter(|cell| cell.rate_per_s.is_none())
    {
        cell.latency = Some(latency(10_000));
    }
    let mut new = old.clone();
    new.seed += 1;
    let compared = Comparison::new(&old, &new);
    let nodes = [("a", &old), ("b", &new)].map(|(name, node)| (name.to_owned(), node.clone()));
    let merged = Merged::of(nodes).expect("they fit together");
    let style = Style::default();
    let told = [
        (screen(&old, style), 2),
        (text::comparison(&compared, 0.05, style), 1),
        (text::merged(&merged, style), 1),
        (markdown::record(&old), 2),
        (markdown::comparison(&compared, 0.05), 1),
    ];
    for (text, titles) in told {
        let joined = "straight from the disk (direct, direct-random-read)";
        assert_eq!(text.matches(joined).count(), titles, "{text}");
        assert!(!text.contains(") ("), "{text}");
    }
}
