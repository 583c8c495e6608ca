//! Pools of buffers whose memory a ring knows in advance.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use inflight::fs::File;
use inflight::{AlignedBuf, Batch, BufPool, Engine, Operation, PoolBuf, WriteFrom, write_many};
use io_uring::IoUring;
use io_uring::types::CloneBuffersFlags;
use tempfile::NamedTempFile;

use super::{BLOCK, assert_carried, file_past_the_cache};
use crate::denied::limits::locked_memory_is_scarce;
use crate::support::own::in_own_process;
use crate::support::{
    chill, on_every_backend, patience, pattern, read_write, skip, temp_path, until,
    uring_of_depth_or_skip, uring_or_skip,
};

#[test]
fn buffers_of_a_pool_come_back_on_every_path() {
    on_every_backend(|engine| {
        let (_path, file) = file_past_the_cache(engine);
        let pool = BufPool::new(6, BLOCK).unwrap();
        let take = || pool.take().unwrap();
        // Not run at all.
        drop(file.read_at(take(), 0));
        assert_eq!(pool.available(), 6);
        // Run, refused, failed at the end of the file; results not asked for.
        let mut batch = Batch::new();
        batch.push(file.read_at(take(), 0));
        batch.push(file.read_at(take(), u64::MAX));
        batch.push(file.read_exact_at(take(), 0));
        assert_eq!(pool.available(), 3);
        drop(batch.wait());
        assert_eq!(pool.available(), 6);
        // In a queue that is left early.
        let left = engine.queue(4, |queue| {
            (0..3).for_each(|n| assert!(queue.push(n, file.read_at(take(), 0)).is_ok()));
            pool.available()
        });
        assert_eq!((left.unwrap(), pool.available()), (3, 6));
        assert!(
            (0..6)
                .map(|_| pool.take())
                .collect::<Vec<_>>()
                .iter()
                .all(Option::is_some)
        );
    });
}

/// Writes and reads every buffer of a new pool through the backend, in this thread. Returns the
/// address of the pool.
fn assert_pool_is_known_right(
    engine: &Engine,
    path: &NamedTempFile,
    file: &File,
    round: u8,
) -> usize {
    let pool = BufPool::new(4, BLOCK).expect("memory for it");
    assert_pool_is_right(engine, path, file, &pool, round)
}

fn assert_pool_is_right(
    engine: &Engine,
    path: &NamedTempFile,
    file: &File,
    pool: &BufPool,
    round: u8,
) -> usize {
    let mut batch = Batch::on(engine);
    for n in 0..4_u8 {
        let mut buf = pool.take().expect("four are free");
        buf.fill(round.wrapping_mul(4).wrapping_add(n));
        batch.push(file.write_all_at(buf, u64::from(n) * BLOCK as u64));
    }
    let bufs: Vec<PoolBuf> = batch
        .wait()
        .map(|(result, buf)| {
            assert_eq!(result.expect("it is written"), BLOCK);
            buf
        })
        .collect();
    let content = fs::read(path.path()).expect("the file is there");
    for (n, block) in (0_u8..).zip(content.chunks(BLOCK)) {
        let expected = round.wrapping_mul(4).wrapping_add(n);
        assert!(
            block.iter().all(|byte| *byte == expected),
            "round {round}: stale bytes written"
        );
    }
    let other = [round ^ 0xa5; 4 * BLOCK];
    path.as_file()
        .write_all_at(&other, 0)
        .expect("the file is there");
    let address = bufs.iter().map(|buf| buf.as_ptr().addr()).min();
    let mut batch = Batch::on(engine);
    for (n, buf) in (0_u64..).zip(bufs) {
        batch.push(file.read_exact_at(buf, n * BLOCK as u64));
    }
    for (result, buf) in batch.wait() {
        assert_eq!(result.expect("it is read"), BLOCK);
        assert!(
            buf.iter().all(|byte| *byte == round ^ 0xa5),
            "round {round}: read elsewhere"
        );
    }
    address.expect("there are four")
}

#[test]
fn a_new_pool_at_the_address_of_a_dead_one_is_not_taken_for_it() {
    on_every_backend(|engine| {
        let (path, file) = file_past_the_cache(engine);
        let mut addresses = BTreeSet::new();
        for round in 0..200 {
            addresses.insert(assert_pool_is_known_right(engine, &path, &file, round));
        }
        assert!(
            addresses.len() < 200,
            "no address came again, so nothing was shown"
        );
    });
}

