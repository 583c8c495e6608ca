//! Copies that a thread shares with others: what it shows of its work, and who takes part.
//!
//! [`spread`] is for a call or a queue, [`shares`] for a run loop or a lane; both show transfers
//! ([`shown`]) at the [`sides`] of a table of work that several threads claim from ([`share`]).
//! [`helper`] is the thread of the pool that comes when it is called, and [`callers`] knows who
//! else makes batches. What pays is found out by [`crate::policy`].
//! Next: [`spread`].

pub(super) mod callers;
mod helper;
mod share;
#[cfg(all(test, loom))]
mod share_loom;
pub(super) mod shares;
pub(super) mod shown;
mod sides;
pub(crate) mod spread;
