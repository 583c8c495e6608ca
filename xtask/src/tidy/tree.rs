//! The files that tidy looks at, read and parsed once.

use std::fs;
use std::io;
use std::path::Path;

use super::Violation;

/// Folders searched for Rust files, with everything below them.
const RUST: [&str; 2] = ["crates", "xtask"];

/// The folder of the other pages, with all below it.
const DOCS: &str = "docs";

/// Pages of the root.
const PAGES: [&str; 4] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];

/// The files of the repository, or of a test.
pub(super) struct Tree {
    sources: Vec<Source>,
}

/// One file.
pub(super) struct Source {
    /// From the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// The syntax of a Rust file; an error says where it does not parse.
    syntax: Option<syn::Result<syn::File>>,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let syntax = path.ends_with(".rs").then(|| syn::parse_file(&text));
        Self { path, text, syntax }
    }

    /// The syntax of a Rust file that parses.
    pub(super) fn syntax(&self) -> Option<&syn::File> {
        self.syntax.as_ref()?.as_ref().ok()
    }
}

impl Tree {
    /// Reads the repository; a page that is missing is not in the tree.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut sources = Vec::new();
        for folder in RUST {
            read_below(root, folder, ".rs", &mut sources)?;
        }
        read_below(root, DOCS, ".md", &mut sources)?;
        for page in PAGES {
            if let Some(text) = existing(fs::read_to_string(root.join(page)))? {
                sources.push(Source::new(page.to_owned(), text));
            }
        }
        Ok(Self { sources })
    }

    /// A tree in memory, for tests.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let source = |&(path, text): &(&str, &str)| Source::new(path.to_owned(), text.to_owned());
        Self {
            sources: files.iter().map(source).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.syntax.is_some())
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.path.ends_with(".md"))
    }

    pub(super) fn page(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }

    /// The Rust files that do not parse: no rule about syntax can see them.
    pub(super) fn unparsed(&self) -> impl Iterator<Item = Violation> {
        self.rust().filter_map(|source| {
            let error = source.syntax.as_ref()?.as_ref().err()?;
            let remedy = format!("make it parse: {error}");
            Some(Violation::new(
                &source.path,
                error.span().start().line,
                remedy,
            ))
        })
    }
}

/// Reads the files of a kind in a folder and below, in a fixed order, without `target` and what is
/// hidden.
fn read_below(
    root: &Path,
    folder: &str,
    extension: &str,
    sources: &mut Vec<Source>,
) -> io::Result<()> {
    let Some(entries) = existing(fs::read_dir(root.join(folder)))? else {
        return Ok(());
    };
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // A name that is no UTF-8 is no module either.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{folder}/{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            read_below(root, &path, extension, sources)?;
        } else if kind.is_file() && name.ends_with(extension) {
            // Editors and formatters replace files by renaming: one may go while it is read.
            if let Some(text) = existing(fs::read_to_string(entry.path()))? {
                sources.push(Source::new(path, text));
            }
        }
    }
    Ok(())
}

fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
