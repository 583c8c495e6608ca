//! Records of many machines: order does not matter, and percentiles are never averaged.

use hdrhistogram::Histogram;
use inflight_report::histogram::{decode, encode};
use inflight_report::merged::{MergeError, Merged, load};
use inflight_report::record::Record;
use inflight_report::text::{self, Style};

use crate::builder::{disk, find, skip};
use crate::limits::latency;

/// The record of a node; each has a seed, rates and latencies of its own.
fn node(number: u64) -> Record {
    let mut record = disk(8);
    record.seed = number;
    for cell in &mut record.cells {
        cell.latency = Some(latency(1_000 * number));
        for round in &mut cell.rounds {
            round.ops = round.ops * (10 + number) / 10;
        }
    }
    record
}

fn named(numbers: &[u64]) -> Vec<(String, Record)> {
    let one = |number: &u64| (format!("node{number}"), node(*number));
    numbers.iter().map(one).collect()
}

fn merged(numbers: &[u64]) -> Merged {
    Merged::of(named(numbers)).expect("they fit together")
}

fn stored(merged: &Merged) -> String {
    serde_json::to_string(merged).expect("it is plain data")
}

#[test]
fn neither_order_nor_steps_matter() {
    let all = stored(&merged(&[1, 2, 3, 4]));
    for order in [[4, 3, 2, 1], [2, 4, 1, 3], [3, 1, 4, 2]] {
        assert!(stored(&merged(&order)) == all, "{order:?}");
    }
    for (left, right) in [(&[1][..], &[2, 3, 4][..]), (&[4, 2], &[3, 1])] {
        let parts = [merged(left), merged(right)];
        let nodes = parts.into_iter().flat_map(|part| part.nodes);
        assert!(stored(&Merged::of(nodes).unwrap()) == all, "{left:?}");
    }
}

#[test]
fn counts_are_added_and_percentiles_are_those_of_the_sum() {
    // 99 % of the samples of one node are fast and all those of the other are slow.
    let of = |ns: u64, count: u64| {
        let bounds = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3);
        let mut histogram = bounds.unwrap();
        histogram.record_n(ns, count).unwrap();
        let mut one = latency(1_000);
        (one.samples, one.hist_v2_b64) = (count, encode(&histogram).unwrap());
        one
    };
    let mut nodes = named(&[1, 2]);
    find(&mut nodes[0].1, "uring", 32).latency = Some(of(1_000, 9_900));
    find(&mut nodes[1].1, "uring", 32).latency = Some(of(1_000_000, 1_000));
    let merged = Merged::of(nodes).unwrap();
    let wanted = "direct-random-read/uring/32";
    let cell = merged.cells.iter().find(|cell| cell.id == wanted).unwrap();
    let together = cell.latency.as_ref().unwrap();
    assert_eq!(together.samples, 10_900);
    assert_eq!(decode(&together.hist_v2_b64).unwrap().len(), 10_900);
    let near = |found: u64, ns: u64| found.abs_diff(ns) <= ns / 500;
    assert!(near(together.ns_p50, 1_000), "{}", together.ns_p50);
    // An average of both would be half of it.
    assert!(near(together.ns_p99.unwrap(), 1_000_000), "{together:?}");
    assert!(near(together.ns_max, 1_000_000));
}

#[test]
fn the_whole_record_of_every_node_is_kept() {
    let merged = merged(&[1, 2, 3]);
    for number in 1..=3 {
        let kept = serde_json::to_value(&merged.nodes[&format!("node{number}")]).unwrap();
        assert!(kept == serde_json::to_value(node(number)).unwrap());
    }
}

#[test]
fn what_does_not_belong_together_is_refused() {
    assert_eq!(Merged::of([]).unwrap_err(), MergeError::Nothing);
    let twice = Merged::of(named(&[1, 2, 1])).unwrap_err();
    assert_eq!(twice, MergeError::SameName("node1".to_owned()));
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let same = Merged::of([(a.clone(), node(1)), (b.clone(), node(1))]).unwrap_err();
    assert_eq!(same, MergeError::SameRun(a, b));
    let mut nodes = named(&[1, 2]);
    nodes[1].1.plan_hash = "other".to_owned();
    let plans = Merged::of(nodes).unwrap_err();
    assert!(matches!(plans, MergeError::DifferentPlans(..)), "{plans}");
    let mut nodes = named(&[1, 2]);
    find(&mut nodes[1].1, "uring", 32).threads = 2;
    let cells = Merged::of(nodes).unwrap_err();
    assert!(matches!(cells, MergeError::DifferentCells(..)), "{cells}");
    let mut nodes = named(&[1, 2]);
    find(&mut nodes[1].1, "uring", 32)
        .latency
        .as_mut()
        .unwrap()
        .hist_v2_b64 = "?".to_owned();
    let histogram = Merged::of(nodes).unwrap_err();
    assert!(
        matches!(histogram, MergeError::Histogram(..)),
        "{histogram}"
    );
}

