//! Fresh rounds of some cells, and what rests on them.

use inflight_report::figures::iops;
use inflight_report::ranking::{MOST_FINALISTS, Ranking};
use inflight_report::record::{Cell, Record, Turns};
use inflight_report::stats::{Word, ahead, compare, is_confirmed};
use inflight_report::text::{Style, screen};
use inflight_report::verdict::verdicts;

use crate::builder::{cell, confirm, disk, empty, find};

fn sure(record: &Record) -> String {
    let lines = verdicts(record).remove(0).lines;
    let sure = lines.into_iter().find(|line| line.label == "How sure");
    sure.expect("it is always said").text
}

/// Two cells of which the second was lucky in the screening.
fn lucky(fresh: u32) -> Record {
    let mut record = empty(8);
    record.cells.push(cell("pread", 1, 100_000, 1_000, 8));
    record.cells.push(cell("uring", 32, 110_000, 1_000, 8));
    confirm(&mut record, "pread", 1, 100_000, fresh);
    confirm(&mut record, "uring", 32, 100_000, fresh);
    record
}

#[test]
fn whoever_was_lucky_in_the_screening_does_not_win() {
    let words = |record: &Record| compare(&record.cells[1], &record.cells[0]).unwrap().word();
    assert_eq!(words(&lucky(0)), Word::ClearlyFaster);
    let record = lucky(8);
    assert_eq!(words(&record), Word::NoRealDifference);
    assert_eq!(ahead(&record.cells[1], &record.cells[0]).1, 8);
    let pick = verdicts(&record).remove(0).pick;
    assert_eq!(pick.as_deref(), Some("direct-random-read/pread/1"));
}

#[test]
fn what_more_fresh_rounds_can_tell_is_not_counted_with_those_of_all_cells() {
    let mut record = lucky(6);
    for (at, round) in record.cells[1].rounds.iter_mut().skip(8).enumerate() {
        round.ops = round.ops * [104, 106, 103, 109, 98, 112][at] / 100;
    }
    let headline = verdicts(&record).remove(0).lines.remove(0).text;
    let expected = "No clear winner after 8 rounds and 6 fresh ones; keep pread, 1 thread";
    assert!(headline.starts_with(expected), "{headline}");
    let sure = sure(&record);
    let (_, more) = sure.split_once("About ").expect("more rounds can tell");
    let (needed, rest) = more.split_once(' ').unwrap();
    let expected = format!("fresh rounds instead of 6 can tell (--rounds {needed}).");
    assert_eq!(rest, expected);
    assert!(needed.parse::<u32>().unwrap() > 6, "{sure}");
}

#[test]
fn who_is_in_front_side_by_side_may_have_the_lower_rate_of_all_rounds() {
    let mut record = lucky(6);
    for (at, round) in record.cells[1].rounds.iter_mut().skip(8).enumerate() {
        round.ops = round.ops * [104, 106, 103, 109, 98, 112][at] / 100;
    }
    let before = record.cells[0].rounds.iter_mut().take(8);
    before.for_each(|round| round.ops *= 2);
    assert!(iops(&record.cells[0]) > iops(&record.cells[1]));
    let sure = sure(&record);
    let expected = "Not sure. io_uring at depth 32 is in front; side by side it is 1.0";
    assert!(sure.starts_with(expected), "{sure}");
    let screen = screen(&record, Style::default());
    let words: Vec<&str> = screen.split_whitespace().collect();
    let legend = "Rates are of all rounds of a row, ratios of rounds that both rows ran";
    assert!(words.join(" ").contains(legend), "{screen}");
}

#[test]
fn fewer_fresh_rounds_than_can_be_sure_count_for_nothing() {
    let record = lucky(5);
    let (pread, uring) = (&record.cells[0], &record.cells[1]);
    assert!(!is_confirmed(uring, pread));
    assert_eq!(compare(uring, pread), {
        let record = lucky(0);
        compare(&record.cells[1], &record.cells[0])
    });
    assert!(is_confirmed(&lucky(6).cells[0], &lucky(6).cells[1]));
}

fn order(record: &Record) -> Vec<(&str, u32)> {
    let ranking = Ranking::new(record, &record.profiles[0]);
    let ranked = ranking.ranked.iter();
    ranked
        .map(|cell| (cell.strategy.as_str(), cell.depth))
        .collect()
}

#[test]
fn whoever_is_no_slower_on_fresh_rounds_takes_the_place_before() {
    let mut record = disk(8);
    confirm(&mut record, "uring-tuned", 32, 520_000, 8);
    confirm(&mut record, "uring", 32, 540_000, 8);
    // Behind both of them, and in front of all that they were in front of.
    confirm(&mut record, "inflight", 1, 12_900, 8);
    let first = [
        ("uring", 32),
        ("uring-tuned", 32),
        ("uring", 64),
        ("inflight", 32),
    ];
    assert_eq!(order(&record)[..4], first);
    assert_eq!(order(&record).last(), Some(&("inflight", 1)));
}

