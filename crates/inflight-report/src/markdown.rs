//! Tables for pull requests and pages: the figures of the screen, as Markdown, and with them all
//! that the screen says against figures.

use crate::compare::Comparison;
use crate::compare::limit::{Checked, Held, Limit};
use crate::noun;
use crate::open;
use crate::ranking::Ranking;
use crate::record::{ProfileSummary, Record};
use crate::text::grid::Column;
use crate::text::is_unseen;
use crate::text::notes::{Note, notes};
use crate::text::side_by_side::{SideBySide, TITLE, side_by_side};
use crate::text::{compare, findings, legend, open as table_of_open_loop, picked, rounds, table};
use crate::units::bytes;
use crate::verdict::verdict;

/// Marks a row whose figures do not count, as there is no red.
const MARK: &str = "✗";

/// The whole record: where it was measured, a table of each profile with what there is to say
/// against it and its verdict, what the columns mean, and what was found.
#[must_use]
pub fn record(record: &Record) -> String {
    let (machine, target) = (&record.machine, &record.target);
    let device = target.stack.first().map(|device| device.name.as_str());
    let mut text = format!(
        "{} on {}, {} of test data, {}, {} CPUs, Linux {}, inflight {}, {}\n",
        escaped(&target.fs),
        escaped(device.unwrap_or("no device")),
        bytes(target.size_bytes as f64),
        rounds(record),
        machine.cpus,
        escaped(&machine.kernel),
        escaped(&record.tool.version),
        escaped(&record.started_utc)
    );
    let mut rankings = Vec::new();
    for profile in &record.profiles {
        text += &open_loop(record, profile);
        if open::is_only(record, profile) {
            continue;
        }
        let ranking = Ranking::new(record, profile);
        text += &heading(profile);
        text += &marked_table(&ranking);
        text += "\n";
        text += &items(&notes(&ranking));
        for line in verdict(record, &ranking).lines {
            text += &format!("- **{}**: {}\n", line.label, escaped(&line.text));
        }
        rankings.push(ranking);
    }
    text += &side_by_side(&rankings).map_or_else(String::new, |table| beside(&table));
    if !rankings.is_empty() {
        text += &legend_of(record, &rankings);
    }
    match items(&findings(record)) {
        none if none.is_empty() => {}
        items => text += &format!("\n{items}"),
    }
    text
}

/// The table of a profile, with a mark at each row that does not count.
fn marked_table(ranking: &Ranking<'_>) -> String {
    let titles = table::titles(ranking.profile);
    let mut rows = table::texts(ranking);
    if rows.is_empty() {
        return format!("{}\n", table::NO_FIGURES);
    }
    for (row, is_out) in rows.iter_mut().zip(table::does_not_count(ranking)) {
        if is_out {
            row[0] = format!("{MARK} {}", row[0].trim());
        }
    }
    table_of(&table::columns(&titles), &rows)
}

