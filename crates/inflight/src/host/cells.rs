//! The requests of one driver or run loop from the moment they are awaited until their answers
//! are taken: plain data without a lock, to be owned or locked by its host.
//!
//! Wakers and what operations leave behind are never dropped here but given back: dropping them may
//! run foreign code, which must not happen under the host's lock.
//!
//! A cell belongs to the future that has its [`Ticket`], and to the proactor as long as the
//! request is in flight. The cell is free again when both are done with it:
//!
//! ```text
//! insert -> Queued -> take -> InFlight -> complete -> Done -> poll, abandon -> Free
//!              \ abandon -> Free   \ abandon -> Abandoned -> complete -> Free
//! ```
#![allow(unsafe_code)]

use std::task::Waker;

use crate::backend::threads::execute::{to_usize, wanted_bytes};
use crate::completion::Answer;
use crate::op::Request;

/// No cell has this number.
const NONE: u32 = u32::MAX;

/// No ticket has this generation.
const RETIRED: u32 = u32::MAX;

/// What an abandoned operation leaves behind: it keeps memory and descriptor until the operation
/// is over.
pub(crate) trait Kept: Send {
    /// The operation is over, with this answer.
    fn over(self: Box<Self>, answer: Answer);
}

/// The right to the answer of one cell: its number in the low half, and its generation. One number,
/// because what is written in halves and read as a whole has to settle in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

impl Ticket {
    #[inline(always)]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline(always)]
    fn index(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).expect("masked to 32 bits")
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("the upper half")
    }
}

/// Who is told that an answer is there.
#[derive(Debug)]
pub(crate) enum Wake {
    Nobody,
    Waker(Waker),
    /// A task of the run loop that owns these cells.
    Task(u32),
}

/// What has become of a future's claim on a cell.
pub(crate) enum Left {
    /// The answer had come.
    Answered(Answer),
    /// The request had not been handed over, and will not be.
    Withdrawn,
    /// The request is in flight; the cell has what it needs.
    InFlight,
}

/// What a completed cell asks of its host, outside any lock.
pub(crate) enum Then {
    Wake(Wake),
    Over(Box<dyn Kept>, Answer),
}

enum Stage {
    Free,
    Queued,
    InFlight,
    Abandoned(Box<dyn Kept>),
    Done(Answer),
}

struct Cell {
    generation: u32,
    /// The next in the queue, or the next free one.
    next: u32,
    /// Bytes of memory that the request names.
    bytes: u64,
    wake: Wake,
    stage: Stage,
}

/// What a queued cell has beside: a request that is handed over at once needs none of it.
#[derive(Clone, Copy)]
struct Waiting {
    request: Request,
    /// The one before in the queue.
    before: u32,
}

/// See the module.
pub(crate) struct Cells {
    cells: Vec<Cell>,
    /// Of queued cells, at their numbers.
    waiting: Vec<Option<Waiting>>,
    free: u32,
    first: u32,
    last: u32,
    queued: u32,
    in_flight: u32,
    bytes_in_flight: u64,
    /// Most bytes handed over at a time; one request may exceed it when it is alone.
    bytes_max: u64,
}

// SAFETY: the addresses in queued requests stay valid until the cell is withdrawn or answered,
// whichever thread hands them over: that is what `insert` asks of its caller.
unsafe impl Send for Cells {}