#[test]
fn more_fresh_rounds_in_a_worse_hour_change_no_places() {
    let mut record = disk(8);
    let first = [
        ("uring-tuned", 32, 564_000),
        ("uring", 32, 560_000),
        ("threads", 16, 181_000),
    ];
    for (strategy, depth, iops) in first {
        confirm(&mut record, strategy, depth, iops, 8);
    }
    let before = named(&record);
    // Of the worst regret, much later, and with one of the two in front.
    for (strategy, depth, iops) in [("uring", 32, 90_000), ("inflight", 1, 12_800)] {
        confirm(&mut record, strategy, depth, iops, 30);
    }
    let fresh = find(&mut record, "inflight", 1).rounds.iter_mut();
    for round in fresh.filter(|round| round.confirms) {
        round.block += 8;
    }
    assert_eq!(named(&record), before);
}

fn named(record: &Record) -> Vec<(String, u32)> {
    let order = order(record).into_iter();
    order
        .map(|(strategy, depth)| (strategy.to_owned(), depth))
        .collect()
}

#[test]
fn the_verdict_says_what_it_rests_on() {
    let mut record = disk(8);
    record.cells.retain(|cell| cell.strategy != "uring-tuned");
    assert!(!sure(&record).contains("fresh"), "{}", sure(&record));
    for (strategy, depth, iops) in [("pread", 1, 12_900), ("inflight", 32, 558_000)] {
        confirm(&mut record, strategy, depth, iops, 12);
    }
    for depth in [32, 64] {
        confirm(&mut record, "uring", depth, 560_000, 12);
    }
    let sure = sure(&record);
    assert!(sure.contains("confirmed on fresh rounds"), "{sure}");
    let text = screen(&record, Style::default());
    let rounds = "8 shuffled rounds of 500 ms, and up to 12 fresh ones of the cells that verdict";
    assert!(text.replace("\n", " ").contains(rounds), "{text}");
}

#[test]
fn finalists_are_whom_the_verdict_names() {
    let record = disk(8);
    let ranking = Ranking::new(&record, &record.profiles[0]);
    let names = |cells: &[&Cell]| {
        let name = |cell: &&Cell| format!("{}/{}", cell.strategy, cell.depth);
        cells.iter().map(name).collect::<Vec<_>>()
    };
    let finalists = ranking.finalists();
    let expected = ["uring-tuned/32", "uring/64", "inflight/32", "pread/1"];
    assert_eq!(names(&finalists), expected);
    assert!(finalists.len() <= MOST_FINALISTS);
    let mut alone = empty(8);
    alone.cells.push(cell("pread", 1, 100_000, 1_000, 8));
    assert!(
        Ranking::new(&alone, &alone.profiles[0])
            .finalists()
            .is_empty()
    );
}

/// Fresh rounds put another ring in front, and threads, which are simpler and were left out of
/// them, were as fast as that one in the rounds of all cells.
fn overtaken() -> Record {
    let mut record = empty(8);
    for (strategy, depth, iops) in [
        ("pread", 1, 12_900),
        ("threads", 16, 578_000),
        ("uring", 32, 580_000),
        ("uring-tuned", 32, 606_000),
    ] {
        record.cells.push(cell(strategy, depth, iops, 1_000, 8));
    }
    confirm(&mut record, "uring-tuned", 32, 550_000, 8);
    confirm(&mut record, "uring", 32, 580_000, 8);
    record
}

#[test]
fn who_is_recommended_and_who_is_fastest_are_compared_by_fresh_rounds_of_both() {
    let asked = |record: &Record| {
        let ranking = Ranking::new(record, &record.profiles[0]);
        let cells = ranking.unconfirmed().into_iter();
        cells.map(|cell| cell.strategy.clone()).collect::<Vec<_>>()
    };
    let mut record = overtaken();
    assert_eq!(asked(&record), ["uring", "threads"]);
    let missing = "fresh rounds of the two together are missing.";
    assert!(sure(&record).contains(missing), "{}", sure(&record));
    let verdict = verdicts(&record).remove(0);
    assert_eq!(verdict.pick.unwrap(), "direct-random-read/threads/16");
    assert!(!verdict.settled);
    confirm(&mut record, "threads", 16, 578_000, 8);
    assert!(asked(&record).is_empty());
    assert!(verdicts(&record).remove(0).settled);
    let sure = sure(&record);
    assert!(
        !sure.contains(missing) && sure.contains("confirmed on fresh rounds"),
        "{sure}"
    );
}

