//! Several operations, handed over together, with a result for each.

use std::fmt;
use std::slice;
use std::vec::Drain;

use super::engine::Engine;
use super::operation::Operation;
use crate::completion::Answer;
use crate::foreign::contain;
use crate::host::{alone, caller};

/// Operations of one type that are run together, with a result for each in the order pushed.
///
/// A batch may be of any size: as many as the queue depth are in flight at a time, and whenever
/// some complete, others follow. In which order the operations are executed is not defined.
/// For reads, writes and syncs in one batch see [`AnyOp`](crate::AnyOp).
/// A batch can be used again, and then needs no memory but its buffers.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{Batch, fs::File};
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let mut batch = Batch::new();
/// for offset in [0, 8192, 4096] {
///     batch.push(file.read_at(vec![0; 512], offset));
/// }
/// for (result, buf) in batch.wait() {
///     println!("{} bytes of {}", result?, buf.len());
/// }
/// # Ok(()) }
/// ```
pub struct Batch<O> {
    engine: Option<Engine>,
    operations: Vec<O>,
    answers: Vec<Answer>,
}

impl<O: Operation> Batch<O> {
    /// An empty batch, to be run by the engine of its first operation.
    pub const fn new() -> Self {
        Self {
            engine: None,
            operations: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// An empty batch, to be run by this engine.
    pub fn on(engine: &Engine) -> Self {
        Self {
            engine: Some(engine.clone()),
            ..Self::new()
        }
    }

    /// Adds an operation.
    #[inline]
    pub fn push(&mut self, operation: O) {
        self.operations.push(operation);
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The engine that runs the batch, unless there is no operation, and the operations.
    pub(super) fn into_parts(self) -> (Option<Engine>, Vec<O>) {
        let first = self.operations.first();
        let engine = self.engine.or_else(|| Some(first?.engine().clone()));
        (engine, self.operations)
    }

    /// Runs the operations on this thread and blocks until all have completed. The batch is empty
    /// afterwards.
    ///
    /// **Errors are in the results**, one for each operation; one that fails does not keep the
    /// others from being run. A batch of one operation takes the way that it would take alone; see
    /// [`Operation::wait`].
    ///
    /// In a tokio task it belongs in `spawn_blocking`; a task awaits the batch instead.
    ///
    /// There is no time limit, since buffers may be borrowed. For one, await the batch with
    /// [`Awaited::deadline`](crate::Awaited::deadline); on a thread without a runtime by any
    /// `block_on` other than [`local::run`](crate::local::run), which returns only when all have
    /// completed. [`Late::into_results`](crate::Late::into_results) then has what came in time.
    pub fn wait(&mut self) -> Results<'_, O> {
        let Self {
            engine,
            operations,
            answers,
        } = self;
        answers.clear();
        answers.resize(operations.len(), Answer::NOT_RUN);
        if let Some(first) = operations.first() {
            let engine = engine.as_ref().unwrap_or_else(|| first.engine());
            let running = Running {
                operations: &mut *operations,
                answers: &mut *answers,
            };
            if let [operation] = running.operations.as_mut_slice() {
                running.answers[0] = alone::run_alone(engine.shared(), operation);
            } else {
                match caller::lease(engine.shared()) {
                    Ok(mut lease) => lease.run(running.operations, running.answers),
                    Err(refusal) => running.answers.fill(Answer::refused(refusal)),
                }
            }
            std::mem::forget(running);
        }
        Results {
            operations: operations.drain(..),
            answers: answers.iter(),
        }
    }
}

/// The operations of a batch while they are run, and their answers so far. They go when the panic
/// of a buffer unwinds: one that was over in part would do another part if it were run once more.
struct Running<'b, O: Operation> {
    operations: &'b mut Vec<O>,
    answers: &'b mut Vec<Answer>,
}

impl<O: Operation> Drop for Running<'_, O> {
    fn drop(&mut self) {
        while let (Some(operation), Some(answer)) = (self.operations.pop(), self.answers.pop()) {
            // A failed sync that has been told has to be remembered, as of results that nobody
            // takes.
            contain(|| match answer {
                Answer::NOT_RUN => drop(operation),
                _ => drop(operation.finish(answer)),
            });
        }
    }
}

impl<O: Operation> Default for Batch<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Operation> Extend<O> for Batch<O> {
    fn extend<I: IntoIterator<Item = O>>(&mut self, operations: I) {
        self.operations.extend(operations);
    }
}

impl<O: Operation> FromIterator<O> for Batch<O> {
    /// A batch that is run by the engine of its first operation.
    fn from_iter<I: IntoIterator<Item = O>>(operations: I) -> Self {
        let mut batch = Self::new();
        batch.extend(operations);
        batch
    }
}

impl<O> fmt::Debug for Batch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.operations.len())
            .finish_non_exhaustive()
    }
}

/// The results of a [`Batch`], in the order pushed.
#[must_use = "the errors of the operations are in their results"]
pub struct Results<'b, O: Operation> {
    operations: Drain<'b, O>,
    answers: slice::Iter<'b, Answer>,
}

impl<O: Operation> fmt::Debug for Results<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<O: Operation> Iterator for Results<'_, O> {
    type Item = O::Output;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let answer = self.answers.next()?;
        let operation = self.operations.next()?;
        Some(operation.finish(*answer))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.operations.size_hint()
    }
}

impl<O: Operation> Drop for Results<'_, O> {
    /// Results that nobody takes are looked at all the same: a failed sync has to be remembered.
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<O: Operation> ExactSizeIterator for Results<'_, O> {}
