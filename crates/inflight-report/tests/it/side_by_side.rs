//! The rows of a published comparison, one beside the other.

use inflight_report::record::{Access, DeviceWork, ProfileSummary, Record, Sync};
use inflight_report::text::{Style, screen};
use inflight_report::{html, markdown};

use crate::builder::{cell, empty};

/// A row: its name, what is asked for, and the bytes of one request of the device.
pub(crate) fn row(name: &str, access: Access) -> ProfileSummary {
    ProfileSummary {
        name: name.to_owned(),
        block_size_bytes: 4096,
        access,
        cold: true,
        batched: true,
        sync: match access.writes() {
            true => Sync::End,
            false => Sync::None,
        },
        ..ProfileSummary::default()
    }
}

/// A record of one such profile: plain calls, and rings at these depths with these rates.
pub(crate) fn study(profile: ProfileSummary, plain: u64, rings: &[(u32, u64)]) -> Record {
    let mut record = empty(8);
    let mut cells = vec![cell("pread", 1, plain, 2_000, 8)];
    let ring = |(depth, rate): &(u32, u64)| cell("uring", *depth, *rate, 2_100, 8);
    cells.extend(rings.iter().map(ring));
    for cell in &mut cells {
        cell.id = format!("{}/{}/{}", profile.name, cell.strategy, cell.depth);
        cell.profile.clone_from(&profile.name);
    }
    record.profiles = vec![profile];
    record.cells = cells;
    asked(&mut record, 4096);
    record
}

/// Makes each request of the device so large.
pub(crate) fn asked(record: &mut Record, bytes: u64) {
    let rounds = record.cells.iter_mut().flat_map(|cell| &mut cell.rounds);
    for round in rounds {
        let work = round.bytes / bytes;
        round.device = Some(DeviceWork {
            reads: work,
            read_bytes: work * bytes,
            writes: work,
            written_bytes: work * bytes,
            flushes: None,
        });
        round.device_bytes = Some(round.bytes);
        round.worker_ns = Some(0);
    }
}

fn told(record: &Record) -> String {
    let style = Style {
        width: 120,
        colour: false,
    };
    let text = screen(record, style);
    let at = text.find(" Plain calls and io_uring").unwrap_or(text.len());
    let end = text[at..]
        .find(" depth: ")
        .map_or(text.len(), |end| at + end);
    text[at..end].to_owned()
}

