//! The work that lanes are handed: which operation comes next, and where its steps lead.
//!
//! The same rule for every strategy, so that none has an easier life than another. What a block
//! contains is in `stamp`; how an operation is done is the strategies' business.

mod random;
pub(crate) mod stamp;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use inflight_report::record::{Access, Sync};

use random::{Random, Scattered};
pub(crate) use random::{mix, noise};

/// Ranges begin and end at multiples of this.
pub(crate) const RANGE_STEP_BYTES: u32 = 4096;

/// What is asked, the same for all lanes of a stretch.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) access: Access,
    /// Bytes of an operation; of ranges the most.
    pub(crate) block_bytes: u32,
    /// Of ranges the least.
    pub(crate) least_bytes: u32,
    pub(crate) read_percent: u32,
    pub(crate) sync: Sync,
    pub(crate) batched: bool,
    pub(crate) read_back: bool,
    pub(crate) verify: bool,
    /// Whether the page cache does not hold all of the files at first.
    pub(crate) misses: bool,
    /// No block comes twice before all have come.
    pub(crate) without_repeats: bool,
    pub(crate) files: u32,
    pub(crate) file_bytes: u64,
}

impl Work {
    /// Whether nothing is written.
    pub(crate) fn only_reads(&self) -> bool {
        !self.access.writes()
    }

    /// Whether operations have more than one step.
    pub(crate) fn has_steps(&self) -> bool {
        self.syncs_each() || self.read_back
    }

    /// Whether each write is synced.
    pub(crate) fn syncs_each(&self) -> bool {
        self.sync == Sync::Each
    }

    /// Whether what was written is synced at the end of each stretch.
    pub(crate) fn synced_at_end(&self) -> bool {
        self.sync == Sync::End
    }

    /// The first block of a file that is written: the one before tells what the file is.
    fn first(&self) -> u64 {
        u64::from(self.access.writes())
    }

    /// Blocks of one file that take part, at least one.
    fn blocks(&self) -> u64 {
        let blocks = self.file_bytes / u64::from(self.block_bytes);
        // 32 random bits are spread over them.
        (blocks - self.first().min(blocks)).clamp(1, u64::from(u32::MAX))
    }
}

/// What is done in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// The content of the file is brought to the device (fdatasync).
    Sync,
}

/// One step of an operation, most of which have one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// Number of the file, from 0.
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Step {
    /// What the kernel answers when all went well.
    #[inline]
    pub(crate) fn wanted(&self) -> u32 {
        match self.kind {
            Kind::Read | Kind::Write => self.length,
            Kind::Sync => 0,
        }
    }

    #[inline]
    pub(crate) fn file_index(&self) -> usize {
        usize::try_from(self.file).expect("u32 fits into usize")
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.length).expect("u32 fits into usize")
    }
}

/// Where one lane is among the lanes of its stretch.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) lane: u32,
    pub(crate) lanes: u32,
    /// The position of all lanes together, where blocks come one after the other.
    pub(crate) cursor: Arc<AtomicU64>,
}

impl Share {
    /// The only lane.
    pub(crate) fn whole() -> Self {
        Self {
            lane: 0,
            lanes: 1,
            cursor: Arc::default(),
        }
    }

    /// One of so many lanes, which go on together.
    pub(crate) fn of(&self, lane: u32, lanes: u32) -> Self {
        Self {
            lane,
            lanes,
            cursor: Arc::clone(&self.cursor),
        }
    }
}

/// The operations of one lane, without end.
#[derive(Clone, Debug)]
pub(crate) struct Ops {
    work: Work,
    order: Order,
    random: Random,
    blocks: u64,
    first: u64,
}

/// How the next block is found.
#[derive(Clone, Debug)]
enum Order {
    Anywhere,
    Scattered(Scattered),
    OneAfterTheOther(Arc<AtomicU64>),
    Ranges { starts: u64, lengths: u64 },
}