#[test]
fn who_is_not_told_apart_from_the_fastest_is_held_against_it_by_fresh_rounds_too() {
    let mut record = overtaken();
    let rounds = find(&mut record, "threads", 16).rounds.iter_mut();
    for (at, round) in rounds.enumerate() {
        round.ops = round.ops * [95, 104][at % 2] / 100;
    }
    let said = sure(&record);
    assert!(said.starts_with("Not sure."), "{said}");
    assert!(
        said.ends_with("fresh rounds of the two together are missing."),
        "{said}"
    );
    let ranking = Ranking::new(&record, &record.profiles[0]);
    assert_eq!(ranking.unconfirmed().len(), 2);
    assert!(ranking.open().is_empty(), "more of those cannot tell");
}

#[test]
fn whoever_beats_the_fastest_on_fresh_rounds_of_the_two_leads() {
    let mut record = overtaken();
    // Later, and without the ring that is out of the race: with that one they share none.
    for (strategy, depth, iops) in [("uring", 32, 500_000), ("threads", 16, 600_000)] {
        confirm(&mut record, strategy, depth, iops, 8);
    }
    let fresh = find(&mut record, "threads", 16).rounds.iter_mut();
    for round in fresh.filter(|round| round.confirms) {
        round.block += 8;
    }
    assert_eq!(order(&record)[0], ("threads", 16));
    let verdict = verdicts(&record).remove(0);
    assert_eq!(verdict.pick.unwrap(), "direct-random-read/threads/16");
    assert!(verdict.settled);
}

#[test]
fn rounds_are_asked_for_only_where_they_may_tell() {
    let is_open = |record: &Record| !Ranking::new(record, &record.profiles[0]).open().is_empty();
    assert!(!is_open(&lucky(0)), "nothing was confirmed yet");
    assert!(!is_open(&lucky(8)), "there is no difference");
    let mut record = lucky(8);
    for (at, round) in record.cells[1].rounds.iter_mut().enumerate() {
        // Now 8 % faster, now 4 % slower.
        round.ops = round.ops * [108, 96][at % 2] / 100;
    }
    assert!(is_open(&record));
}

/// Two cells with fresh rounds by turns, of which the first takes so many picoseconds, and which
/// one is disturbed in how many of a hundred.
fn by_turns(op_ps: [u64; 2], disturbed: u64) -> Record {
    let mut record = lucky(8);
    for (cell, op_ps) in record.cells.iter_mut().zip(op_ps) {
        let own = u64::from(cell.depth);
        let one = |at: u64| match (at * 7 + own * 3) % 100 < disturbed {
            true => op_ps * (2 + at % 5),
            false => op_ps + (at * 13 + own) % 50,
        };
        cell.turns = (8..16)
            .map(|block| Turns {
                block,
                op_ps: (0..38).map(|at| one(u64::from(block) * 38 + at)).collect(),
            })
            .collect();
    }
    record
}

#[test]
fn turns_tell_what_rounds_do_not_however_many_are_disturbed() {
    let word = |record: &Record| compare(&record.cells[1], &record.cells[0]).unwrap().word();
    // Fresh rounds call them equal; the turns know better.
    let record = by_turns([10_000, 9_500], 30);
    assert_eq!(word(&record), Word::ClearlyFaster);
    assert_eq!(
        compare(&record.cells[1], &record.cells[0]).unwrap().n,
        8 * 38
    );
    let pick = verdicts(&record).remove(0).pick;
    assert_eq!(pick.as_deref(), Some("direct-random-read/uring/32"));
    assert!(sure(&record).contains("98."), "{}", sure(&record));
    assert_eq!(
        word(&by_turns([10_000, 10_000], 30)),
        Word::NoRealDifference
    );
    assert_eq!(word(&by_turns([10_000, 10_500], 30)), Word::ClearlySlower);
}

#[test]
fn turns_that_can_not_tell_are_added_to() {
    let is_open = |record: &Record| !Ranking::new(record, &record.profiles[0]).open().is_empty();
    assert!(is_open(&by_turns([10_000, 9_709], 30)));
    assert!(!is_open(&by_turns([10_000, 9_500], 30)));
    assert!(!is_open(&by_turns([10_000, 10_000], 30)));
}

#[test]
fn who_is_beaten_by_turns_does_not_lead() {
    let mut record = by_turns([10_000, 9_500], 30);
    // Without the medians of turns, rates alone would put it first.
    for round in &mut record.cells[0].rounds {
        round.ops *= 2;
    }
    let ranking = Ranking::new(&record, &record.profiles[0]);
    assert_eq!(ranking.ranked[0].strategy, "uring");
}
