use super::step::POLL_MAX_BYTES;
use super::*;
use crate::op::{Iovecs, Span};

const BUFFERED: Facts = Facts {
    direct: false,
    durable_writes: false,
    limit_bytes: 1,
    served: false,
    unaligned: false,
};
const DIRECT: Facts = Facts {
    direct: true,
    ..BUFFERED
};
const FAST: Seen = Seen::Took {
    ns: 900,
    bytes: 4096,
};
const SLOW: Seen = Seen::Took {
    ns: 90_000,
    bytes: 4096,
};
/// For so long that no test is over before those who come after it may be polled again.
const WAITED: Seen = Seen::Waited {
    ns: 60_000_000_000,
    bytes: 4096,
};
const FAST_IN_POOL: Seen = Seen::Pooled {
    ns: 900,
    bytes: 4096,
};
const SLOW_IN_POOL: Seen = Seen::Pooled {
    ns: 90_000,
    bytes: 4096,
};

fn durable(facts: Facts) -> Facts {
    Facts {
        durable_writes: true,
        ..facts
    }
}

const NO_MEMORY: Span = Span {
    start: std::ptr::null_mut(),
    len: 0,
    arena: None,
};

fn read() -> Op {
    Op::ReadAt {
        fd: 0,
        span: NO_MEMORY,
        offset: 0,
        wishes: Wishes::NONE,
    }
}

fn write() -> Op {
    Op::WriteAt {
        fd: 0,
        span: NO_MEMORY,
        offset: 0,
        wishes: Wishes::NONE,
    }
}

fn learned(facts: Facts, is_write: bool, seen: &[(Seen, usize)]) -> Learned {
    let learned = Learned::default();
    for (seen, times) in seen {
        (0..*times).for_each(|_| learned.note(facts, is_write, *seen));
    }
    learned
}

/// What reads have shown, each so many times.
type Shown<'a> = &'a [(Seen, usize)];

#[test]
fn metadata_is_asked_for_at_once() {
    let metadata = Op::Metadata {
        fd: 0,
        out: std::ptr::null_mut(),
    };
    let road = road(&metadata, DIRECT, &Learned::default(), || false);
    assert_eq!(road, Road::Now);
}

/// Whoever serves the file may need the thread that polls.
#[test]
fn what_somebody_else_serves_is_for_the_pool_where_it_is_awaited() {
    let metadata = Op::Metadata {
        fd: 0,
        out: std::ptr::null_mut(),
    };
    for (facts, of_writes) in [(BUFFERED, Road::Plain), (DIRECT, Road::Served)] {
        let served = Facts {
            served: true,
            ..facts
        };
        let fast = learned(served, false, &[(Seen::Refused, 1), (FAST, 10)]);
        let roads = [read(), write(), metadata].map(|op| road(&op, served, &fast, || false));
        assert_eq!(roads, [Road::Served, of_writes, Road::Pool]);
        for road in roads {
            assert_eq!(in_a_poll(road, 4096, || true), Step::Pool, "{road:?}");
        }
        let ours = [read(), metadata].map(|op| road(&op, facts, &fast, || false));
        assert_eq!(ours, [Road::Blind, Road::Now]);
    }
}