/// What the marks, the columns and the names mean.
fn legend_of(record: &Record, rankings: &[Ranking<'_>]) -> String {
    let mut marks = picked(rankings).unwrap_or_default().to_owned();
    if rankings.iter().any(|ranking| !ranking.out.is_empty()) {
        marks += &format!("{MARK} does not count: why is said below the table. ");
    }
    match legend(record).join(" ") {
        none if none.is_empty() => String::new(),
        told => format!("\n{}\n", escaped(&(marks + &told))),
    }
}

/// Statements as a list.
fn items(notes: &[Note]) -> String {
    let one = |(label, said, _): &Note| format!("- **{label}**: {}\n", escaped(said.trim()));
    notes.iter().map(one).collect()
}

/// Plain calls and a ring beside each other, as a published comparison has them.
fn beside(table: &SideBySide) -> String {
    let columns: Vec<Column<'_>> = table
        .columns
        .iter()
        .map(|(title, right)| (title.as_str(), *right))
        .collect();
    let mut text = format!("\n### {TITLE}\n\n");
    text += &table_of(&columns, &table.rows);
    text += &format!("\n{}\n\n", escaped(&table.legend));
    for (name, said) in &table.said {
        text += &format!("- **{}**: {}\n", escaped(name), escaped(said));
    }
    text
}

/// The table of the open loop, with what there is to say about it; empty where there is none.
fn open_loop(record: &Record, profile: &ProfileSummary) -> String {
    let cells = open::cells(record, profile);
    if cells.is_empty() {
        return String::new();
    }
    let titles = table_of_open_loop::titles(profile);
    let columns: Vec<Column<'_>> = titles
        .iter()
        .map(|(title, right)| (title.as_str(), *right))
        .collect();
    let mut text = heading(profile);
    text += &format!("{}\n\n", table_of_open_loop::TITLE);
    let rows = table_of_open_loop::texts(profile, &cells);
    text += &match rows.is_empty() {
        true => format!("{}\n", table_of_open_loop::NO_FIGURES),
        false => table_of(&columns, &rows),
    };
    text += "\n";
    text + &items(&table_of_open_loop::notes(record, profile, &cells))
}

/// A comparison; a regression is a cell clearly slower by at least `threshold`.
#[must_use]
pub fn comparison(compared: &Comparison<'_>, threshold: f64) -> String {
    let paragraphs = |said: Vec<(String, bool)>| {
        let one = |(text, good): &(String, bool)| match good {
            true => format!("{}\n\n", escaped(text)),
            false => format!("**{}**\n\n", escaped(text)),
        };
        said.iter().map(one).collect::<String>()
    };
    let mut text = paragraphs(compare::standing(compared));
    for profile in &compared.new.profiles {
        let of_profile = compared.rows.iter();
        let of_profile = of_profile.filter(|row| row.new.profile == profile.name);
        let rows: Vec<Vec<String>> = of_profile
            .map(|row| compare::texts(row, profile.access, threshold).to_vec())
            .collect();
        if !rows.is_empty() {
            text += &heading(profile);
            text += &table_of(&compare::COLUMNS, &rows);
            text += "\n";
        }
    }
    for (cell, why) in &compared.left_out {
        text += &format!("- not told: {}: {}\n", escaped(&cell.id), escaped(why));
    }
    text += if compared.left_out.is_empty() {
        ""
    } else {
        "\n"
    };
    text += &paragraphs(compare::conclusions(compared, threshold));
    text
}

/// What became of limits.
#[must_use]
pub fn limits(all: &[(&Limit, Held<'_>)]) -> String {
    let mut text = String::new();
    for (limit, held) in all {
        let limit = escaped(&limit.text);
        let failed = held.checked.iter().filter(|cell| !cell.kept);
        for Checked { cell, figure, .. } in failed {
            let (cell, figure) = (escaped(&cell.id), escaped(figure));
            text += &format!("- **not kept**: {limit}: {cell}: {figure}\n");
        }
        if held.is_kept() {
            text += &format!("- {limit}: {}\n", compare::kept_by(held));
        }
    }
    for (cells, why) in compare::left_out(all) {
        let ids: Vec<String> = cells.iter().map(|cell| escaped(&cell.id)).collect();
        let (count, ids, why) = (cells.len(), ids.join(", "), escaped(&why));
        text += &format!("- left out: {count} without a round: {ids}: {why}\n");
    }
    text
}

fn heading(profile: &ProfileSummary) -> String {
    format!("\n### {}\n\n", escaped(&noun::heading(profile)))
}

/// A table; a title that is empty belongs to the column before it.
fn table_of(columns: &[Column], rows: &[Vec<String>]) -> String {
    let line = |fields: &[String]| format!("| {} |\n", fields.join(" | "));
    let titles: Vec<String> = columns
        .iter()
        .map(|(title, _)| title.trim().to_owned())
        .collect();
    let marks = columns
        .iter()
        .map(|(_, right)| if *right { "--:" } else { ":--" }.to_owned());
    let mut text = line(&titles) + &line(&marks.collect::<Vec<_>>());
    for row in rows {
        let fields: Vec<String> = row.iter().map(|field| escaped(field.trim())).collect();
        text += &line(&fields);
    }
    text
}

/// Nothing that comes from a record may become markup, or end a line.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if is_unseen(letter) => safe.push(' '),
            '|' | '\\' | '`' | '*' | '_' | '<' | '[' | '#' | '~' | '&' => {
                safe.extend(['\\', letter])
            }
            letter => safe.push(letter),
        }
    }
    safe
}