impl Ops {
    /// The operations of a lane, from a seed that is the stretch's and the same for all lanes.
    pub(crate) fn new(work: &Work, share: &Share, seed: u64) -> Self {
        let blocks = work.blocks();
        let order = match work.access {
            Access::RandomRead if work.without_repeats => {
                let all = blocks * u64::from(work.files);
                Order::Scattered(Scattered::new(seed, all, share.lane, share.lanes))
            }
            Access::RandomRead | Access::RandomWrite | Access::Mixed => Order::Anywhere,
            Access::SequentialRead | Access::SequentialWrite | Access::Append => {
                Order::OneAfterTheOther(Arc::clone(&share.cursor))
            }
            Access::RangeRead => {
                let room_bytes = work.file_bytes.saturating_sub(u64::from(work.block_bytes));
                Order::Ranges {
                    starts: room_bytes / u64::from(RANGE_STEP_BYTES) + 1,
                    lengths: u64::from(
                        (work.block_bytes - work.least_bytes) / RANGE_STEP_BYTES + 1,
                    ),
                }
            }
        };
        Self {
            random: Random::new(mix(seed.wrapping_add(u64::from(share.lane)))),
            order,
            blocks,
            first: work.first(),
            work: work.clone(),
        }
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// The first step of the next operation.
    #[inline]
    pub(crate) fn next(&mut self) -> Step {
        let (file, block) = match &mut self.order {
            Order::Anywhere => {
                let block = self.random.below(self.blocks);
                (self.file(), block)
            }
            Order::Scattered(scattered) => apart(scattered.next(), self.blocks),
            Order::OneAfterTheOther(cursor) => {
                let all = self.blocks * u64::from(self.work.files);
                apart(cursor.fetch_add(1, Relaxed) % all, self.blocks)
            }
            Order::Ranges { starts, lengths } => {
                let (starts, lengths) = (*starts, *lengths);
                return self.range(starts, lengths);
            }
        };
        Step {
            kind: self.kind(),
            file,
            offset: (self.first + block) * u64::from(self.work.block_bytes),
            length: self.work.block_bytes,
        }
    }

    /// What follows a step of the same operation; nothing at its end.
    #[inline]
    pub(crate) fn after(&self, step: &Step) -> Option<Step> {
        let kind = match step.kind {
            Kind::Write if self.work.sync == Sync::Each => Kind::Sync,
            Kind::Write | Kind::Sync if self.work.read_back => Kind::Read,
            Kind::Read | Kind::Write | Kind::Sync => return None,
        };
        Some(Step { kind, ..*step })
    }

    #[inline]
    fn kind(&mut self) -> Kind {
        match self.work.access {
            Access::RandomRead | Access::SequentialRead | Access::RangeRead => Kind::Read,
            Access::RandomWrite | Access::SequentialWrite | Access::Append => Kind::Write,
            Access::Mixed if self.random.below(100) < u64::from(self.work.read_percent) => {
                Kind::Read
            }
            Access::Mixed => Kind::Write,
        }
    }

    #[inline]
    fn file(&mut self) -> u32 {
        match self.work.files {
            1 => 0,
            files => narrow(self.random.below(u64::from(files))),
        }
    }

    fn range(&mut self, starts: u64, lengths: u64) -> Step {
        let step_bytes = u64::from(RANGE_STEP_BYTES);
        let more_bytes = narrow(self.random.below(lengths) * step_bytes);
        Step {
            kind: Kind::Read,
            file: self.file(),
            offset: self.random.below(starts) * step_bytes,
            length: self.work.least_bytes + more_bytes,
        }
    }
}

/// A block of all files as a file and a block of it.
#[inline]
fn apart(block: u64, blocks: u64) -> (u32, u64) {
    match block < blocks {
        true => (0, block),
        false => (narrow(block / blocks), block % blocks),
    }
}

#[inline]
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("below a number that fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(access: Access) -> Work {
        Work {
            access,
            block_bytes: 4096,
            least_bytes: 4096,
            read_percent: 70,
            sync: Sync::None,
            batched: false,
            read_back: false,
            verify: false,
            misses: false,
            without_repeats: false,
            files: 1,
            file_bytes: 64 * 4096 + 100,
        }
    }

    fn take(work: &Work, share: &Share, seed: u64, count: usize) -> Vec<Step> {
        let mut ops = Ops::new(work, share, seed);
        (0..count).map(|_| ops.next()).collect()
    }

    #[test]
    fn random_blocks_are_aligned_inside_and_spread_over_all_files() {
        let work = Work {
            files: 3,
            ..work(Access::RandomRead)
        };
        let mut seen = [0u32; 3 * 64];
        for step in take(&work, &Share::whole(), 7, 192_000) {
            assert_eq!((step.kind, step.offset % 4096), (Kind::Read, 0));
            seen[step.file_index() * 64 + usize::try_from(step.offset / 4096).unwrap()] += 1;
        }
        let even = |count: &u32| (700..1300).contains(count);
        assert!(seen.iter().all(even), "{seen:?}");
    }

