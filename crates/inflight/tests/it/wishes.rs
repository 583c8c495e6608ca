//! What is asked of single transfers: durable, without waiting, without the page cache, with a
//! priority; by every host, and refused.

#[cfg(feature = "faulty")]
mod behind;
pub(crate) mod cache;
mod refused;

use std::fs;

use inflight::fs::{Direct, File, ReadAt, ReadVectoredAt, WriteAt, WriteVectoredAt};
use inflight::{Operation, Priority, errno_of};

use crate::support::{directory, given_up, on_every_backend, pattern, read_write, skip, temp_path};

/// The results of an operation by every host: alone, in a batch, in a queue, awaited on a driver
/// and in a run loop, alone and with others.
macro_rules! by_every_host {
    ($engine:expr, $operation:expr) => {{
        let engine: &inflight::Engine = $engine;
        let mut outputs = vec![inflight::Operation::wait($operation)];
        let mut batch = inflight::Batch::on(engine);
        (0..3).for_each(|_| batch.push($operation));
        outputs.extend(batch.wait());
        let queued = engine.queue(2, |queue| {
            assert!(queue.push(1, $operation).is_ok());
            queue.next().expect("one is in flight").1
        });
        outputs.push(queued.expect("nothing is demanded"));
        outputs.push(pollster::block_on(async { $operation.await }));
        let looped = engine.run(async { $operation.await });
        outputs.push(looped.expect("nothing is demanded"));
        let mut batch = inflight::Batch::on(engine);
        (0..3).for_each(|_| batch.push($operation));
        outputs.extend(pollster::block_on(batch.into_future()));
        outputs
    }};
}

pub(crate) use by_every_host;

type Read<'f> = ReadAt<'f, Vec<u8>>;
type Write<'f> = WriteAt<'f, Vec<u8>>;
type ReadVectored<'f> = ReadVectoredAt<'f, Vec<u8>>;
type WriteVectored<'f> = WriteVectoredAt<'f, Vec<u8>>;

