//! Who drops a future is told what becomes of the operation: every public future of the library
//! has `# Cancellation` in its documentation.
//!
//! A future is a public type that implements `Future`, and what a public function declares as
//! `impl Future`. What macros make is not seen.

use std::collections::HashMap;

use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, Ident, Lit, Meta, ReturnType, Signature, Type, TypeParamBound, Visibility,
};

use super::Violation;
use super::tree::{Source, Tree};

/// Where the library's users look.
const LIBRARY: &str = "crates/inflight/src/";

const HEADING: &str = "# Cancellation";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut futures = Futures::default();
    for source in tree.rust() {
        if source.path.starts_with(LIBRARY)
            && let Some(syntax) = source.syntax()
        {
            futures.source = Some(source);
            futures.visit_file(syntax);
        }
    }
    let Futures {
        mut violations,
        types,
        implemented,
        ..
    } = futures;
    for name in implemented {
        if let Some((path, line, false)) = types.get(&name) {
            violations.push(undocumented(path, *line, &name));
        }
    }
    violations
}

fn undocumented(path: &str, line: usize, name: &str) -> Violation {
    let remedy = format!("say under `{HEADING}` what dropping `{name}` does to its operation");
    Violation::new(path, line, remedy)
}

#[derive(Default)]
struct Futures<'a> {
    source: Option<&'a Source>,
    /// Public types: where they are, and whether they say what dropping them does.
    types: HashMap<String, (&'a str, usize, bool)>,
    /// Names of types that are futures.
    implemented: Vec<String>,
    violations: Vec<Violation>,
}

impl<'a> Futures<'a> {
    fn path(&self) -> &'a str {
        self.source.map_or("", |source| &source.path)
    }

    fn add(&mut self, visibility: &Visibility, name: &Ident, attributes: &[Attribute]) {
        if matches!(visibility, Visibility::Public(_)) {
            let place = (self.path(), name.span().start().line, says(attributes));
            self.types.insert(name.to_string(), place);
        }
    }

    fn function(&mut self, signature: &Signature, is_public: bool, attributes: &[Attribute]) {
        let is_future = signature.asyncness.is_some() || returns_future(&signature.output);
        if is_public && is_future && !says(attributes) {
            let line = signature.fn_token.span.start().line;
            let violation = undocumented(self.path(), line, &signature.ident.to_string());
            self.violations.push(violation);
        }
    }
}

/// Whether documentation has the heading.
fn says(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(text) => {
                matches!(&text.lit, Lit::Str(text) if text.value().trim() == HEADING)
            }
            _ => false,
        },
        _ => false,
    })
}

fn returns_future(output: &ReturnType) -> bool {
    let ReturnType::Type(_, output) = output else {
        return false;
    };
    let Type::ImplTrait(output) = &**output else {
        return false;
    };
    output.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => is_future(&bound.path),
        _ => false,
    })
}

fn is_future(path: &syn::Path) -> bool {
    path.segments
        .last()
        .is_some_and(|name| name.ident == "Future")
}

impl<'ast> Visit<'ast> for Futures<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let is_public = matches!(item.vis, Visibility::Public(_));
        self.function(&item.sig, is_public, &item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let is_public = matches!(item.vis, Visibility::Public(_));
        self.function(&item.sig, is_public, &item.attrs);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some((path, _)) = &item.trait_
            && is_future(path)
            && let Type::Path(of) = &*item.self_ty
            && let Some(name) = of.path.segments.last()
        {
            self.implemented.push(name.ident.to_string());
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;

    fn lines_found(text: &str) -> Vec<usize> {
        tidy::lines_found(check, "crates/inflight/src/a.rs", text)
    }

    #[test]
    fn a_public_future_says_what_dropping_it_does() {
        let of = |docs: &str, visibility: &str| {
            format!("{docs}{visibility}struct A<T>(T);\nimpl<T> std::future::Future for A<T> {{}}")
        };
        assert_eq!(lines_found(&of("/// A.\n", "pub ")), [2]);
        assert!(lines_found(&of("/// A.\n", "pub(crate) ")).is_empty());
        assert!(lines_found(&of("/// A.\n///\n/// # Cancellation\n", "pub ")).is_empty());
        assert!(lines_found("pub struct A;\nimpl IntoFuture for A {}").is_empty());
    }

    #[test]
    fn so_does_a_public_function_that_returns_one() {
        let of = |docs: &str, output: &str| format!("{docs}pub fn f() -> {output} {{ g() }}\n");
        assert_eq!(lines_found(&of("", "impl Future<Output = ()>")), [1]);
        assert_eq!(lines_found(&of("", "impl Send + std::future::Future")), [1]);
        assert!(lines_found(&of("/// # Cancellation\n", "impl Future")).is_empty());
        assert!(lines_found(&of("", "impl Iterator")).is_empty());
        assert_eq!(lines_found("impl A {\npub async fn f() {}\n}"), [2]);
        assert!(lines_found("fn f() -> impl Future { g() }").is_empty());
    }

    #[test]
    fn the_type_may_be_in_another_file() {
        let tree = Tree::of(&[
            ("crates/inflight/src/a.rs", "impl Future for A {}"),
            ("crates/inflight/src/b.rs", "\npub struct A;"),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[0].path, found[0].line),
            ("crates/inflight/src/b.rs", 2)
        );
    }
}
