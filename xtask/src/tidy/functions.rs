//! No function is longer than a screen.
//!
//! Counted from `fn` to the closing brace: documentation and attributes are free, because nobody
//! should save on them. Functions written inside a macro call are not seen.

use syn::visit::{self, Visit};

use super::Violation;
use super::tree::{Source, Tree};

const LINES: usize = 70;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in tree.rust() {
        if let Some(syntax) = source.syntax() {
            Functions {
                source,
                violations: &mut violations,
            }
            .visit_file(syntax);
        }
    }
    violations
}

struct Functions<'a> {
    source: &'a Source,
    violations: &'a mut Vec<Violation>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let lines = body.brace_token.span.close().end().line - first + 1;
        if lines > LINES {
            let name = &signature.ident;
            let remedy = format!("`{name}` has {lines} lines, {LINES} at most: name its parts");
            self.violations
                .push(Violation::new(&self.source.path, first, remedy));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;

    fn lines_found(text: &str) -> Vec<usize> {
        tidy::lines_found(check, "crates/a/src/lib.rs", text)
    }

    /// A body that makes its function `lines` long, counting the line of `fn`.
    fn body(lines: usize) -> String {
        format!("{{\n{}}}\n", "    let _ = 1;\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_refused() {
        let function = |lines| format!("/// Doc.\n#[inline]\nfn f() {}", body(lines));
        assert!(lines_found(&function(70)).is_empty());
        assert_eq!(lines_found(&function(71)), [3]);
    }

    #[test]
    fn methods_are_functions() {
        let text = format!("struct A;\nimpl A {{\npub fn f(\n) {}}}\n", body(70));
        assert_eq!(lines_found(&text), [3]);
    }

    #[test]
    fn provided_methods_and_nested_functions_are_functions() {
        let text = format!("trait A {{\nfn none();\nfn f() {}}}\n", body(71));
        assert_eq!(lines_found(&text), [3]);
        let text = format!("mod m {{\nfn f() {{\nfn g() {}}}\n}}\n", body(71));
        assert_eq!(lines_found(&text), [2, 3]);
    }
}