/// Wishes that no file refuses for good.
const READS: [fn(Read<'_>) -> Read<'_>; 4] = [
    |read| read.dont_cache(),
    |read| read.priority(Priority::Latency),
    |read| {
        read.priority(Priority::Latency)
            .priority(Priority::Throughput)
    },
    |read| read.dont_cache().priority(Priority::Throughput),
];

const WRITES: [fn(Write<'_>) -> Write<'_>; 6] = [
    |write| write.dsync(),
    |write| write.then_sync(),
    |write| write.dont_cache(),
    |write| write.dsync().dont_cache(),
    |write| write.then_sync().dont_cache().priority(Priority::Latency),
    |write| write.priority(Priority::Throughput),
];

const VECTORED_READS: [fn(ReadVectored<'_>) -> ReadVectored<'_>; 2] = [
    |read| read.dont_cache(),
    |read| read.priority(Priority::Latency),
];

const VECTORED_WRITES: [fn(WriteVectored<'_>) -> WriteVectored<'_>; 4] = [
    |write| write.dsync(),
    |write| write.then_sync(),
    |write| write.dont_cache().dsync(),
    |write| write.then_sync().priority(Priority::Latency),
];

/// A path in the test directory and one in memory, where hints are refused.
fn places() -> Vec<tempfile::NamedTempFile> {
    let in_memory = tempfile::NamedTempFile::new_in("/dev/shm");
    [Some(temp_path(b"")), in_memory.ok()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn wishes_move_the_same_bytes_on_every_host() {
    let data = pattern(10_000);
    on_every_backend(|engine| {
        for (path, direct) in places()
            .iter()
            .flat_map(|path| [Direct::Off, Direct::Auto].map(|direct| (path, direct)))
        {
            let file = read_write(engine).direct(direct).open(path.path()).unwrap();
            for (n, wish) in (0_u8..).zip(WRITES) {
                let data: Vec<u8> = data.iter().map(|byte| byte ^ n).collect();
                fs::write(path.path(), b"").unwrap();
                for (result, buf) in
                    by_every_host!(engine, wish(file.write_all_at(data.clone(), 0)))
                {
                    assert_eq!(result.unwrap(), data.len(), "write {n}");
                    assert!(buf == data);
                }
                assert!(fs::read(path.path()).unwrap() == data, "write {n}");
            }
            for wish in VECTORED_WRITES {
                fs::write(path.path(), b"").unwrap();
                let pieces = || data.chunks(999).map(<[u8]>::to_vec).collect();
                for (result, _) in by_every_host!(engine, wish(file.write_vectored_at(pieces(), 0)))
                {
                    assert_eq!(result.unwrap(), data.len());
                }
                assert!(fs::read(path.path()).unwrap() == data);
            }
            for wish in READS {
                for (result, buf) in by_every_host!(engine, wish(file.read_at(vec![0; 9000], 100)))
                {
                    assert_eq!(result.unwrap(), 9000);
                    assert!(buf == data[100..9100]);
                }
            }
            for wish in VECTORED_READS {
                let bufs = || vec![vec![0; 10], vec![0; 4096], vec![0; 1000]];
                for (result, bufs) in
                    by_every_host!(engine, wish(file.read_vectored_exact_at(bufs(), 7)))
                {
                    assert_eq!(result.unwrap(), 5106);
                    assert!(bufs.concat() == data[7..5113]);
                }
            }
        }
    });
}

#[test]
fn direct_transfers_take_priorities_and_wishes_too() {
    on_every_backend(|engine| {
        let path = temp_path(&[0; 64 << 10]);
        let options = read_write(engine).direct(Direct::Required);
        let Ok(file) = options.open(path.path()) else {
            return skip("direct wishes", &format!("{:?}", directory()));
        };
        let aligned = |byte: u8| {
            let mut buf = file.aligned_buf(8192).unwrap();
            buf.fill(byte);
            buf
        };
        let write = |byte| file.write_all_at(aligned(byte), 4096);
        let wishes = [
            by_every_host!(engine, write(1).dsync()),
            by_every_host!(engine, write(2).then_sync().priority(Priority::Latency)),
            by_every_host!(engine, write(3).priority(Priority::Throughput)),
            by_every_host!(engine, write(4).dont_cache()),
        ];
        let mut with_priority = wishes[1].len() + wishes[2].len();
        for (result, _) in wishes.into_iter().flatten() {
            assert_eq!(result.unwrap(), 8192);
        }
        let read = || file.read_at(aligned(0), 4096);
        for (result, buf) in by_every_host!(engine, read().priority(Priority::Latency).dont_cache())
        {
            with_priority += 1;
            assert_eq!(result.unwrap(), 8192);
            assert!(buf.iter().all(|byte| *byte == 4));
        }
        // Nothing had to be left out: what is direct is not cached. But few schedulers heed a
        // priority, and where none does that is told once, if they may be asked.
        assert_eq!(given_up(engine, "dont_cache"), []);
        let scheduler = file.read_at(aligned(0), 0).explain().scheduler;
        let is_filtered = fs::read_to_string("/proc/thread-self/status")
            .is_ok_and(|status| !status.contains("Seccomp:\t0"));
        let is_heeded = is_filtered || scheduler.is_none_or(|name| name == "bfq");
        let (unheard, told) = match is_heeded {
            true => (0, 0),
            false => (with_priority as u64, 1),
        };
        assert_eq!(engine.stats().hints_unheard, unheard);
        assert_eq!(given_up(engine, "priority").len(), told);
    });
}

#[test]
fn a_priority_that_nobody_heeds_is_counted() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(100));
        let file: File = read_write(engine).open(path.path()).unwrap();
        let read = || file.read_at(vec![0; 100], 0).priority(Priority::Latency);
        let results = by_every_host!(engine, read());
        let count = results.len();
        assert!(
            results
                .into_iter()
                .all(|(result, _)| result.unwrap() == 100)
        );
        let stats = engine.stats();
        assert_eq!(stats.hints_unheard, count as u64);
        let told = given_up(engine, "priority");
        assert!(told.len() == 1 && told[0].count == 1, "{told:?}");
        let beyond = file.read_at(vec![0; 1], u64::MAX);
        let (result, _) = beyond.priority(Priority::Latency).wait();
        assert_eq!(errno_of(&result.unwrap_err()), Some(libc::EINVAL));
        assert_eq!(engine.stats().hints_unheard, count as u64);
    });
}
