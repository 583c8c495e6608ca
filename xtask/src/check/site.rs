//! A folder that every user may enter, from which the tests are run again.
//!
//! The programs are copied there, this one beside them, because the folder they were built in may
//! be private and because cargo may have replaced the file that this process was started from.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A fresh folder with the programs in it, and a folder for the files of the tests.
pub(super) struct Site {
    pub(super) programs: Vec<PathBuf>,
    pub(super) xtask: PathBuf,
    pub(super) work: PathBuf,
    folder: TempDir,
}

impl Site {
    pub(super) fn prepare(programs: &[PathBuf]) -> Result<Self> {
        // Where the tests would have put their files: the file system is the user's choice.
        let place = std::env::var_os("INFLIGHT_TEST_DIR")
            .map_or_else(std::env::temp_dir, PathBuf::from)
            .canonicalize()
            .context("the folder for test files")?;
        let folder = tempfile::Builder::new()
            .prefix("inflight-check-")
            .tempdir_in(place)?;
        let root = folder.path();
        fs::set_permissions(root, Permissions::from_mode(0o755))?;

        let work = root.join("work");
        fs::create_dir(&work)?;
        // Open to all and sticky, as /tmp is.
        fs::set_permissions(&work, Permissions::from_mode(0o1777))?;

        // Through /proc the program is there even after cargo has replaced its file.
        let xtask = copy_program(Path::new("/proc/self/exe"), root.join("xtask"))?;
        let copy = |program: &PathBuf| {
            let name = program
                .file_name()
                .context("a test program without a name")?;
            copy_program(program, root.join(name))
        };
        let programs = programs.iter().map(copy).collect::<Result<_>>()?;
        Ok(Self {
            programs,
            xtask,
            work,
            folder,
        })
    }

    /// What to look at when a program does not start here.
    pub(super) fn cannot_run(&self, program: &Path) -> String {
        let (program, folder) = (program.display(), self.folder.path().display());
        format!("cannot run {program}: may every user enter {folder} and run programs there?")
    }
}

fn copy_program(from: &Path, to: PathBuf) -> Result<PathBuf> {
    fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
    fs::set_permissions(&to, Permissions::from_mode(0o755))?;
    Ok(to)
}