fn folded(record: &Record) -> String {
    told(record)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn only_blocks_in_batches_through_an_empty_cache_have_a_row() {
    let rings = [(1, 10_000), (5, 20_000)];
    let record = |profile| study(profile, 10_000, &rings);
    let reads = row("buffered-random-read-4k", Access::RandomRead);
    assert!(told(&record(reads.clone())).contains("buffered-random-read-4k"));
    let direct = ProfileSummary {
        direct: true,
        cold: false,
        ..reads.clone()
    };
    let warm = ProfileSummary {
        cold: false,
        cached: true,
        ..reads.clone()
    };
    let single = ProfileSummary {
        batched: false,
        ..reads.clone()
    };
    let ranges = row("cold-range-read", Access::RangeRead);
    for other in [direct, warm, single, ranges] {
        assert_eq!(told(&record(other.clone())), "", "{other:?}");
    }
}

#[test]
fn sentences_follow_from_the_ratios_of_their_own_row() {
    let sequential = row("buffered-sequential-read-4k", Access::SequentialRead);
    let mut record = study(
        sequential,
        482_000,
        &[(1, 241_000), (5, 480_000), (32, 630_000)],
    );
    asked(&mut record, 131_072);
    let text = folded(&record);
    for words in [
        "477 k 0.50x / 1x 1.00x / 1x 1.31x / – 1.00 / 1.00 / 0.20 / 0.03",
        "buffered-sequential-read-4k: The kernel reads ahead: the device was asked for 128 KiB",
        "Faster than plain calls: in batches of 32 (1.31x); a read takes down to 0.03 system \
         calls instead of 1.00.",
        "Slower than plain calls: with one entry (0.50x).",
        "No real difference from plain calls: in batches of 5 (1.00x).",
    ] {
        assert!(text.contains(words), "{words:?} is missing:\n{text}");
    }
    assert!(!text.contains("hardly matters"), "{text}");
    for cell in record.cells.iter_mut().filter(|cell| cell.depth == 1) {
        for round in cell.rounds.iter_mut().filter(|_| cell.strategy == "uring") {
            round.sys_ns *= 4;
        }
    }
    let dear = "with one entry (0.50x); a read takes up to 6.83 µs of processor time instead of \
                2.00 µs.";
    assert!(folded(&record).contains(dear), "{}", folded(&record));
}

#[test]
fn reasons_are_what_was_counted() {
    let random = row("buffered-random-read-4k", Access::RandomRead);
    let mut record = study(random, 9_300, &[(5, 42_400)]);
    let text = folded(&record);
    let single = "Each read is a request of its own (4.00 KiB). Faster than plain calls: in \
                  batches of 5 (4.6x); the device has the whole batch to work on.";
    assert!(text.contains(single), "{text}");
    asked(&mut record, 8192);
    let text = folded(&record);
    assert!(
        text.contains("The device was asked for 8.00 KiB at a time."),
        "{text}"
    );
    assert!(
        text.contains("takes down to 0.20 system calls instead of 1.00"),
        "{text}"
    );

    let writes = row("buffered-random-write-4k", Access::RandomWrite);
    let mut record = study(writes, 94_000, &[(1, 31_000)]);
    asked(&mut record, 524_288);
    for round in &mut record.cells[1].rounds {
        round.worker_ns = Some((round.user_ns + round.sys_ns) * 56 / 100);
    }
    let text = folded(&record);
    assert!(
        text.contains("the device took them merged into 512 KiB"),
        "{text}"
    );
    assert!(
        text.contains("kernel workers had up to 56% of the ring's"),
        "{text}"
    );
}

#[test]
fn too_few_rounds_are_no_reason_for_anything() {
    let sequential = row("buffered-sequential-read-4k", Access::SequentialRead);
    let mut record = study(sequential, 482_000, &[(1, 241_000)]);
    record
        .cells
        .iter_mut()
        .for_each(|cell| cell.rounds.truncate(2));
    let text = folded(&record);
    assert!(
        text.contains("Not told apart from plain calls yet: with one entry"),
        "{text}"
    );
    assert!(!text.contains("Slower"), "{text}");
}

#[test]
fn figures_that_do_not_count_are_marked_and_nothing_follows_from_them() {
    let random = row("buffered-random-read-4k", Access::RandomRead);
    let mut record = study(random, 9_300, &[(1, 9_200), (5, 42_400)]);
    assert!(!folded(&record).contains("x*"));
    for round in &mut record.cells[2].rounds {
        round.device_bytes = Some(0);
    }
    let text = folded(&record);
    assert!(
        text.contains("9.20 k 0.99x / – 4.6x* / 4.6x 1.00"),
        "{text}"
    );
    assert!(!text.contains("in batches of 5 ("), "{text}");
    for round in &mut record.cells[0].rounds {
        round.device_bytes = Some(0);
    }
    let text = folded(&record);
    assert!(
        text.contains("Plain calls are not ranked, so nothing"),
        "{text}"
    );
    assert!(text.contains("9.20 k* 0.99x* / – 4.6x* / 4.6x"), "{text}");
}

#[test]
fn each_row_has_a_name_of_its_own() {
    let (random, sequential) = (
        row("buffered-random-read-4k", Access::RandomRead),
        row("buffered-sequential-read-4k", Access::SequentialRead),
    );
    let mut record = study(random, 9_300, &[(1, 9_200)]);
    let other = study(sequential, 482_000, &[(1, 480_000)]);
    record.profiles.extend(other.profiles);
    record.cells.extend(other.cells);
    let text = told(&record);
    let said = text.lines().filter(|line| line.contains("-4k: "));
    let mut names: Vec<&str> = said.filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(names.len(), 2, "{text}");
    names.dedup();
    assert_eq!(names.len(), 2, "{text}");
}

#[test]
fn the_whole_table_fits_where_a_pipe_is_as_wide() {
    let name = "buffered-sequential-write-4k";
    let rings = [(1, 93_100), (5, 93_900), (32, 94_200)];
    let mut record = study(row(name, Access::SequentialWrite), 94_000, &rings);
    record
        .cells
        .iter_mut()
        .for_each(|cell| cell.rounds.truncate(2));
    let text = told(&record);
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest.unwrap() <= 120, "{text}");
    assert!(text.contains("0.99x? / 0.71x"), "{text}");
}

#[test]
fn markdown_and_the_page_have_the_table_too() {
    let random = row("buffered-random-read-4k", Access::RandomRead);
    let record = study(random, 9_300, &[(5, 42_400)]);
    let text = markdown::record(&record);
    assert!(
        text.contains("| buffered-random-read-4k | 9.20 k | 4.6x / 4.6x | 1.00 / 0.20 |"),
        "{text}"
    );
    assert!(
        text.contains("- **buffered-random-read-4k**: Each read is a request"),
        "{text}"
    );
    let page = html::page(&record);
    assert!(page.contains("<a href=\"#beside\">"));
    assert!(page.contains("<td>4.6x / 4.6x</td>"));
    assert!(page.contains("<b>buffered-random-read-4k</b>: Each read is a request of its own"));
    let page = html::page(&empty(8));
    assert!(!page.contains("#beside"), "a link to nothing");
}