#[test]
fn a_new_pool_on_new_pages_is_not_taken_for_a_dead_one() {
    // So large that the C library gives the memory back to the kernel: the same address, but
    // other pages than those that are still registered.
    const BUFFER: usize = 10 << 20;
    let Some(engine) = uring_or_skip("pools on new pages") else {
        return;
    };
    let (path, file) = file_past_the_cache(&engine);
    for round in 0..10_u8 {
        let pool = BufPool::new(4, BUFFER).unwrap();
        let mut writes = Batch::new();
        let mut bufs: Vec<PoolBuf> = (0..4).map(|_| pool.take().unwrap()).collect();
        bufs.iter_mut().for_each(|buf| buf[..BLOCK].fill(round + 1));
        for (n, buf) in (0_u64..).zip(&mut bufs) {
            writes.push(file.write_all_at(&mut buf[..BLOCK], n * BLOCK as u64));
        }
        assert!(writes.wait().all(|(result, _)| result.unwrap() == BLOCK));
        drop(writes);
        // The whole buffers, through the ring's own knowledge of them.
        path.as_file().set_len(0).unwrap();
        let mut batch = Batch::new();
        for (n, buf) in (0_u64..).zip(bufs.drain(..2)) {
            batch.push(file.write_all_at(buf, n * BUFFER as u64));
        }
        assert!(batch.wait().all(|(result, _)| result.unwrap() == BUFFER));
        for n in 0..2 {
            let mut block = [0; BLOCK];
            path.as_file()
                .read_exact_at(&mut block, n * BUFFER as u64)
                .unwrap();
            assert_eq!(
                block,
                [round + 1; BLOCK],
                "round {round}: stale bytes were written"
            );
        }
    }
}

#[test]
fn more_pools_than_a_ring_has_places_for_are_served() {
    on_every_backend(|engine| {
        let (path, file) = file_past_the_cache(engine);
        let pools: Vec<_> = (0..40).map(|_| BufPool::new(4, BLOCK).unwrap()).collect();
        for _ in 0..2 {
            // Buffers of all pools in one batch, then each pool by itself.
            let bufs: Vec<_> = pools.iter().map(|pool| pool.take().unwrap()).collect();
            assert_carried(engine, bufs);
            for (round, pool) in (0..40).zip(&pools) {
                assert_pool_is_right(engine, &path, &file, pool, round);
            }
        }
        assert!(pools.iter().all(|pool| pool.available() == 4));
    });
}

#[test]
fn a_buffer_outlives_its_pool_and_works_in_any_thread() {
    on_every_backend(|engine| {
        let pool = BufPool::new(16, BLOCK).unwrap();
        let bufs: Vec<_> = (0..16).map(|_| pool.take().unwrap()).collect();
        drop(pool);
        let mut bufs = bufs.into_iter();
        thread::scope(|scope| {
            for _ in 0..4 {
                let mine: Vec<_> = bufs.by_ref().take(4).collect();
                scope.spawn(move || assert_carried(engine, mine));
            }
        });
    });
}

#[test]
fn a_pool_is_shared_by_threads_that_come_and_go() {
    on_every_backend(|engine| {
        let pool = BufPool::new(8, BLOCK).unwrap();
        for _ in 0..5 {
            thread::scope(|scope| {
                for _ in 0..2 {
                    let bufs: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
                    scope.spawn(move || assert_carried(engine, bufs));
                }
            });
            assert_eq!(pool.available(), 8);
        }
    });
}

#[test]
fn buffers_of_odd_sizes_do_not_touch_their_neighbours() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(100_000));
        let file = read_write(engine)
            .durable_writes(true)
            .open(path.path())
            .unwrap();
        let pool = BufPool::new(4, 5000).unwrap();
        assert_eq!(pool.buf_len(), 5000);
        let mut bufs: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
        bufs.iter_mut().for_each(|buf| buf.fill(7));
        let mut writes: Vec<_> = bufs
            .iter()
            .map(|buf| WriteFrom::new(&file, 200_000, buf))
            .collect();
        write_many(&mut writes).unwrap();
        let mut last = bufs.split_off(2);
        chill(&file);
        let mut batch = Batch::new();
        bufs.into_iter()
            .for_each(|buf| batch.push(file.read_exact_at(buf, 100)));
        for (result, buf) in batch.wait() {
            assert_eq!(result.unwrap(), 5000);
            assert!(buf[..] == pattern(100_000)[100..5100]);
        }
        assert!(last.iter_mut().all(|buf| buf.iter().all(|byte| *byte == 7)));
    });
}

#[test]
fn pools_that_a_ring_cannot_know_are_told() {
    let name = "more pools than a ring has places for";
    let Some(engine) = uring_of_depth_or_skip(name, 8) else {
        return;
    };
    let pools: Vec<_> = (0..40).map(|_| BufPool::new(1, BLOCK).unwrap()).collect();
    assert_carried(
        &engine,
        pools[..2].iter().map(|pool| pool.take().unwrap()).collect(),
    );
    if !engine.stats().fallbacks.is_empty() {
        return skip(
            name,
            &format!("none is registered: {:?}", engine.stats().fallbacks),
        );
    }
    assert_carried(
        &engine,
        pools.iter().map(|pool| pool.take().unwrap()).collect(),
    );
    let fallbacks = engine.stats().fallbacks;
    assert!(
        fallbacks
            .iter()
            .any(|fallback| fallback.reason.contains("registered")),
        "{fallbacks:?}"
    );
}

