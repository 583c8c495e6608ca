//! Operations that a calling thread runs together, and waits for.

use std::collections::VecDeque;

use super::caller::{Lease, Start, Want};
use super::syncs::Running;
use crate::backend::threads::execute::to_usize;
use crate::completion::Answer;
use crate::foreign::contain;
use crate::op::{Plan, Prepare, Request};
use crate::policy::{FIXED_FILES_FROM, wait_for};

/// Operations that can be told apart in one call; more are run one such stretch after the other.
const TOKENS_MAX: usize = 1 << 30;

impl Lease<'_> {
    /// Runs operations, keeping the queue full, and puts the answer for each at its place.
    #[inline]
    pub(crate) fn run<O: Prepare>(&mut self, operations: &mut [O], answers: &mut [Answer]) {
        let many = FIXED_FILES_FROM * to_usize(self.proactor().capacity());
        if operations.len() >= many {
            self.proactor().fix_files();
        }
        let operations = operations.chunks_mut(TOKENS_MAX);
        for (operations, answers) in operations.zip(answers.chunks_mut(TOKENS_MAX)) {
            self.run_chunk(operations, answers);
        }
    }

    #[inline(never)]
    fn run_chunk<O: Prepare>(&mut self, operations: &mut [O], answers: &mut [Answer]) {
        let count = u32::try_from(operations.len()).expect("at most TOKENS_MAX");
        let mut next = 0;
        let mut stretch = Stretch {
            this: Running::new(self),
            chunk: Chunk::new(operations, answers),
        };
        let Stretch { this, chunk } = &mut stretch;
        // Whether the last one was for the ring, and so may be the next ones.
        let mut fills = true;
        loop {
            // A call that is made here may take any time, and others wait for these flushes.
            while !this.syncs.leads() && this.lease.proactor().has_room() {
                let mut plan = None;
                if fills && chunk.again.is_empty() {
                    let begun = next;
                    (next, plan) = this.lease.fill(chunk.operations, next);
                    fills = next > begun && plan.is_none();
                    if fills {
                        continue;
                    }
                }
                if let Some(token) = chunk.again.pop() {
                    fills = chunk.go_on(this, token);
                } else if next < count {
                    next += 1;
                    fills = chunk.start(this, next - 1, plan);
                } else {
                    break;
                }
            }
            if this.lease.has_gathered() {
                chunk.take_gathered(this, Want::All);
            }
            let proactor = this.lease.proactor();
            let is_idle = proactor.is_idle();
            if next == count && chunk.again.is_empty() && (is_idle || !chunk.follow_writes) {
                if !chunk.held.is_empty() && proactor.has_room() {
                    chunk.sync_held(this);
                    continue;
                }
                if is_idle {
                    break;
                }
            }
            let proactor = this.lease.proactor();
            let in_flight = proactor.in_flight();
            let at_least = match next == count {
                // Others wait for these flushes, and must not be told of a success meanwhile if one
                // has failed.
                _ if this.syncs.leads() => 1,
                true => in_flight,
                false => wait_for(in_flight),
            };
            proactor.turn(at_least, |token, answer| {
                let deliver = |token, answer| chunk.take(token, answer);
                this.syncs.tell(token, answer, deliver);
            });
        }
        // Nobody waits for this thread any more, so it may wait for others.
        this.syncs.wait(|token, answer| chunk.take(token, answer));
        debug_assert!(chunk.again.is_empty(), "nothing comes after a sync");
        this.lease.pauses();
    }
}

/// A stretch that is being run.
struct Stretch<'c, 'r, 's, O: Prepare> {
    this: Running<'r, 's>,
    chunk: Chunk<'c, O>,
}

impl<O: Prepare> Drop for Stretch<'_, '_, '_, O> {
    /// When a panic unwinds, others may wait for flushes in flight, and a failed sync has to be
    /// remembered. So what is in flight is waited for, and its answers are taken; nothing else is
    /// begun.
    fn drop(&mut self) {
        let Self { this, chunk } = self;
        #[cfg(feature = "faulty")]
        if this.lease.shared.config.undrained {
            return;
        }
        if this.lease.is_forked() {
            return;
        }
        let mut take = |token, answer| contain(|| chunk.take(token, answer));
        if this.lease.has_gathered() {
            this.lease.take_gathered(Want::All, &mut take);
        }
        let Running { lease, syncs } = this;
        while !lease.proactor().is_idle() {
            let deliver = |token, answer| syncs.tell(token, answer, &mut take);
            lease.proactor().turn(1, deliver);
        }
        syncs.leave();
    }
}

/// The operations of one stretch.
struct Chunk<'c, O> {
    operations: &'c mut [O],
    answers: &'c mut [Answer],
    /// Those that have another request to make.
    again: Vec<u32>,
    /// Syncs, until everything else has been started: one then serves many.
    held: VecDeque<(u32, Request)>,
    /// Whether some of them are for writes of this batch, all of which have to be over.
    follow_writes: bool,
}

impl<'c, O: Prepare> Chunk<'c, O> {
    fn new(operations: &'c mut [O], answers: &'c mut [Answer]) -> Self {
        Self {
            operations,
            answers,
            again: Vec::new(),
            held: VecDeque::new(),
            follow_writes: false,
        }
    }

    /// Starts an operation, whose plan may be known. True if it is in the ring.
    #[inline]
    fn start(&mut self, this: &mut Running<'_, '_>, token: u32, plan: Option<Plan>) -> bool {
        let operation = &mut self.operations[to_usize(token)];
        let plan = plan.unwrap_or_else(|| operation.prepare().0);
        let start = this.lease.start(token, operation, plan);
        let answer = match start {
            Start::InFlight => return true,
            Start::Gathered if this.lease.is_gathered_full() => {
                self.take_gathered(this, Want::Some);
                None
            }
            Start::Gathered => None,
            Start::Answered(answer) => Some(answer),
            Start::Sync(request) => {
                self.held.push_back((token, request));
                None
            }
        };
        if let Some(answer) = answer {
            self.take(token, answer);
        }
        false
    }

    /// Starts the next request of an operation. True if it is in the ring.
    #[cold]
    fn go_on(&mut self, this: &mut Running<'_, '_>, token: u32) -> bool {
        match self.operations[to_usize(token)].prepare().0 {
            Plan::Sync(request) => {
                self.held.push_back((token, request));
                self.follow_writes = true;
                false
            }
            plan => self.start(this, token, Some(plan)),
        }
    }

    /// Begins the syncs, as far as there is room: one serves all of its file.
    #[cold]
    fn sync_held(&mut self, this: &mut Running<'_, '_>) {
        let mut told = Vec::new();
        this.sync_held(self.operations, &mut self.held, &mut told);
        told.into_iter()
            .for_each(|(token, answer)| self.take(token, answer));
    }

    /// Takes answers of reads that are shared with another thread.
    #[inline]
    fn take_gathered(&mut self, this: &mut Running<'_, '_>, want: Want) {
        this.lease
            .take_gathered(want, |token, answer| self.take(token, answer));
    }

    /// Takes the answer for one request of an operation: it is that of the operation, unless that
    /// has another request to make.
    #[inline(always)]
    fn take(&mut self, token: u32, answer: Answer) {
        match self.operations[to_usize(token)].proceed(answer) {
            true => self.again.push(token),
            false => self.answers[to_usize(token)] = answer,
        }
    }
}
