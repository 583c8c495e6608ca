//! The fixed table of operations in flight.
//!
//! A slot is named by its number and a generation, which changes when the slot is taken and when
//! it is freed, so that it is odd while an operation is in flight: a completion that comes late,
//! or twice, or for nothing, meets another generation and is counted, not believed.

use crate::backend::threads::execute::to_usize;
use crate::op::Op;

/// What an operation in flight is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A request of its own; a short transfer is its answer.
    Plain,
    /// As `Plain`, of a transfer that goes without the hints it came with.
    Unheard,
    /// A request of its own that is resumed after a short transfer.
    Whole,
    /// The sync behind a write, whose bytes are the answer.
    After,
    /// As `After`, of a write that went without its hints.
    AfterUnheard,
    /// A part of a split request.
    Part,
}

/// As many tries as there are: what a plain call has answered stands.
pub(super) const SETTLED: u8 = u8::MAX;

/// Of an operation that Linux AIO has: the ring is asked for what that refuses.
pub(super) const STARTED: u8 = SETTLED - 1;

/// The place of one operation in flight: a cache line, so that a completion touches no other.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The number of the slot in the low half, its generation in the high half.
    user_data: u64,
    /// What goes back with the answer; of a free slot, the number of the next free one.
    pub(super) token: u32,
    /// Bytes asked for; 0 where the answer is not a byte count.
    pub(super) expected_bytes: u32,
    pub(super) role: Role,
    /// How often the operation has been handed over again; [`SETTLED`] if it is a thread's, and
    /// [`STARTED`] if an older call has it.
    pub(super) retries: u8,
    /// Of a part, the number of its request among the split ones.
    pub(super) split: u32,
    pub(super) op: Op,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// Whether a thread of the pool has it.
    pub(super) fn is_settled(&self) -> bool {
        self.retries == SETTLED
    }
}

/// The fixed table.
pub(super) struct Slots {
    slots: Box<[Slot]>,
    /// For each slot, bytes moved by earlier tries; 0 of a free one, and of one with a role of
    /// [`Role::Plain`].
    done: Box<[usize]>,
    /// The first free one, if one is.
    free: u32,
    in_flight: u32,
    capacity: u32,
}

/// The table, while many operations are put into it or taken out of it one after the other: where
/// the next one goes stays in a register until this is dropped.
pub(super) struct Held<'s> {
    slots: &'s mut [Slot],
    free: u32,
    free_of: &'s mut u32,
}

/// One more in the generation.
const GENERATION: u64 = 1 << 32;

const EMPTY: Slot = Slot {
    op: Op::Nop,
    token: 0,
    expected_bytes: 0,
    role: Role::Plain,
    retries: 0,
    split: 0,
    user_data: 0,
};

/// What a completion means.
pub(super) enum Completed {
    /// It is the answer of the request with this token; the slot is free.
    Plain { token: u32, is_short: bool },
    /// It needs a further look.
    Troubled { index: u32 },
    /// Nobody waits for it.
    Stray,
}

fn low_half(user_data: u64) -> u32 {
    u32::try_from(user_data & u64::from(u32::MAX)).expect("masked to 32 bits")
}