/// Memory that the kernel has pinned for this process, in KiB (proc_pid_status(5), `VmPin`).
fn pinned_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("a number").trim().parse().expect("a number")
}

/// Whether one ring can take over a registration of another.
fn kernel_can_clone() -> bool {
    let rings = [2, 2].map(|entries| IoUring::new(entries).expect("there is a ring"));
    let mut page = AlignedBuf::new(BLOCK, BLOCK).expect("memory");
    let iovec = libc::iovec {
        iov_base: page.as_mut_ptr().cast(),
        iov_len: BLOCK,
    };
    for ring in &rings {
        let sparse = ring.submitter().register_buffers_sparse(2);
        sparse.expect("a table of nothing");
    }
    // SAFETY: the page lives longer than the rings that know it, and nothing is submitted.
    let known = unsafe {
        rings[0]
            .submitter()
            .register_buffers_update(0, &[iovec], None)
    };
    known.expect("a page can be registered");
    let [from, to] = &rings;
    let flags = CloneBuffersFlags::DST_REPLACE;
    let to = to.submitter();
    to.register_buffers_clone_offset(from.as_raw_fd(), 0, 1, 1, flags)
        .is_ok()
}

/// Runs `body` in a process where nobody else pins memory, with an engine with rings.
fn alone_or_skip(test: &str, body: impl FnOnce(&Engine)) {
    in_own_process(module_path!(), test, || {
        if locked_memory_is_scarce() {
            return skip(
                test,
                "locked memory is scarce, so that nothing is registered",
            );
        }
        if let Some(engine) = uring_or_skip(test) {
            body(&engine);
        }
    });
}

#[test]
fn the_rings_of_all_threads_share_one_registration() {
    const NAME: &str = "the_rings_of_all_threads_share_one_registration";
    alone_or_skip(NAME, |engine| {
        if !kernel_can_clone() {
            return skip(NAME, "this kernel cannot clone registrations");
        }
        // The rings by which that was tried let go of their page when a worker gets to it.
        until("nothing is pinned", || pinned_kib() == 0);
        let (_path, file) = file_past_the_cache(engine);
        file.write_all_at(pattern(2 * BLOCK), 0).wait().0.unwrap();
        let pool = BufPool::new(8, 1 << 20).unwrap();
        let read_two = || {
            let mut batch = Batch::new();
            (0..2).for_each(|_| batch.push(file.read_at(pool.take().unwrap(), 0)));
            assert!(batch.wait().all(|(result, _)| result.is_ok()));
        };
        let before = pinned_kib();
        read_two();
        let pool_kib = pinned_kib() - before;
        if pool_kib < 8 << 10 {
            return skip(NAME, "the pool is not registered here");
        }
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(read_two).join().unwrap();
            }
            let other = scope.spawn(|| {
                read_two();
                pinned_kib()
            });
            let pinned = other.join().unwrap();
            assert!(pinned < before + pool_kib * 3 / 2, "{pinned} KiB");
        });
        pollster::block_on(async { file.read_at(pool.take().unwrap(), 0).await.0 }).unwrap();
        assert!(pinned_kib() < before + pool_kib * 3 / 2);
    });
}

/// Reads into a pool that is then dropped, and on until the kernel has let it go. False if it is
/// not registered here.
async fn has_let_go(file: &File) -> bool {
    let aligned = || AlignedBuf::new(BLOCK, BLOCK).expect("memory");
    let (read, _) = file.read_at(aligned(), 0).await;
    assert_eq!(read.expect("it is read"), BLOCK);
    let before = pinned_kib();
    let pool = BufPool::new(8, 1 << 20).expect("memory for it");
    let buf = pool.take().expect("eight are free");
    let (read, buf) = file.read_at(buf, 0).await;
    assert_eq!(read.expect("it is read"), BLOCK);
    if pinned_kib() < before + (8 << 10) {
        return false;
    }
    drop((buf, pool));
    // A ring that is closed lets its memory go a little later.
    let dropped = Instant::now();
    while pinned_kib() > before {
        assert!(dropped.elapsed() < patience(), "it is still pinned");
        let (read, _) = file.read_at(aligned(), 0).await;
        assert_eq!(read.expect("it is read"), BLOCK);
    }
    true
}

#[test]
fn a_pool_that_is_gone_is_let_go_by_whoever_has_read_into_it() {
    const NAME: &str = "a_pool_that_is_gone_is_let_go_by_whoever_has_read_into_it";
    alone_or_skip(NAME, |engine| {
        let (_path, file) = file_past_the_cache(engine);
        file.write_all_at(pattern(BLOCK), 0).wait().0.unwrap();
        if !pollster::block_on(has_let_go(&file)) {
            return skip(NAME, "the pool is not registered here");
        }
        assert!(engine.run(has_let_go(&file)).unwrap());
        #[cfg(feature = "tokio")]
        for runtime in crate::awaited::lanes::runtimes() {
            runtime.block_on(async {
                engine.serve_on_tokio().unwrap();
                assert!(has_let_go(&file).await);
            });
        }
    });
}
