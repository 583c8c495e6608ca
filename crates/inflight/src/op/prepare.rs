//! What every public operation can do for a host: name its request, and become its result.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::commit::{Commit, Keep};
use crate::completion::Answer;
use crate::op::{Op, Request, Road, Seen};

/// How an operation is to be run. Opaque, because it is named in a public trait.
pub struct Prepared(pub(crate) Plan);

/// See [`Prepared`].
///
/// Its own mark says which it is (`repr`): if the mark of the operation inside did, the compiler
/// would not know of a planned read that it is one.
#[repr(u8)]
pub(crate) enum Plan {
    /// It is answered without a call.
    Answered(Answer),
    /// By this road.
    Run(Road, Request),
    /// By way of aligned memory: [`Prepare::cover`] has the plan.
    Cover,
    /// With other syncs of its file: [`Prepare::sync`].
    Sync(Request),
}

impl Prepared {
    pub(crate) fn answered(answer: Answer) -> Self {
        Self(Plan::Answered(answer))
    }

    pub(crate) fn run(road: Road, request: Request) -> Self {
        Self(Plan::Run(road, request))
    }

    pub(crate) fn cover() -> Self {
        Self(Plan::Cover)
    }

    pub(crate) fn sync(request: Request) -> Self {
        Self(Plan::Sync(request))
    }
}

/// An operation as a host sees it. Implemented in [`crate::api`] only: hosts trust that the
/// addresses in the request point into what the operation owns or has borrowed.
pub trait Prepare {
    /// What the operation yields: for a transfer, the result and the buffer.
    type Output;

    /// The request. It is valid while the operation is neither dropped nor used, nor moved unless
    /// it is [`crate::Detach`], and may be asked for again.
    fn prepare(&mut self) -> Prepared;

    /// The request where it goes by way of aligned memory. Valid as that of [`Prepare::prepare`].
    #[doc(hidden)]
    fn cover(&mut self) -> Prepared {
        unreachable!("only transfers are planned so")
    }

    /// What a sync is for.
    #[doc(hidden)]
    fn sync(&self) -> Option<SyncOf<'_>> {
        None
    }

    /// For a read by this descriptor, another one of the same file for another thread, if there is
    /// one. It stays open as long.
    #[doc(hidden)]
    fn twin(&self, of: RawFd) -> Option<RawFd> {
        let _ = of;
        None
    }

    /// Whether a run loop with nothing else to do may make the request itself, if it is for a
    /// thread.
    #[doc(hidden)]
    fn is_short(&self) -> bool {
        false
    }

    /// Whether it is of a file that has its data on a device of this machine, and is served by
    /// nobody else.
    #[doc(hidden)]
    fn is_on_device(&self) -> bool {
        false
    }

    /// Learns how a transfer was served.
    #[doc(hidden)]
    fn note(&self, seen: SeenOf) {
        let _ = seen;
    }

    /// Takes the answer for the request. True if the operation has another one to be made, for
    /// which [`Prepare::prepare`] is then asked; else it is finished with this answer.
    #[doc(hidden)]
    #[inline(always)]
    fn proceed(&mut self, answer: Answer) -> bool {
        let _ = answer;
        false
    }

    /// The result, with the buffer.
    fn finish(self, answer: Answer) -> Self::Output;
}

/// What a sync is for. Opaque, because it is named in a public trait.
#[derive(Clone, Copy)]
pub struct SyncOf<'o> {
    pub(crate) commit: &'o Arc<Commit>,
    pub(crate) file: &'o dyn Keep,
    pub(crate) data_only: bool,
}

/// What was seen of a transfer. Opaque, because it is named in a public trait.
pub struct SeenOf {
    pub(crate) seen: Seen,
    /// The descriptor by which.
    pub(crate) fd: Option<RawFd>,
}

impl SeenOf {
    /// Of a transfer by this operation.
    #[inline]
    pub(crate) fn new(seen: Seen, op: &Op) -> Self {
        Self { seen, fd: op.fd() }
    }
}
