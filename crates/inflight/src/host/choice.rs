//! Which backend an engine uses, and why (`docs/design/backends.md`).

use super::shared::Config;
use crate::backend::aio::queue::Aio;
use crate::backend::uring::probe::{self, Features};
use crate::error::SetupError;

/// Which backend is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wish {
    #[default]
    Auto,
    Uring,
    Aio,
    Threads,
}

/// The backend that has been chosen.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) kind: Kind,
    /// Why, in one sentence.
    pub(crate) reason: String,
    /// Why io_uring is not used although it could have been.
    pub(crate) refusal: Option<SetupError>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Uring(Features),
    Aio,
    Threads,
    #[cfg(feature = "faulty")]
    Faulty,
}

impl Kind {
    /// Whether transfers are in flight without a thread for each.
    pub(super) fn is_asynchronous(self) -> bool {
        matches!(self, Self::Uring(_) | Self::Aio)
    }
}

/// Chooses the backend.
///
/// # Errors
///
/// Only if what is demanded cannot be had.
pub(super) fn choose(config: &Config) -> Result<Chosen, SetupError> {
    #[cfg(feature = "faulty")]
    if let Some(faults) = &config.faults {
        let reason = format!("faults were asked for, with seed {}", faults.seed());
        return Ok(Chosen {
            kind: Kind::Faulty,
            reason,
            refusal: None,
        });
    }
    if config.wish == Wish::Threads {
        let reason = format!("{} asks for threads", config.wish_of);
        return Ok(Chosen {
            kind: Kind::Threads,
            reason,
            refusal: None,
        });
    }
    if config.wish == Wish::Aio {
        drop(Aio::new(config.queue_depth)?);
        let reason = format!("{} asks for aio", config.wish_of);
        return Ok(Chosen {
            kind: Kind::Aio,
            reason,
            refusal: None,
        });
    }
    match try_uring(config) {
        Ok(features) => {
            let reason = match config.wish {
                Wish::Uring => format!("{} asks for uring", config.wish_of),
                _ => "the kernel allows io_uring".to_owned(),
            };
            Ok(Chosen {
                kind: Kind::Uring(features),
                reason,
                refusal: None,
            })
        }
        Err(refusal) if config.wish == Wish::Uring => Err(refusal),
        Err(refusal) => Ok(without_rings(config, refusal)),
    }
}

/// What there is where no ring can be had.
fn without_rings(config: &Config, refusal: SetupError) -> Chosen {
    let (kind, reason) = match Aio::new(config.queue_depth) {
        Ok(_) => (Kind::Aio, refusal.to_string()),
        Err(also) => (Kind::Threads, format!("{refusal}; {also}")),
    };
    Chosen {
        kind,
        reason,
        refusal: Some(refusal),
    }
}

fn try_uring(config: &Config) -> Result<Features, SetupError> {
    let mut opened = probe::open(config.queue_depth)?;
    let features = probe::features(&mut opened)?;
    // Older rings lose completions and requests in ways that newer ones do not
    // (`docs/design/backends.md`), so they have to be asked for.
    if config.wish == Wish::Auto && !features.deferred {
        return Err(SetupError::TooOld);
    }
    Ok(features)
}
