//! Every path in a file that leads from the root of the crate, resolved.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Where a path leads, from the root of the crate.
pub(super) struct Mention {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// The paths that `syntax`, the file of `module`, mentions in code.
pub(super) fn mentions(module: Vec<String>, syntax: &syn::File) -> Vec<Mention> {
    let mut paths = Paths {
        module,
        mentions: Vec::new(),
    };
    paths.visit_file(syntax);
    paths.mentions
}

struct Paths {
    /// The module that is being visited, from the root of the crate.
    module: Vec<String>,
    mentions: Vec<Mention>,
}

impl Paths {
    /// Takes down a path as written, unless it starts elsewhere.
    fn mention(&mut self, path: &[String], at: Span) {
        if let Some(path) = absolute(&self.module, path) {
            self.mentions.push(Mention {
                path,
                line: at.start().line,
            });
        }
    }

    fn mention_use(&mut self, prefix: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.mention_use(prefix, &path.tree);
                prefix.pop();
            }
            syn::UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.mention_use(prefix, tree));
            }
            syn::UseTree::Name(syn::UseName { ident, .. })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                prefix.push(ident.to_string());
                self.mention(prefix, ident.span());
                prefix.pop();
            }
            syn::UseTree::Glob(glob) => self.mention(prefix, glob.star_token.spans[0]),
        }
    }

    /// Macro calls are tokens: only paths from the root of the crate can be told there.
    fn mention_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for window in tokens.windows(4) {
            if let [
                TokenTree::Ident(root),
                TokenTree::Punct(a),
                TokenTree::Punct(b),
                other,
            ] = window
                && root == "crate"
                && (a.as_char(), b.as_char()) == (':', ':')
            {
                self.mention(&["crate".to_owned(), other.to_string()], root.span());
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.mention_tokens(group.stream());
            }
        }
    }
}

/// `super::super::op` in `backend::uring` is `op`; `None` for a path that starts elsewhere.
fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let climbs = path.iter().take_while(|part| *part == "super").count();
    let start = match path.first()?.as_str() {
        "crate" => return Some(path[1..].to_vec()),
        "self" => return Some([module, &path[1..]].concat()),
        "super" => &module[..module.len().checked_sub(climbs)?],
        _ => return None,
    };
    Some([start, &path[climbs..]].concat())
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, inner: &'ast syn::ItemMod) {
        self.module.push(inner.ident.to_string());
        visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.mention_use(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if let Some(first) = path.segments.first() {
            self.mention(&parts, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.mention_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
