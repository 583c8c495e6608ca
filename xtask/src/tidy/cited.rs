//! Tests that a page names as its evidence: each is there, under that name.

use super::Violation;
use super::tree::Tree;

/// The pages that rest on tests.
const PAGES: [&str; 1] = ["docs/pitfalls.md"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let pages = PAGES.into_iter().filter_map(|page| tree.page(page));
    let lines = pages.flat_map(|page| page.text.lines().zip(1..).map(move |line| (page, line)));
    let missing = lines.flat_map(|(page, (line, number))| {
        let unknown = names(line).filter(|name| !is_defined(tree, name));
        unknown.map(move |name| {
            let remedy = format!("there is no test `{name}`: name the one that shows this");
            Violation::new(&page.path, number, remedy)
        })
    });
    missing.collect()
}

/// Names of tests in a line: sentences in backticks, their words joined.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    quoted.filter(move |name| {
        let words: Vec<&str> = name.split('_').collect();
        words.len() > 2
            && words
                .iter()
                .all(|word| !word.is_empty() && word.chars().all(is_plain))
    })
}

fn is_defined(tree: &Tree, name: &str) -> bool {
    let definition = format!("fn {name}(");
    tree.rust().any(|source| source.text.contains(&definition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_named_must_be_there() {
        let source = ("crates/a/tests/it/b.rs", "#[test]\nfn it_is_so() {}\n");
        let page = "| a | `b.rs`: `it_is_so`, `--max-time` | `read_many`\n| `it_was_so` |";
        let found = check(&Tree::of(&[source, (PAGES[0], page)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 2);
        assert!(found[0].remedy.contains("it_was_so"));
    }
}
