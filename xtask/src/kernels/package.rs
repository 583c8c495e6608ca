//! Where a kernel comes from: what apt offers, a package, or a folder that one was unpacked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::tools::output;

/// A kernel that is not installed.
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) release: String,
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
}

/// The kernel of this name: `6.1`, the path of a package, or of a folder. What is downloaded or
/// unpacked stays in `store`.
pub(super) fn find(name: &str, store: &Path) -> Result<Kernel> {
    let path = Path::new(name);
    if path.is_dir() {
        return unpacked(path);
    }
    if path.is_file() {
        return unpacked(&unpack(path, store)?);
    }
    ensure!(
        is_version(name),
        "{name}: neither a version, as 6.1, nor a package or folder that is there"
    );
    unpacked(&unpack(&download(name, store)?, store)?)
}

fn is_version(name: &str) -> bool {
    let parts = || name.split('.');
    parts().count() > 1 && parts().all(|part| part.parse::<u32>().is_ok())
}

/// The newest package of this version that apt offers.
fn download(version: &str, store: &Path) -> Result<PathBuf> {
    let search = format!("^linux-image-{}", version.replace('.', "\\."));
    let found = output(Command::new("apt-cache").args(["search", "--names-only", &search]))?;
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let newest = newest(version, names).with_context(|| {
        format!(
            "apt offers no linux-image of {version}: name a package or a folder, or have \
             APT_CONFIG name a configuration of apt with another suite (see apt.conf(5))"
        )
    })?;
    let in_store = || package(store, &newest);
    if in_store()?.is_none() {
        eprintln!("kernels: downloading {newest}");
        output(
            Command::new("apt-get")
                .args(["download", &newest])
                .current_dir(store),
        )?;
    }
    in_store()?.with_context(|| format!("apt-get download has left no {newest}"))
}

/// A package of this name that has been downloaded; a part of one ends otherwise.
fn package(store: &Path, name: &str) -> Result<Option<PathBuf>> {
    let start = format!("{name}_");
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(&start) && file.ends_with(".deb") {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// The last, by its numbers, of the ordinary kernels of this version among these packages.
fn newest<'a>(version: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let ordinary = |name: &&str| {
        let rest = name.strip_prefix("linux-image-");
        let rest = rest.and_then(|rest| rest.strip_prefix(version));
        let Some(build) = rest.and_then(|rest| rest.strip_suffix("-amd64")) else {
            return false;
        };
        // Without more numbers it is the package that depends on the newest.
        build.starts_with(['.', '-', '+']) && !build.contains("-cloud") && !build.contains("-rt")
    };
    names
        .filter(ordinary)
        .max_by_key(|name| numbers(name))
        .map(str::to_owned)
}

fn numbers(name: &str) -> Vec<u32> {
    let name = name.trim_end_matches("-amd64");
    let parts = name.split(|letter: char| !letter.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// The folder that a package has been unpacked to, now or before.
fn unpack(package: &Path, store: &Path) -> Result<PathBuf> {
    let name = package.file_stem().context("a package without a name")?;
    let folder = store.join(name);
    if !folder.exists() {
        // Under another name until all of it is there.
        let fresh = tempfile::Builder::new()
            .prefix("unpack-")
            .tempdir_in(store)?;
        output(
            Command::new("dpkg-deb")
                .arg("--extract")
                .args([package, fresh.path()]),
        )?;
        fs::rename(fresh.keep(), &folder).context("the unpacked kernel")?;
    }
    Ok(folder)
}

/// The kernel of a folder with `boot` and `lib/modules`.
fn unpacked(folder: &Path) -> Result<Kernel> {
    let boot = folder.join("boot");
    let entries = fs::read_dir(&boot).with_context(|| boot.display().to_string())?;
    let mut releases = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        releases.extend(name.strip_prefix("vmlinuz-").map(str::to_owned));
    }
    let release = match releases.as_slice() {
        [one] => one.clone(),
        _ => bail!("{}: {} kernels, not one", boot.display(), releases.len()),
    };
    // Distributions have merged `lib` into `usr/lib`.
    let places = ["lib/modules", "usr/lib/modules"].map(|place| folder.join(place).join(&release));
    let modules = places.into_iter().find(|place| place.is_dir());
    Ok(Kernel {
        image: boot.join(format!("vmlinuz-{release}")),
        modules: modules.with_context(|| format!("no modules of {release}"))?,
        release,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ordinary_kernel_of_a_version_is_taken() {
        let offered = [
            "linux-image-6.1-amd64",
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-rt-amd64",
            "linux-image-6.1.0-57-amd64-dbg",
            "linux-image-6.12.90+deb13.1-amd64",
            "linux-image-6.12.90+deb13-amd64",
        ];
        let newest = |version| newest(version, offered.into_iter());
        assert_eq!(newest("6.1").unwrap(), "linux-image-6.1.0-56-amd64");
        assert_eq!(newest("6.12").unwrap(), "linux-image-6.12.90+deb13.1-amd64");
        assert!(newest("5.10").is_none());
    }

    #[test]
    fn names_that_are_neither_version_nor_path_are_refused() {
        let store = tempfile::tempdir().unwrap();
        for name in ["6", "6.x", "--help", "nowhere/kernel.deb"] {
            assert!(find(name, store.path()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_is_a_kernel_if_it_has_one_with_its_modules() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("boot")).unwrap();
        fs::write(at("boot/vmlinuz-6.1.0-1"), b"").unwrap();
        fs::write(at("boot/config-6.1.0-1"), b"").unwrap();
        assert!(unpacked(folder.path()).is_err(), "no modules");
        fs::create_dir_all(at("usr/lib/modules/6.1.0-1")).unwrap();
        assert_eq!(unpacked(folder.path()).unwrap().release, "6.1.0-1");
        fs::write(at("boot/vmlinuz-6.1.0-2"), b"").unwrap();
        assert!(unpacked(folder.path()).is_err(), "two");
    }
}
