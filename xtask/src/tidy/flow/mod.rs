//! Modules of the library import along the flow, never against it.
//!
//! `api -> host -> proactor -> backend`: who is called has never heard of its caller. The rule
//! reads paths (`use`, expressions, types, also inside macro calls); links in documentation are
//! free.

mod paths;

use super::Violation;
use super::tree::Tree;

const LIBRARY: &str = "crates/inflight/src/";

/// The modules of the library, and what each may import besides [`SHARED`].
const FLOW: [(&str, &[&str]); 6] = [
    ("api", &["policy", "stats", "host", "proactor", "backend"]),
    ("policy", &[]), // picks a road from facts that its caller hands in
    ("host", &["policy", "stats", "proactor", "backend"]),
    ("stats", &["proactor", "backend"]), // sums what the proactors counted
    ("proactor", &["backend"]),
    ("backend", &[]),
];

/// What every module reads; these import only each other.
const SHARED: [&str; 9] = [
    "op",
    "completion",
    "buf",
    "commit",
    "error",
    "sync",
    "clock",
    "fork",
    "foreign",
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in tree.rust() {
        let Some(file) = source.path.strip_prefix(LIBRARY) else {
            continue;
        };
        let module = module_path(file);
        // lib.rs is no module: it declares and re-exports all of them.
        let (Some(top), Some(syntax)) = (module.first().cloned(), source.syntax()) else {
            continue;
        };
        if !is_known(&top) {
            let remedy = format!("give `{top}` its place in xtask/src/tidy/flow/mod.rs");
            violations.push(Violation::new(&source.path, 1, remedy));
            continue;
        }
        for mention in paths::mentions(module, syntax) {
            let remedy = mention.path.first().and_then(|other| refusal(&top, other));
            violations
                .extend(remedy.map(|remedy| Violation::new(&source.path, mention.line, remedy)));
        }
    }
    violations
}

/// What is wrong when `module` mentions `crate::other`, if anything.
fn refusal(module: &str, other: &str) -> Option<String> {
    if is_known(other) {
        let remedy = "hand in what it needs, or move this there";
        return (!may_import(module, other))
            .then(|| format!("`{module}` may not know `{other}`: {remedy}"));
    }
    // Whatever lib.rs re-exports belongs to the callers of the library, which `api` serves.
    let remedy = "import it from the module it lives in";
    (module != "api").then(|| format!("`{module}` may not use `crate::{other}`: {remedy}"))
}

/// `backend/uring/ring.rs` is the module `backend::uring::ring`, `lib.rs` the root.
fn module_path(file: &str) -> Vec<String> {
    let parts = file.trim_end_matches(".rs").split('/');
    parts
        .filter(|part| !["mod", "lib"].contains(part))
        .map(str::to_owned)
        .collect()
}

fn is_known(module: &str) -> bool {
    SHARED.contains(&module) || FLOW.iter().any(|(name, _)| *name == module)
}

fn may_import(module: &str, other: &str) -> bool {
    let listed = FLOW.iter().find(|(name, _)| *name == module);
    module == other
        || SHARED.contains(&other)
        || listed.is_some_and(|(_, others)| others.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;

    fn lines_found(file: &str, text: &str) -> Vec<usize> {
        tidy::lines_found(check, &format!("{LIBRARY}{file}"), text)
    }

    #[test]
    fn every_step_against_the_flow_is_refused() {
        let steps = ["api", "host", "proactor", "backend"];
        for (i, module) in steps.iter().enumerate() {
            for (j, other) in steps.iter().enumerate() {
                let text = format!("\nuse crate::{other}::X;\n");
                let expected: &[usize] = if j < i { &[2] } else { &[] };
                assert_eq!(
                    lines_found(&format!("{module}/a.rs"), &text),
                    expected,
                    "{module}"
                );
            }
        }
    }

    #[test]
    fn shared_modules_serve_all_and_know_none() {
        for module in SHARED {
            for other in SHARED {
                let text = format!("use crate::{other}::X;\n");
                assert!(lines_found(&format!("{module}.rs"), &text).is_empty());
            }
            for (other, _) in FLOW {
                let upwards = format!("use crate::{other}::X;\n");
                assert_eq!(lines_found(&format!("{module}/mod.rs"), &upwards), [1]);
                let downwards = format!("use crate::{module}::X;\n");
                assert!(lines_found(&format!("{other}.rs"), &downwards).is_empty());
            }
        }
    }

    #[test]
    fn every_way_to_write_a_path_is_seen() {
        for text in [
            "use crate::{op::Op, host::{Caller, Driver as D}};",
            "use super::super::super::host::*;",
            "use crate::host as h;",
            "fn f() { crate::host::run(); }",
            "fn f(_: &dyn Fn(Vec<crate::host::Caller>)) {}",
            "mod tests { use super::super::super::super::host::Caller; }",
            "fn f() { assert!(vec![crate::host::f()].is_empty()); }",
        ] {
            assert!(
                !lines_found("backend/uring/ring.rs", text).is_empty(),
                "{text}"
            );
        }
        for text in [
            "use super::pool;",
            "/// See [`crate::host`].\nfn f(host: u8) -> u8 { host::<u8>(host) }",
            "mod tests { use super::*; use super::super::probe; }",
        ] {
            assert!(
                lines_found("backend/uring/ring.rs", text).is_empty(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_root_of_the_crate_belongs_to_the_callers() {
        assert_eq!(lines_found("backend/mod.rs", "use crate::Engine;"), [1]);
        assert!(lines_found("api/file.rs", "use crate::Engine;").is_empty());
        assert!(lines_found("lib.rs", "mod api;\npub use crate::api::Engine;").is_empty());
    }

    #[test]
    fn a_module_without_a_place_is_refused() {
        assert_eq!(lines_found("helpers/mod.rs", ""), [1]);
    }

    #[test]
    fn other_crates_are_free() {
        let tree = Tree::of(&[(
            "crates/inflight-bench/src/backend.rs",
            "use crate::host::X;",
        )]);
        assert_eq!(check(&tree), []);
    }
}
