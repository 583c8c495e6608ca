//! A write with a wish to be durable: which way it is kept, and the steps of the longer way, a
//! write and then a sync of the file that others may share (`docs/design/durable.md`).
//!
//! [`Prepare::proceed`] takes the answer of each step, so every host can run it.
//!
//! [`Prepare::proceed`]: crate::op::Prepare::proceed

use std::sync::{Mutex, MutexGuard};

use super::file::File;
use crate::clock::now_ns;
use crate::completion::{Answer, Refusal};
use crate::op::{Op, Prepared, Request, SyncOf, Wishes};
use crate::policy::{Begun, Durables, Durably, Outcome};
use crate::sync::lock;

/// How the durable writes of an open file are kept.
#[derive(Debug, Default)]
pub(super) struct Keeping(Mutex<Durables>);

/// In a forked child there is nothing to be taken: another thread may have had it at that moment.
fn durables_of(file: &File) -> Option<MutexGuard<'_, Durables>> {
    if file.engine().shared().is_forked() {
        return None;
    }
    let Keeping(durables) = file.handle().keeping();
    Some(lock(durables))
}

/// Plans the next step of a write with a wish to be durable. `write` is its request, given what is
/// asked of that.
pub(super) fn plan_durable<'f>(
    durable: &mut Option<Box<Durable<'f>>>,
    file: &'f File,
    wishes: &mut Wishes,
    write: impl FnOnce(&mut Wishes) -> Prepared,
) -> Prepared {
    if durable.is_none() {
        *durable = Durable::of(file, *wishes);
    }
    let Some(durable) = durable else {
        return write(wishes);
    };
    if let Some(prepared) = durable.prepare_sync() {
        return prepared;
    }
    let mut asked = match durable.durably() {
        Durably::Alone => *wishes,
        Durably::Together => wishes.without(Wishes::DSYNC),
    };
    let prepared = write(&mut asked);
    // What is not heard of it is marked there.
    *wishes = asked.with(Wishes::DSYNC);
    prepared
}

/// See the module.
#[derive(Debug)]
pub(super) struct Durable<'f> {
    file: &'f File,
    begun: Begun,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Write,
    /// The answer of the write.
    Sync(Answer),
    /// The answer of both.
    Over(Answer),
}

impl<'f> Durable<'f> {
    /// For a write with these wishes, if there is a choice.
    pub(super) fn of(file: &'f File, wishes: Wishes) -> Option<Box<Self>> {
        // What must not wait cannot sync, and what syncs anyway needs nothing else. What is no
        // storage may have no sync, and after a failed one there is none to be shared.
        let is_settled = wishes.has(Wishes::NO_WAIT) || wishes.has(Wishes::THEN_SYNC);
        let handle = file.handle();
        if is_settled || !handle.is_storage() || handle.commit().failure().is_some() {
            return None;
        }
        let begun = durables_of(file)?.begin(handle.device(), now_ns);
        let stage = Stage::Write;
        Some(Box::new(Self { file, begun, stage }))
    }

    /// Which way it is kept.
    pub(super) fn durably(&self) -> Durably {
        self.begun.durably
    }

    /// The sync, once the write is over.
    pub(super) fn sync(&self) -> Option<SyncOf<'_>> {
        let handle = self.file.handle();
        let of = SyncOf {
            commit: handle.commit(),
            file: handle,
            data_only: true,
        };
        matches!(self.stage, Stage::Sync(_)).then_some(of)
    }

    /// The request of the sync, once the write is over.
    pub(super) fn prepare_sync(&self) -> Option<Prepared> {
        let SyncOf {
            commit, data_only, ..
        } = self.sync()?;
        if commit.failure().is_some() {
            return Some(Prepared::answered(Answer::refused(Refusal::SyncFailed)));
        }
        let fd = self.file.handle().raw_fd();
        Some(Prepared::sync(Request::simple(Op::Sync { fd, data_only })))
    }

    /// Takes the answer of a step. True if there is another one.
    pub(super) fn proceed(&mut self, answer: Answer) -> bool {
        self.stage = match self.stage {
            // What has been written in part is durable as far as it goes.
            Stage::Write if self.begun.durably == Durably::Together && answer.bytes() > 0 => {
                self.file.handle().commit().wrote(answer.bytes());
                Stage::Sync(answer)
            }
            Stage::Write => Stage::Over(answer),
            Stage::Sync(written) => Stage::Over(match answer.errno() {
                None => {
                    self.file.engine().shared().counters.synced_write();
                    written
                }
                // Nobody knows what of it is durable.
                Some(errno) => Answer::failed(errno, 0),
            }),
            Stage::Over(answer) => Stage::Over(answer),
        };
        let Stage::Over(over) = self.stage else {
            return true;
        };
        self.end(match over.cause() {
            None => Outcome::Durable,
            Some(_) => Outcome::Unknown,
        });
        false
    }

    /// The answer of the whole, given that of the last step.
    pub(super) fn outcome(&self, answer: Answer) -> Answer {
        let outcome = match self.stage {
            Stage::Over(outcome) => outcome,
            // It was refused before it got so far.
            Stage::Write | Stage::Sync(_) => answer,
        };
        match outcome.errno() {
            // None had failed when it began. The kernel tells an error once: what another write or
            // sync was told of may have been the loss of these bytes.
            None if self.file.handle().commit().failure().is_some() => {
                Answer::refused(Refusal::SyncFailed)
            }
            _ => outcome,
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(mut durables) = durables_of(self.file) {
            durables.end(self.begun, outcome, now_ns);
        }
    }
}

impl Drop for Durable<'_> {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.end(Outcome::Unknown);
        }
    }
}
