//! One operation as a value.

use std::io;

use super::engine::Engine;
use crate::completion::Answer;
use crate::host::alone;
use crate::op::{Op, Prepare, Prepared, Request, Road};

/// Something to be done, as a value: nothing happens until it is run.
///
/// It is run by [`Operation::wait`] on this thread, by `.await` on any runtime, or with others in
/// a [`crate::Batch`] or a [`Queue`](crate::Queue).
///
/// These are the operations. [`crate::fs::File`] makes them, [`Engine`] makes [`Nop`], and
/// [`AnyOp`](crate::AnyOp) is made of a read, a write or a sync.
///
/// | type | yields, as `Output` |
/// |---|---|
/// | [`ReadAt<B>`](crate::fs::ReadAt) | `(io::Result<usize>, B)`: bytes read, and the buffer |
/// | [`WriteAt<B>`](crate::fs::WriteAt) | `(io::Result<usize>, B)` |
/// | [`ReadVectoredAt<B>`](crate::fs::ReadVectoredAt) | `(io::Result<usize>, Vec<B>)` |
/// | [`WriteVectoredAt<B>`](crate::fs::WriteVectoredAt) | `(io::Result<usize>, Vec<B>)` |
/// | [`SyncFile`](crate::fs::SyncFile) | `io::Result<()>` |
/// | [`Allocate`](crate::fs::Allocate) | `io::Result<()>` |
/// | [`ReadMetadata`](crate::fs::ReadMetadata) | `io::Result<Metadata>` |
/// | [`AnyOp<B>`](crate::AnyOp) | `(io::Result<usize>, Option<B>)`: no buffer of a sync |
/// | [`Nop`] | `io::Result<()>` |
///
/// Opening, closing, truncating and what changes names are calls that block. They can be waited for
/// and awaited, as their pages say, but are in no batch and no queue.
///
/// ```
/// use std::time::{Duration, Instant};
/// use inflight::{Operation, fs::File};
///
/// /// The result, and how long it took.
/// fn timed<O: Operation>(op: O) -> (O::Output, Duration) {
///     let begun = Instant::now();
///     (op.wait(), begun.elapsed())
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let ((result, buf), took) = timed(file.read_at(vec![0; 4096], 0));
/// println!("{} bytes of {} in {took:?}", result?, buf.len());
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// Dropping an operation that has not been run does nothing. While it is waited for it cannot be
/// dropped; for what is awaited see [`crate::Pending`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operation of a backend, so it cannot be in a batch or a queue",
    note = "opening, closing, `Truncate`, the calls on names and `TakeWhenFree` are waited for or \
            awaited alone"
)]
#[must_use = "an operation does nothing until it is run"]
pub trait Operation: Sealed {
    /// Runs the operation on this thread and blocks until it has completed. What it yields is in
    /// the table above.
    ///
    /// A single operation is one plain system call: with one at a time, a ring is no faster. The
    /// exception: direct reads use this thread's ring once polling it has been measured to pay;
    /// [`ReadAt::explain`](crate::fs::ReadAt::explain) tells which may.
    ///
    /// In a tokio task it belongs in `spawn_blocking`, as every blocking call; a task awaits the
    /// operation instead.
    ///
    /// There is no time limit: what a device does not answer is waited for. For one, await it with
    /// [`Awaited::timeout`](crate::Awaited::timeout); on a thread without a runtime by any
    /// `block_on` other than [`local::run`](crate::local::run), which returns only when the
    /// operation has completed.
    fn wait(self) -> Self::Output;
}

/// What this crate asks of an operation; only its own types have it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no `wait`",
    note = "what is a future alone, as `TakeWhenFree`, is awaited: on a plain thread by \
            `inflight::local::run` or any `block_on`"
)]
pub trait Sealed: Prepare + Sized {
    /// The engine that runs the operation where none is named.
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a;
}

impl<O: Sealed> Operation for O {
    #[inline]
    fn wait(mut self) -> Self::Output {
        let answer = alone::run_alone(self.engine().shared(), &mut self);
        self.finish(answer)
    }
}

/// Does nothing, by way of the backend. Made by [`Engine::nop`]. It yields `io::Result<()>`.
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct Nop<'e> {
    pub(super) engine: &'e Engine,
}

impl Prepare for Nop<'_> {
    type Output = io::Result<()>;

    #[inline(always)]
    fn prepare(&mut self) -> Prepared {
        Prepared::run(Road::Backend, Request::simple(Op::Nop))
    }

    #[inline(always)]
    fn finish(self, answer: Answer) -> Self::Output {
        answer.decode(self.engine).map(drop)
    }
}

impl Sealed for Nop<'_> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        self.engine
    }
}
