//! The library's integration tests again, in every environment that denies it something.
//!
//! Each environment is first asked, by `xtask probe` inside it, whether it denies what it should:
//! a test that passes where nothing is denied proves nothing.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

use anyhow::{Context, Result, bail, ensure};

use super::build::Program;
use super::site::Site;
use super::steps::{Step, tell};
use crate::sys;
use crate::under::{Denial, LOCKED_MEMORY_BYTES};

/// The user that owns nothing: `nobody` on most distributions.
const OTHER_USER: u32 = 65_534;

/// Where and how the tests are run again.
struct Environment {
    name: &'static str,
    denial: Denial,
    /// `INFLIGHT_BACKEND`: the backend that is demanded from outside.
    backend: Option<&'static str>,
    /// `INFLIGHT_REQUIRE`: the backend that the tests must find.
    require: Option<&'static str>,
    other_user: bool,
}

/// What is less here than in the first run: all of it in every environment would take most of the
/// time of the check. Of the seeds, which are for a backend that nothing is denied to, one is left.
pub(crate) const LESS: [(&str, &str); 2] = [
    ("INFLIGHT_TEST_SHARE", "10"),
    ("INFLIGHT_TEST_SEED", "24301"),
];

const THREADS: Option<&str> = Some("threads");
const AIO: Option<&str> = Some("aio");

const ENVIRONMENTS: [Environment; 4] = [
    Environment {
        name: "with EPERM from io_uring",
        denial: Denial::Eperm,
        backend: None,
        require: AIO, // where the kernel has that
        other_user: false,
    },
    Environment {
        name: "with ENOSYS from io_uring and io_submit",
        denial: Denial::Enosys,
        backend: None,
        require: THREADS,
        other_user: false,
    },
    Environment {
        name: "killed by io_uring, with INFLIGHT_BACKEND=threads",
        denial: Denial::Kill,
        backend: THREADS,
        require: THREADS,
        other_user: false,
    },
    Environment {
        name: "as another user with 64 KiB of locked memory",
        denial: Denial::Memlock,
        backend: None,
        require: None, // a small ring or none: both are right
        other_user: true,
    },
];

/// A step for every environment, in which these programs are run again.
pub(super) fn steps(programs: &[Program]) -> impl Iterator<Item = Step<'_>> {
    let again = programs
        .iter()
        .filter(|program| program.is_of_the_library());
    let again: Vec<_> = again.map(|program| program.executable.clone()).collect();
    ENVIRONMENTS.iter().map(move |environment| {
        let programs = again.clone();
        Step::new(format!("tests {}", environment.name), move |_| {
            environment.run(&programs)
        })
    })
}

impl Environment {
    fn run(&self, programs: &[PathBuf]) -> Result<()> {
        let site = Site::prepare(programs)?;
        self.prove(&site)?;
        for program in &site.programs {
            let status = tell(self.denial.name(), &mut self.command(&site, program));
            judge(program, status.with_context(|| site.cannot_run(program))?)?;
        }
        Ok(())
    }

    /// A command that will run `program` in this environment.
    fn command(&self, site: &Site, program: &Path) -> Command {
        let mut command = Command::new(&site.xtask);
        command.args(["under", self.denial.name(), "--"]);
        command.arg(program).current_dir(&site.work).envs(LESS);
        command
            .env("TMPDIR", &site.work)
            .env("INFLIGHT_TEST_DIR", &site.work);
        for (variable, value) in [
            ("INFLIGHT_BACKEND", self.backend),
            ("INFLIGHT_REQUIRE", self.required()),
        ] {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        if self.other_user {
            // Rings of tests that run side by side share the locked memory.
            command.env("RUST_TEST_THREADS", "2");
        }
        if self.changes_user() {
            // The standard library also drops the supplementary groups of root.
            command.gid(OTHER_USER).uid(OTHER_USER);
        }
        command
    }

    fn required(&self) -> Option<&'static str> {
        match self.require {
            AIO if !sys::has_aio() => THREADS,
            require => require,
        }
    }

    fn changes_user(&self) -> bool {
        self.other_user && sys::is_root()
    }

    /// Fails unless the environment denies what its name says.
    fn prove(&self, site: &Site) -> Result<()> {
        let mut probe = self.command(site, &site.xtask);
        let output = probe
            .arg("probe")
            .output()
            .with_context(|| site.cannot_run(&site.xtask))?;
        ensure!(
            denies(self.denial, &output),
            "nothing is denied here: {output:?}"
        );
        if self.other_user {
            if self.changes_user() {
                let user = format!("user: {OTHER_USER}");
                ensure!(says(&output, &user), "the user has not changed: {output:?}");
            } else {
                println!("not root: the user stays the same, only locked memory is limited");
            }
        }
        Ok(())
    }
}

/// Whether this is what `xtask probe` answers under the denial.
fn denies(denial: Denial, probe: &Output) -> bool {
    match denial {
        Denial::Eperm => says(probe, "io_uring: EPERM"),
        Denial::Enosys => says(probe, "io_uring: ENOSYS"),
        Denial::Kill => probe.status.signal() == Some(libc::SIGSYS),
        Denial::Memlock => says(
            probe,
            &format!("locked memory: {LOCKED_MEMORY_BYTES} bytes"),
        ),
    }
}

fn says(probe: &Output, line: &str) -> bool {
    String::from_utf8_lossy(&probe.stdout)
        .lines()
        .any(|answer| answer == line)
}

fn judge(program: &Path, status: ExitStatus) -> Result<()> {
    let name = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy();
    match status.signal() {
        _ if status.success() => Ok(()),
        Some(libc::SIGSYS) => bail!("{name} was killed by the filter: it called io_uring"),
        _ => bail!("{name}: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(raw_status: i32, text: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(raw_status),
            stdout: text.as_bytes().to_vec(),
            stderr: Vec::new(),
        }
    }

    #[test]
    fn an_environment_that_denies_nothing_is_told() {
        let open = answered(
            0,
            "io_uring: allowed\nlocked memory: 8388608 bytes\nuser: 0\n",
        );
        for environment in &ENVIRONMENTS {
            let denial = environment.denial;
            assert!(!denies(denial, &open), "{denial:?}");
        }
        assert!(denies(Denial::Eperm, &answered(0, "io_uring: EPERM\n")));
        assert!(denies(Denial::Kill, &answered(libc::SIGSYS, "")));
        assert!(denies(
            Denial::Memlock,
            &answered(0, "locked memory: 65536 bytes\n")
        ));
        let exempt = "locked memory: 65536 bytes (CAP_IPC_LOCK: not counted)\n";
        assert!(!denies(Denial::Memlock, &answered(0, exempt)));
    }

    #[test]
    fn a_test_killed_by_the_filter_is_told_from_a_failure() {
        let kill = judge(Path::new("/t/it"), ExitStatus::from_raw(libc::SIGSYS)).unwrap_err();
        assert_eq!(
            kill.to_string(),
            "it was killed by the filter: it called io_uring"
        );
        let failure = judge(Path::new("/t/it"), ExitStatus::from_raw(101 << 8)).unwrap_err();
        assert_eq!(failure.to_string(), "it: exit status: 101");
    }
}
