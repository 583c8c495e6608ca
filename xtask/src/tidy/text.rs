//! Rules that the text of a file shows: its length, its lines, its notes to self.

use super::Violation;
use super::tree::{Source, Tree};

const RUST_LINES: usize = 600;
const COLUMNS: usize = 100;

/// The pages that must be there, and the most lines of each.
const PAGE_LINES: [(&str, usize); 3] = [
    ("README.md", 150),
    ("ARCHITECTURE.md", 250),
    ("CONTRIBUTING.md", 100),
];

/// The note that needs an issue; written in two parts so that tidy does not find it here.
const NOTE: &str = concat!("TO", "DO");

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in tree.rust() {
        violations.extend(too_many_lines(
            source,
            RUST_LINES,
            "split it along the flow",
        ));
        violations.extend(long_lines(source));
    }
    for (page, budget) in PAGE_LINES {
        match tree.page(page) {
            Some(source) => {
                let remedy = "keep the page short: move detail to docs/";
                violations.extend(too_many_lines(source, budget, remedy));
            }
            None => violations.push(Violation::new(page, 1, "missing: write this page")),
        }
    }
    violations.extend(tree.all().flat_map(notes_without_issue));
    violations
}

fn too_many_lines(source: &Source, budget: usize, remedy: &str) -> Option<Violation> {
    let lines = source.text.lines().count();
    let what = || format!("{lines} lines, {budget} at most: {remedy}");
    (lines > budget).then(|| Violation::new(&source.path, budget + 1, what()))
}

/// A line with a URL may be long: it cannot be broken.
fn long_lines(source: &Source) -> impl Iterator<Item = Violation> {
    let lines = source.text.lines().zip(1..);
    lines
        .filter(|(line, _)| !line.contains("://"))
        .filter_map(|(line, number)| {
            let columns = line.chars().count();
            let what = || format!("{columns} columns, {COLUMNS} at most: break the line");
            (columns > COLUMNS).then(|| Violation::new(&source.path, number, what()))
        })
}

fn notes_without_issue(source: &Source) -> impl Iterator<Item = Violation> {
    let lines = source.text.lines().zip(1..);
    lines
        .filter(|(line, _)| has_note_without_issue(line))
        .map(|(_, number)| {
            let remedy = format!("name the issue, as in `{NOTE}(#12)`, or do it now");
            Violation::new(&source.path, number, remedy)
        })
}

fn has_note_without_issue(line: &str) -> bool {
    line.match_indices(NOTE).any(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + NOTE.len()..]);
        let is_part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let is_word =
            !is_part_of_word(before.chars().next_back()) && !is_part_of_word(after.chars().next());
        is_word && !starts_with_issue(after)
    })
}

fn starts_with_issue(text: &str) -> bool {
    let number = text
        .strip_prefix("(#")
        .and_then(|rest| rest.split_once(')'));
    number.is_some_and(|(number, _)| {
        !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The violations of `text` as a Rust file, as (line, remedy).
    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let pages = [
            ("README.md", ""),
            ("ARCHITECTURE.md", ""),
            ("CONTRIBUTING.md", ""),
        ];
        let files: Vec<_> = pages
            .into_iter()
            .filter(|(page, _)| *page != path)
            .chain([(path, text)])
            .collect();
        let violations = check(&Tree::of(&files));
        violations
            .into_iter()
            .map(|violation| (violation.line, violation.remedy))
            .collect()
    }

    #[test]
    fn a_long_file_is_refused() {
        assert!(found("crates/a/src/lib.rs", &"\n".repeat(600)).is_empty());
        let violations = found("crates/a/src/lib.rs", &"\n".repeat(601));
        assert_eq!(violations[0].0, 601);
        assert!(violations[0].1.contains("split it"));
    }

    #[test]
    fn a_long_line_is_refused() {
        let line = |columns: usize| format!("\n// {}", "ä".repeat(columns - 3));
        assert!(found("crates/a/benches/b.rs", &line(100)).is_empty());
        assert_eq!(found("crates/a/benches/b.rs", &line(101))[0].0, 2);
    }

    #[test]
    fn a_long_line_with_a_url_is_accepted() {
        let line = format!("// https://example.org/{}", "a".repeat(100));
        assert!(found("crates/a/src/lib.rs", &line).is_empty());
    }

    #[test]
    fn a_note_needs_an_issue() {
        for note in ["// T: later", "// T (#1)", "// T(#)", "// T(#x)", "/* T */"] {
            let text = note.replace('T', NOTE);
            assert_eq!(found("xtask/src/a.rs", &text).len(), 1, "{text}");
        }
        for note in ["// T(#12): later", "// NO_T", "// TS", "const TS: u8 = 0;"] {
            let text = note.replace('T', NOTE);
            assert!(found("xtask/src/a.rs", &text).is_empty(), "{text}");
        }
    }

    #[test]
    fn pages_have_budgets() {
        for (page, budget) in PAGE_LINES {
            assert!(found(page, &"\n".repeat(budget)).is_empty());
            assert_eq!(found(page, &"\n".repeat(budget + 1))[0].0, budget + 1);
        }
    }

    #[test]
    fn a_missing_page_is_refused() {
        let violations = check(&Tree::of(&[]));
        assert_eq!(violations.len(), PAGE_LINES.len());
        assert!(violations[0].remedy.contains("missing"));
    }
}