impl Slots {
    pub(super) fn new(capacity: u32) -> Self {
        let empty = |index| Slot {
            user_data: u64::from(index),
            token: index + 1,
            ..EMPTY
        };
        Self {
            slots: (0..capacity).map(empty).collect(),
            done: (0..capacity).map(|_| 0).collect(),
            free: 0,
            in_flight: 0,
            capacity,
        }
    }

    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.capacity
    }

    /// The table, for many operations, and the number of those in flight, which whoever holds the
    /// table sees to.
    #[inline(always)]
    pub(super) fn hold(&mut self) -> (Held<'_>, &mut u32) {
        let held = Held {
            slots: &mut self.slots,
            free: self.free,
            free_of: &mut self.free,
        };
        (held, &mut self.in_flight)
    }

    /// See [`Held::insert`].
    #[inline(always)]
    pub(super) fn insert(&mut self, op: &Op, token: u32, expected: u32, role: Role) -> u64 {
        let (mut held, in_flight) = self.hold();
        *in_flight += 1;
        held.insert(op, token, expected, role)
    }

    /// How many operations can be put into it now.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.capacity - self.in_flight
    }

    /// Bytes that earlier tries of an operation have moved.
    pub(super) fn done(&self, index: u32) -> usize {
        self.done[to_usize(index)]
    }

    /// Notes how many bytes have been moved, or where a part begins.
    pub(super) fn set_done(&mut self, index: u32, done: usize) {
        self.done[to_usize(index)] = done;
    }

    /// What the kernel is to send back for a slot.
    pub(super) fn user_data(&self, index: u32) -> u64 {
        self.slots[to_usize(index)].user_data
    }

    /// The slot of what was sent, while its operation is in flight.
    #[inline]
    pub(super) fn find(&self, user_data: u64) -> Option<u32> {
        let index = low_half(user_data);
        let slot = self.slots.get(to_usize(index))?;
        (slot.user_data == user_data && user_data & GENERATION != 0).then_some(index)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Slot {
        &self.slots[to_usize(index)]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[to_usize(index)]
    }

    /// Frees a slot.
    pub(super) fn free(&mut self, index: u32) {
        self.done[to_usize(index)] = 0;
        let slot = &mut self.slots[to_usize(index)];
        slot.user_data = slot.user_data.wrapping_add(GENERATION);
        slot.token = self.free;
        self.free = index;
        self.in_flight -= 1;
    }

    /// The numbers of all slots in use. Slow: for when a ring has broken.
    pub(super) fn used(&self) -> Vec<u32> {
        let is_used = |slot: &Slot| slot.user_data & GENERATION != 0;
        let slots = (0..).zip(&self.slots);
        slots
            .filter_map(|(index, slot)| is_used(slot).then_some(index))
            .collect()
    }
}

impl Held<'_> {
    /// Puts an operation into a free slot, of which there is one. Returns what the kernel is to
    /// send back for it.
    #[inline(always)]
    pub(super) fn insert(&mut self, op: &Op, token: u32, expected: u32, role: Role) -> u64 {
        let slot = &mut self.slots[to_usize(self.free)];
        self.free = slot.token;
        // Field by field: the compiler then stores from registers, and what is read next does
        // not wait for a wider store.
        slot.op = *op;
        slot.token = token;
        slot.expected_bytes = expected;
        slot.role = role;
        slot.retries = 0;
        slot.user_data = slot.user_data.wrapping_add(GENERATION);
        slot.user_data
    }

    /// Takes a completion: frees the slot if that is all there is to do, so that one less is in
    /// flight; else keeps the operation and disowns what was sent for it, so that a second
    /// completion for the same try is not believed.
    #[inline(always)]
    pub(super) fn complete(&mut self, user_data: u64, result: i32) -> Completed {
        let index = low_half(user_data);
        let Some(slot) = self.slots.get_mut(to_usize(index)) else {
            return Completed::Stray;
        };
        if slot.user_data != user_data || user_data & GENERATION == 0 {
            return Completed::Stray;
        }
        let Ok(moved) = u32::try_from(result) else {
            slot.user_data = user_data.wrapping_add(2 * GENERATION);
            return Completed::Troubled { index };
        };
        if !matches!(slot.role, Role::Plain) {
            slot.user_data = user_data.wrapping_add(2 * GENERATION);
            return Completed::Troubled { index };
        }
        slot.user_data = user_data.wrapping_add(GENERATION);
        let token = std::mem::replace(&mut slot.token, self.free);
        self.free = index;
        Completed::Plain {
            token,
            is_short: moved < slot.expected_bytes,
        }
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.free_of = self.free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_does_not_meet_the_next_operation() {
        let mut slots = Slots::new(1);
        let sent = slots.insert(&Op::Nop, 1, 0, Role::Plain);
        assert!(slots.find(sent).is_some());
        slots.hold().0.complete(sent, 0);
        assert_eq!(slots.find(sent), None);
        slots.insert(&Op::Nop, 2, 0, Role::Plain);
        assert_eq!(slots.find(sent), None);
        assert_eq!(slots.find(u64::from(u32::MAX)), None);
        assert_eq!(Slots::new(1).find(0), None);
    }

    #[test]
    fn no_more_are_in_flight_than_there_are_slots() {
        let mut slots = Slots::new(2);
        for token in 0..2 {
            assert!(slots.has_room());
            slots.insert(&Op::Nop, token, 0, Role::Plain);
        }
        assert!(!slots.has_room());
        assert_eq!((slots.in_flight(), slots.used().len()), (2, 2));
    }
}
