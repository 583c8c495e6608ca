//! Which modules of a kernel are to be loaded, in which order.
//!
//! A package that was not installed has no `modules.dep`: what a module needs is read from itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tools::bytes;

/// What the guest needs, each after what it asks for by name while it runs: there is no modprobe.
const WANTED: [&str; 6] = [
    "crc32c_generic",
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "fuse",
    "overlay",
];

/// A module, as the kernel takes it.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) image: Vec<u8>,
}

/// The modules below `folder` that are wanted, each after those that it needs. What is part of the
/// kernel, or not known to it, is left out: the guest says what it lacks then.
pub(super) fn in_order(folder: &Path) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    collect(folder, &mut files)?;
    ensure!(!files.is_empty(), "no modules in {}", folder.display());
    let mut loaded = Vec::new();
    for name in WANTED {
        add(name, &files, &mut loaded)?;
    }
    Ok(loaded)
}

fn add(name: &str, files: &BTreeMap<String, PathBuf>, loaded: &mut Vec<Module>) -> Result<()> {
    if loaded.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let Some(path) = files.get(name) else {
        return Ok(());
    };
    let image = read(path)?;
    for needed in needs(&image) {
        add(&needed, files, loaded)?;
    }
    loaded.push(Module {
        name: name.to_owned(),
        image,
    });
    Ok(())
}

/// All modules below this folder, by the names that the kernel has for them.
fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The kernel has `_` where the name of the file may have `-`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name().and_then(OsStr::to_str)?;
    let (name, ending) = file.split_once(".ko")?;
    ["", ".xz", ".zst"]
        .contains(&ending)
        .then(|| name.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| path.display().to_string()),
    };
    let mut command = Command::new(program);
    bytes(command.args(["--decompress", "--stdout"]).arg(path))
}

/// The names after `depends=`, which stands in a section of strings.
fn needs(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = image.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let rest = &image[at + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&rest[..end]).replace('-', "_");
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, needs: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("\x7fELF\0depends={needs}\0license=GPL\0")).unwrap();
        };
        write("fs/ext4/ext4.ko", "jbd2,mbcache");
        write("fs/jbd2/jbd2.ko", "");
        write("fs/mbcache.ko", "");
        write("drivers/virtio_blk.ko", "virtio,virtio-ring");
        write("drivers/virtio.ko", "");
        write("drivers/virtio-ring.ko", "virtio");
        write("drivers/other.ko", "virtio");
        let modules = in_order(folder.path()).unwrap();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        let wanted = [
            "virtio",
            "virtio_ring",
            "virtio_blk",
            "jbd2",
            "mbcache",
            "ext4",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn a_folder_without_modules_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(in_order(folder.path()).is_err());
    }
}
