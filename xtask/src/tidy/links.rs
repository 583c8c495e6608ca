//! Pages that another page sends its reader to: each is there, and the index of the records names
//! every record.

use super::Violation;
use super::tree::{Source, Tree};

/// Where the records are, each in a folder of its own, and their index.
const RECORDS: &str = "docs/measurements";
const INDEX: &str = "docs/measurements/README.md";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let dead = tree.pages().flat_map(|page| dead_links(tree, page));
    let unlisted = unlisted(tree).map(|record| {
        let remedy = format!("no line for `{record}`: say what was measured there");
        Violation::new(INDEX, 1, remedy)
    });
    dead.chain(unlisted).collect()
}

fn dead_links<'t>(tree: &'t Tree, page: &'t Source) -> impl Iterator<Item = Violation> + 't {
    let lines = page.text.lines().zip(1..);
    lines.flat_map(move |(line, number)| {
        let dead = targets(line).filter(|target| {
            let path = resolved(&page.path, target);
            path.is_none_or(|path| tree.page(&path).is_none())
        });
        dead.map(move |target| {
            let remedy = format!("there is no page `{target}`: link the one that is meant");
            Violation::new(&page.path, number, remedy)
        })
    })
}

/// The pages of this repository that a line has links to, without the place in them.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1);
    let ends = links.filter_map(|rest| rest.split([')', '#']).next());
    ends.filter(|target| target.ends_with(".md") && !target.contains("://"))
}

/// The path of a link's target, from the root; `None` if it leaves the repository.
fn resolved(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Records that the index has no link to.
fn unlisted(tree: &Tree) -> impl Iterator<Item = &str> {
    let index = tree.page(INDEX).map_or("", |page| page.text.as_str());
    let records = tree.pages().filter_map(|page| {
        let record = page.path.strip_prefix(RECORDS)?.strip_prefix('/')?;
        (page.path != INDEX).then_some(record)
    });
    records.filter(|record| !index.contains(&format!("]({record})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "docs/measurements/2026-01-01-a/README.md";

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = check(&Tree::of(files)).into_iter();
        found.map(|found| (found.path, found.line)).collect()
    }

    #[test]
    fn a_page_that_is_linked_must_be_there() {
        let page = "# A\n[b](../b.md#c), [c](c.md) [d](https://e.org/f.md) [g](g.rs) [h](#i)\n";
        let b = ("docs/b.md", "");
        let missing = [("docs/design/a.md".to_owned(), 2)];
        let (a, c) = (("docs/design/a.md", page), ("docs/design/c.md", ""));
        assert_eq!(found(&[a, b]), missing);
        assert_eq!(found(&[a, b, c]), []);
        assert_eq!(found(&[a, c]), missing);
        let outside = [("a.md", "[b](../b.md)")];
        assert_eq!(found(&outside), [("a.md".to_owned(), 1)]);
    }

    #[test]
    fn every_record_is_in_the_index() {
        let record = (RECORD, "");
        let line = "- [a](2026-01-01-a/README.md)";
        assert_eq!(found(&[record, (INDEX, line)]), []);
        assert_eq!(found(&[record, (INDEX, "")]), [(INDEX.to_owned(), 1)]);
        assert_eq!(found(&[record]), [(INDEX.to_owned(), 1)]);
    }
}
