//! Exit codes, and the errors that carry one.
//!
//! Where a profile of several could not be set up, the code is that of the first one's error; what
//! the others measured is shown all the same.

use std::fmt;

/// Done; also when there is no clear winner.
pub(crate) const DONE: u8 = 0;
/// Input, output or internal error.
pub(crate) const FAILED: u8 = 1;
/// The command line or a profile is wrong, or names what is not there.
pub(crate) const USAGE: u8 = 2;
/// This machine cannot do what was asked.
pub(crate) const CANNOT: u8 = 3;
/// Refused because data could be lost or a disk filled, or no file may be made or opened.
pub(crate) const REFUSED: u8 = 4;
/// Something is slower than it was, or a limit is not kept.
pub(crate) const WORSE: u8 = 5;
/// Stopped by a signal, as shells say it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. Partial
/// results are shown where there are any.
pub(crate) fn stopped_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(FAILED)
}

/// The same for `--help` and the manual page.
pub(crate) const CODES: &str = "\
Exit codes:
  0    done, also where there is no clear winner
  1    input, output or internal error
  2    the command line or a profile is wrong, or names what is not there
  3    this machine cannot do what was asked
  4    refused: data could be lost, a disk filled, or no file may be made or opened; or records
       measure different things
  5    of `inflight compare`: something is slower than it was, or a limit is not kept
  130  stopped by Ctrl-C, and 128 and its number by another signal (143 by SIGTERM): partial
       results are shown where there are any";

/// Those of `inflight doctor`.
pub(crate) const DOCTOR_CODES: &str = "\
Exit codes:
  0    nothing stands in the way, or only what costs speed
  1    input, output or internal error
  2    the command line is wrong, or names what is not there
  3    something cannot be done here: a line says `problem`";

/// An error that knows its exit code.
#[derive(Debug)]
struct Coded {
    code: u8,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// An error of the command line.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Coded {
        code: USAGE,
        message: message.into(),
    }
    .into()
}

/// What was asked is not possible on this machine.
pub(crate) fn cannot(message: impl Into<String>) -> anyhow::Error {
    Coded {
        code: CANNOT,
        message: message.into(),
    }
    .into()
}

/// What was asked is refused for safety.
pub(crate) fn refused(message: impl Into<String>) -> anyhow::Error {
    Coded {
        code: REFUSED,
        message: message.into(),
    }
    .into()
}

/// The exit code for an error.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    error
        .downcast_ref::<Coded>()
        .map_or(FAILED, |coded| coded.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn each_code_is_in_the_help() {
        let firsts = CODES
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let told: Vec<u8> = firsts.filter_map(|first| first.parse().ok()).collect();
        let stopped = stopped_by(libc::SIGINT);
        let codes = [DONE, FAILED, USAGE, CANNOT, REFUSED, WORSE, stopped];
        assert_eq!(told, codes);
    }

    #[test]
    fn a_signal_is_told_as_shells_do() {
        let codes = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(stopped_by);
        assert_eq!(codes, [130, 143, 129]);
    }

    #[test]
    fn the_code_survives_added_context() {
        let error = Err::<(), _>(refused("no"))
            .context("while looking")
            .unwrap_err();
        assert_eq!(code_of(&error), REFUSED);
        assert_eq!(code_of(&anyhow::anyhow!("other")), FAILED);
    }
}