impl Cells {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            cells: Vec::new(),
            waiting: Vec::new(),
            free: NONE,
            first: NONE,
            last: NONE,
            queued: 0,
            in_flight: 0,
            bytes_in_flight: 0,
            bytes_max,
        }
    }

    /// Whether a request waits that may be handed over now.
    pub(crate) fn may_take(&self) -> bool {
        let first = self.cells.get(to_usize(self.first));
        first.is_some_and(|first| self.has_room_for(first.bytes))
    }

    /// Requests that wait.
    pub(crate) fn queued(&self) -> u32 {
        self.queued
    }

    /// Whether no request waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued == 0 && self.in_flight == 0
    }

    /// Requests that wait or are in flight.
    pub(crate) fn unanswered(&self) -> u32 {
        self.queued + self.in_flight
    }

    /// Queues a request behind the others.
    ///
    /// # Safety
    ///
    /// The addresses in the request stay valid, and nobody else touches what the kernel fills,
    /// until the cell has been withdrawn or is done: whoever has the ticket keeps them, or leaves
    /// them with [`Cells::abandon`].
    pub(crate) unsafe fn insert(&mut self, request: Request, wake: Wake) -> Ticket {
        // SAFETY: the caller vouches for what the request names.
        let bytes = unsafe { bytes_of(&request) };
        let index = self.occupy(Stage::Queued, wake);
        let (last, place) = (self.last, to_usize(index));
        if self.waiting.len() <= place {
            self.waiting.resize(place + 1, None);
        }
        self.waiting[place] = Some(Waiting {
            request,
            before: last,
        });
        let cell = &mut self.cells[place];
        cell.bytes = bytes;
        cell.next = NONE;
        let generation = cell.generation;
        match self.cells.get_mut(to_usize(last)) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        self.last = index;
        self.queued += 1;
        Ticket::new(index, generation)
    }

    /// Whether a request for so many bytes may be handed over before any other.
    #[inline]
    pub(crate) fn may_start(&self, bytes: u64) -> bool {
        self.queued == 0 && self.has_room_for(bytes)
    }

    /// A cell for a request of so many bytes that its host hands over at once, with the token.
    #[inline(always)]
    pub(crate) fn insert_in_flight(&mut self, bytes: u64, wake: Wake) -> (u32, Ticket) {
        let index = self.occupy(Stage::InFlight, wake);
        let cell = &mut self.cells[to_usize(index)];
        cell.bytes = bytes;
        let generation = cell.generation;
        self.in_flight += 1;
        self.bytes_in_flight += bytes;
        (index, Ticket::new(index, generation))
    }

    /// The next request in the queue and its token, if it may be handed over now.
    pub(crate) fn take(&mut self) -> Option<(u32, Request)> {
        let index = self.first;
        let cell = self.cells.get(to_usize(index))?;
        let bytes = cell.bytes;
        if !self.has_room_for(bytes) {
            return None;
        }
        let request = self.unlink(index);
        self.in_flight += 1;
        self.bytes_in_flight += bytes;
        self.cells[to_usize(index)].stage = Stage::InFlight;
        Some((index, request))
    }

    /// Takes the answer for the request with this token.
    #[inline(always)]
    pub(crate) fn complete(&mut self, token: u32, answer: Answer) -> Then {
        let cell = &mut self.cells[to_usize(token)];
        self.in_flight -= 1;
        self.bytes_in_flight -= cell.bytes;
        match std::mem::replace(&mut cell.stage, Stage::Done(answer)) {
            Stage::InFlight => Then::Wake(std::mem::replace(&mut cell.wake, Wake::Nobody)),
            Stage::Abandoned(kept) => {
                self.vacate(token);
                Then::Over(kept, answer)
            }
            _ => unreachable!("only cells in flight are completed"),
        }
    }

    /// Whether the ticket is that of a living cell.
    #[inline(always)]
    pub(crate) fn knows(&self, ticket: Ticket) -> bool {
        let cell = self.cells.get(to_usize(ticket.index()));
        cell.is_some_and(|cell| cell.generation == ticket.generation())
    }

    /// The answer, which frees the cell; or the place of who is to be told.
    #[inline(always)]
    pub(crate) fn poll(&mut self, ticket: Ticket) -> Result<Answer, &mut Wake> {
        let cell = &mut self.cells[to_usize(ticket.index())];
        assert_eq!(
            cell.generation,
            ticket.generation(),
            "a ticket is used once"
        );
        if let Stage::Done(answer) = cell.stage {
            self.vacate(ticket.index());
            return Ok(answer);
        }
        Err(&mut self.cells[to_usize(ticket.index())].wake)
    }

    /// The future is gone. `keep` is asked for what the request needs if it is in flight. Returns
    /// also who was to be told.
    pub(crate) fn abandon(
        &mut self,
        ticket: Ticket,
        keep: impl FnOnce() -> Box<dyn Kept>,
    ) -> (Left, Wake) {
        let index = ticket.index();
        let cell = &mut self.cells[to_usize(index)];
        assert_eq!(
            cell.generation,
            ticket.generation(),
            "a ticket is used once"
        );
        match cell.stage {
            Stage::Done(answer) => (Left::Answered(answer), self.vacate(index)),
            Stage::Queued => {
                self.unlink(index);
                (Left::Withdrawn, self.vacate(index))
            }
            Stage::InFlight => {
                cell.stage = Stage::Abandoned(keep());
                // The ticket is used up; the token is the number alone.
                cell.generation = cell.generation.saturating_add(1);
                (
                    Left::InFlight,
                    std::mem::replace(&mut cell.wake, Wake::Nobody),
                )
            }
            Stage::Free | Stage::Abandoned(_) => {
                unreachable!("a ticket is for a cell with an owner")
            }
        }
    }

    /// Every answer that nobody has taken, with its ticket.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Ticket, Answer)> {
        (0_u32..).zip(&self.cells).filter_map(|(index, cell)| {
            let generation = cell.generation;
            match cell.stage {
                Stage::Done(answer) => Some((Ticket::new(index, generation), answer)),
                _ => None,
            }
        })
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.bytes_in_flight.saturating_add(bytes) <= self.bytes_max
    }

    #[inline(always)]
    fn occupy(&mut self, stage: Stage, wake: Wake) -> u32 {
        let index = self.free;
        if let Some(cell) = self.cells.get_mut(to_usize(index)) {
            self.free = cell.next;
            cell.stage = stage;
            cell.wake = wake;
            return index;
        }
        self.add(stage, wake)
    }

    #[cold]
    fn add(&mut self, stage: Stage, wake: Wake) -> u32 {
        let index = u32::try_from(self.cells.len()).expect("fewer futures than a u32 counts");
        assert_ne!(index, NONE, "fewer futures than a u32 counts");
        self.cells.push(Cell {
            generation: 0,
            next: NONE,
            bytes: 0,
            wake,
            stage,
        });
        index
    }

    #[inline(always)]
    fn vacate(&mut self, index: u32) -> Wake {
        let free = self.free;
        let cell = &mut self.cells[to_usize(index)];
        cell.generation = cell.generation.saturating_add(1);
        cell.stage = Stage::Free;
        cell.bytes = 0;
        // An answer may wait elsewhere, under a ticket of this cell, for as long as its future
        // likes. So no ticket may come twice, and a cell that has had all of its own stays empty.
        if cell.generation != RETIRED {
            cell.next = free;
            self.free = index;
        }
        std::mem::replace(&mut cell.wake, Wake::Nobody)
    }

    /// Has all cells be used for the last times: so many more tickets each.
    #[cfg(test)]
    pub(crate) fn age(&mut self, left: u32) {
        for cell in &mut self.cells {
            cell.generation = RETIRED - left;
        }
    }

    /// Takes a cell out of the queue.
    fn unlink(&mut self, index: u32) -> Request {
        let waiting = self.waiting[to_usize(index)].take();
        let Waiting { request, before } = waiting.expect("a queued cell has a request");
        let next = self.cells[to_usize(index)].next;
        match self.cells.get_mut(to_usize(before)) {
            Some(before) => before.next = next,
            None => self.first = next,
        }
        match self.waiting.get_mut(to_usize(next)) {
            Some(Some(next)) => next.before = before,
            _ => self.last = before,
        }
        self.queued -= 1;
        request
    }
}

impl Wake {
    /// Whether this waker is woken.
    #[inline]
    pub(crate) fn is(&self, waker: &Waker) -> bool {
        matches!(self, Self::Waker(known) if known.will_wake(waker))
    }
}

/// Bytes of memory that a request names.
///
/// # Safety
///
/// Its list of buffers, if it has one, is valid.
#[inline]
pub(crate) unsafe fn bytes_of(request: &Request) -> u64 {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { wanted_bytes(&request.op) };
    bytes as u64
}
