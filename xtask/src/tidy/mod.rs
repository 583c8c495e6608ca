//! `cargo xtask tidy`: the house rules that rustfmt and clippy do not know.
//!
//! A [`Tree`] is read once; each rule is a function from it to violations and touches nothing else,
//! so that a test plants a violation by making a tree in memory. The rules are in [`text`] (what a
//! line shows), [`cited`] and [`links`] (what a page rests on), [`functions`], [`cancelled`] and
//! [`unsafety`] (what the syntax shows) and [`flow`] (who may import whom). What clippy can check
//! is clippy's.

mod cancelled;
mod cited;
mod flow;
mod functions;
mod links;
mod text;
mod tree;
mod unsafety;

use std::fmt;

use anyhow::{Context, Result, bail};

use tree::Tree;

/// One place where a rule is broken, and what to do about it.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Violation {
    path: String,
    line: usize,
    remedy: String,
}

impl Violation {
    fn new(path: &str, line: usize, remedy: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.remedy)
    }
}

/// Checks the repository, prints every violation, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let tree = Tree::read(crate::repository()).context("reading the repository")?;
    let violations = check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => println!("tidy: {} files in order", tree.len()),
        found => bail!("tidy: {found} violations"),
    }
    Ok(())
}

/// Every rule, in the order of path and line.
fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(tree.unparsed());
    violations.extend(text::check(tree));
    violations.extend(cited::check(tree));
    violations.extend(links::check(tree));
    violations.extend(functions::check(tree));
    violations.extend(cancelled::check(tree));
    violations.extend(unsafety::check(tree));
    violations.extend(flow::check(tree));
    violations.sort();
    violations
}

/// The lines of a text in which a rule is broken, for the tests of the rules.
#[cfg(test)]
fn lines_found(rule: fn(&Tree) -> Vec<Violation>, path: &str, text: &str) -> Vec<usize> {
    let violations = rule(&Tree::of(&[(path, text)]));
    let lines = violations.into_iter().map(|violation| violation.line);
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_can_be_read() {
        let tree = Tree::read(crate::repository()).unwrap();
        assert!(tree.rust().any(|source| source.path == "xtask/src/main.rs"));
    }

    #[test]
    fn a_file_that_does_not_parse_is_a_violation() {
        let tree = Tree::of(&[("xtask/src/a.rs", "fn main() {\n    let = 1;\n}\n")]);
        let violations = tree.unparsed().collect::<Vec<_>>();
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].line, 2);
    }

    #[test]
    fn violations_name_file_line_and_remedy() {
        let violation = Violation::new("a/b.rs", 7, "do this");
        assert_eq!(violation.to_string(), "a/b.rs:7: do this");
    }
}