    #[test]
    fn a_seed_gives_its_own_sequence_and_each_lane_another() {
        let work = work(Access::RandomRead);
        let (first, second) = (Share::whole().of(0, 2), Share::whole().of(1, 2));
        assert_eq!(take(&work, &first, 1, 8), take(&work, &first, 1, 8));
        assert_ne!(take(&work, &first, 1, 8), take(&work, &first, 2, 8));
        assert_ne!(take(&work, &first, 1, 8), take(&work, &second, 1, 8));
    }

    #[test]
    fn without_repeats_lanes_share_all_blocks_out() {
        let work = Work {
            without_repeats: true,
            files: 2,
            ..work(Access::RandomRead)
        };
        let mut seen = Vec::new();
        for lane in 0..4 {
            seen.extend(take(&work, &Share::whole().of(lane, 4), 5, 32));
        }
        let mut places: Vec<_> = seen.iter().map(|step| (step.file, step.offset)).collect();
        let unsorted = places.clone();
        places.sort_unstable();
        assert_ne!(places, unsorted);
        places.dedup();
        assert_eq!(places.len(), 2 * 64);
    }

    #[test]
    fn blocks_in_order_are_shared_by_the_lanes_and_begin_again() {
        let work = Work {
            files: 2,
            ..work(Access::SequentialRead)
        };
        let share = Share::whole();
        let (mut one, mut other) = (
            Ops::new(&work, &share.of(0, 2), 1),
            Ops::new(&work, &share.of(1, 2), 1),
        );
        for block in 0..64 {
            let next = if block % 2 == 0 { &mut one } else { &mut other };
            assert_eq!((next.next().offset / 4096, 0), (block, 0));
        }
        assert_eq!((other.next().file, other.next().offset), (1, 4096));
        let wrapped = take(&work, &share, 1, 63)[62];
        assert_eq!((wrapped.file, wrapped.offset), (0, 0));
    }

    #[test]
    fn the_block_that_tells_what_a_file_is_is_never_written() {
        for access in [Access::RandomWrite, Access::SequentialWrite, Access::Append] {
            for step in take(&work(access), &Share::whole(), 3, 1000) {
                assert_eq!(step.kind, Kind::Write);
                assert!((4096..64 * 4096).contains(&step.offset), "{step:?}");
            }
        }
    }

    #[test]
    fn a_mix_has_its_share_of_reads() {
        let steps = take(&work(Access::Mixed), &Share::whole(), 1, 10_000);
        let reads = steps.iter().filter(|step| step.kind == Kind::Read).count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }

    #[test]
    fn ranges_are_inside_and_have_every_length() {
        let work = Work {
            block_bytes: 4 * 4096,
            ..work(Access::RangeRead)
        };
        let mut lengths = [0; 4];
        for step in take(&work, &Share::whole(), 1, 10_000) {
            assert!(step.offset + u64::from(step.length) <= work.file_bytes);
            lengths[step.bytes() / 4096 - 1] += 1;
        }
        assert!(lengths.iter().all(|count| (2_200..2_800).contains(count)));
    }

    #[test]
    fn an_operation_goes_from_step_to_step() {
        let ops = |sync, read_back| {
            let work = Work {
                sync,
                read_back,
                ..work(Access::RandomWrite)
            };
            Ops::new(&work, &Share::whole(), 1)
        };
        let steps = |mut ops: Ops| {
            let mut step = ops.next();
            let mut kinds = vec![step.kind];
            while let Some(next) = ops.after(&step) {
                assert_eq!((next.offset, next.length), (step.offset, step.length));
                kinds.push(next.kind);
                step = next;
            }
            kinds
        };
        use Kind::{Read, Sync as Synced, Write};
        assert_eq!(steps(ops(Sync::None, false)), [Write]);
        assert_eq!(steps(ops(Sync::End, false)), [Write]);
        assert_eq!(steps(ops(Sync::Each, false)), [Write, Synced]);
        assert_eq!(steps(ops(Sync::Each, true)), [Write, Synced, Read]);
        assert_eq!(steps(ops(Sync::None, true)), [Write, Read]);
    }
}