#[test]
fn lists_of_buffers_of_a_file_in_the_page_cache_go_as_its_other_reads_do() {
    let read = Op::ReadVectoredAt {
        fd: 0,
        iovecs: crate::op::Iovecs {
            first: std::ptr::null_mut(),
            count: 0,
        },
        offset: 0,
        wishes: Wishes::NONE,
    };
    let asked = Seen::Asked {
        ns: 3_000,
        bytes: 4096,
    };
    let cases: [(Facts, Shown<'_>, Road); 8] = [
        (BUFFERED, &[], Road::First),
        (BUFFERED, &[(Seen::Hit, 1)], Road::CacheFirst),
        (BUFFERED, &[(Seen::Hit, 100)], Road::Warm),
        (BUFFERED, &[(Seen::Miss, 100)], Road::Cold),
        (BUFFERED, &[(Seen::Refused, 1)], Road::Blind),
        (BUFFERED, &[(Seen::Refused, 1), (SLOW, 1)], Road::Slow),
        (DIRECT, &[], Road::Backend),
        (DIRECT, &[(asked, 1)], Road::Backend),
    ];
    for (facts, seen, expected) in cases {
        let learned = learned(facts, false, seen);
        assert_eq!(road(&read, facts, &learned, || false), expected, "{seen:?}");
    }
}

#[test]
fn what_was_preempted_says_nothing_of_the_file() {
    for (seen, expected) in [
        ((Seen::Hit, 100), Road::Warm),
        ((Seen::Miss, 100), Road::Cold),
        ((Seen::Refused, 1), Road::Blind),
    ] {
        let learned = learned(BUFFERED, false, &[seen, (Seen::Preempted, 100)]);
        assert_eq!(learned.reads.road(false), expected, "{seen:?}");
    }
}

#[test]
fn what_hits_mostly_has_to_hit_longer_to_be_taken_for_warm() {
    let (warm, miss) = ((Seen::Hit, 64), (Seen::Miss, 1));
    let cases: [(&[(Seen, usize)], Road); 13] = [
        (&[warm], Road::Warm),
        // As is the end of a file.
        (&[warm, (Seen::Short, 1), (Seen::Hit, 63)], Road::CacheFirst),
        (&[warm, (Seen::Short, 1), warm], Road::Warm),
        // One that was slow may have been preempted.
        (&[warm, (SLOW, 1), (Seen::Hit, 63)], Road::CacheFirst),
        (&[warm, (SLOW, 1), warm], Road::Warm),
        (&[(Seen::Hit, 7), miss, warm], Road::Warm),
        (&[warm, miss, (Seen::Hit, 511)], Road::CacheFirst),
        (&[warm, miss, (Seen::Hit, 512)], Road::Warm),
        (
            &[warm, miss, (Seen::Hit, 8), miss, (Seen::Hit, 4095)],
            Road::CacheFirst,
        ),
        (
            &[warm, miss, (Seen::Hit, 8), miss, miss, (Seen::Hit, 4096)],
            Road::Warm,
        ),
        // It is forgotten after a while, and what comes then is learned from as before.
        (
            &[warm, miss, (Seen::Hit, 9000), miss, (Seen::Hit, 512)],
            Road::Warm,
        ),
        (&[(Seen::Hit, 9000), (Seen::Miss, 32)], Road::Cold),
        // Also by samples that were fast.
        (
            &[
                warm,
                miss,
                (Seen::Hit, 512),
                (FAST, 7680),
                miss,
                (Seen::Hit, 512),
            ],
            Road::Warm,
        ),
    ];
    for (seen, expected) in cases {
        let learned = learned(BUFFERED, false, seen);
        assert_eq!(learned.reads.road(false), expected, "after {seen:?}");
    }
}

#[test]
fn copies_are_plain_calls_and_what_may_wait_is_for_the_pool() {
    let cases: [(&[(Seen, usize)], Road); 10] = [
        (&[], Road::Copy),
        (&[(Seen::Hit, 100)], Road::Copy),
        (&[(Seen::Miss, 1)], Road::CopyBlind),
        (&[(Seen::Miss, 1), (FAST, 1)], Road::Copy),
        (&[(Seen::Miss, 1), (WAITED, 1)], Road::CopySlow),
        (&[(Seen::Miss, 2), (WAITED, 1)], Road::Plain),
        (&[(Seen::Refused, 1), (FAST, 100)], Road::CopyBlind),
        (&[(Seen::Refused, 1), (SLOW, 1)], Road::CopyBlind),
        (&[(Seen::Refused, 1), (WAITED, 1)], Road::Plain),
        (
            &[(Seen::Refused, 1), (WAITED, 1), (FAST_IN_POOL, 9)],
            Road::Plain,
        ),
    ];
    for (seen, expected) in cases {
        let learned = learned(BUFFERED, true, seen);
        let road = road(&write(), BUFFERED, &learned, || true);
        assert_eq!(road, expected, "after {seen:?}");
    }
    // Nor does what waits for a flush each time.
    let sound = learned(durable(BUFFERED), true, &[(WAITED, 1)]);
    assert_eq!(road(&write(), BUFFERED, &sound, || false), Road::Copy);
    // What reads have shown says nothing of writes.
    let learned = learned(BUFFERED, false, &[(Seen::Refused, 1)]);
    assert_eq!(road(&write(), BUFFERED, &learned, || false), Road::Copy);
    let road = road(&write(), BUFFERED.unaligned(), &learned, || false);
    assert_eq!(road, Road::Plain);
}

#[test]
fn reads_that_are_not_aligned_tell_of_their_own_kind() {
    let unaligned = DIRECT.unaligned();
    let roads = |learned: &Learned| {
        [unaligned, DIRECT].map(|facts| road(&read(), facts, learned, || false))
    };
    let learned = learned(unaligned, false, &[(Seen::Hit, 64)]);
    assert_eq!(roads(&learned), [Road::Warm, Road::Ask]);
    assert_eq!(learned.takes_nowait(unaligned, false), Some(true));
    assert_eq!(learned.takes_nowait(DIRECT, false), None);
    learned.note(DIRECT, false, Seen::Miss);
    assert_eq!(roads(&learned), [Road::Warm, Road::Device]);
    for _ in 0..32 {
        learned.note(unaligned, false, Seen::Miss);
    }
    assert_eq!(roads(&learned), [Road::Cold, Road::Device]);
    // What a thread of the pool has waited for was not the device alone.
    learned.note(unaligned, false, SLOW_IN_POOL);
    assert_eq!(learned.waited(DIRECT, false), None);
    learned.note(unaligned, false, Seen::Refused);
    assert_eq!(roads(&learned), [Road::Blind, Road::Device]);
    // Writes are copies of which nothing is learned.
    learned.note(unaligned, true, Seen::Refused);
    let write = road(&write(), unaligned, &learned, || false);
    assert_eq!(write, Road::Plain);
}

#[test]
fn durable_copies_share_their_flushes_in_the_pool() {
    let road = road(&write(), durable(BUFFERED), &Learned::default(), || false);
    assert_eq!(road, Road::Pool);
}

#[test]
fn direct_writes_take_the_ring_where_it_need_not_wait_for_a_worker() {
    let taken = learned(DIRECT, true, &[(WAITED, 1)]);
    let cases = [
        (DIRECT, false, Road::Backend),
        (DIRECT, true, Road::Plain),
        (durable(DIRECT), false, Road::Backend),
        (durable(DIRECT), true, Road::Pool),
    ];
    for (facts, grows, expected) in cases {
        let road = road(&write(), facts, &taken, || grows);
        assert_eq!(road, expected, "{facts:?}, grows: {grows}");
    }
    let refused = learned(DIRECT, true, &[(Seen::Refused, 1)]);
    assert_eq!(road(&write(), DIRECT, &refused, || false), Road::Blind);
    let road = road(&write(), DIRECT, &Learned::default(), || false);
    assert_eq!(road, Road::Ask);
}

fn after(seen: &[(Seen, usize)]) -> Warmth {
    learned(BUFFERED, false, seen).reads
}

#[test]
fn reads_follow_what_was_seen() {
    let cases: [(&[(Seen, usize)], Road); 12] = [
        (&[], Road::First),
        (&[(Seen::Hit, 63)], Road::CacheFirst),
        (&[(Seen::Hit, 64)], Road::Warm),
        (&[(Seen::Hit, 64), (FAST, 5)], Road::Warm),
        (&[(Seen::Hit, 64), (SLOW, 1)], Road::CacheFirst),
        (&[(Seen::Hit, 64), (Seen::Miss, 32)], Road::Cold),
        (&[(Seen::Miss, 32), (Seen::Hit, 1)], Road::Mixed),
        (&[(Seen::Miss, 32), (FAST_IN_POOL, 20)], Road::Cold),
        (&[(Seen::Refused, 1), (FAST, 1)], Road::Blind),
        (&[(Seen::Refused, 1), (SLOW, 1)], Road::Slow),
        (&[(Seen::Refused, 1), (SLOW, 1), (FAST, 1)], Road::Blind),
        (
            &[
                (Seen::Refused, 1),
                (SLOW, 1),
                (FAST_IN_POOL, 1),
                (SLOW_IN_POOL, 1),
            ],
            Road::Slow,
        ),
    ];
    for (seen, expected) in cases {
        assert_eq!(after(seen).road(false), expected, "after {seen:?}");
    }
}

#[test]
fn direct_reads_ask_once_and_then_take_the_ring() {
    assert_eq!(after(&[]).road(true), Road::Ask);
    assert_eq!(after(&[(Seen::Hit, 100)]).road(true), Road::Device);
    assert_eq!(after(&[(Seen::Miss, 1)]).road(true), Road::Device);
    assert_eq!(after(&[(Seen::Refused, 1)]).road(true), Road::Blind);
}

#[test]
fn the_first_direct_reads_show_whether_the_device_is_memory() {
    let asked = |ns, bytes| (Seen::Asked { ns, bytes }, 1);
    let memory = asked(3_000, 4096);
    let cases: [(&[(Seen, usize)], Road); 9] = [
        (&[memory], Road::Memory),
        (&[asked(90_000, 4096)], Road::Device),
        (&[asked(20_000, 4096)], Road::Ask),
        (&[asked(20_000, 4096), memory], Road::Memory),
        (&[(asked(20_000, 4096).0, 4)], Road::Device),
        // A drive moves so much in this time.
        (&[asked(60_000, 65_536)], Road::Device),
        (&[(Seen::Hit, 1)], Road::Device),
        (&[(Seen::Miss, 1)], Road::Device),
        // Those that were asked at the same time.
        (&[memory, asked(90_000, 4096), (Seen::Hit, 1)], Road::Memory),
    ];
    for (seen, expected) in cases {
        let learned = learned(DIRECT, false, seen);
        assert_eq!(learned.reads.road(true), expected, "after {seen:?}");
        let takes = learned.takes_nowait(DIRECT, false);
        assert_eq!(takes, (expected != Road::Ask).then_some(true));
    }
    // Of its writes they show nothing, but for one that cannot be asked.
    let memory = learned(DIRECT, false, &[memory]);
    assert_eq!(road(&write(), DIRECT, &memory, || false), Road::Ask);
    let refusing = learned(DIRECT, false, &[(Seen::Refused, 1)]);
    assert_eq!(road(&write(), DIRECT, &refusing, || false), Road::Blind);
}

#[test]
fn what_seemed_to_be_memory_is_a_device_when_most_reads_wait() {
    let (ns, bytes) = (3_000, 4096);
    let memory = (Seen::Asked { ns, bytes }, 1);
    let after = |seen: &[(Seen, usize)]| {
        let seen = [&[memory], seen].concat();
        learned(DIRECT, false, &seen).reads.road(true)
    };
    assert_eq!(after(&[(SLOW, 1)]), Road::Device);
    assert_eq!(
        after(&[(FAST, 8), (SLOW, 2), (Seen::Preempted, 9)]),
        Road::Memory
    );
    assert_eq!(
        after(&[(FAST, 8), (SLOW, 2), (FAST, 4), (SLOW, 1)]),
        Road::Memory
    );
    assert_eq!(after(&[(FAST, 8), (SLOW, 3)]), Road::Device);
    // Only to be asked again brings it back: its reads are not plain calls any more.
    assert_eq!(after(&[(SLOW, 1), (FAST, 100)]), Road::Device);
    assert_eq!(after(&[(SLOW, 1), memory]), Road::Memory);
}

/// The next so many reads that are asked, when each takes so long.
fn asked_again(learned: &Learned, reads: usize, ns: u64) -> usize {
    let is_asked = |_: &usize| match road(&read(), DIRECT, learned, || false) {
        Road::Ask => {
            learned.note(DIRECT, false, Seen::Asked { ns, bytes: 4096 });
            true
        }
        road => {
            assert!(matches!(road, Road::Device | Road::Memory), "{road:?}");
            false
        }
    };
    (0..reads).filter(is_asked).count()
}

#[test]
fn what_seemed_to_be_a_device_is_asked_again_until_that_is_certain() {
    let devices = Devices::new(true);
    let on_a_device = |number| Learned::on(devices.of(number));
    let (memory, drive) = (on_a_device(1), on_a_device(2));
    // Their first reads are slow, one of which because its thread had lost its processor.
    assert_eq!(asked_again(&memory, 1, 90_000), 1);
    assert_eq!(asked_again(&drive, 1, 90_000), 1);
    assert_eq!(asked_again(&memory, 1 << 20, 3_000), 1);
    assert_eq!(road(&read(), DIRECT, &memory, || false), Road::Memory);
    // A read that waits shows a quarter of what is needed.
    assert_eq!(asked_again(&drive, 1 << 20, 90_000), 3);
    assert_eq!(road(&read(), DIRECT, &drive, || false), Road::Device);
    // Two slow calls in a short row, and it is asked again as well.
    (0..3).for_each(|_| memory.note(DIRECT, false, SLOW));
    assert_eq!(road(&read(), DIRECT, &memory, || false), Road::Device);
    assert_eq!(asked_again(&memory, 1 << 20, 3_000), 1);
    assert_eq!(road(&read(), DIRECT, &memory, || false), Road::Memory);
    // Of writes that is not known.
    let fresh = on_a_device(3);
    assert_eq!(asked_again(&fresh, 1, 90_000), 1);
    let mut writes = (0..1 << 12).map(|_| road(&write(), DIRECT, &fresh, || false));
    assert!(writes.all(|road| road == Road::Ask));
    // The beginning of a large read shows as much as a small one.
    let large = Op::ReadAt {
        fd: 0,
        span: Span {
            len: 64 << 10,
            ..NO_MEMORY
        },
        offset: 0,
        wishes: Wishes::NONE,
    };
    let reads = (0..1 << 12).map(|_| road(&large, DIRECT, &fresh, || false));
    assert_eq!(reads.filter(|road| *road == Road::Ask).count(), 4);
}

#[test]
fn direct_writes_show_themselves_whether_their_device_is_memory() {
    let devices = Devices::new(true);
    let on_a_device = |number| Learned::on(devices.of(number));
    let list = Op::WriteVectoredAt {
        fd: 0,
        iovecs: Iovecs {
            first: std::ptr::null_mut(),
            count: 0,
        },
        offset: 0,
        wishes: Wishes::NONE,
    };
    let note = |learned: &Learned, seen| learned.note(DIRECT, true, seen);
    let (ns, bytes) = (7_000, 4096);
    let of =
        |learned: &Learned| [write(), list, read()].map(|op| road(&op, DIRECT, learned, || false));
    let memory = on_a_device(1);
    assert_eq!(of(&memory), [Road::Ask; 3]);
    note(&memory, Seen::Asked { ns, bytes });
    assert_eq!(of(&memory), [Road::Memory, Road::Backend, Road::Ask]);
    assert_eq!(memory.takes_nowait(DIRECT, true), Some(true));
    assert_eq!(memory.takes_nowait(DIRECT, false), None);
    // Those that make the file grow hold it to themselves.
    assert_eq!(road(&write(), DIRECT, &memory, || true), Road::Plain);
    // What one waits for, others on its device do, and it is asked as seldom as reads are.
    let drive = on_a_device(2);
    note(&drive, Seen::Waited { ns, bytes });
    assert_eq!(of(&drive), [Road::Backend, Road::Backend, Road::Ask]);
    let asked = |learned: &Learned, seen| {
        let is_asked = |_: &usize| {
            let is_asked = road(&write(), DIRECT, learned, || false) == Road::Ask;
            if is_asked {
                note(learned, seen);
            }
            is_asked
        };
        (0..1 << 16).filter(is_asked).count()
    };
    assert_eq!(asked(&drive, Seen::Waited { ns, bytes }), 3);
    assert_eq!(asked(&on_a_device(2), Seen::Waited { ns, bytes }), 1);
    // Reads are not what it has shown.
    assert_eq!(road(&read(), DIRECT, &on_a_device(2), || false), Road::Ask);
    // One that has been forgotten to be memory is found again.
    let forgotten = on_a_device(3);
    note(&forgotten, Seen::Miss);
    assert_eq!(asked(&forgotten, Seen::Asked { ns, bytes }), 1);
    assert_eq!(of(&forgotten)[0], Road::Memory);
}

#[test]
fn a_direct_write_that_refuses_says_nothing_of_reads_that_have_not() {
    let refuses = |learned: &Learned| learned.note(DIRECT, true, Seen::Refused);
    let (read_before, fresh) = (
        learned(DIRECT, false, &[(Seen::Hit, 1)]),
        Learned::default(),
    );
    refuses(&read_before);
    assert_eq!(road(&read(), DIRECT, &read_before, || false), Road::Device);
    assert_eq!(
        road(&write(), DIRECT, &read_before, || false),
        Road::Backend
    );
    refuses(&fresh);
    assert_eq!(road(&read(), DIRECT, &fresh, || false), Road::Blind);
    assert_eq!(road(&write(), DIRECT, &fresh, || false), Road::Blind);
}

#[test]
fn a_durable_direct_write_is_asked_only_where_nothing_else_has_been() {
    let facts = durable(DIRECT);
    let road = |learned: &Learned| road(&write(), facts, learned, || false);
    assert_eq!(road(&Learned::default()), Road::Ask);
    assert_eq!(
        road(&learned(facts, false, &[(Seen::Hit, 1)])),
        Road::Backend
    );
}

#[test]
fn wishes_are_granted_where_nobody_guesses() {
    let wished = |wishes| {
        let Op::WriteAt {
            fd, span, offset, ..
        } = write()
        else {
            unreachable!("it is a write");
        };
        Op::WriteAt {
            fd,
            span,
            offset,
            wishes,
        }
    };
    let cases = [
        (Wishes::DONT_CACHE, Road::Plain),
        (Wishes::NO_WAIT, Road::Now),
        (Wishes::DSYNC, Road::Pool),
        (Wishes::THEN_SYNC.with(Wishes::NO_WAIT), Road::Pool),
    ];
    let learned = Learned::default();
    for (wishes, expected) in cases {
        let road = |facts| road(&wished(wishes), facts, &learned, || false);
        assert_eq!(road(BUFFERED), expected, "{wishes:?}");
        assert_eq!(road(DIRECT), Road::Backend, "{wishes:?}");
        assert_eq!(road(durable(BUFFERED)), Road::Pool, "{wishes:?}");
        let [buffered, direct] = [BUFFERED, DIRECT].map(|facts| Facts {
            served: true,
            ..facts
        });
        assert_eq!(road(buffered), expected, "{wishes:?}");
        assert_eq!(road(direct), Road::Pool, "{wishes:?}");
    }
}

#[test]
fn who_polls_does_not_wait() {
    let step = |road, bytes| in_a_poll(road, bytes, || true);
    let or = Step::Try;
    let cases = [
        (Road::Now, Step::Call, Step::Call),
        (Road::Copy, or(Else::TimedCall), Step::Pool),
        (Road::CopyBlind, Step::TimedCall, Step::Pool),
        (Road::CopySlow, or(Else::Pool), Step::Pool),
        (Road::Blind, Step::TimedCall, Step::Pool),
        (Road::Plain, Step::Pool, Step::Pool),
        (Road::Pool, Step::Pool, Step::Pool),
        (Road::Slow, Step::Pool, Step::Pool),
        (Road::Warm, or(Else::Backend), Step::Backend),
        (Road::CacheFirst, or(Else::Backend), Step::Backend),
        (Road::First, or(Else::Backend), Step::Probe),
        (Road::Ask, or(Else::Backend), Step::Probe),
        (Road::Cold, or(Else::Backend), Step::Backend),
        (Road::Backend, Step::Backend, Step::Backend),
        (Road::Device, Step::Backend, Step::Backend),
        (Road::Memory, Step::TimedCall, Step::Pool),
    ];
    for (road, small, large) in cases {
        assert_eq!(step(road, 4096), small, "{road:?}");
        assert_eq!(step(road, POLL_MAX_BYTES + 1), large, "{road:?}");
    }
    assert_eq!(in_a_poll(Road::Cold, 1, || false), Step::Backend);
}

#[test]
fn few_in_flight_are_waited_for_one_at_a_time() {
    assert_eq!([0, 1, 15].map(wait_for), [1, 1, 1]);
    assert!(wait_for(128) > 1 && wait_for(128) < 128);
}

#[test]
fn direct_transfers_are_split_at_what_the_device_takes() {
    assert_eq!(limit_bytes(true, Some(131_072), 512), 131_072);
    assert_eq!(limit_bytes(true, Some(127 * 1024), 512), 124 * 1024);
    assert_eq!(limit_bytes(true, Some(120 * 1024), 16_384), 112 * 1024);
    assert_eq!(limit_bytes(true, Some(4096), 16_384), 16_384);
    assert_eq!(limit_bytes(true, Some(1 << 30), 4096), DIRECT_LIMIT_BYTES);
    assert_eq!(limit_bytes(true, None, 1), DIRECT_LIMIT_BYTES);
    assert!(limit_bytes(false, Some(4096), 0) > 1 << 30);
}