#[test]
fn what_is_inside_a_merged_record_is_held_to_what_is_asked_of_one_alone() {
    let why = |spoil: &dyn Fn(&mut Merged)| {
        let mut spoilt = merged(&[1, 2]);
        spoil(&mut spoilt);
        load(&stored(&spoilt)).map(|_| ()).unwrap_err().to_string()
    };
    fn first(merged: &mut Merged) -> &mut Record {
        merged.nodes.get_mut("node1").expect("it is one of them")
    }
    let twice = why(&|merged| {
        let cells = &mut first(merged).cells;
        cells.push(cells[0].clone());
    });
    let told = "of `node1`, the cell `direct-random-read/null/1` is in it twice";
    assert!(twice.contains(told), "{twice}");
    let version = why(&|merged| first(merged).schema = "inflight.bench/9".to_owned());
    assert!(version.contains("`inflight.bench/9`"), "{version}");
    let plans = why(&|merged| first(merged).plan_hash = "other".to_owned());
    assert!(plans.contains("different plans"), "{plans}");
    let run = why(&|merged| first(merged).seed = 2);
    assert!(run.contains("are the same run"), "{run}");
    let another = why(&|merged| find(first(merged), "uring", 32).threads = 2);
    assert!(another.contains("is another than that of"), "{another}");
    let none = why(&|merged| merged.nodes.clear());
    assert!(none.contains("nothing to merge"), "{none}");
    let names = stored(&merged(&[1, 2])).replace("\"node2\":{\"schema", "\"node1\":{\"schema");
    let names = load(&names).map(|_| ()).unwrap_err().to_string();
    assert!(names.contains("two records are called `node1`"), "{names}");
}

#[test]
fn figures_that_do_not_follow_from_the_records_are_not_shown() {
    let whole = merged(&[1, 2]);
    let mut spoilt = whole.clone();
    spoilt.plan_hash = "other".to_owned();
    spoilt.cells[1].iops.insert("node1".to_owned(), 1e9);
    spoilt.cells.push(spoilt.cells[0].clone());
    let read = load(&stored(&spoilt)).expect("its records are whole");
    assert!(stored(&read) == stored(&whole));
}

#[test]
fn a_node_whose_figures_do_not_count_is_left_out_and_named() {
    let mut nodes = named(&[1, 2, 3]);
    skip(&mut nodes[1].1, &["uring"], "io_uring is blocked");
    let cached = find(&mut nodes[2].1, "inflight", 32);
    cached
        .rounds
        .iter_mut()
        .for_each(|round| round.device_bytes = Some(0));
    let merged = Merged::of(nodes).unwrap();
    let find = |id: &str| {
        merged
            .cells
            .iter()
            .find(|cell| cell.id.ends_with(id))
            .unwrap()
    };
    let ring = find("/uring/32");
    assert_eq!(
        (ring.iops.len(), &*ring.left_out["node2"]),
        (2, "io_uring is blocked")
    );
    let (slowest, [least, middle, most]) = (ring.slowest(), ring.range().unwrap());
    assert_eq!(slowest, Some("node1"));
    assert!(least < middle && middle < most);
    let ours = find("/inflight/32");
    assert!(ours.left_out["node3"].contains("the disk served less"));
    assert_eq!(ours.latency.as_ref().unwrap().samples, 3_000);
    let (width, colour) = (160, false);
    let text = text::merged(&merged, Style { width, colour });
    for told in [
        "3 nodes, plan 0.",
        "not averages of theirs",
        "left out   node2: direct-random-read/uring/1, direct-random-read/uring/32,",
        "left out   node3: direct-random-read/inflight/32: the disk served less",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
}
