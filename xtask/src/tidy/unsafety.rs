//! Where `unsafe` is allowed, and the list of those places, say the same.
//!
//! The list is in the section of ARCHITECTURE.md whose heading names `unsafe`: the paths in the
//! items and table rows there, in backquotes and from the root of the repository. Paths in its
//! running text are not part of the list.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use super::Violation;
use super::tree::Tree;

const PAGE: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let allowed: Vec<(&str, usize)> = tree
        .rust()
        .filter_map(|source| Some((source.path.as_str(), allowance(source.syntax()?)?)))
        .collect();
    let listed = tree
        .page(PAGE)
        .map_or_else(Vec::new, |page| listed(&page.text));

    let not_listed = allowed
        .iter()
        .filter(|(path, _)| !listed.iter().any(|(entry, _)| entry == path))
        .map(|(path, line)| {
            let remedy =
                format!("add `{path}` to the section on unsafe of {PAGE}, or do without unsafe");
            Violation::new(path, *line, remedy)
        });
    let not_allowed = listed
        .iter()
        .filter(|(entry, _)| !allowed.iter().any(|(path, _)| path == entry))
        .map(|(entry, line)| {
            let remedy = format!("`{entry}` has no `allow(unsafe_code)`: take it off the list");
            Violation::new(PAGE, *line, remedy)
        });
    not_listed.chain(not_allowed).collect()
}

/// The line of the first attribute that allows unsafe code.
fn allowance(syntax: &syn::File) -> Option<usize> {
    #[derive(Default)]
    struct Attributes(Option<usize>);

    impl<'ast> Visit<'ast> for Attributes {
        fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
            if self.0.is_none() && allows_unsafe(&attribute.meta) {
                self.0 = Some(attribute.pound_token.span.start().line);
            }
        }
    }

    let mut attributes = Attributes::default();
    attributes.visit_file(syntax);
    attributes.0
}

/// `allow(..)`, `warn(..)` and `expect(..)` with this lint, also inside `cfg_attr`: each is weaker
/// than the workspace's `deny`.
fn allows_unsafe(meta: &syn::Meta) -> bool {
    let syn::Meta::List(list) = meta else {
        return false;
    };
    let weaker = ["allow", "cfg_attr", "expect", "warn"];
    weaker.iter().any(|name| list.path.is_ident(name)) && mentions(list.tokens.clone())
}

fn mentions(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "unsafe_code",
        TokenTree::Group(group) => mentions(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// The Rust files in the list, with their lines.
fn listed(page: &str) -> Vec<(&str, usize)> {
    let mut entries = Vec::new();
    // The level of the heading that opened the section; a heading of the same level closes it.
    let mut section = None;
    for (line, number) in page.lines().zip(1..) {
        if let Some((level, title)) = heading(line) {
            if section.is_none_or(|open| level <= open) {
                section = title.to_lowercase().contains("unsafe").then_some(level);
            }
        } else if section.is_some() && line.trim_start().starts_with(['-', '*', '|']) {
            let quoted = line.split('`').skip(1).step_by(2);
            entries.extend(
                quoted
                    .filter(|path| path.ends_with(".rs"))
                    .map(|path| (path, number)),
            );
        }
    }
    entries
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    (level > 0 && title.starts_with(' ')).then_some((level, title))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "crates/inflight/src/buf/aligned.rs";

    fn found(code: &str, page: &str) -> Vec<(String, usize)> {
        let violations = check(&Tree::of(&[(FILE, code), (PAGE, page)]));
        violations
            .into_iter()
            .map(|violation| (violation.path, violation.line))
            .collect()
    }

    fn page(entry: &str) -> String {
        format!("# Map\n- `a.rs`\n## 7. Where `unsafe` is\n\n{entry}\n\n## 8. Rest\n- `b.rs`\n")
    }

    #[test]
    fn a_file_with_unsafe_must_be_listed() {
        let code = "//! Doc.\n#![allow(unsafe_code)]\n";
        assert_eq!(found(code, &page("- nothing")), [(FILE.to_owned(), 2)]);
        assert!(found(code, &page(&format!("- `{FILE}`: why"))).is_empty());
        assert!(found(code, &page(&format!("| `{FILE}` | why |"))).is_empty());
    }

    #[test]
    fn a_missing_page_lists_nothing() {
        let tree = Tree::of(&[(FILE, "#![allow(unsafe_code)]\n")]);
        assert_eq!(check(&tree).len(), 1);
    }

    #[test]
    fn every_form_of_the_attribute_counts() {
        for code in [
            "#![allow(\n    clippy::all,\n    unsafe_code,\n)]\n",
            "mod a {\n    #[expect(unsafe_code)]\n    fn f() {}\n}\n",
            "#![cfg_attr(test, allow(unsafe_code))]\n",
            "#![warn(unsafe_code)]\n",
        ] {
            assert_eq!(found(code, &page("")).len(), 1, "{code}");
        }
        for code in [
            "#![deny(unsafe_code)]\n",
            "// #![allow(unsafe_code)]\n",
            "//! unsafe_code\n",
        ] {
            assert!(found(code, &page("")).is_empty(), "{code}");
        }
    }

    #[test]
    fn a_listed_file_must_have_unsafe() {
        let entry = format!("- `{FILE}`");
        assert_eq!(found("fn f() {}\n", &page(&entry)), [(PAGE.to_owned(), 5)]);
        assert_eq!(
            found("fn f() {}\n", &page(&format!("`{FILE}` needs none."))),
            []
        );
    }
}
