//! What the answers of transfers tell of an open file: how the next ones are served best, where it
//! ends, and whether its syncs are to be trusted.

use super::Handle;
use crate::completion::{Answer, is_of_device};
use crate::op::{Seen, SeenOf, Span, Wishes};
use crate::policy::Facts;

impl Handle {
    /// Learns how a transfer was served.
    #[inline]
    pub(in crate::api) fn note(&self, is_write: bool, seen: SeenOf) {
        let facts = self.facts_of(seen.fd);
        self.learned.note(facts, is_write, seen.seen);
    }

    /// Learns from the answer to a read into these buffers.
    #[inline]
    pub(in crate::api) fn has_read(
        &self,
        offset: u64,
        spans: impl Iterator<Item = Span>,
        answer: Answer,
    ) {
        if let Some((bytes, ns)) = answer.took() {
            let facts = self.facts_for(offset, spans);
            self.was_pooled(facts, false, Seen::Pooled { ns, bytes }, answer);
        }
    }

    /// Learns from a plain call by a thread of the pool.
    #[cold]
    fn was_pooled(&self, facts: Option<Facts>, is_write: bool, seen: Seen, answer: Answer) {
        let facts = facts.unwrap_or(self.facts);
        self.learned.note(facts, is_write, seen);
        if let Some(is_asynchronous) = answer.was_asynchronous() {
            let started = Seen::Started { is_asynchronous };
            self.learned.note(facts, is_write, started);
        }
    }

    /// Learns from the answer to a write of these buffers. What it tells of the file's syncs has
    /// been noted when it came.
    #[inline]
    pub(in crate::api) fn wrote(
        &self,
        offset: u64,
        spans: impl Iterator<Item = Span>,
        wishes: Wishes,
        answer: Answer,
    ) {
        if let (Some((bytes, ns)), true) = (answer.took(), wishes.asked().is_none()) {
            let facts = self.facts_for(offset, spans);
            self.was_pooled(facts, true, Seen::Pooled { ns, bytes }, answer);
        }
        self.leaves_to_flush(wishes, answer);
        self.end
            .reaches(offset.saturating_add(answer.bytes() as u64));
    }

    /// Learns that a write has left something to the next flush, unless it was durable itself.
    #[inline]
    pub(in crate::api) fn leaves_to_flush(&self, wishes: Wishes, answer: Answer) {
        if !self.is_durable(wishes) {
            self.commit.wrote(answer.bytes());
        }
    }

    /// What is known of the file as the descriptor has it open by which a transfer of these buffers
    /// goes, if it can go by any.
    #[cold]
    fn facts_for(&self, offset: u64, mut spans: impl Iterator<Item = Span>) -> Option<Facts> {
        let fits = spans.all(|span| self.fits(span.start.addr(), span.len, offset));
        self.descriptor(fits).map(|(_, facts)| facts)
    }

    /// The answer of a read into these buffers, given a refusal after some bytes. Past the page
    /// cache a read that stops within a block has met the end of the file. If the file has grown
    /// before it is resumed there, the kernel refuses to begin within a block.
    #[cold]
    pub(in crate::api) fn read_to_the_end(
        &self,
        refused: Answer,
        offset: u64,
        spans: impl Iterator<Item = Span>,
    ) -> Answer {
        let moved = refused.bytes();
        let facts = self.facts_for(offset, spans);
        let was_direct = facts.is_some_and(|facts| facts.direct);
        let is_within_a_block = offset.wrapping_add(moved as u64) & self.position_bits != 0;
        match moved > 0 && was_direct && is_within_a_block {
            true => Answer::moved(moved),
            false => refused,
        }
    }

    /// Remembers what the answer for a write of `len` bytes tells of the file's syncs.
    pub(in crate::api) fn note_write(&self, wishes: Wishes, len: usize, answer: Answer) {
        let of_device = || answer.cause().is_some_and(is_of_device);
        // All bytes were taken, so it is the sync behind them that has failed. Where there are none
        // it may be the write that was refused.
        let was_taken = answer.bytes() == len && (len > 0 || of_device());
        let was_synced = wishes.has(Wishes::THEN_SYNC) && was_taken;
        // The write-back that failed may have been that of other writes, and the kernel does not
        // tell of it again. Without space nothing was taken, so ENOSPC says nothing of the kind.
        let was_durable = self.is_durable(wishes) && of_device();
        if was_synced || was_durable {
            self.commit.note(answer);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;

    use super::*;
    use crate::Engine;
    use crate::api::direct::Direct;
    use crate::api::open::OpenOptions;

    #[test]
    fn a_mark_is_no_wish() -> io::Result<()> {
        let path = tempfile::NamedTempFile::new()?;
        let engine = Engine::new()?;
        let options = OpenOptions::new().read(true).write(true).engine(&engine);
        let file = options.direct(Direct::Auto).open(path.path())?;
        let handle = file.handle();
        if !file.is_direct() {
            println!("skipped: temporary files are on a file system without direct I/O");
            return Ok(());
        }
        let unaligned = Wishes::NONE.with(Wishes::UNALIGNED);
        // A direct write for which a thread of the pool has waited, but not for long.
        let (ns, bytes) = (50_000, 4096);
        let seen = Seen::Pooled { ns, bytes };
        handle.learned.note(handle.facts, true, seen);
        let is_short = [Wishes::NONE, unaligned, Wishes::DSYNC];
        let is_short = is_short.map(|wishes| handle.is_short(true, wishes));
        assert_eq!(is_short, [true, true, false]);
        Ok(())
    }
}
